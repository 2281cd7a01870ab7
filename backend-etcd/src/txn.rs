//! One attempt of a transaction, and what it has answered.

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockcore::backend::Incarnation;
use lockcore::{Error, ErrorKind, FencingToken, Operation};

use crate::error::{found, odd_answer};
use crate::link::{Connection, Link};
use crate::namespace::{Base, Heard, LOOKS};
use crate::record::Range;

/// The store is of this incarnation, which is another one than the request is meant for. Nothing was sent.
#[derive(Debug)]
pub(crate) struct Moved(pub(crate) Incarnation);

/// What comes of a request that is meant for one incarnation.
pub(crate) type Here<T> = Result<T, Moved>;

/// What a transaction has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    operation: Operation,
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    base: Base,
    parts: std::vec::IntoIter<TxnOpResponse>,
}

impl Answer {
    pub(crate) fn odd(&self) -> Error {
        odd_answer(self.operation)
    }

    /// Passes over what the next operation has answered.
    pub(crate) fn skip(&mut self) {
        self.parts.next();
    }

    /// What the next operation has found.
    pub(crate) fn found(&mut self) -> Result<Found, Error> {
        match self.parts.next() {
            Some(TxnOpResponse::Get(mut got)) => Ok(Found {
                more: got.more(),
                pairs: got.take_kvs(),
            }),
            _ => Err(self.odd()),
        }
    }

    /// What the next operation has removed.
    pub(crate) fn removed(&mut self) -> Result<Vec<KeyValue>, Error> {
        match self.parts.next() {
            Some(TxnOpResponse::Delete(mut deleted)) => Ok(deleted.take_prev_kvs()),
            _ => Err(self.odd()),
        }
    }

    /// How many keys all that follow have removed.
    pub(crate) fn all_removed(&mut self) -> usize {
        self.each_removed().sum()
    }

    /// How many keys each that follows has removed.
    pub(crate) fn each_removed(&mut self) -> impl Iterator<Item = usize> {
        self.parts.by_ref().map(removed)
    }

    /// Whether the next operation, a transaction, has succeeded, or has found something otherwise.
    pub(crate) fn succeeded_or_found(&mut self) -> Result<bool, Error> {
        match self.parts.next() {
            Some(TxnOpResponse::Txn(done)) => {
                let found = |part: &TxnOpResponse| match part {
                    TxnOpResponse::Get(got) => !got.kvs().is_empty(),
                    _ => false,
                };
                Ok(done.succeeded() || done.op_responses().iter().any(found))
            }
            _ => Err(self.odd()),
        }
    }

    /// The incarnation that was asked, if it was asked [under the namespace](Link::under).
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.base.incarnation()
    }

    /// The token of what this has written, if it was [under the namespace](Link::under).
    pub(crate) fn token(&self) -> Result<FencingToken, Error> {
        self.base.token(self.revision).ok_or_else(|| self.odd())
    }
}

/// How many keys an operation has removed, one in a transaction of its own included.
fn removed(part: TxnOpResponse) -> usize {
    match part {
        TxnOpResponse::Delete(deleted) => usize::try_from(deleted.deleted()).unwrap_or(0),
        TxnOpResponse::Txn(done) => done.op_responses().into_iter().map(removed).sum(),
        TxnOpResponse::Put(_) | TxnOpResponse::Get(_) => 0,
    }
}

/// Some keys of a range.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) pairs: Vec<KeyValue>,
    /// There are more.
    pub(crate) more: bool,
}

impl Link {
    /// One attempt of a transaction.
    pub(crate) async fn txn(
        &self,
        operation: Operation,
        compares: Vec<Compare>,
        then: Vec<TxnOp>,
        or_else: Vec<TxnOp>,
    ) -> Result<Answer, Error> {
        let txn = Txn::new().when(compares).and_then(then).or_else(or_else);
        let send = |mut connection: Connection| {
            let txn = txn.clone();
            async move {
                let heard = self.place().heard;
                Ok((connection.kv.txn(txn).await?, connection, heard))
            }
        };
        let sent = self.call(operation, send).await;
        let (answer, connection, heard) = sent.map_err(|failed| failed.ours(operation))?;
        self.answered(operation, answer, &connection, heard)
    }

    /// One attempt of a transaction that is done only if the namespace is the one that we know, and of that incarnation,
    /// unless it is unknown. If the namespace is another one by now, that is known from now on, and it is tried again; but
    /// where nothing is to be done otherwise, it is not told from a refusal.
    pub(crate) async fn under(
        &self,
        operation: Operation,
        within: Incarnation,
        compares: impl Fn() -> Vec<Compare> + Send + Sync,
        then: impl Fn() -> Vec<TxnOp> + Send + Sync,
        or_else: impl Fn() -> Option<Vec<TxnOp>> + Send + Sync,
    ) -> Result<Here<Answer>, Error> {
        let meta = self.names.meta();
        for _ in 0..LOOKS {
            let send = |mut connection: Connection| {
                let base = connection.base;
                let is_here = !within.is_known() || within == base.incarnation();
                let known = Compare::mod_revision(meta.clone(), CompareOp::Equal, base.revision);
                let all: Vec<Compare> = [known].into_iter().chain(compares()).collect();
                let instead = or_else().map(|instead| {
                    let look = TxnOp::get(meta.clone(), None);
                    [look].into_iter().chain(instead).collect()
                });
                let instead: Vec<TxnOp> = instead.unwrap_or_default();
                let txn = Txn::new().when(all).and_then(then()).or_else(instead);
                async move {
                    if !is_here {
                        return Ok(Err(Moved(base.incarnation())));
                    }
                    let heard = self.place().heard;
                    Ok(Ok((connection.kv.txn(txn).await?, connection, heard)))
                }
            };
            let sent = self.call(operation, send).await;
            let (answer, connection, heard) = match sent.map_err(|failed| failed.ours(operation))? {
                Ok(sent) => sent,
                Err(moved) => return Ok(Err(moved)),
            };
            let mut answer = self.answered(operation, answer, &connection, heard)?;
            if !answer.succeeded && answer.parts.len() > 0 {
                let meta = answer.found()?.pairs;
                let now = meta.first().map(KeyValue::mod_revision);
                if now != Some(connection.base.revision) {
                    self.close(connection.number);
                    continue;
                }
            }
            return Ok(Ok(answer));
        }
        let what = "the namespace is made and removed again and again";
        Err(found(ErrorKind::Unavailable, operation, what))
    }

    /// An answer, unless it is of another store than the connection was made to, or of an older state than was heard of
    /// before the request was sent: the driver connects by itself to what is there in the place of a store. Who connects
    /// anew finds out where it is.
    fn answered(
        &self,
        operation: Operation,
        answer: TxnResponse,
        connection: &Connection,
        before: Option<Heard>,
    ) -> Result<Answer, Error> {
        let base = connection.base;
        let header = answer.header().ok_or_else(|| odd_answer(operation))?;
        let (cluster, revision) = (header.cluster_id(), header.revision());
        let heard = Heard { base, revision };
        if cluster != base.cluster || before.is_some_and(|before| heard.is_older_than(before)) {
            self.close(connection.number);
            let what = "the store is another one, or has gone back to an older state; the request may have had an effect";
            return Err(found(ErrorKind::Indeterminate, operation, what));
        }
        let mut place = self.place();
        if place
            .heard
            .is_none_or(|before| before.reach() < heard.reach())
        {
            place.heard = Some(heard);
        }
        drop(place);
        Ok(Answer {
            operation,
            succeeded: answer.succeeded(),
            revision,
            base,
            parts: answer.op_responses().into_iter(),
        })
    }

    /// Some keys of a range, up to a limit; 0 is none.
    pub(crate) async fn get(
        &self,
        operation: Operation,
        range: &Range,
        limit: usize,
    ) -> Result<(Found, i64), Error> {
        let look = vec![get(range, limit)];
        let mut answer = self.txn(operation, Vec::new(), look, Vec::new()).await?;
        Ok((answer.found()?, answer.revision))
    }

    /// The same without their values.
    pub(crate) async fn keys(
        &self,
        operation: Operation,
        range: &Range,
        limit: usize,
    ) -> Result<Found, Error> {
        let look = vec![keys(range, limit)];
        let mut answer = self.txn(operation, Vec::new(), look, Vec::new()).await?;
        answer.found()
    }
}

/// An operation that reads some keys of a range, up to a limit; 0 is none.
pub(crate) fn get(range: &Range, limit: usize) -> TxnOp {
    TxnOp::get(range.from.clone(), Some(some_of(range, limit)))
}

/// The same without their values.
pub(crate) fn keys(range: &Range, limit: usize) -> TxnOp {
    let options = some_of(range, limit).with_keys_only();
    TxnOp::get(range.from.clone(), Some(options))
}

fn some_of(range: &Range, limit: usize) -> GetOptions {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    GetOptions::new()
        .with_range(range.to.clone())
        .with_limit(limit)
}
