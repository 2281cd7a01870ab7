//! A server of a run, on data of its own, and what its machine does to it whatever it is.

use std::time::Duration;

use lockcore_trial::faults::ServerFault;
use rustix::process::Signal;
use tempfile::TempDir;

use super::disk::Disk;
use super::preload::{Preload, environment};
use super::victim::{Descriptors, killed, runs, signal, tree};
use crate::{Port, Server};

const HOUR_NS: i64 = 3_600_000_000_000;
const SECOND_NS: i64 = 1_000_000_000;

/// A server that is killed and started again on the same data. It ends before its disk.
pub(super) struct Node {
    pub(super) server: Option<Server>,
    pub(super) port: Port,
    disk: Option<Disk>,
    pub(super) data: TempDir,
}

impl Node {
    /// Nothing runs there yet.
    pub(super) fn new(port: Port, data: TempDir, disk: Option<Disk>) -> Self {
        Self {
            server: None,
            port,
            disk,
            data,
        }
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let pid = self.server.as_ref().and_then(Server::pid);
        pid.map(tree).unwrap_or_default()
    }

    pub(super) fn signal(&self, what: Signal) {
        signal(&self.pids(), what);
    }

    /// The server is gone, however that came.
    pub(super) fn gone(&mut self) -> Result<(), String> {
        killed(&self.pids())?;
        self.server = None;
        Ok(())
    }

    fn runs(&self) -> bool {
        let pid = self.server.as_ref().and_then(Server::pid);
        pid.is_some_and(runs)
    }

    fn disk(&self) -> Result<&Disk, String> {
        let disk = self.disk.as_ref();
        disk.ok_or_else(|| "it has no disk of its own".to_owned())
    }
}

/// The machine that the nodes run on.
pub(super) struct Machine {
    /// Where its clock is set, or its disk is slow.
    preload: Option<Preload>,
    clock: i64,
    limits: Vec<Descriptors>,
}

impl Machine {
    pub(super) fn for_kind(kind: &str) -> Result<Self, String> {
        Ok(Self {
            preload: Preload::for_kind(kind)?,
            clock: 0,
            limits: Vec::new(),
        })
    }

    /// What a server has to be started with.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        environment(self.preload.as_ref())
    }

    /// Begins a fault on a node. `None` if it is none of the machine.
    pub(super) fn begin(
        &mut self,
        fault: ServerFault,
        node: &mut Node,
    ) -> Option<Result<(), String>> {
        Some(match fault {
            ServerFault::Killed => node.gone(),
            ServerFault::Stopped => {
                node.signal(Signal::STOP);
                Ok(())
            }
            ServerFault::PowerLost => cut_power(node),
            ServerFault::DiskFull => node.disk().and_then(Disk::fill),
            ServerFault::DiskSlow => self.slow_syncs(Duration::from_millis(300)),
            ServerFault::DescriptorsUsedUp => self.no_more_descriptors(node),
            ServerFault::ClockForward => self.move_clock(HOUR_NS),
            ServerFault::ClockBack => self.move_clock(-SECOND_NS),
            _ => return None,
        })
    }

    /// Ends it. Returns whether the server has to be started again. `None` if it is none of the machine.
    pub(super) fn end(
        &mut self,
        fault: ServerFault,
        node: &mut Node,
    ) -> Option<Result<bool, String>> {
        Some(match fault {
            ServerFault::Killed | ServerFault::Restarted => Ok(true),
            ServerFault::Stopped => {
                node.signal(Signal::CONT);
                Ok(false)
            }
            ServerFault::PowerLost => node.disk().and_then(Disk::restore_power).map(|()| true),
            ServerFault::DiskFull => emptied(node),
            ServerFault::DiskSlow => self.slow_syncs(Duration::ZERO).map(|()| false),
            ServerFault::DescriptorsUsedUp => {
                self.limits.drain(..).for_each(Descriptors::again);
                // One that could not open its log has ended.
                Ok(!node.runs())
            }
            ServerFault::ClockForward | ServerFault::ClockBack => Ok(false),
            _ => return None,
        })
    }

    fn preload(&self) -> Result<&Preload, String> {
        let preload = self.preload.as_ref();
        preload.ok_or_else(|| "its clock and its disk are the system's".to_owned())
    }

    fn slow_syncs(&self, by: Duration) -> Result<(), String> {
        self.preload()?.slow_syncs(by)
    }

    fn move_clock(&mut self, by: i64) -> Result<(), String> {
        self.clock += by;
        self.preload()?.set_clock(self.clock)
    }

    fn no_more_descriptors(&mut self, node: &Node) -> Result<(), String> {
        let (first, others) = match &*node.pids() {
            [first, others @ ..] => (*first, others.to_vec()),
            [] => return Err("it has ended".to_owned()),
        };
        self.limits.push(Descriptors::used_up(first)?);
        // Each process has its own. Some of these come and go.
        let others = others.into_iter().map(Descriptors::used_up);
        self.limits.extend(others.filter_map(Result::ok));
        Ok(())
    }
}

fn cut_power(node: &mut Node) -> Result<(), String> {
    node.disk()?.cut_power(&node.pids())?;
    node.gone()
}

/// The disk has room again. A server that could not write its log has ended.
fn emptied(node: &mut Node) -> Result<bool, String> {
    node.disk()?.empty()?;
    if node.runs() {
        return Ok(false);
    }
    node.gone()?;
    Ok(true)
}
