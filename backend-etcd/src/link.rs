//! The way to the cluster: which member is asked, the connection to it, and one attempt of one request.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, GetOptions, Identity, KeyValue,
    KvClient, LeaseClient, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use lockcore::backend::Host;
use lockcore::{Error, ErrorKind, FencingToken, Operation};
use tokio::time::Instant;

use crate::config::EtcdConfig;
use crate::error::{Phase, found, from_etcd, is_of_the_login, is_of_the_member, odd_answer};
use crate::record::{Base, Names, Range};

/// Longest answer that is taken, in bytes.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// So often a connection that is used shows that it is alive. A server takes no more than one such sign in five seconds.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// How often the namespace is looked for again, where others make or remove it meanwhile.
const LOOKS: usize = 5;

/// Requests to one member of the cluster at a time.
pub(crate) struct Link {
    pub(crate) config: EtcdConfig,
    pub(crate) names: Names,
    tls: Option<TlsOptions>,
    place: Mutex<Place>,
    connecting: tokio::sync::Mutex<()>,
}

/// What is known of the servers.
struct Place {
    /// The one that is asked, then those that are asked when it fails.
    nodes: VecDeque<Host>,
    connection: Option<Connection>,
    /// The number of the last connection.
    last: u64,
    /// The greatest revision that was heard of.
    newest: i64,
}

/// A connection to a member that takes requests.
#[derive(Clone)]
pub(crate) struct Connection {
    kv: KvClient,
    lease: LeaseClient,
    client: Client,
    number: u64,
    base: Base,
}

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

    /// The token of what this has written, if it was [under the namespace](Link::namespace).
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
    pub(crate) fn new(config: EtcdConfig) -> Result<Self, Error> {
        Ok(Self {
            names: Names::new(&config.namespace),
            tls: tls(&config)?,
            place: Mutex::new(Place {
                nodes: config.nodes.iter().cloned().collect(),
                connection: None,
                last: 0,
                newest: 0,
            }),
            connecting: tokio::sync::Mutex::default(),
            config,
        })
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connected(&self) -> Result<(), Error> {
        self.call(Operation::Connect, |_| async { Ok(()) })
            .await
            .map_err(|failed| failed.ours(Operation::Connect))
    }

    /// The number of the connection that is used.
    pub(crate) fn number(&self) -> u64 {
        let place = self.place();
        place
            .connection
            .as_ref()
            .map_or(0, |connection| connection.number)
    }

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
                let newest = self.place().newest;
                let answer = connection.kv.txn(txn).await?;
                Ok((answer, connection.base, connection.number, newest))
            }
        };
        let (answer, base, number, newest) = self
            .call(operation, send)
            .await
            .map_err(|failed| failed.ours(operation))?;
        let revision = answer.header().map(|header| header.revision());
        let revision = revision.ok_or_else(|| odd_answer(operation))?;
        self.not_older(operation, revision, newest, number)?;
        self.heard_of(revision);
        Ok(Answer {
            operation,
            succeeded: answer.succeeded(),
            revision,
            base,
            parts: answer.op_responses().into_iter(),
        })
    }

    /// One attempt of a transaction that gives a token: it is done only if the namespace is the one that we know, which it
    /// is asked for as the first thing otherwise, if there is something else to do. If it is another one by now, that is
    /// known from now on, and it is tried again.
    pub(crate) async fn txn_with_token(
        &self,
        operation: Operation,
        compares: impl Fn() -> Vec<Compare> + Send + Sync,
        then: impl Fn() -> Vec<TxnOp> + Send + Sync,
        or_else: impl Fn() -> Vec<TxnOp> + Send + Sync,
    ) -> Result<Answer, Error> {
        let meta = self.names.meta();
        for _ in 0..LOOKS {
            let send = |mut connection: Connection| {
                let base = connection.base;
                let known = Compare::mod_revision(meta.clone(), CompareOp::Equal, base.revision);
                let mut all = vec![known];
                all.extend(compares());
                let mut instead = or_else();
                if !instead.is_empty() {
                    instead.insert(0, TxnOp::get(meta.clone(), None));
                }
                let txn = Txn::new().when(all).and_then(then()).or_else(instead);
                async move {
                    let newest = self.place().newest;
                    Ok((connection.kv.txn(txn).await?, connection, newest))
                }
            };
            let (answer, connection, newest) = self
                .call(operation, send)
                .await
                .map_err(|failed| failed.ours(operation))?;
            let revision = answer.header().map(|header| header.revision());
            let mut answer = Answer {
                operation,
                succeeded: answer.succeeded(),
                revision: revision.ok_or_else(|| odd_answer(operation))?,
                base: connection.base,
                parts: answer.op_responses().into_iter(),
            };
            self.not_older(operation, answer.revision, newest, connection.number)?;
            if !answer.succeeded && answer.parts.len() > 0 {
                let meta = answer.found()?.pairs;
                let now = meta.first().map(KeyValue::mod_revision);
                if now != Some(connection.base.revision) {
                    self.close(connection.number);
                    continue;
                }
            }
            self.heard_of(answer.revision);
            return Ok(answer);
        }
        let what = "the namespace is made and removed again and again";
        Err(found(ErrorKind::Unavailable, operation, what))
    }

    /// Some keys of a range, up to a limit; 0 is none.
    pub(crate) async fn get(
        &self,
        operation: Operation,
        range: &Range,
        limit: usize,
    ) -> Result<(Found, i64), Error> {
        let mut answer = self
            .txn(operation, Vec::new(), vec![get(range, limit)], Vec::new())
            .await?;
        Ok((answer.found()?, answer.revision))
    }

    /// The same without their values.
    pub(crate) async fn keys(
        &self,
        operation: Operation,
        range: &Range,
        limit: usize,
    ) -> Result<Found, Error> {
        let look = TxnOp::get(
            range.from.clone(),
            Some(some_of(range, limit).with_keys_only()),
        );
        let mut answer = self
            .txn(operation, Vec::new(), vec![look], Vec::new())
            .await?;
        answer.found()
    }

    /// A lease of at least that long. What the server makes of it is at least 2 s.
    pub(crate) async fn grant(&self, operation: Operation, ttl: Duration) -> Result<i64, Error> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        let send = |mut connection: Connection| async move {
            Ok(connection.lease.grant(seconds, None).await?.id())
        };
        self.call(operation, send)
            .await
            .map_err(|failed| failed.ours(operation))
    }

    /// Ends a lease on which nothing is any more. It would end by itself.
    pub(crate) async fn revoke(&self, operation: Operation, lease: i64) {
        let send = |mut connection: Connection| async move {
            connection.lease.revoke(lease).await.map(drop)
        };
        let _ = self.call(operation, send).await;
    }

    /// Begins to hear of what is removed, from now on. Says on which connection.
    pub(crate) async fn watch(&self) -> Result<(WatchStream, u64), Error> {
        let Range { from, to } = self.names.watched();
        let options = WatchOptions::new()
            .with_range(to)
            .with_filters([etcd_client::WatchFilterType::NoPut]);
        let send = |connection: Connection| {
            let (from, options) = (from.clone(), options.clone());
            async move {
                let mut client = connection
                    .client
                    .watch_client()
                    .max_decoding_message_size(MAX_ANSWER);
                let mut stream = client.watch(from, Some(options)).await?;
                let stands = match stream.message().await? {
                    Some(first) => first.created() && !first.canceled(),
                    None => false,
                };
                if stands {
                    Ok((stream, connection.number))
                } else {
                    Err(etcd_client::Error::WatchError("it was refused".to_owned()))
                }
            }
        };
        self.call(Operation::Watch, send)
            .await
            .map_err(|failed| failed.ours(Operation::Watch))
    }

    /// One attempt of anything. What is refused before it is looked at, because who we are has to be said again, is sent
    /// once more.
    async fn call<T, F>(
        &self,
        operation: Operation,
        send: impl Fn(Connection) -> F + Send,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        let until = Instant::now() + self.config.timeout;
        let mut again = false;
        loop {
            let connecting = tokio::time::timeout_at(until, self.connection(operation)).await;
            let connection = match connecting {
                Ok(connection) => connection.map_err(Failed::Ours)?,
                Err(_) => return Err(Failed::Late(Phase::Connecting, self.config.timeout)),
            };
            let number = connection.number;
            match tokio::time::timeout_at(until, send(connection)).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) if is_of_the_login(&error) => {
                    self.close(number);
                    if std::mem::replace(&mut again, true) {
                        return Err(Failed::Driver(error));
                    }
                }
                Ok(Err(error)) => {
                    if is_of_the_member(&error) {
                        self.leave(number);
                    }
                    return Err(Failed::Driver(error));
                }
                Err(_) => {
                    self.leave(number);
                    return Err(Failed::Late(Phase::Sent, self.config.timeout));
                }
            }
        }
    }

    async fn connection(&self, operation: Operation) -> Result<Connection, Error> {
        match self.current() {
            Some(connection) => Ok(connection),
            // Of what is seldom needed no request has to carry the room.
            None => Box::pin(self.connect(operation)).await,
        }
    }

    async fn connect(&self, operation: Operation) -> Result<Connection, Error> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let nodes: Vec<Host> = self.place().nodes.iter().cloned().collect();
        let patience = self.config.timeout / u32::try_from(nodes.len() + 1).unwrap_or(u32::MAX);
        let mut failed: Option<Error> = None;
        for node in nodes {
            match tokio::time::timeout(patience, self.greet(operation, &node)).await {
                Ok(Ok(connection)) => {
                    let mut place = self.place();
                    while place.nodes.front() != Some(&node) {
                        place.nodes.rotate_left(1);
                    }
                    place.last += 1;
                    let connection = Connection {
                        number: place.last,
                        ..connection
                    };
                    place.connection = Some(connection.clone());
                    return Ok(connection);
                }
                // What people have to mend is said rather than that another one does not answer.
                Ok(Err(error)) => {
                    let worse = |failed: &Error| failed.kind() == ErrorKind::Unavailable;
                    if failed.as_ref().is_none_or(worse) {
                        failed = Some(error);
                    }
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| {
            let what = format!("no server answers within {patience:?}");
            found(ErrorKind::Unavailable, operation, what)
        }))
    }

    /// Connects to one member, and finds or makes the namespace.
    async fn greet(&self, operation: Operation, node: &Host) -> Result<Connection, Error> {
        let failed = |error| from_etcd(operation, Phase::Connecting, error);
        let mut options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true)
            .with_keep_alive(ALIVE_EVERY, self.config.timeout);
        if let Some(auth) = &self.config.auth {
            options = options.with_user(&auth.user, &auth.password);
        }
        let scheme = match &self.tls {
            Some(tls) => {
                options = options.with_tls(tls.clone());
                "https"
            }
            None => "http",
        };
        let url = format!("{scheme}://{node}");
        let client = Client::connect([url], Some(options))
            .await
            .map_err(failed)?;
        let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
        let base = self.namespace(operation, &mut kv).await?;
        Ok(Connection {
            kv,
            lease: client.lease_client(),
            client,
            number: 0,
            base,
        })
    }

    /// The base of the namespace's tokens, after it was made if need be; of a store that has gone back, a greater one.
    async fn namespace(&self, operation: Operation, kv: &mut KvClient) -> Result<Base, Error> {
        let failed = |error| from_etcd(operation, Phase::Connecting, error);
        let meta = self.names.meta();
        for _ in 0..LOOKS {
            let mut got = kv.get(meta.clone(), None).await.map_err(failed)?;
            let revision = got.header().map_or(0, |header| header.revision());
            let newest = self.place().newest;
            let (seen, created_ms) = match got.take_kvs().first() {
                None => (0, unix_ms()),
                Some(meta) => {
                    let base = Base::read(meta).ok_or_else(|| {
                        let what = "the namespace is of another version: use another namespace, or a newer lockkeeper";
                        found(ErrorKind::Config, operation, what)
                    })?;
                    if revision >= newest {
                        return Ok(base);
                    }
                    (base.revision, unix_ms().max(base.after(newest)))
                }
            };
            let unchanged = Compare::mod_revision(meta.clone(), CompareOp::Equal, seen);
            let put = TxnOp::put(meta.clone(), Base::value(created_ms), None);
            let txn = Txn::new().when([unchanged]).and_then([put]);
            let made = kv.txn(txn).await.map_err(failed)?;
            if made.succeeded() {
                // What was heard of before is gone.
                self.place().newest = 0;
            }
        }
        let what = "the namespace is made and removed again and again";
        Err(found(ErrorKind::Unavailable, operation, what))
    }

    fn current(&self) -> Option<Connection> {
        self.place().connection.clone()
    }

    fn heard_of(&self, revision: i64) {
        let mut place = self.place();
        place.newest = place.newest.max(revision);
    }

    /// Refuses an answer that is older than what was known before the request was sent: the store has gone back, and the
    /// driver has connected to it by itself. Whoever connects anew raises the base of tokens.
    fn not_older(
        &self,
        operation: Operation,
        revision: i64,
        newest: i64,
        number: u64,
    ) -> Result<(), Error> {
        if revision >= newest {
            return Ok(());
        }
        self.close(number);
        let what = "the store has gone back to an older state; the request may have had an effect";
        Err(found(ErrorKind::Indeterminate, operation, what))
    }

    /// Connects anew for what comes next, to the same member first.
    fn close(&self, number: u64) {
        let mut place = self.place();
        if place
            .connection
            .as_ref()
            .is_some_and(|connection| connection.number == number)
        {
            place.connection = None;
        }
    }

    /// Connects anew for what comes next, to another member first.
    fn leave(&self, number: u64) {
        let mut place = self.place();
        if place
            .connection
            .as_ref()
            .is_some_and(|connection| connection.number == number)
        {
            place.connection = None;
            place.nodes.rotate_left(1);
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why an attempt failed.
enum Failed {
    Ours(Error),
    Driver(etcd_client::Error),
    Late(Phase, Duration),
}

impl Failed {
    fn ours(self, operation: Operation) -> Error {
        match self {
            Failed::Ours(error) => error,
            Failed::Driver(error) => from_etcd(operation, Phase::Sent, error),
            Failed::Late(Phase::Connecting, timeout) => {
                let what = format!("no connection within {timeout:?}");
                found(ErrorKind::Unavailable, operation, what)
            }
            Failed::Late(Phase::Sent, timeout) => {
                let what = format!("no answer within {timeout:?}");
                found(ErrorKind::Indeterminate, operation, what)
            }
        }
    }
}

/// An operation that reads some keys of a range, up to a limit; 0 is none.
pub(crate) fn get(range: &Range, limit: usize) -> TxnOp {
    TxnOp::get(range.from.clone(), Some(some_of(range, limit)))
}

fn some_of(range: &Range, limit: usize) -> GetOptions {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    GetOptions::new()
        .with_range(range.to.clone())
        .with_limit(limit)
}

/// The wall clock, for people, and for the base of tokens.
pub(crate) fn unix_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "people read it; and tokens begin above those of a namespace of that name that is gone"
    )]
    let now = SystemTime::now();
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn tls(config: &EtcdConfig) -> Result<Option<TlsOptions>, Error> {
    if !config.tls {
        return Ok(None);
    }
    let read = |path: &std::path::PathBuf| {
        std::fs::read(path).map_err(|error| {
            let what = format!("the file {} cannot be read", path.display());
            found(ErrorKind::Config, Operation::Connect, what).with_source(error)
        })
    };
    let mut tls = TlsOptions::new();
    tls = match &config.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => tls.with_enabled_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.certificate.cert, &config.certificate.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(Some(tls))
}

/// For the watches, which outlive a call.
pub(crate) type SharedLink = Arc<Link>;
