//! Redis alone, with replicas and as a cluster: real processes, which end with this one.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper_servers::redis::{self as program, start};
use lockkeeper_servers::{Cluster, Port, Server};
use redis::{FromRedisValue, RedisResult};
use tokio::task::spawn_blocking;

use super::Place;

/// Longest that servers take to find each other, and to agree.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so long without an answer a node is dead for the others, and its replica takes over. In half of it a node hears
/// from every other one, or connects anew, and forgets what it wanted to say; so it is longer than a busy machine leaves
/// a process waiting.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The server whose URL is in the environment, or one that is started.
pub fn given() -> Place {
    static GIVEN: LazyLock<Place> = LazyLock::new(|| {
        std::env::var("LOCKKEEPER_TEST_REDIS").map_or_else(
            |_| Place::of(url(Box::leak(Box::new(start().expect("a Redis server"))))),
            Place::of,
        )
    });
    GIVEN.clone()
}

/// A server on which we have no more than the rights that are shipped as the least.
pub fn least() -> Place {
    static LEAST: LazyLock<(Place, Server)> = LazyLock::new(|| {
        elsewhere(async || {
            let server = node(&[]).await;
            let place = with_least_rights(&server, "s:ecret@").await;
            (place, server)
        })
    });
    LEAST.0.clone()
}

/// What takes time, on a thread of its own: whoever asks first may be a part of a runtime.
fn elsewhere<T: Send + 'static>(make: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    let made = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(make())
    });
    made.join().unwrap()
}

/// Makes a user with these rights, for the namespaces of tests.
pub async fn with_least_rights(server: &Server, password: &str) -> Place {
    let rights = include_str!("../../server/least.acl");
    let rights = rights
        .replace("CHANGE-ME", password)
        .replace("{lockkeeper}", "{t*}");
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER");
    for word in rights.split_whitespace().skip(1) {
        set.arg(word);
    }
    ask::<()>(server, &set).await;
    let host = server.url().replacen("http://", "", 1);
    let password = password.replace(':', "%3A").replace('@', "%40");
    Place {
        url: format!("redis://lockkeeper:{password}@{host}"),
        admin: url(server),
    }
}

/// A primary with one replica, which every write waits for.
pub fn replicated() -> Place {
    static REPLICATED: LazyLock<(Place, [Server; 2])> = LazyLock::new(|| {
        elsewhere(async || {
            let primary = node(&[]).await;
            let replica = replica_of(&primary, &[]).await;
            // The replica is given first, and is found to be none that takes writes.
            let place = Place {
                url: format!("{},127.0.0.1:{}/?replicas=1", url(&replica), port(&primary)),
                admin: url(&primary),
            };
            (place, [primary, replica])
        })
    });
    REPLICATED.0.clone()
}

/// Three primaries with a replica each, of which one is named.
pub fn clustered() -> Place {
    static CLUSTER: LazyLock<(Place, Cluster<Server>)> = LazyLock::new(|| {
        elsewhere(async || {
            let servers = cluster().await;
            (Place::of(url(&servers[1])), servers)
        })
    });
    CLUSTER.0.clone()
}

/// A server's URL, as `redis://127.0.0.1:PORT`.
pub fn url(server: &Server) -> String {
    server.url().replacen("http", "redis", 1)
}

pub fn port(server: &Server) -> u16 {
    let port = server
        .url()
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    port.expect("a URL ends with its port")
}

/// A server with these settings.
pub async fn node(settings: &[(&str, &str)]) -> Server {
    let started = on_settings(settings, program::node);
    started.await.expect("a Redis server")
}

/// A server with these settings at the port of one that is gone.
pub async fn node_at(port: &Port, settings: &[(&str, &str)]) -> Server {
    let port = port.clone();
    let started = on_settings(settings, move |settings| program::node_at(&port, settings));
    started.await.expect("a Redis server")
}

/// It waits for a process, which no thread of a runtime does.
async fn on_settings<T: Send + 'static>(
    settings: &[(&str, &str)],
    start: impl FnOnce(&[(&str, &str)]) -> T + Send + 'static,
) -> T {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings: Vec<(String, String)> = settings.collect();
    let started = spawn_blocking(move || {
        let settings = settings.iter();
        let settings = settings.map(|(name, value)| (name.as_str(), value.as_str()));
        start(&settings.collect::<Vec<_>>())
    });
    started.await.unwrap()
}

/// Asks a server.
pub async fn ask<T: FromRedisValue>(server: &Server, command: &redis::Cmd) -> T {
    let answer = try_ask(server, command).await;
    answer.unwrap_or_else(|error| panic!("{}: {error}", server.url()))
}

/// Asks a server that may have another answer, or none.
async fn try_ask<T: FromRedisValue>(server: &Server, command: &redis::Cmd) -> RedisResult<T> {
    let client = redis::Client::open(url(server))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    command.query_async(&mut connection).await
}

/// What a server says of its replication.
pub async fn replication(server: &Server) -> String {
    ask(server, redis::cmd("INFO").arg("replication")).await
}

/// A replica that has everything.
pub async fn replica_of(primary: &Server, settings: &[(&str, &str)]) -> Server {
    let of = format!("127.0.0.1 {}", port(primary));
    let mut all = vec![("replicaof", of.as_str())];
    all.extend(settings);
    let replica = node(&all).await;
    until("the replica has a link", async || {
        let info = replication(&replica).await;
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    replica
}

/// Makes a server a replica of the one at that port of this machine. At port 1 is nobody: then it stays as it is.
pub async fn follow(server: &Server, port: u16) {
    let mut follow = redis::cmd("REPLICAOF");
    ask::<()>(server, follow.arg("127.0.0.1").arg(port)).await;
}

/// Waits until a server says that so many replicas are connected.
pub async fn has_replicas(primary: &Server, count: usize) {
    let line = format!("connected_slaves:{count}\r\n");
    until("the replicas are connected", async || {
        let info = replication(primary).await;
        info.contains(&line).then_some(())
    })
    .await;
}

/// Waits until a replica has everything that its primary has now. `WAIT` would not say: it asks for what its own connection
/// has written.
pub async fn caught_up(replica: &Server, primary: &Server) {
    let written = offset(primary, "master_repl_offset").await;
    until("the replica has it", async || {
        let has = offset(replica, "slave_repl_offset").await;
        (has? >= written?).then_some(())
    })
    .await;
}

/// How far a server is, as it says itself.
async fn offset(server: &Server, name: &str) -> Option<u64> {
    let info = replication(server).await;
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| *found == name)?;
    value.trim().parse().ok()
}

/// A sentinel that watches this primary, with these lines in its file besides.
pub async fn sentinel(name: &str, primary: &Server, lines: &[&str]) -> Server {
    let (name, primary) = (name.to_owned(), port(primary));
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let started = spawn_blocking(move || {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        program::sentinel(&name, primary, NODE_TIMEOUT, &lines).expect("a sentinel")
    });
    started.await.unwrap()
}

/// Three sentinels that watch this primary, when they know each other and its one replica.
pub async fn sentinels(name: &str, primary: &Server) -> Vec<Server> {
    let started = join_all((0..3).map(|_| sentinel(name, primary, &[]))).await;
    for sentinel in &started {
        until("the sentinel knows the others", async || {
            let known = watched(sentinel, name).await;
            let [others, replicas] = ["num-other-sentinels", "num-slaves"].map(|of| known.get(of));
            (others?.as_str() == "2" && replicas?.as_str() == "1").then_some(())
        })
        .await;
    }
    started
}

/// What a sentinel says of the primary of that name.
pub async fn watched(sentinel: &Server, name: &str) -> HashMap<String, String> {
    ask(sentinel, redis::cmd("SENTINEL").arg("MASTER").arg(name)).await
}

/// Makes a replica a primary.
pub async fn promote(replica: &Server) {
    ask::<()>(replica, redis::cmd("REPLICAOF").arg("NO").arg("ONE")).await;
}

/// Three primaries, each with a replica. Which is which is what the cluster says.
pub async fn cluster() -> Cluster<Server> {
    let node_timeout = NODE_TIMEOUT.as_millis().to_string();
    let settings = [
        ("cluster-enabled", "yes"),
        ("cluster-node-timeout", node_timeout.as_str()),
    ];
    let servers = join_all((0..6).map(|_| node(&settings))).await;
    let servers = Cluster::new(servers);
    for (at, from, to) in [(0, 0, 5_460), (1, 5_461, 10_922), (2, 10_923, 16_383)] {
        let (epoch, from, to): (usize, i32, i32) = (at + 1, from, to);
        for words in [
            format!("SET-CONFIG-EPOCH {epoch}"),
            format!("ADDSLOTSRANGE {from} {to}"),
        ] {
            order(&servers[at], &words).await;
        }
    }
    for server in &servers[1..] {
        order(&servers[0], &format!("MEET 127.0.0.1 {}", port(server))).await;
    }
    for (replica, primary) in servers[3..].iter().zip(&servers[..3]) {
        let id: String = ask(primary, redis::cmd("CLUSTER").arg("MYID")).await;
        until("the replica knows its primary", async || {
            let known = seen(replica).await;
            known.iter().any(|node| node.id == id).then_some(())
        })
        .await;
        order(replica, &format!("REPLICATE {id}")).await;
    }
    let all: Vec<&Server> = servers.iter().collect();
    agreed(&all).await;
    servers
}

/// Gives a node an order.
pub async fn order(server: &Server, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    ask::<()>(server, redis::cmd("CLUSTER").arg(words)).await;
}

/// What a node of a cluster says of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub id: String,
    pub port: u16,
    /// The id of its primary, of a replica.
    pub follows: Option<String>,
    /// Of a primary: the epoch of its claims on slots, and these.
    claims: Option<(String, Vec<String>)>,
    /// It answers, or is the one who says this.
    answers: bool,
}

impl Seen {
    pub fn is_primary(&self) -> bool {
        self.follows.is_none()
    }

    /// Whether it is the primary of that slot.
    pub fn has(&self, slot: u16) -> bool {
        let ranges = self.claims.iter().flat_map(|(_, slots)| slots);
        ranges.into_iter().any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to): (u16, u16) = (from.parse().unwrap(), to.parse().unwrap());
            (from..=to).contains(&slot)
        })
    }
}

/// What a node of a cluster says of all of them; nothing where it does not answer.
async fn seen(server: &Server) -> Vec<Seen> {
    let said = try_ask::<String>(server, redis::cmd("CLUSTER").arg("NODES")).await;
    let said = said.unwrap_or_default();
    let lines = said.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let flags: Vec<&str> = words[2].split(',').collect();
        let port = words[1].split(['@', ',']).next().unwrap();
        let is = |flag: &str| flags.contains(&flag);
        // What is on its way from or to the node is in brackets.
        let slots = words[8..].iter().filter(|slots| !slots.starts_with('['));
        let slots = slots.map(|slots| (*slots).to_owned()).collect();
        let is_primary = is("master");
        Seen {
            id: words[0].to_owned(),
            port: port.rsplit(':').next().unwrap().parse().unwrap(),
            follows: (!is_primary).then(|| words[3].to_owned()),
            claims: is_primary.then(|| (words[6].to_owned(), slots)),
            answers: words[7] == "connected"
                && !["fail", "fail?", "handshake", "noaddr"].into_iter().any(is),
        }
    });
    let mut all: Vec<Seen> = lines.collect();
    all.sort();
    all
}

/// Waits until these, all nodes that live, say the same of each other: who is primary, with which slots, and who follows
/// whom with all data; and that the cluster is whole.
pub async fn agreed(servers: &[&Server]) -> Vec<Seen> {
    let ports: Vec<u16> = servers.iter().map(|server| port(server)).collect();
    until("the nodes agree", async || {
        let mut views = Vec::new();
        for server in servers {
            let mut view = seen(server).await;
            view.retain(|node| ports.contains(&node.port));
            if view.len() != servers.len() || !view.iter().all(|node| node.answers) {
                return None;
            }
            let info: String = ask(server, redis::cmd("CLUSTER").arg("INFO")).await;
            let replication = replication(server).await;
            let follows = replication.contains("role:slave");
            if !info.contains("cluster_state:ok")
                || follows && !replication.contains("master_link_status:up")
            {
                return None;
            }
            views.push(view);
        }
        let first = views.pop()?;
        views.iter().all(|view| *view == first).then_some(first)
    })
    .await
}

/// Asks until there is something.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

/// Asks for so long until there is something.
pub async fn within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(since.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Which of these has that port.
pub fn at_port(servers: &[Server], wanted: u16) -> &Server {
    let mut servers = servers.iter();
    let found = servers.find(|server| port(server) == wanted);
    found.expect("there is such a server")
}

/// Sends a signal to a server.
pub fn signal(server: &Server, signal: rustix::process::Signal) {
    let pid = server.pid().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
