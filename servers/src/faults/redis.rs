//! Redis: alone on a disk of its own, or a primary with a replica.

use std::thread::sleep;
use std::time::Duration;

use lockcore_trial::faults::ServerFault;
use rustix::process::Signal;

use super::disk::Disk;
use super::node::{Machine, Node};
use super::victim::{Victim, gone, signal, unknown, until};
use crate::redis::{node_under, order};
use crate::{Port, folder};

const DISK_MIB: u64 = 256;
/// How long two servers say that they are the primary.
const BOTH: Duration = Duration::from_secs(1);

/// The servers.
pub(super) struct Redis {
    nodes: Vec<Node>,
    primary: usize,
    namespace: String,
    options: &'static str,
    sync: &'static str,
    machine: Machine,
    /// The replica is behind when it takes over.
    behind: bool,
}

impl Redis {
    pub(super) fn start(kind: &str, namespace: &str) -> Result<Self, String> {
        let has_replica = kind.starts_with("failover") || kind == "replica-cut-off";
        let behind = kind == "failover-asynchronous";
        let mut this = Self {
            nodes: Vec::new(),
            primary: 0,
            namespace: namespace.to_owned(),
            options: match has_replica && !behind {
                true => "&replicas=1",
                false => "",
            },
            sync: match kind {
                "power-unsynced" => "everysec",
                _ => "always",
            },
            machine: Machine::for_kind(kind)?,
            behind,
        };
        for _ in 0..if has_replica { 2 } else { 1 } {
            let data = folder()?;
            let disk = matches!(kind, "disk-full" | "power" | "power-unsynced")
                .then(|| Disk::at(data.path(), DISK_MIB));
            let node = Node::new(Port::claim()?, data, disk.transpose()?);
            this.nodes.push(node);
            this.run(this.nodes.len() - 1)?;
        }
        if has_replica {
            this.follow(1)?;
        }
        Ok(this)
    }

    /// Starts a server on what it has.
    fn run(&mut self, node: usize) -> Result<(), String> {
        let (sync, environment) = (self.sync, self.machine.environment());
        let node = &mut self.nodes[node];
        let dir = node.data.path().display().to_string();
        let settings = [
            ("dir", dir.as_str()),
            ("appendonly", "yes"),
            ("appendfsync", sync),
        ];
        // Its port may not be free at once.
        let mut started = None;
        until(|| {
            started = Some(node_under(&node.port, &settings, &environment)?);
            Ok(())
        })?;
        node.server = started;
        Ok(())
    }

    fn url_of(&self, node: usize) -> String {
        format!("http://127.0.0.1:{}", self.nodes[node].port.number())
    }

    fn replica(&self) -> usize {
        1 - self.primary
    }

    /// Makes a server follow the primary, and waits until it has everything.
    fn follow(&mut self, node: usize) -> Result<(), String> {
        let primary = self.nodes[self.primary].port.number();
        order(
            &self.url_of(node),
            &format!("REPLICAOF 127.0.0.1 {primary}"),
        )?;
        self.follows(node)
    }

    fn follows(&self, node: usize) -> Result<(), String> {
        until(|| {
            let said = order(&self.url_of(node), "INFO replication")?;
            match said.contains("role:slave") && said.contains("master_link_status:up") {
                true => Ok(()),
                false => Err(said),
            }
        })
    }
}

impl Victim for Redis {
    fn url(&self) -> String {
        let hosts = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port.number()));
        let hosts: Vec<String> = hosts.collect();
        let (namespace, options) = (&self.namespace, self.options);
        format!(
            "redis://{}/?namespace={namespace}&timeout_ms=500{options}",
            hosts.join(",")
        )
    }

    fn begin(&mut self, fault: ServerFault) -> Result<(), String> {
        let primary = self.primary;
        let node = &mut self.nodes[primary];
        if let Some(begun) = self.machine.begin(fault, node) {
            return begun;
        }
        match fault {
            ServerFault::Restarted => {
                let pids = node.pids();
                signal(&pids, Signal::TERM);
                gone(&pids)?;
                node.gone()
            }
            ServerFault::MemoryFull => {
                order(&self.url_of(primary), "CONFIG SET maxmemory 1mb").map(drop)
            }
            ServerFault::HandedOver => {
                order(&self.url_of(primary), "FAILOVER")?;
                self.primary = self.replica();
                self.follows(primary)
            }
            ServerFault::TakenOver => {
                let replica = self.replica();
                if self.behind {
                    // Nobody listens there: it keeps what it has.
                    order(&self.url_of(replica), "REPLICAOF 127.0.0.1 1")?;
                    sleep(Duration::from_millis(rand::random_range(50..600)));
                }
                self.nodes[primary].signal(Signal::STOP);
                order(&self.url_of(replica), "REPLICAOF NO ONE")?;
                self.primary = replica;
                Ok(())
            }
            ServerFault::ReplicaCutOff => {
                self.nodes[self.replica()].signal(Signal::STOP);
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
            ServerFault::MemoryFull => {
                order(&self.url_of(primary), "CONFIG SET maxmemory 0").map(drop)
            }
            ServerFault::HandedOver => Ok(()),
            ServerFault::TakenOver => {
                let old = self.replica();
                self.nodes[old].signal(Signal::CONT);
                sleep(BOTH);
                self.follow(old)
            }
            ServerFault::ReplicaCutOff => {
                let replica = self.replica();
                self.nodes[replica].signal(Signal::CONT);
                self.follows(replica)
            }
            _ => unknown(fault),
        }
    }

    fn allowance(&self) -> Duration {
        // What a clock that is set back adds.
        Duration::from_secs(2)
    }
}
