//! PostgreSQL: alone on a disk of its own, or a primary with a standby.

use std::thread::sleep;
use std::time::Duration;

use lockcore_trial::faults::ServerFault;
use rustix::process::Signal;

use super::disk::Disk;
use super::node::{Machine, Node};
use super::victim::{Victim, gone, signal, unknown, until};
use crate::Port;
use crate::postgres::{copy_of, data, give, promote, run_under};

const DISK_MIB: u64 = 512;
/// How long two servers say that they are the primary.
const BOTH: Duration = Duration::from_secs(1);

/// The servers.
pub(super) struct Postgres {
    nodes: Vec<Node>,
    primary: usize,
    namespace: String,
    settings: Vec<(&'static str, &'static str)>,
    machine: Machine,
    /// The standby is behind when it takes over.
    behind: bool,
}

impl Postgres {
    pub(super) fn start(kind: &str, namespace: &str) -> Result<Self, String> {
        let has_standby = kind.starts_with("failover") || kind == "replica-cut-off";
        let behind = kind == "failover-asynchronous";
        let mut settings = vec![("max_wal_size", "64MB"), ("min_wal_size", "32MB")];
        if has_standby && !behind {
            settings.push(("synchronous_standby_names", "*"));
        }
        if kind == "power" {
            // A grant waits for the disk all the same.
            settings.push(("synchronous_commit", "off"));
        }
        let mut this = Self {
            nodes: Vec::new(),
            primary: 0,
            namespace: namespace.to_owned(),
            settings,
            machine: Machine::for_kind(kind)?,
            behind,
        };
        let data = data()?;
        let disk = matches!(kind, "disk-full" | "power")
            .then(|| Disk::at(&data.path().join("data"), DISK_MIB));
        let node = Node::new(Port::claim()?, data, disk.transpose()?);
        this.nodes.push(node);
        this.run(0)?;
        if has_standby {
            let node = this.standby(Port::claim()?)?;
            this.nodes.push(node);
            this.run(1)?;
            this.follows()?;
        }
        Ok(this)
    }

    /// The data of a standby of the primary.
    fn standby(&self, port: Port) -> Result<Node, String> {
        let primary = self.nodes[self.primary].server.as_ref();
        let data = copy_of(primary.ok_or("there is no primary")?.url())?;
        Ok(Node::new(port, data, None))
    }

    /// Starts a server on what it has.
    fn run(&mut self, node: usize) -> Result<(), String> {
        let environment = self.machine.environment();
        let node = &mut self.nodes[node];
        // Its log may be of the one before.
        let log = node.data.path().join("postgres.log");
        if log.exists() {
            give(&log)?;
        }
        let mut started = None;
        until(|| {
            let server = run_under(&node.port, node.data.path(), &self.settings, &environment)?;
            started = Some(server);
            Ok(())
        })?;
        node.server = started;
        Ok(())
    }

    /// The server ends in order.
    fn stop(&mut self, node: usize) -> Result<(), String> {
        let pids = self.nodes[node].pids();
        signal(&pids[..1.min(pids.len())], Signal::INT);
        gone(&pids)?;
        self.nodes[node].gone()
    }

    fn other(&self) -> usize {
        1 - self.primary
    }

    /// Waits until the primary has a standby that it hears of.
    fn follows(&self) -> Result<(), String> {
        let primary = self.nodes[self.primary].server.as_ref();
        let url = primary.ok_or("there is no primary")?.url();
        until(|| match crate::postgres::standbys(url)? {
            0 => Err("no standby streams".to_owned()),
            _ => Ok(()),
        })
    }

    /// The other server begins anew, as a standby of the primary.
    fn follow_anew(&mut self) -> Result<(), String> {
        let other = self.other();
        self.nodes[other].gone()?;
        self.nodes[other] = self.standby(self.nodes[other].port.clone())?;
        self.run(other)?;
        self.follows()
    }
}

impl Victim for Postgres {
    fn url(&self) -> String {
        let hosts = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port.number()));
        let hosts: Vec<String> = hosts.collect();
        let user = self.nodes[0].server.as_ref().and_then(|server| {
            let (user, _) = server.url().split_once("://")?.1.rsplit_once('@')?;
            Some(user.to_owned())
        });
        let (user, namespace) = (user.unwrap_or_default(), &self.namespace);
        let several = match self.nodes.len() {
            1 => "",
            _ => "&target_session_attrs=read-write",
        };
        format!(
            "postgres://{user}@{}/postgres?namespace={namespace}&timeout_ms=500{several}",
            hosts.join(",")
        )
    }

    fn begin(&mut self, fault: ServerFault) -> Result<(), String> {
        let primary = self.primary;
        if let Some(begun) = self.machine.begin(fault, &mut self.nodes[primary]) {
            return begun;
        }
        match fault {
            ServerFault::Restarted => self.stop(primary),
            ServerFault::HandedOver => {
                self.stop(primary)?;
                self.primary = self.other();
                promote(self.nodes[self.primary].data.path())
            }
            ServerFault::TakenOver => {
                let other = self.other();
                if self.behind {
                    self.nodes[other].gone()?;
                    sleep(Duration::from_millis(rand::random_range(50..600)));
                }
                self.nodes[primary].signal(Signal::STOP);
                if self.behind {
                    self.run(other)?;
                }
                self.primary = other;
                promote(self.nodes[other].data.path())
            }
            ServerFault::ReplicaCutOff => {
                self.nodes[self.other()].signal(Signal::STOP);
                Ok(())
            }
            _ => unknown(fault),
        }
    }

    fn end(&mut self, fault: ServerFault) -> Result<(), String> {
        let primary = self.primary;
        if let Some(starts) = self.machine.end(fault, &mut self.nodes[primary]) {
            return if starts? { self.run(primary) } else { Ok(()) };
        }
        match fault {
            ServerFault::HandedOver => self.follow_anew(),
            ServerFault::TakenOver => {
                self.nodes[self.other()].signal(Signal::CONT);
                sleep(BOTH);
                self.follow_anew()
            }
            ServerFault::ReplicaCutOff => {
                self.nodes[self.other()].signal(Signal::CONT);
                self.follows()
            }
            _ => unknown(fault),
        }
    }

    fn allowance(&self) -> Duration {
        // What a clock that is set back adds.
        Duration::from_secs(2)
    }
}
