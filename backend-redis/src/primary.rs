//! Which server takes the writes: of the hosts of the URL, of a cluster's nodes, or by what sentinels say.

use std::collections::HashMap;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use lockcore::backend::{Host, Standing, within};
use lockcore::{Error, ErrorKind, Operation};
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, RedisResult, Value,
};
use tokio::time::{Instant, timeout};

use crate::config::{Auth, Given, RedisConfig, Sentinels};
use crate::error::{Phase, found, from_redis};
use crate::link::{BUFFER, Connection, Link};
use crate::server::{Server, misplaced};

/// After so long without a word the system shows that a connection is used.
const ALIVE_EVERY: Duration = Duration::from_secs(60);
/// How often all are asked again which of them is the primary.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// Asks again and again which server is the primary, where more than one can be it: an old one that was cut off goes on
/// with those whom it still reaches, and does not know. The nodes of a cluster say so themselves.
pub(crate) fn asking(link: &Arc<Link>) -> Option<Standing> {
    let several = link.config.sentinels.is_some() || link.config.nodes.len() > 1;
    let asks = several && !link.place().is_cluster;
    let link = Arc::clone(link);
    asks.then(|| Standing::begin(move || Box::pin(ask_again(Arc::clone(&link)))))
}

async fn ask_again(link: Arc<Link>) {
    loop {
        tokio::time::sleep(ASKED_AGAIN).await;
        let asked = timeout(link.config.timeout, link.connect(Operation::Connect)).await;
        match asked {
            Ok(Ok(found)) => link.close_others(&found.node),
            // Two say so. Whoever asks next is told.
            Ok(Err(error)) if error.kind() == ErrorKind::Config => link.close(),
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

/// A host, and what it answered.
type Asked<T> = (Host, Result<T, Error>);
/// The number of the latest failover, and where the primary is, if it is known.
type Named = (u64, Option<(String, u16)>);
/// A server, and a connection to it.
type Greeted = (MultiplexedConnection, Server);

impl Link {
    /// Connects to the node that takes the writes, or to one of its cluster, which knows who does.
    pub(crate) async fn connect(&self, operation: Operation) -> Result<Connection, Error> {
        let (known, is_cluster) = {
            let place = self.place();
            let nodes: Vec<Host> = place.nodes.iter().cloned().collect();
            (nodes, place.is_cluster)
        };
        let (node, (mut driver, server)) = match &self.config.sentinels {
            Some(sentinels) => {
                let node = self.named(operation, sentinels).await?;
                let asked = self.greet_all(operation, slice::from_ref(&node)).await;
                let primary = one_primary(operation, asked)?;
                if primary.1.1.is_replica {
                    let what = format!(
                        "the sentinels name {node}, which is a replica: a failover may be under way"
                    );
                    return Err(found(ErrorKind::Unavailable, operation, what));
                }
                primary
            }
            // Where the namespace was when last heard of, before others that may know.
            None if is_cluster => {
                let asked = self.greet_all(operation, &known[..1]).await;
                match one_primary(operation, asked) {
                    Err(_) if known.len() > 1 => {
                        let asked = self.greet_all(operation, &known[1..]).await;
                        one_primary(operation, asked)?
                    }
                    first => first?,
                }
            }
            None => one_primary(operation, self.greet_all(operation, &known).await)?,
        };
        server.refuse(operation)?;
        if self.config.replicas > 0 {
            // Whether we may, before anything depends on it.
            let mut wait = redis::cmd("WAIT");
            let may = wait.arg(0).arg(1).query_async::<Value>(&mut driver).await;
            may.map_err(|error| from_redis(operation, Phase::Connecting, error))?;
        }
        let mut place = self.place();
        for other in server.nodes.iter().filter(|other| !known.contains(other)) {
            place.nodes.push_back(other.clone());
        }
        place.is_cluster |= server.is_cluster;
        place.durability = server.durability(self.config.replicas);
        drop(place);
        self.found_at(node.clone());
        Ok(Connection {
            driver,
            node: Arc::new(node),
            since: Instant::now(),
        })
    }

    async fn greet_all(&self, operation: Operation, nodes: &[Host]) -> Vec<Asked<Greeted>> {
        // Any node of a cluster tells which one has the namespace.
        let enough = |(_, server): &Greeted| server.is_cluster;
        let greet = |node| self.greet(node).boxed();
        self.ask_all(operation, nodes, greet, enough).await
    }

    async fn greet(&self, node: Host) -> RedisResult<Greeted> {
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(BUFFER);
        let mut driver = self.open(&node, self.us(), config).await?;
        let server = Server::ask(&mut driver).await?;
        Ok((driver, server))
    }

    /// Where the primary is, as the sentinel that knows of the latest failover says.
    async fn named(&self, operation: Operation, sentinels: &Sentinels) -> Result<Host, Error> {
        let ask = |sentinel| self.ask_sentinel(sentinel, sentinels).boxed();
        let hosts = &self.config.nodes;
        let asked = self.ask_all(operation, hosts, ask, |_| false).await;
        let mut latest: Option<(u64, Host)> = None;
        let mut failed: Option<Error> = None;
        for (sentinel, answer) in asked {
            let error = match answer {
                Ok((epoch, Some((host, port)))) => {
                    if latest.as_ref().is_none_or(|(known, _)| *known < epoch) {
                        latest = Some((epoch, Host { host, port }));
                    }
                    continue;
                }
                Ok((_, None)) => {
                    let name = &sentinels.name;
                    let what =
                        format!("the sentinel {sentinel} knows no primary that is named {name:?}");
                    misplaced(operation, what)
                }
                Err(error) if error.kind() == ErrorKind::Unauthorized => {
                    let what = format!(
                        "the sentinel {sentinel} refuses us: sentinel_user and sentinel_password are for sentinels, \
                         and what stands before the hosts is for servers"
                    );
                    found(ErrorKind::Unauthorized, operation, what).with_source(error)
                }
                Err(error) => error,
            };
            failed = Some(said_rather(failed, error));
        }
        match (latest, failed) {
            (Some((_, node)), _) => Ok(node),
            (None, error) => Err(error.expect("a configuration has a host")),
        }
    }

    /// The number of the latest failover that a sentinel knows of, and where the primary is.
    async fn ask_sentinel(&self, sentinel: Host, of: &Sentinels) -> RedisResult<Named> {
        let us = who(of.auth.as_ref());
        let config = AsyncConnectionConfig::new();
        let mut driver = self.open(&sentinel, us, config).await?;
        let mut pipeline = redis::pipe();
        for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            pipeline.cmd("SENTINEL").arg(question).arg(&of.name);
        }
        let answers: [RedisResult<Value>; 2] =
            pipeline.ignore_errors().query_async(&mut driver).await?;
        let [address, more] = answers;
        // Who may not ask for more goes by the address alone.
        let more = more.map(redis::from_redis_value::<HashMap<String, String>>);
        let more = more.ok().and_then(Result::ok).unwrap_or_default();
        let epoch = more.get("config-epoch").and_then(|it| it.parse().ok());
        Ok((epoch.unwrap_or(0), redis::from_redis_value(address?)?))
    }

    /// Asks all at once. When one has answered, the others have so long as a fifth of the time-out; when one says
    /// `enough`, none has.
    async fn ask_all<'a, T>(
        &'a self,
        operation: Operation,
        nodes: &[Host],
        ask: impl Fn(Host) -> BoxFuture<'a, RedisResult<T>>,
        enough: impl Fn(&T) -> bool,
    ) -> Vec<Asked<T>> {
        // Some ask twice, one after the other.
        let patience = self.config.timeout * 2 / 5;
        let mut until = Instant::now() + patience;
        let asked = nodes.iter().cloned().enumerate();
        let asked = asked.map(|(at, node)| ask(node).map(move |answer| (at, answer)));
        let mut asking: FuturesUnordered<_> = asked.collect();
        let mut answers: Vec<Option<Result<T, Error>>> = nodes.iter().map(|_| None).collect();
        while let Some(Some((at, answer))) = within(until, asking.next()).await {
            if let Ok(answer) = &answer {
                if enough(answer) {
                    until = Instant::now();
                }
                until = until.min(Instant::now() + self.config.timeout / 5);
            }
            let answer = answer.map_err(|error| from_redis(operation, Phase::Connecting, error));
            answers[at] = Some(answer);
        }
        let silent = |host: &Host| {
            let what = format!("{host} does not answer within {patience:?}");
            found(ErrorKind::Unavailable, operation, what)
        };
        let answers = nodes.iter().zip(answers);
        let answers = answers.map(|(node, answer)| {
            let answer = answer.unwrap_or_else(|| Err(silent(node)));
            (node.clone(), answer)
        });
        answers.collect()
    }

    /// Who we are for servers.
    fn us(&self) -> RedisConnectionInfo {
        who(self.config.auth.as_ref()).set_db(self.config.database.into())
    }

    /// A connection of its own for the channels, to where the namespace was found last, which is said.
    pub(crate) async fn subscribe(
        &self,
        told: impl AsyncPushSender,
        releases: bool,
    ) -> Result<(Host, MultiplexedConnection), Error> {
        let operation = Operation::Watch;
        let us = self.us().set_protocol(ProtocolVersion::RESP3);
        let config = AsyncConnectionConfig::new().set_push_sender(told);
        let node = self.found.borrow().clone();
        let node = node.expect("who is connected knows a node");
        let subscribing = async {
            let mut driver = self.open(&node, us, config).await?;
            self.listen(&mut driver, releases).await?;
            Ok(driver)
        };
        let until = Instant::now() + self.config.timeout;
        let subscribed = within(until, pin!(subscribing)).await;
        match subscribed {
            Some(Ok(driver)) => Ok((node, driver)),
            Some(Err(error)) => Err(from_redis(operation, Phase::Connecting, error)),
            None => {
                let what = format!("no subscription within {:?}", self.config.timeout);
                Err(found(ErrorKind::Unavailable, operation, what))
            }
        }
    }

    /// Subscribes; once more it changes nothing, and shows that the server answers.
    pub(crate) async fn listen(
        &self,
        driver: &mut MultiplexedConnection,
        releases: bool,
    ) -> RedisResult<()> {
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        subscribe.arg(self.news());
        if releases {
            subscribe.arg(self.channel());
        }
        subscribe.query_async(driver).await
    }

    /// A connection to a host.
    async fn open(
        &self,
        node: &Host,
        us: RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let address = address(&self.config, node);
        // One on which nothing is said is not forgotten on the way.
        let tcp = TcpSettings::default().set_keepalive(TcpKeepalive::new().with_time(ALIVE_EVERY));
        let info = address.into_connection_info()?;
        let info = info.set_redis_settings(us).set_tcp_settings(tcp);
        let client = match &self.certificates {
            Some(certificates) => Client::build_with_tls(info, certificates.clone())?,
            None => Client::open(info)?,
        };
        // Whoever asks has a time-out of its own.
        let config = config
            .set_connection_timeout(None)
            .set_response_timeout(None);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

fn address(config: &RedisConfig, node: &Host) -> ConnectionAddr {
    if let Some(socket) = &config.socket {
        return ConnectionAddr::Unix(socket.clone());
    }
    let (host, port) = (node.host.clone(), node.port);
    let (insecure, tls_params) = match config.given.as_ref().map(|Given(address)| &**address) {
        Some(ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        }) => (*insecure, tls_params.clone()),
        None | Some(ConnectionAddr::Tcp(..)) => (false, None),
        Some(other) => return other.clone(),
    };
    if config.tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn who(auth: Option<&Auth>) -> RedisConnectionInfo {
    let us = RedisConnectionInfo::default().set_skip_set_lib_name();
    let Some(Auth { user, password }) = auth else {
        return us;
    };
    let us = if user.is_empty() {
        us
    } else {
        us.set_username(user)
    };
    us.set_password(password)
}

/// What people have to fix is said rather than that somebody does not answer.
fn said_rather(failed: Option<Error>, error: Error) -> Error {
    match failed {
        Some(failed) if failed.kind() != ErrorKind::Unavailable => failed,
        Some(failed) if error.kind() == ErrorKind::Unavailable => failed,
        _ => error,
    }
}

/// The primary among those that were asked, or any node of a cluster. Where two say that they are it, nobody knows
/// which one has all grants: what is on the other is neither seen nor kept.
fn one_primary(operation: Operation, asked: Vec<Asked<Greeted>>) -> Result<(Host, Greeted), Error> {
    let alone = asked.len() == 1;
    let mut primary: Option<(Host, Greeted)> = None;
    let mut failed: Option<Error> = None;
    let mut said = Vec::new();
    for (node, answer) in asked {
        match answer {
            Ok(greeted) if greeted.1.is_cluster => return Ok((node, greeted)),
            // The replica itself says what is wrong with it.
            Ok(greeted) if alone => return Ok((node, greeted)),
            Ok((_, server)) if server.is_replica => said.push(format!("{node} is a replica")),
            Ok(greeted) => match &primary {
                Some((_, (_, first))) if first.is_same(&greeted.1) => {}
                Some((first, _)) => return Err(two_primaries(operation, first, &node)),
                None => primary = Some((node, greeted)),
            },
            Err(error) => {
                said.push(format!("{node} does not answer"));
                failed = Some(said_rather(failed, error));
            }
        }
    }
    match (primary, failed) {
        (Some(primary), _) => Ok(primary),
        (None, Some(error)) if alone || error.kind() != ErrorKind::Unavailable => Err(error),
        (None, failed) => {
            let what = format!("none of the hosts is a primary: {}", said.join(", "));
            // Later it may be that one of them is just being promoted.
            Err(match failed {
                Some(failed) => found(ErrorKind::Unavailable, operation, what).with_source(failed),
                None => misplaced(operation, what),
            })
        }
    }
}

fn two_primaries(operation: Operation, first: &Host, second: &Host) -> Error {
    let what = format!(
        "{first} and {second} both say that they are the primary: make the one that has not the latest locks a replica \
         (REPLICAOF), name one alone, or let sentinels decide (redis+sentinel://)"
    );
    misplaced(operation, what)
}
