//! One attempt of a transaction, and what it has answered.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use lockcore::backend::Incarnation;
use lockcore::{Error, ErrorKind, FencingToken, Operation};

use crate::error::{found, odd_answer};
use crate::link::{Connection, Link};
use crate::namespace::{Base, Heard, LOOKS, NEVER_THERE};
use crate::record::{Range, is_waiter};

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
                count: usize::try_from(got.count()).unwrap_or(0),
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

    /// How many holders each that follows has removed, where what may have waited is told with its value.
    pub(crate) fn each_holder_removed(&mut self) -> impl Iterator<Item = usize> {
        self.parts.by_ref().map(holders_removed)
    }

    /// Whether the next operation, a transaction, has succeeded, or has found a holder otherwise, who does not wait.
    pub(crate) fn done_or_holds(&mut self) -> Result<bool, Error> {
        match self.parts.next() {
            Some(TxnOpResponse::Txn(done)) => {
                let holds = |part: &TxnOpResponse| match part {
                    TxnOpResponse::Get(got) => got.kvs().iter().any(|it| !is_waiter(it.value())),
                    _ => false,
                };
                Ok(done.succeeded() || done.op_responses().iter().any(holds))
            }
            _ => Err(self.odd()),
        }
    }

    /// Whether the next operation, a transaction, has succeeded, or one that it has in its place otherwise.
    pub(crate) fn done(&mut self) -> Result<bool, Error> {
        match self.parts.next() {
            Some(TxnOpResponse::Txn(done)) => {
                let instead = |part: &TxnOpResponse| match part {
                    TxnOpResponse::Txn(done) => done.succeeded(),
                    _ => false,
                };
                Ok(done.succeeded() || done.op_responses().iter().any(instead))
            }
            _ => Err(self.odd()),
        }
    }

    /// The incarnation that was asked, if it was asked [under the namespace](Way::under).
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.base.incarnation()
    }

    /// The token of what this has written, if it was [under the namespace](Way::under).
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

/// The same without those who only waited.
fn holders_removed(part: TxnOpResponse) -> usize {
    match part {
        TxnOpResponse::Delete(mut deleted) => {
            let told = deleted.take_prev_kvs();
            let waited = told.iter().filter(|pair| is_waiter(pair.value())).count();
            let all = usize::try_from(deleted.deleted()).unwrap_or(0);
            all.saturating_sub(waited)
        }
        TxnOpResponse::Txn(done) => done.op_responses().into_iter().map(holders_removed).sum(),
        TxnOpResponse::Put(_) | TxnOpResponse::Get(_) => 0,
    }
}

/// Some keys of a range.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) pairs: Vec<KeyValue>,
    /// There are more.
    pub(crate) more: bool,
    /// How many there are in all.
    pub(crate) count: usize,
}

/// The way to the store for one operation, which errors name.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) link: &'a Arc<Link>,
    pub(crate) operation: Operation,
}

impl Way<'_> {
    /// Our own finding.
    pub(crate) fn error(self, kind: ErrorKind, what: &'static str) -> Error {
        found(kind, self.operation, what)
    }

    /// The error of what others change as often as it is looked at. Nothing was done.
    pub(crate) fn never_still(self) -> Error {
        self.error(
            ErrorKind::Unavailable,
            "others were quicker, again and again",
        )
    }

    /// One attempt of what is done in any case.
    pub(crate) async fn all(self, then: Vec<TxnOp>) -> Result<Answer, Error> {
        self.txn(Vec::new(), then, Vec::new()).await
    }

    /// One attempt of a transaction.
    pub(crate) async fn txn(
        self,
        compares: Vec<Compare>,
        then: Vec<TxnOp>,
        or_else: Vec<TxnOp>,
    ) -> Result<Answer, Error> {
        let txn = Txn::new().when(compares).and_then(then).or_else(or_else);
        let send = |mut connection: Connection, txn| async move {
            let heard = self.link.place().heard;
            Ok((connection.kv.txn(txn).await?, connection, heard))
        };
        let sent = self.link.call_with(self.operation, txn, send);
        let (answer, connection, heard) = sent.await?;
        self.answered(answer, &connection, heard)
    }

    /// One attempt of a transaction that is done only if the namespace is the one that we know, and of that incarnation,
    /// unless it is unknown. If the namespace is another one by now, that is known from now on, and it is tried again; but
    /// where nothing is to be done otherwise, it is not told from a refusal.
    pub(crate) async fn under(
        self,
        within: Incarnation,
        compares: impl Fn() -> Vec<Compare> + Send + Sync,
        then: impl Fn() -> Vec<TxnOp> + Send + Sync,
        or_else: impl Fn() -> Option<Vec<TxnOp>> + Send + Sync,
    ) -> Result<Here<Answer>, Error> {
        let meta = self.link.names.meta();
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
                    let heard = self.link.place().heard;
                    Ok(Ok((connection.kv.txn(txn).await?, connection, heard)))
                }
            };
            let (answer, connection, heard) = match self.link.call(self.operation, send).await? {
                Ok(sent) => sent,
                Err(moved) => return Ok(Err(moved)),
            };
            let mut answer = self.answered(answer, &connection, heard)?;
            if !answer.succeeded && answer.parts.len() > 0 {
                let meta = answer.found()?.pairs;
                let now = meta.first().map(KeyValue::mod_revision);
                if now != Some(connection.base.revision) {
                    self.link.close(connection.number);
                    continue;
                }
            }
            return Ok(Ok(answer));
        }
        Err(self.error(ErrorKind::Unavailable, NEVER_THERE))
    }

    /// An answer, unless it is of another store than the connection was made to, or of an older state than was heard of
    /// before the request was sent: the driver connects by itself to what is there in the place of a store. Who connects
    /// anew finds out where it is.
    fn answered(
        self,
        answer: TxnResponse,
        connection: &Connection,
        before: Option<Heard>,
    ) -> Result<Answer, Error> {
        let base = connection.base;
        let operation = self.operation;
        let header = answer.header().ok_or_else(|| odd_answer(operation))?;
        let (cluster, revision) = (header.cluster_id(), header.revision());
        let heard = Heard { base, revision };
        if cluster != base.cluster || before.is_some_and(|before| heard.is_older_than(before)) {
            self.link.close(connection.number);
            let what = "the store is another one, or has gone back to an older state; the request may have had an effect";
            return Err(self.error(ErrorKind::Indeterminate, what));
        }
        let mut place = self.link.place();
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

    /// Some keys of a range, up to a limit; 0 is none. With the revision that they are of.
    pub(crate) async fn get(self, range: &Range, limit: usize) -> Result<(Found, i64), Error> {
        let mut answer = self.all(vec![get(range, limit)]).await?;
        Ok((answer.found()?, answer.revision))
    }

    /// A lease of at least that long. What the server makes of it is at least 2 s.
    pub(crate) async fn grant(self, ttl: Duration) -> Result<i64, Error> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let send = |mut connection: Connection| async move {
            Ok(connection.lease.grant(seconds, None).await?.id())
        };
        self.link.call(self.operation, send).await
    }

    /// What is left of a lease; `None` if it has ended.
    pub(crate) async fn left(self, lease: i64) -> Result<Option<Duration>, Error> {
        let send = |mut connection: Connection| async move {
            Ok(connection.lease.time_to_live(lease, None).await?.ttl())
        };
        let seconds = self.link.call(self.operation, send).await?;
        Ok(u64::try_from(seconds).ok().map(Duration::from_secs))
    }

    /// Ends a lease on which nothing is any more. It would end by itself.
    pub(crate) async fn revoke(self, lease: i64) {
        let send = |mut connection: Connection| async move {
            connection.lease.revoke(lease).await.map(drop)
        };
        let _ = self.link.call(self.operation, send).await;
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

/// How many keys of a range there are.
pub(crate) fn count(range: &Range) -> TxnOp {
    TxnOp::get(
        range.from.clone(),
        Some(some_of(range, 0).with_count_only()),
    )
}

fn some_of(range: &Range, limit: usize) -> GetOptions {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    GetOptions::new()
        .with_range(range.to.clone())
        .with_limit(limit)
}

/// That a key is there.
pub(crate) fn present(key: Vec<u8>) -> Compare {
    Compare::create_revision(key, CompareOp::Greater, 0)
}

/// That a key is not there.
pub(crate) fn absent(key: Vec<u8>) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

/// That no key of a range is there.
pub(crate) fn nobody(range: &Range) -> Compare {
    absent(range.from.clone()).with_range(range.to.clone())
}

/// That a key is as a revision has written it.
pub(crate) fn as_seen(key: Vec<u8>, revision: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// That nothing in a range was written after a revision.
pub(crate) fn not_since(range: &Range, revision: i64) -> Compare {
    Compare::mod_revision(range.from.clone(), CompareOp::Less, revision + 1)
        .with_range(range.to.clone())
}
