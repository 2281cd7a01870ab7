//! What keeps a process from doing anything in time: signals, its way to the store, and a machine that wakes it late.

use std::collections::{BTreeMap, BTreeSet};

use super::Sent;
use crate::faults::Fault;
use crate::history::{History, What};

/// The trouble of all processes.
#[derive(Default)]
pub(super) struct Trouble {
    /// How late each was, and when it was told.
    late: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When each was stopped, and from when on it was not any more.
    stops: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Those whose way to the store was bad at some time.
    cut_off: BTreeSet<u32>,
    /// The longest request under way in each span of time.
    slow: BTreeMap<u64, u64>,
    /// The time of the last event.
    pub(super) end: u64,
}

/// How long a span is.
const SPAN: u64 = 100_000_000;

impl Trouble {
    pub(super) fn of(history: &History) -> Self {
        let mut this = Self::default();
        for event in &history.events {
            this.end = event.at;
            match event.what {
                What::Late { by } => {
                    let late = this.late.entry(event.process).or_default();
                    late.push((event.at, by));
                }
                What::Paused | What::Killed => {
                    let stops = this.stops.entry(event.process).or_default();
                    stops.push((event.at, u64::MAX));
                }
                What::Resumed => {
                    let stops = this.stops.get_mut(&event.process);
                    if let Some((_, until)) = stops.and_then(|stops| stops.last_mut()) {
                        *until = event.at;
                    }
                }
                What::Struck {
                    fault: Fault::Network(_),
                } => {
                    this.cut_off.insert(event.process);
                }
                _ => {}
            }
        }
        this
    }

    /// Whether the way of that process to the store was bad at some time.
    pub(super) fn was_cut_off(&self, process: u32) -> bool {
        self.cut_off.contains(&process)
    }

    /// What requests took, but for those of processes that were stopped meanwhile or cut off at some time.
    pub(super) fn with_requests(mut self, sent: &[Sent<'_>]) -> Self {
        for call in sent {
            let (from, Some((until, _))) = (call.begun.at, call.answer) else {
                continue;
            };
            let process = call.process;
            if self.was_cut_off(process) || self.stopped(process, from, until.at) {
                continue;
            }
            for span in from / SPAN..=until.at / SPAN {
                let slow = self.slow.entry(span).or_default();
                *slow = (*slow).max(until.at - from);
            }
        }
        self
    }

    /// What the longest request took that was under way between two instants.
    pub(super) fn slow(&self, from: u64, until: u64) -> u64 {
        let spans = self.slow.range(from / SPAN..=until / SPAN);
        spans.map(|(_, slow)| *slow).max().unwrap_or(0)
    }

    /// How late that process was between two instants, and the store at most: nobody tells that of the store, so it may have
    /// been as late as any process.
    pub(super) fn late(&self, process: u32, from: u64, until: u64) -> u64 {
        let of = |late: &Vec<(u64, u64)>| {
            let first = late.partition_point(|(at, _)| *at < from);
            let late = late[first..].iter();
            let within = late.take_while(|(at, by)| at.saturating_sub(*by) < until);
            within.map(|(_, by)| *by).sum::<u64>()
        };
        let all = self.late.values().map(of).max();
        self.late.get(&process).map_or(0, of) + all.unwrap_or(0)
    }

    /// Whether the process was stopped, or killed, at some time between two instants.
    pub(super) fn stopped(&self, process: u32, from: u64, until: u64) -> bool {
        let mut stops = self.stops.get(&process).into_iter().flatten();
        stops.any(|(stopped, resumed)| *stopped <= until && from <= *resumed)
    }
}
