//! Redis: alone on a disk of its own, or a primary with a replica.

use std::thread::sleep;
use std::time::Duration;

use lockcore_conformance::faults::ServerFault;
use rustix::process::{Rlimit, Signal};
use tempfile::TempDir;

use super::disk::Disk;
use super::preload::{Preload, environment};
use super::victim::{
    Victim, descriptors_again, gone, killed, no_more_descriptors, signal, tree, unknown, until,
};
use crate::redis::{node_under, order};
use crate::{Port, Server, folder};

const DISK_MIB: u64 = 256;
/// How long two servers say that they are the primary.
const BOTH: Duration = Duration::from_secs(1);

/// A server that is killed and started again on the same data. It ends before its disk.
struct Node {
    server: Option<Server>,
    port: Port,
    disk: Option<Disk>,
    data: TempDir,
}

/// The servers.
pub(super) struct Redis {
    nodes: Vec<Node>,
    primary: usize,
    namespace: String,
    options: &'static str,
    sync: &'static str,
    /// Where its clock is set, or its disk is slow.
    preload: Option<Preload>,
    clock: i64,
    /// The replica is behind when it takes over.
    behind: bool,
    limit: Option<(u32, Rlimit)>,
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
            preload: Preload::for_kind(kind)?,
            clock: 0,
            behind,
            limit: None,
        };
        for _ in 0..if has_replica { 2 } else { 1 } {
            let data = folder()?;
            let disk = matches!(kind, "disk-full" | "power" | "power-unsynced")
                .then(|| Disk::at(data.path(), DISK_MIB));
            this.nodes.push(Node {
                server: None,
                port: Port::claim()?,
                disk: disk.transpose()?,
                data,
            });
            this.run(this.nodes.len() - 1)?;
        }
        if has_replica {
            this.follow(1)?;
        }
        Ok(this)
    }

    /// Starts a server on what it has.
    fn run(&mut self, node: usize) -> Result<(), String> {
        let (sync, environment) = (self.sync, environment(self.preload.as_ref()));
        let node = &mut self.nodes[node];
        let dir = node.data.path().display().to_string();
        let settings = [
            ("dir", dir.as_str()),
            ("appendonly", "yes"),
            ("appendfsync", sync),
            ("repl-diskless-sync-delay", "0"),
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

    fn pids(&self, node: usize) -> Vec<u32> {
        let server = self.nodes[node].server.as_ref();
        server.and_then(Server::pid).map(tree).unwrap_or_default()
    }

    /// The server is gone, however that came.
    fn gone(&mut self, node: usize) -> Result<(), String> {
        let pids = self.pids(node);
        killed(&pids)?;
        self.nodes[node].server = None;
        Ok(())
    }

    /// Starts it again if it has gone.
    fn again(&mut self, node: usize) -> Result<(), String> {
        if order(&self.url_of(node), "PING").is_err() {
            self.gone(node)?;
            self.run(node)?;
        }
        Ok(())
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

    fn preload(&self) -> Result<&Preload, String> {
        let preload = self.preload.as_ref();
        preload.ok_or_else(|| "its clock and its disk are the system's".to_owned())
    }

    fn disk(&self) -> Result<&Disk, String> {
        let disk = self.nodes[self.primary].disk.as_ref();
        disk.ok_or_else(|| "it has no disk of its own".to_owned())
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
        match fault {
            ServerFault::Killed => self.gone(primary),
            ServerFault::Restarted => {
                let pids = self.pids(primary);
                signal(&pids, Signal::TERM);
                gone(&pids)?;
                self.gone(primary)
            }
            ServerFault::Stopped => {
                signal(&self.pids(primary), Signal::STOP);
                Ok(())
            }
            ServerFault::PowerLost => {
                self.disk()?.cut_power()?;
                self.gone(primary)
            }
            ServerFault::DiskFull => self.disk()?.fill(),
            ServerFault::DiskSlow => self.preload()?.slow_syncs(Duration::from_millis(300)),
            ServerFault::MemoryFull => {
                order(&self.url_of(primary), "CONFIG SET maxmemory 1mb").map(drop)
            }
            ServerFault::DescriptorsUsedUp => {
                let pid = self.pids(primary).first().copied().ok_or("it has ended")?;
                self.limit = Some((pid, no_more_descriptors(pid)?));
                Ok(())
            }
            ServerFault::ClockForward => {
                self.clock += 3_600_000_000_000;
                self.preload()?.set_clock(self.clock)
            }
            ServerFault::ClockBack => {
                self.clock -= 1_000_000_000;
                self.preload()?.set_clock(self.clock)
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
                signal(&self.pids(primary), Signal::STOP);
                order(&self.url_of(replica), "REPLICAOF NO ONE")?;
                self.primary = replica;
                Ok(())
            }
            ServerFault::ReplicaCutOff => {
                signal(&self.pids(self.replica()), Signal::STOP);
                Ok(())
            }
            _ => unknown(fault),
        }
    }

    fn end(&mut self, fault: ServerFault) -> Result<(), String> {
        let primary = self.primary;
        match fault {
            ServerFault::Killed | ServerFault::Restarted => self.run(primary),
            ServerFault::Stopped => {
                signal(&self.pids(primary), Signal::CONT);
                Ok(())
            }
            ServerFault::PowerLost => {
                self.disk()?.restore_power()?;
                self.run(primary)
            }
            ServerFault::DiskFull => {
                self.disk()?.empty()?;
                self.again(primary)
            }
            ServerFault::DiskSlow => self.preload()?.slow_syncs(Duration::ZERO),
            ServerFault::MemoryFull => {
                order(&self.url_of(primary), "CONFIG SET maxmemory 0").map(drop)
            }
            ServerFault::DescriptorsUsedUp => {
                if let Some((pid, before)) = self.limit.take() {
                    descriptors_again(pid, before);
                }
                Ok(())
            }
            ServerFault::ClockForward | ServerFault::ClockBack | ServerFault::HandedOver => Ok(()),
            ServerFault::TakenOver => {
                let old = self.replica();
                signal(&self.pids(old), Signal::CONT);
                sleep(BOTH);
                self.follow(old)
            }
            ServerFault::ReplicaCutOff => {
                signal(&self.pids(self.replica()), Signal::CONT);
                self.follows(self.replica())
            }
            _ => unknown(fault),
        }
    }

    fn allowance(&self) -> Duration {
        // What a clock that is set back adds.
        Duration::from_secs(2)
    }
}
