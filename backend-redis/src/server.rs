//! What a server says about itself: whether it can be used, and what it promises.

use std::collections::HashMap;

use lockcore::backend::Host;
use lockcore::{Durability, Error, ErrorKind, Operation};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, RedisResult, Value};

use crate::error::found;

/// The oldest version that has all that is needed.
const OLDEST: u32 = 7;

/// A server, as far as it says what it is: a user without the right to `INFO`, `CONFIG GET` or `CLUSTER SLOTS` is not
/// told, and then nothing is promised.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    version: Option<u32>,
    /// Of this start of this server.
    run_id: Option<String>,
    pub(crate) is_replica: bool,
    pub(crate) is_cluster: bool,
    is_sentinel: bool,
    replicas: Option<u32>,
    policy: Option<String>,
    append_only: Option<bool>,
    append_fsync: Option<String>,
    no_fsync_on_rewrite: Option<bool>,
    /// The nodes of its cluster.
    pub(crate) nodes: Vec<Host>,
}

impl Server {
    pub(crate) async fn ask(driver: &mut MultiplexedConnection) -> RedisResult<Self> {
        let mut server = Self::default();
        let mut questions = redis::pipe();
        questions.cmd("HELLO").cmd("INFO");
        for name in ["appendfsync", "no-appendfsync-on-rewrite"] {
            questions.cmd("CONFIG").arg("GET").arg(name);
        }
        let answers: [RedisResult<Value>; 4] =
            questions.ignore_errors().query_async(driver).await?;
        let [hello, info, fsync, on_rewrite] = answers;
        // Whoever may do nothing else may ask that; INFO knows more.
        server.read_hello(permitted(hello)?.unwrap_or_default());
        server.read_info(&permitted::<String>(info)?.unwrap_or_default());
        let setting = |answer| -> RedisResult<Option<String>> {
            let pair: Option<Vec<String>> = permitted(answer)?;
            Ok(pair.and_then(|pair| pair.into_iter().nth(1)))
        };
        server.append_fsync = setting(fsync)?;
        server.no_fsync_on_rewrite = setting(on_rewrite)?.map(|value| value == "yes");
        if server.is_cluster {
            let mut slots = redis::cmd("CLUSTER");
            let slots = slots.arg("SLOTS").query_async::<Value>(driver).await;
            let slots: Option<Value> = permitted(slots)?;
            server.nodes = slots.map(|slots| nodes(&slots)).unwrap_or_default();
        }
        Ok(server)
    }

    fn read_hello(&mut self, hello: HashMap<String, Value>) {
        for (name, value) in hello {
            let value: String = redis::from_redis_value(value).unwrap_or_default();
            match name.as_str() {
                "version" => self.version = major(&value),
                "role" => self.is_replica = value == "replica",
                "mode" => {
                    self.is_cluster = value == "cluster";
                    self.is_sentinel = value == "sentinel";
                }
                _ => {}
            }
        }
    }

    fn read_info(&mut self, info: &str) {
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            match name {
                "redis_version" => self.version = major(value),
                "run_id" => self.run_id = Some(value.to_owned()),
                "role" => self.is_replica = value == "slave",
                "connected_slaves" => self.replicas = value.parse().ok(),
                "maxmemory_policy" => self.policy = Some(value.to_owned()),
                "aof_enabled" => self.append_only = Some(value == "1"),
                "cluster_enabled" => self.is_cluster = value == "1",
                _ => {}
            }
        }
    }

    /// Whether it is certainly the same server, though by another name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.run_id.is_some() && self.run_id == other.run_id
    }

    /// Refuses a server that cannot keep locks.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub(crate) fn refuse(&self, operation: Operation) -> Result<(), Error> {
        let refused = |what: String| Err(found(ErrorKind::Config, operation, what));
        if self.is_sentinel {
            return refused(
                "it is a sentinel: write the URL as redis+sentinel://HOST,…/NAME".to_owned(),
            );
        }
        if let Some(version) = self.version.filter(|version| *version < OLDEST) {
            return refused(format!(
                "the server is of version {version}: Redis {OLDEST} or later, or Valkey, is needed"
            ));
        }
        // Any node of a cluster tells which one has the namespace.
        if self.is_replica && !self.is_cluster {
            let what = "the server is a replica: name its primary, or both";
            return Err(misplaced(operation, what.to_owned()));
        }
        // Nothing of ours has a time to live, so that the policies for what has one do not touch it.
        match &self.policy {
            Some(policy) if policy.starts_with("allkeys-") => refused(format!(
                "the server's maxmemory-policy is {policy}, which throws locks away: set it to noeviction"
            )),
            _ => Ok(()),
        }
    }

    /// What a grant survives, if so many replicas confirm it.
    pub(crate) fn durability(&self, confirming: u32) -> Durability {
        let appends = self.append_only == Some(true);
        let fsync = self.append_fsync.as_deref();
        Durability {
            // With `everysec` what is appended may stay in the process for a while.
            crash: appends && matches!(fsync, Some("always" | "no")),
            power_loss: appends
                && fsync == Some("always")
                && self.no_fsync_on_rewrite == Some(false),
            failover: self.replicas.is_some_and(|replicas| replicas <= confirming),
        }
    }
}

/// An error of where the primary is. Later it may be that a failover is under way, and that it helps to ask again.
pub(crate) fn misplaced(operation: Operation, what: String) -> Error {
    let kind = match operation {
        Operation::Connect => ErrorKind::Config,
        _ => ErrorKind::Unavailable,
    };
    found(kind, operation, what)
}

/// `None` for what we may not ask, or what a managed server does not have.
fn permitted<T: FromRedisValue>(answer: RedisResult<Value>) -> RedisResult<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(redis::from_redis_value(answer)?)),
        Err(error) if error.code() == Some("NOPERM") || is_unknown(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_unknown(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("ERR") && detail.starts_with("unknown")
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Reads `[[from, to, [host, port, id, …], …], …]`.
fn nodes(slots: &Value) -> Vec<Host> {
    let mut nodes = Vec::new();
    for range in array(slots) {
        for node in array(range).iter().skip(2) {
            if let [Value::BulkString(host), Value::Int(port), ..] = array(node) {
                let host = String::from_utf8_lossy(host).into_owned();
                let port = u16::try_from(*port).unwrap_or_default();
                let address = Host { host, port };
                if !address.host.is_empty() && port > 0 && !nodes.contains(&address) {
                    nodes.push(address);
                }
            }
        }
    }
    nodes
}

fn array(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(info: &str, fsync: &str, on_rewrite: bool) -> Server {
        let mut server = Server::default();
        server.read_info(info);
        server.append_fsync = Some(fsync.to_owned());
        server.no_fsync_on_rewrite = Some(on_rewrite);
        server
    }

    #[test]
    fn what_a_server_promises() {
        let promised = |info: &str, fsync: &str, on_rewrite, confirming| {
            let Durability {
                crash,
                power_loss,
                failover,
            } = server(info, fsync, on_rewrite).durability(confirming);
            (crash, power_loss, failover)
        };
        let off = "# Persistence\r\naof_enabled:0\r\nconnected_slaves:0\r\n";
        let on = "aof_enabled:1\r\nconnected_slaves:2\r\n";
        assert_eq!(promised(off, "always", false, 0), (false, false, true));
        assert_eq!(promised(on, "everysec", false, 0), (false, false, false));
        assert_eq!(promised(on, "no", false, 1), (true, false, false));
        assert_eq!(promised(on, "always", true, 2), (true, false, true));
        assert_eq!(promised(on, "always", false, 2), (true, true, true));
        let nothing_told = Server::default().durability(9);
        assert!(!nothing_told.crash && !nothing_told.power_loss && !nothing_told.failover);
    }

    #[test]
    fn what_a_server_may_not_be() {
        let refused = |info: &str| {
            let server = server(info, "no", false);
            server
                .refuse(Operation::Connect)
                .err()
                .map(|error| error.to_string())
        };
        for (info, word) in [
            ("redis_version:6.2.1", "version 6"),
            ("role:slave\r\ncluster_enabled:0", "replica"),
            ("maxmemory_policy:allkeys-lru", "allkeys-lru"),
            ("maxmemory_policy:allkeys-random", "allkeys-random"),
        ] {
            assert!(
                refused(info).is_some_and(|error| error.contains(word)),
                "{info}"
            );
        }
        for info in [
            "",
            "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction",
            "redis_version:8.0.0\r\nmaxmemory_policy:volatile-lru",
            "role:slave\r\ncluster_enabled:1",
        ] {
            assert_eq!(refused(info), None, "{info}");
        }
    }

    #[test]
    fn the_nodes_of_a_cluster_are_read() {
        let answer = b"*2\r\n*4\r\n:0\r\n:9\r\n*3\r\n$1\r\na\r\n:1\r\n$1\r\nx\r\n*3\r\n$1\r\nb\r\n:2\r\n$1\r\ny\r\n*3\r\n:10\r\n:11\r\n*3\r\n$1\r\na\r\n:1\r\n$1\r\nx\r\n";
        let nodes = nodes(&redis::parse_redis_value(answer).unwrap());
        let names: Vec<String> = nodes.iter().map(Host::to_string).collect();
        assert_eq!(names, ["a:1", "b:2"]);
        assert!(super::nodes(&Value::Nil).is_empty());
    }
}
