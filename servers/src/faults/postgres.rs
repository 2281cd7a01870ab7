//! PostgreSQL: alone on a disk of its own, or a primary with a standby.

use std::thread::sleep;
use std::time::Duration;

use lockcore_conformance::faults::ServerFault;
use rustix::process::{Rlimit, Signal};
use tempfile::TempDir;

use super::disk::Disk;
use super::preload::{Preload, environment};
use super::victim::{
    Victim, descriptors_again, gone, killed, no_more_descriptors, runs, signal, tree, unknown,
    until,
};
use crate::postgres::{copy_of, data, give, promote, run_under};
use crate::{Port, Server};

const DISK_MIB: u64 = 512;
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
pub(super) struct Postgres {
    nodes: Vec<Node>,
    primary: usize,
    namespace: String,
    settings: Vec<(&'static str, &'static str)>,
    /// Where its clock is set, or its disk is slow.
    preload: Option<Preload>,
    clock: i64,
    /// The standby is behind when it takes over.
    behind: bool,
    limit: Option<(u32, Rlimit)>,
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
            preload: Preload::for_kind(kind)?,
            clock: 0,
            behind,
            limit: None,
        };
        let data = data()?;
        let disk = matches!(kind, "disk-full" | "power")
            .then(|| Disk::at(&data.path().join("data"), DISK_MIB));
        this.nodes.push(Node {
            server: None,
            port: Port::claim()?,
            disk: disk.transpose()?,
            data,
        });
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
        Ok(Node {
            server: None,
            port,
            disk: None,
            data,
        })
    }

    /// Starts a server on what it has.
    fn run(&mut self, node: usize) -> Result<(), String> {
        let environment = environment(self.preload.as_ref());
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

    fn stop(&mut self, node: usize) -> Result<(), String> {
        let pids = self.pids(node);
        signal(&pids[..1.min(pids.len())], Signal::INT);
        gone(&pids)?;
        self.nodes[node].server = None;
        Ok(())
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

    fn preload(&self) -> Result<&Preload, String> {
        let preload = self.preload.as_ref();
        preload.ok_or_else(|| "its clock and its disk are the system's".to_owned())
    }

    fn disk(&self) -> Result<&Disk, String> {
        let disk = self.nodes[self.primary].disk.as_ref();
        disk.ok_or_else(|| "it has no disk of its own".to_owned())
    }

    /// The other server begins anew, as a standby of the primary.
    fn follow_anew(&mut self) -> Result<(), String> {
        let other = self.other();
        self.gone(other)?;
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
        match fault {
            ServerFault::Killed => self.gone(primary),
            ServerFault::Restarted => self.stop(primary),
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
                self.stop(primary)?;
                self.primary = self.other();
                promote(self.nodes[self.primary].data.path())
            }
            ServerFault::TakenOver => {
                let other = self.other();
                if self.behind {
                    self.gone(other)?;
                    sleep(Duration::from_millis(rand::random_range(50..600)));
                }
                signal(&self.pids(primary), Signal::STOP);
                if self.behind {
                    self.run(other)?;
                }
                self.primary = other;
                promote(self.nodes[other].data.path())
            }
            ServerFault::ReplicaCutOff => {
                signal(&self.pids(self.other()), Signal::STOP);
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
                // It ends if it cannot write its log.
                let server = self.nodes[primary].server.as_ref();
                if server.and_then(Server::pid).is_some_and(runs) {
                    return Ok(());
                }
                self.gone(primary)?;
                self.run(primary)
            }
            ServerFault::DiskSlow => self.preload()?.slow_syncs(Duration::ZERO),
            ServerFault::DescriptorsUsedUp => {
                if let Some((pid, before)) = self.limit.take() {
                    descriptors_again(pid, before);
                }
                Ok(())
            }
            ServerFault::ClockForward | ServerFault::ClockBack => Ok(()),
            ServerFault::HandedOver => self.follow_anew(),
            ServerFault::TakenOver => {
                signal(&self.pids(self.other()), Signal::CONT);
                sleep(BOTH);
                self.follow_anew()
            }
            ServerFault::ReplicaCutOff => {
                signal(&self.pids(self.other()), Signal::CONT);
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
