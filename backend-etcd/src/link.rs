//! The way to the cluster: which member is asked, the connection to it, and one attempt of one request.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Identity, KvClient, LeaseClient, TlsOptions, WatchOptions,
    WatchStream,
};
use lockcore::backend::{Host, Together, within};
use lockcore::{Error, ErrorKind, Operation};
use tokio::time::Instant;

use crate::config::{EtcdConfig, Given};
use crate::error::{Phase, found, from_etcd, is_of_the_login, is_of_the_member};
use crate::namespace::{Base, Heard, found_or_made};
use crate::record::{Names, Range};

/// Longest answer that is taken, in bytes.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// So often a connection that is used shows that it is alive. A server takes no more than one such sign in five seconds.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

/// Requests to one member of the cluster at a time.
pub(crate) struct Link {
    pub(crate) config: EtcdConfig,
    pub(crate) names: Names,
    tls: Option<TlsOptions>,
    place: Mutex<Place>,
    making: Together<Result<Connection, Error>>,
}

/// What is known of the servers.
pub(crate) struct Place {
    /// The one that is asked, then those that are asked when it fails.
    nodes: VecDeque<Host>,
    connection: Option<Connection>,
    /// The number of the last connection.
    last: u64,
    /// The furthest that was heard of.
    pub(crate) heard: Option<Heard>,
}

/// A connection to a member that takes requests.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    client: Client,
    pub(crate) number: u64,
    /// Of the namespace, as it was found.
    pub(crate) base: Base,
}

impl Place {
    /// It is used from now on.
    fn connected(&mut self, connection: Connection) -> Connection {
        self.last += 1;
        let number = self.last;
        let connection = Connection {
            number,
            ..connection
        };
        self.connection.insert(connection).clone()
    }
}

/// What has come of an attempt.
struct Failed {
    error: Error,
    /// Who we are has to be said again.
    of_the_login: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            of_the_login: false,
        }
    }
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
                heard: None,
            }),
            making: Together::default(),
            config,
        })
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connected(self: &Arc<Self>) -> Result<(), Error> {
        self.call(Operation::Connect, |_| async { Ok(()) }).await
    }

    /// The number of the connection that is used.
    pub(crate) fn number(&self) -> u64 {
        let place = self.place();
        place
            .connection
            .as_ref()
            .map_or(0, |connection| connection.number)
    }

    /// Begins to hear of news for owners of sessions, and if that is wanted of what is removed, from now on. Says on which
    /// connection.
    pub(crate) async fn watch(
        self: &Arc<Self>,
        releases: bool,
    ) -> Result<(WatchStream, u64), Error> {
        let Range { from, to } = self.names.watched();
        let removals = WatchOptions::new()
            .with_range(to)
            .with_filters([etcd_client::WatchFilterType::NoPut]);
        let send = |connection: Connection| {
            let removals = releases.then(|| (from.clone(), removals.clone()));
            let news = self.names.news();
            async move {
                let mut client = connection
                    .client
                    .watch_client()
                    .max_decoding_message_size(MAX_ANSWER);
                let mut stream = client.watch(news, None).await?;
                stands(&mut stream).await?;
                if let Some((from, options)) = removals {
                    stream.watch(from, Some(options)).await?;
                    stands(&mut stream).await?;
                }
                Ok((stream, connection.number))
            }
        };
        self.call(Operation::Watch, send).await
    }

    /// One attempt of anything.
    pub(crate) async fn call<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        send: impl Fn(Connection) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        self.call_with(operation, (), |connection, ()| send(connection))
            .await
    }

    /// The same with something that is sent. What is refused before it is looked at, because who we are has to be said
    /// again, is sent once more; where nobody says who they are, no copy is made for that.
    pub(crate) async fn call_with<W, T, F>(
        self: &Arc<Self>,
        operation: Operation,
        what: W,
        send: impl Fn(Connection, W) -> F + Send + Sync,
    ) -> Result<T, Error>
    where
        W: Clone + Send,
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        let until = Instant::now() + self.config.timeout;
        if self.config.auth.is_some() || self.config.client.is_some() {
            let copy = what.clone();
            let send = |connection| send(connection, copy);
            match self.attempt(operation, until, send).await {
                Ok(done) => return Ok(done),
                Err(failed) if !failed.of_the_login => return Err(failed.error),
                Err(_) => {}
            }
        }
        let send = |connection| send(connection, what);
        let attempt = self.attempt(operation, until, send).await;
        attempt.map_err(|failed| failed.error)
    }

    async fn attempt<T, F>(
        self: &Arc<Self>,
        operation: Operation,
        until: Instant,
        send: impl FnOnce(Connection) -> F + Send,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        // Others may go on with it, in another runtime.
        let connecting = within(until, pin!(self.connection(operation))).await;
        let connection = connecting.ok_or_else(|| {
            let what = format!("no connection within {:?}", self.config.timeout);
            found(ErrorKind::Unavailable, operation, what)
        })??;
        let number = connection.number;
        match within(until, pin!(send(connection))).await {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => {
                let of_the_login = is_of_the_login(&error);
                if of_the_login {
                    self.close(number);
                } else if is_of_the_member(&error) {
                    self.leave(number);
                }
                Err(Failed {
                    of_the_login,
                    error: from_etcd(operation, Phase::Sent, error),
                })
            }
            None => {
                self.leave(number);
                let what = format!("no answer within {:?}", self.config.timeout);
                Err(found(ErrorKind::Indeterminate, operation, what).into())
            }
        }
    }

    async fn connection(self: &Arc<Self>, operation: Operation) -> Result<Connection, Error> {
        loop {
            if let Some(connection) = self.current() {
                return Ok(connection);
            }
            let begin = || {
                let link = Arc::clone(self);
                async move { link.connect(operation).await }
            };
            if let Some(made) = self.making.make(self.config.timeout, begin).await {
                return made;
            }
        }
    }

    async fn connect(&self, operation: Operation) -> Result<Connection, Error> {
        let nodes: Vec<Host> = self.place().nodes.iter().cloned().collect();
        if let Some(Given(client)) = &self.config.client {
            // Who we are may have to be said again.
            let said = client.refresh_token().await;
            said.map_err(|error| from_etcd(operation, Phase::Connecting, error))?;
            let connection = self.greet(operation, Client::clone(client)).await?;
            return Ok(self.place().connected(connection));
        }
        let patience = self.config.timeout / u32::try_from(nodes.len() + 1).unwrap_or(u32::MAX);
        let mut failed: Option<Error> = None;
        for node in nodes {
            let greeted = async {
                let client = self.client_of(operation, &node).await?;
                self.greet(operation, client).await
            };
            match within(Instant::now() + patience, pin!(greeted)).await {
                Some(Ok(connection)) => {
                    let mut place = self.place();
                    while place.nodes.front() != Some(&node) {
                        place.nodes.rotate_left(1);
                    }
                    return Ok(place.connected(connection));
                }
                // What people have to fix is said rather than that another one does not answer.
                Some(Err(error)) => {
                    let worse = |failed: &Error| failed.kind() == ErrorKind::Unavailable;
                    if failed.as_ref().is_none_or(worse) {
                        failed = Some(error);
                    }
                }
                None => {}
            }
        }
        Err(failed.unwrap_or_else(|| {
            let what = format!("no server answers within {patience:?}");
            found(ErrorKind::Unavailable, operation, what)
        }))
    }

    /// A client of one member.
    async fn client_of(&self, operation: Operation, node: &Host) -> Result<Client, Error> {
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
        let client = Client::connect([url], Some(options)).await;
        client.map_err(|error| from_etcd(operation, Phase::Connecting, error))
    }

    /// Finds or makes the namespace.
    async fn greet(&self, operation: Operation, client: Client) -> Result<Connection, Error> {
        let mut kv = client.kv_client().max_decoding_message_size(MAX_ANSWER);
        let before = self.place().heard;
        let base = found_or_made(operation, &mut kv, self.names.meta(), before).await?;
        Ok(Connection {
            kv,
            lease: client.lease_client(),
            client,
            number: 0,
            base,
        })
    }

    fn current(&self) -> Option<Connection> {
        self.place().connection.clone()
    }

    /// Connects anew for what comes next, to the same member first. Says whether that connection was the last one.
    pub(crate) fn close(&self, number: u64) -> bool {
        let mut place = self.place();
        let closed = place.connection.take_if(|last| last.number == number);
        closed.is_some()
    }

    /// Connects anew for what comes next, to another member first.
    fn leave(&self, number: u64) {
        if self.close(number) {
            let nodes = &mut self.place().nodes;
            if !nodes.is_empty() {
                nodes.rotate_left(1);
            }
        }
    }

    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tls(config: &EtcdConfig) -> Result<Option<TlsOptions>, Error> {
    let own = config.ca.is_some() || config.certificate.cert.is_some() || config.auth.is_some();
    if config.client.is_some() && own {
        let what = "a client of the program has its own certificates and credentials: give them to the client";
        return Err(found(ErrorKind::Config, Operation::Connect, what));
    }
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

/// The last watch that was asked for stands. What the stream tells before is of no use to whoever waits for that.
async fn stands(stream: &mut WatchStream) -> Result<(), etcd_client::Error> {
    while let Some(told) = stream.message().await? {
        if told.canceled() {
            break;
        }
        if told.created() {
            return Ok(());
        }
    }
    Err(etcd_client::Error::WatchError("it was refused".to_owned()))
}

/// For the watches, which outlive a call.
pub(crate) type SharedLink = Arc<Link>;
