//! The way to the server: which one it is, connections to it, and one attempt of one request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockcore::backend::{Host, Together};
use lockcore::{Durability, Error, ErrorKind, Operation};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Script, TlsCertificates, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::RedisConfig;
use crate::error::{Phase, found, from_redis};
use crate::record::Answer;

/// Connections where writes wait for replicas: such a write holds up what is behind it on its connection. As many more are for
/// sessions, which are opened and renewed there and wait for nothing else: each goes by the same one. Without replicas nothing
/// waits, and one connection does.
const LANES_THAT_WAIT: usize = 16;
/// How often one attempt goes to another node, or gives a node a script that it does not know.
const HOPS: usize = 6;
/// Requests that stand ready for one connection, before others wait for room.
pub(crate) const BUFFER: usize = 1_024;

/// Requests to the node that has the namespace.
pub(crate) struct Link {
    pub(crate) config: RedisConfig,
    /// All keys of the namespace, and its channel.
    keys: [String; 9],
    pub(crate) certificates: Option<TlsCertificates>,
    /// Where writes wait, the second half is for opening and renewing sessions.
    lanes: Vec<Lane>,
    next: AtomicUsize,
    place: Mutex<Place>,
    /// Where the namespace was found last.
    pub(crate) found: watch::Sender<Option<Host>>,
}

/// What is known of the servers.
pub(crate) struct Place {
    /// Where the namespace was when last heard of, then others that may know.
    pub(crate) nodes: VecDeque<Host>,
    /// They are of one cluster.
    pub(crate) is_cluster: bool,
    pub(crate) durability: Durability,
}

/// A connection, made when it is needed.
#[derive(Default)]
struct Lane {
    connection: Mutex<Option<Connection>>,
    making: Together<Result<Connection, Error>>,
}

/// A connection to a node that takes writes, or knows who does.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) driver: MultiplexedConnection,
    pub(crate) node: Arc<Host>,
    pub(crate) since: Instant,
}

/// An answer, and how many replicas have the write, if that was asked.
type Answered = (Value, Option<u32>);

/// What to do about an error.
enum Next {
    LoadScript,
    Move(Host),
    /// The node takes no writes any more.
    FindPrimary,
    Reconnect,
    Give,
}

impl Link {
    pub(crate) fn new(config: RedisConfig, certificates: Option<TlsCertificates>) -> Self {
        let key = |name: &str| format!("{{{}}}:{name}", config.namespace);
        let lanes = if config.replicas > 0 {
            2 * LANES_THAT_WAIT
        } else {
            1
        };
        Self {
            keys: [
                "records", "writes", "reads", "sessions", "intents", "batches", "meta", "wake",
                "due",
            ]
            .map(key),
            certificates,
            lanes: std::iter::repeat_with(Lane::default).take(lanes).collect(),
            next: AtomicUsize::new(0),
            place: Mutex::new(Place {
                nodes: match config.sentinels {
                    // They say where it is.
                    Some(_) => VecDeque::new(),
                    None => config.nodes.iter().cloned().collect(),
                },
                is_cluster: false,
                durability: Durability {
                    crash: false,
                    power_loss: false,
                    failover: false,
                },
            }),
            found: watch::Sender::new(None),
            config,
        }
    }

    /// The channel on which releases and deaths are told.
    pub(crate) fn channel(&self) -> &str {
        &self.keys[7]
    }

    /// The channel on which the owners of sessions are told.
    pub(crate) fn news(&self) -> &str {
        &self.keys[3]
    }

    pub(crate) fn durability(&self) -> Durability {
        self.place().durability
    }

    /// One attempt of a script. What it wrote need not be on any replica.
    pub(crate) async fn call(
        self: &Arc<Self>,
        operation: Operation,
        script: &Script,
        arguments: &[&[u8]],
    ) -> Result<Answer, Error> {
        let (value, _) = self.attempt(operation, script, arguments, false).await?;
        Ok(Answer::new(operation, value))
    }

    /// One attempt of a script, of which `counts` says whether its answer promises something: then the configured
    /// replicas have what it wrote.
    pub(crate) async fn call_durably(
        self: &Arc<Self>,
        operation: Operation,
        script: &Script,
        arguments: &[&[u8]],
        counts: impl FnOnce(&Value) -> bool,
    ) -> Result<Answer, Error> {
        let (value, confirmed) = self.attempt(operation, script, arguments, true).await?;
        let wanted = self.config.replicas;
        match confirmed {
            Some(confirmed) if confirmed < wanted && counts(&value) => {
                let what = format!(
                    "it is done, but only {confirmed} of {wanted} replicas have confirmed it in time"
                );
                Err(found(ErrorKind::Indeterminate, operation, what))
            }
            _ => Ok(Answer::new(operation, value)),
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        operation: Operation,
        script: &Script,
        arguments: &[&[u8]],
        durably: bool,
    ) -> Result<Answered, Error> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script.get_hash()).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for argument in arguments {
            command.arg(argument);
        }
        let lane = match (self.lanes.len() / 2, operation) {
            (0, _) => 0,
            // Opened so, the connection stands when the first renewal comes.
            (half, Operation::Open | Operation::Renew) => half + part_of(arguments[0], half),
            (half, _) => self.next.fetch_add(1, Ordering::Relaxed) % half,
        };
        let mut phase = Phase::Connecting;
        let mut since = Instant::now();
        let way = (&mut phase, &mut since);
        let attempt = self.hops(operation, lane, script, &command, durably, way);
        if let Ok(done) = tokio::time::timeout(self.config.timeout, attempt).await {
            return done;
        }
        // What comes on this connection comes too late; and what has broken it has broken others that stood then. One
        // that was made since is not touched. What is under way on them goes on.
        for lane in &self.lanes {
            lane.close_older(since);
        }
        let timeout = self.config.timeout;
        Err(match phase {
            Phase::Connecting => found(
                ErrorKind::Unavailable,
                operation,
                format!("no connection within {timeout:?}"),
            ),
            Phase::Sent => found(
                ErrorKind::Indeterminate,
                operation,
                format!("no answer within {timeout:?}"),
            ),
        })
    }

    /// Sends a request, to another node where it is told so. Only an answer which says that the request was not done is
    /// followed by sending it again. `way` is how far it has come, and since when it has its connection.
    async fn hops(
        self: &Arc<Self>,
        operation: Operation,
        lane: usize,
        script: &Script,
        command: &Cmd,
        durably: bool,
        (phase, since): (&mut Phase, &mut Instant),
    ) -> Result<Answered, Error> {
        let mut hops = 0;
        loop {
            *phase = Phase::Connecting;
            let mut connection = self.connection(operation, lane).await?;
            *since = Instant::now();
            *phase = Phase::Sent;
            let error = match self.send(&mut connection.driver, command, durably).await {
                Ok(answered) => return Ok(answered),
                Err(error) => error,
            };
            hops += 1;
            match next(&error, &connection.node) {
                Next::LoadScript if hops < HOPS => {
                    *phase = Phase::Connecting;
                    let loaded = script.load_async(&mut connection.driver).await;
                    loaded.map_err(|error| from_redis(operation, Phase::Connecting, error))?;
                }
                Next::Move(node) if hops < HOPS => {
                    self.close();
                    // Only clusters move anybody.
                    self.place().is_cluster = true;
                    self.found_at(node);
                }
                Next::FindPrimary if hops < HOPS => {
                    self.close();
                    self.not_at(&connection.node);
                }
                Next::Reconnect => {
                    // Where one is broken the others may be, too; what is under way on them goes on.
                    self.close();
                    return Err(from_redis(operation, Phase::Sent, error));
                }
                _ => return Err(from_redis(operation, Phase::Sent, error)),
            }
        }
    }

    async fn send(
        &self,
        driver: &mut MultiplexedConnection,
        command: &Cmd,
        durably: bool,
    ) -> RedisResult<Answered> {
        if !durably || self.config.replicas == 0 {
            return Ok((command.query_async(driver).await?, None));
        }
        // There has to be time left for the answer, also where it is sent twice: the first time without the script.
        let wait = self.config.wait.min(self.config.timeout / 3);
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut pipeline = redis::pipe();
        pipeline
            .add_command(command.clone())
            .cmd("WAIT")
            .arg(self.config.replicas)
            .arg(wait_ms);
        let answers = pipeline.query_async::<(Value, u32)>(driver).await;
        answers
            .map(|(value, confirmed)| (value, Some(confirmed)))
            .map_err(first_error)
    }

    async fn connection(
        self: &Arc<Self>,
        operation: Operation,
        lane: usize,
    ) -> Result<Connection, Error> {
        let own = &self.lanes[lane];
        loop {
            if let Some(connection) = own.get() {
                return Ok(connection);
            }
            let begin = || {
                let link = Arc::clone(self);
                async move {
                    let connection = link.connect(operation).await?;
                    *link.lanes[lane].lock() = Some(connection.clone());
                    Ok(connection)
                }
            };
            if let Some(made) = own.making.make(self.config.timeout, begin).await {
                return made;
            }
        }
    }

    pub(crate) fn close(&self) {
        self.lanes.iter().for_each(Lane::close);
    }

    /// Closes connections to other nodes than this one.
    pub(crate) fn close_others(&self, than: &Host) {
        for lane in &self.lanes {
            lane.lock().take_if(|connection| *connection.node != *than);
        }
    }

    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespace is there, or somebody says so.
    pub(crate) fn found_at(&self, node: Host) {
        let mut place = self.place();
        place.nodes.retain(|known| *known != node);
        place.nodes.push_front(node.clone());
        self.found.send_replace(Some(node));
    }

    fn not_at(&self, node: &Host) {
        let mut place = self.place();
        if place.nodes.front() == Some(node) {
            place.nodes.rotate_left(1);
        }
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> Option<Connection> {
        self.lock().clone()
    }

    fn close(&self) {
        *self.lock() = None;
    }

    fn close_older(&self, than: Instant) {
        self.lock().take_if(|connection| connection.since <= than);
    }
}

/// In which of so many parts a session is. Its digits are random.
fn part_of(session: &[u8], parts: usize) -> usize {
    session.iter().copied().map(usize::from).sum::<usize>() % parts
}

/// What an error of a request means for the next hop.
fn next(error: &RedisError, from: &Host) -> Next {
    match error.code() {
        Some("NOSCRIPT") => Next::LoadScript,
        Some("MOVED") => moved(error, from).map_or(Next::Give, Next::Move),
        Some("READONLY" | "MASTERDOWN") => Next::FindPrimary,
        Some(_) => Next::Give,
        None => Next::Reconnect,
    }
}

/// `MOVED SLOT HOST:PORT`; without a host it is the one that we asked.
fn moved(error: &RedisError, from: &Host) -> Option<Host> {
    let (_, address) = error.detail()?.split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Host {
        host: if host.is_empty() { &from.host } else { host }.to_owned(),
        port: port.parse().ok()?,
    })
}

/// The error of a pipeline's first command, if that is the one that failed. What has failed behind it says nothing of the
/// first, which was executed.
fn first_error(error: RedisError) -> RedisError {
    match error
        .clone()
        .into_server_errors()
        .unwrap_or_default()
        .first()
    {
        Some((0, first)) => first.clone().into(),
        Some((_, later)) => {
            let later = RedisError::from(later.clone()).to_string();
            (redis::ErrorKind::Io, "the replicas were not asked", later).into()
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_slot_has_moved_to_is_read() {
        let from = Host {
            host: "a".into(),
            port: 1,
        };
        for (answer, expected) in [
            ("MOVED 3999 127.0.0.1:6381", Some("127.0.0.1:6381")),
            ("MOVED 3999 :6381", Some("a:6381")),
            ("MOVED 3999 ::1:6381", Some("[::1]:6381")),
            ("MOVED 3999 h:x", None),
            ("MOVED 3999", None),
        ] {
            let error = crate::error::answered(answer);
            let moved = moved(&error, &from).map(|address| address.to_string());
            assert_eq!(moved.as_deref(), expected, "{answer}");
        }
    }
}
