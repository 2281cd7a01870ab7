//! etcd: a single member on a disk of its own, or a cluster of three.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use lockcore_trial::faults::ServerFault;
use rustix::process::Signal;

use super::disk::Disk;
use super::victim::{Descriptors, Victim, gone, signal, unknown, until};
use crate::Cluster;
use crate::etcd::{ETCD_3_6, Member, answers, hand_over, leader};

const DISK_MIB: u64 = 512;
/// How long the old leader believes that it is one.
const BOTH: Duration = Duration::from_secs(1);

/// The members. They end before their disk.
pub(super) struct Etcd {
    members: Cluster<Member>,
    disk: Option<Disk>,
    namespace: String,
    struck: usize,
    limit: Option<Descriptors>,
}

impl Etcd {
    pub(super) fn start(kind: &str, namespace: &str) -> Result<Self, String> {
        let artefacts = Path::new(env!("CARGO_MANIFEST_DIR"))
            .with_file_name("target")
            .join("servers");
        let is_cluster = kind.starts_with("failover") || kind == "replica-cut-off";
        let members = match is_cluster {
            true => ETCD_3_6.cluster(&artefacts)?,
            false => Cluster::new(vec![Member::new(ETCD_3_6.program(&artefacts)?, &[])?]),
        };
        let mut this = Self {
            members,
            disk: None,
            namespace: namespace.to_owned(),
            struck: 0,
            limit: None,
        };
        if matches!(kind, "disk-full" | "power") {
            this.members[0].stop();
            this.disk = Some(Disk::at(this.members[0].home(), DISK_MIB)?);
            this.run(0)?;
        }
        Ok(this)
    }

    fn run(&mut self, member: usize) -> Result<(), String> {
        self.members[member].restart()?;
        self.members[member].await_health()
    }

    fn pid(&self, member: usize) -> u32 {
        self.members[member].pid()
    }

    /// Who leads, as the first says that is not this one and answers.
    fn leader(&self, but: Option<usize>) -> Result<usize, String> {
        let mut found = Err("nobody leads".to_owned());
        until(|| {
            for (at, member) in self.members.iter().enumerate() {
                if but != Some(at)
                    && let Ok((own, leader)) = leader(member.url())
                    && own == leader
                {
                    found = Ok(at);
                    return Ok(());
                }
            }
            Err("nobody leads".to_owned())
        })?;
        found
    }

    fn disk(&self) -> Result<&Disk, String> {
        self.disk
            .as_ref()
            .ok_or_else(|| "it has no disk of its own".to_owned())
    }

    fn all_answer(&self) -> Result<(), String> {
        self.members.iter().try_for_each(Member::await_health)
    }
}

impl Victim for Etcd {
    fn url(&self) -> String {
        let hosts = self
            .members
            .iter()
            .map(|member| member.url().replacen("http://", "", 1));
        let hosts: Vec<String> = hosts.collect();
        let namespace = &self.namespace;
        format!(
            "etcd://{}/?namespace={namespace}&timeout_ms=500",
            hosts.join(",")
        )
    }

    /// Leases are whole seconds, and a new leader and a member that is started again begin each of them anew.
    fn allowance(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn begin(&mut self, fault: ServerFault) -> Result<(), String> {
        self.struck = 0;
        match fault {
            ServerFault::Killed => {
                self.members[0].stop();
                Ok(())
            }
            ServerFault::Restarted => {
                signal(&[self.pid(0)], Signal::TERM);
                gone(&[self.pid(0)])
            }
            ServerFault::Stopped => {
                signal(&[self.pid(0)], Signal::STOP);
                Ok(())
            }
            ServerFault::PowerLost => {
                self.disk()?.cut_power(&[self.pid(0)])?;
                self.members[0].stop();
                Ok(())
            }
            ServerFault::DiskFull => self.disk()?.fill(),
            ServerFault::DescriptorsUsedUp => {
                let pid = self.pid(0);
                self.limit = Some(Descriptors::used_up(pid)?);
                Ok(())
            }
            ServerFault::HandedOver => {
                let old = self.leader(None)?;
                let next = (old + 1) % self.members.len();
                let (id, _) = leader(self.members[next].url())?;
                hand_over(self.members[old].url(), &id)?;
                until(|| match self.leader(None)? {
                    leader if leader == next => Ok(()),
                    leader => Err(format!("{leader} leads and not {next}")),
                })
            }
            ServerFault::TakenOver => {
                self.struck = self.leader(None)?;
                signal(&[self.pid(self.struck)], Signal::STOP);
                self.leader(Some(self.struck)).map(drop)
            }
            ServerFault::ReplicaCutOff => {
                self.struck = (self.leader(None)? + 1) % self.members.len();
                signal(&[self.pid(self.struck)], Signal::STOP);
                Ok(())
            }
            _ => unknown(fault),
        }
    }

    fn end(&mut self, fault: ServerFault) -> Result<(), String> {
        match fault {
            ServerFault::Killed | ServerFault::Restarted => self.run(0),
            ServerFault::PowerLost => {
                self.disk()?.restore_power()?;
                self.run(0)
            }
            ServerFault::DiskFull => {
                self.disk()?.empty()?;
                // It ends if it cannot write its log.
                self.run(0)
            }
            ServerFault::DescriptorsUsedUp => {
                if let Some(limit) = self.limit.take() {
                    limit.again();
                }
                // It may have given up to accept connections, for good.
                match answers(self.members[0].url()) {
                    Ok(()) => Ok(()),
                    Err(_) => self.run(0),
                }
            }
            ServerFault::HandedOver => Ok(()),
            ServerFault::Stopped | ServerFault::TakenOver | ServerFault::ReplicaCutOff => {
                signal(&[self.pid(self.struck)], Signal::CONT);
                if fault == ServerFault::TakenOver {
                    sleep(BOTH);
                }
                self.all_answer()
            }
            _ => unknown(fault),
        }
    }
}
