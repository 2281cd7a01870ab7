//! Redis alone, with replicas and as a cluster: real processes, which end with this one.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lockcore_conformance::servers::Server;
use lockcore_conformance::servers::redis::{free_port, node, start};
use redis::{Commands as _, FromRedisValue};

use super::Place;

/// Longest that servers take to find each other.
const PATIENCE: Duration = Duration::from_secs(60);

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
        let server = node(&[]).expect("a Redis server");
        let place = with_least_rights(&server, "s:ecret@");
        (place, server)
    });
    LEAST.0.clone()
}

/// Makes a user with these rights, for the namespaces of tests.
pub fn with_least_rights(server: &Server, password: &str) -> Place {
    let rights = include_str!("../../server/least.acl");
    let rights = rights
        .replace("CHANGE-ME", password)
        .replace("{lockkeeper}", "{t*}");
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER");
    for word in rights.split_whitespace().skip(1) {
        set.arg(word);
    }
    ask::<()>(server, &set);
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
        let primary = node(&[]).expect("a Redis server");
        let replica = replica_of(&primary, &[]);
        // The replica is given first, and is found to be none that takes writes.
        let place = Place {
            url: format!("{},127.0.0.1:{}/?replicas=1", url(&replica), port(&primary)),
            admin: url(&primary),
        };
        (place, [primary, replica])
    });
    REPLICATED.0.clone()
}

/// Three primaries with a replica each, of which one is named.
pub fn clustered() -> Place {
    static CLUSTER: LazyLock<(Place, Vec<Server>)> = LazyLock::new(|| {
        let servers = cluster(&[]);
        (Place::of(url(&servers[1])), servers)
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

/// Asks a server.
pub fn ask<T: FromRedisValue>(server: &Server, command: &redis::Cmd) -> T {
    let client = redis::Client::open(url(server)).unwrap();
    command
        .query(&mut client.get_connection().unwrap())
        .unwrap()
}

/// A replica that has everything.
pub fn replica_of(primary: &Server, settings: &[(&str, &str)]) -> Server {
    let of = format!("127.0.0.1 {}", port(primary));
    let mut all = vec![
        ("replicaof", of.as_str()),
        ("repl-diskless-sync-delay", "0"),
    ];
    all.extend(settings);
    let replica = node(&all).expect("a Redis server");
    until("the replica has a link", || {
        let mut connection = redis::Client::open(url(&replica))
            .ok()?
            .get_connection()
            .ok()?;
        let info: String = redis::cmd("INFO")
            .arg("replication")
            .query(&mut connection)
            .ok()?;
        info.contains("master_link_status:up").then_some(())
    });
    replica
}

/// Three primaries, each followed by its replica three places behind it.
pub fn cluster(settings: &[(&str, &str)]) -> Vec<Server> {
    let ports: Vec<u16> = (0..12).map(|_| free_port().unwrap()).collect();
    let servers: Vec<Server> = ports
        .chunks(2)
        .map(|ports| {
            let (port, bus) = (ports[0].to_string(), ports[1].to_string());
            let mut all = vec![
                ("port", port.as_str()),
                ("cluster-port", &bus),
                ("cluster-enabled", "yes"),
                ("repl-diskless-sync-delay", "0"),
            ];
            all.extend(settings);
            node(&all).expect("a Redis server")
        })
        .collect();
    let cluster = |arguments: &[&str]| {
        let mut command = redis::cmd("CLUSTER");
        command.arg(arguments);
        command
    };
    for (at, from, to) in [(0, 0, 5_460), (1, 5_461, 10_922), (2, 10_923, 16_383)] {
        let epoch = (at + 1).to_string();
        ask::<()>(&servers[at], &cluster(&["SET-CONFIG-EPOCH", &epoch]));
        let (from, to): (i32, i32) = (from, to);
        let range = [from.to_string(), to.to_string()];
        ask::<()>(
            &servers[at],
            &cluster(&["ADDSLOTSRANGE", &range[0], &range[1]]),
        );
    }
    for ports in &ports.chunks(2).collect::<Vec<_>>()[1..] {
        let (port, bus) = (ports[0].to_string(), ports[1].to_string());
        ask::<()>(&servers[0], &cluster(&["MEET", "127.0.0.1", &port, &bus]));
    }
    let ids: Vec<String> = servers
        .iter()
        .map(|server| ask(server, &cluster(&["MYID"])))
        .collect();
    for (at, server) in servers.iter().enumerate() {
        until("every node knows every other", || {
            let nodes: String = ask(server, &cluster(&["NODES"]));
            let known = ids.iter().all(|id| nodes.contains(id.as_str()));
            (known && !nodes.contains("handshake")).then_some(())
        });
        if at >= 3 {
            ask::<()>(server, &cluster(&["REPLICATE", &ids[at - 3]]));
        }
    }
    for (at, server) in servers.iter().enumerate() {
        until("the cluster is whole", || {
            let info: String = ask(server, &cluster(&["INFO"]));
            let replication: String = ask(server, redis::cmd("INFO").arg("replication"));
            let linked = at < 3 && replication.contains("state=online")
                || at >= 3 && replication.contains("master_link_status:up");
            (info.contains("cluster_state:ok") && linked).then_some(())
        });
    }
    // Not before, or a slow start would be taken for a failure.
    for server in &servers {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "cluster-node-timeout", "1000"]);
        ask::<()>(server, &set);
    }
    servers
}

/// Waits until there is something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Which node of a cluster has that key.
pub fn owner<'a>(servers: &'a [Server], key: &str) -> &'a Server {
    let mut nodes = servers.iter();
    let has = |server: &&Server| {
        let mut connection = redis::Client::open(url(server))
            .unwrap()
            .get_connection()
            .unwrap();
        connection.exists::<_, bool>(key).unwrap_or(false)
    };
    nodes.find(has).expect("a node has it")
}

/// Sends a signal to a server.
pub fn signal(server: &Server, signal: rustix::process::Signal) {
    let pid = server.pid().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
