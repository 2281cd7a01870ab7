//! [`Nemesis`]: who starts the processes, and does its worst to them.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::log::Log;
use super::network::Network;
use super::worker::{TICK, rests};
use super::{Plan, Struck};
use crate::faults::{Fault, ProcessFault};
use crate::history::What;
use crate::programs::{chance, nanos, up_to};
use lockcore_conformance::parts::Process;
use lockcore_conformance::parts::Verdict;

const LOOK: Duration = Duration::from_millis(5);

/// A place for one process.
enum Slot {
    /// The next one is started then.
    Empty(Instant),
    Full {
        process: Process,
        number: u32,
        /// It is stopped until then.
        stopped: Option<Instant>,
    },
}

pub(super) struct Nemesis<'a> {
    plan: &'a Plan,
    ttl: Duration,
    url: &'a str,
    dir: PathBuf,
    rng: Xoshiro256PlusPlus,
    log: Log,
    slots: Vec<Slot>,
    /// Numbers of processes so far.
    started: u32,
    network: Option<Network>,
    struck: Struck,
    began: Instant,
    length: Duration,
    late: Duration,
}

impl<'a> Nemesis<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        ttl: Duration,
        url: &'a str,
        dir: &Path,
        log: &Log,
    ) -> Verdict<Self> {
        let now = Instant::now();
        let network = plan.also.network;
        let network = network.then(|| Network::new(plan, ttl, url, log));
        Ok(Self {
            plan,
            ttl,
            url,
            dir: dir.to_owned(),
            rng: chance(plan.seed, 1),
            log: log.clone(),
            slots: (0..plan.processes).map(|_| Slot::Empty(now)).collect(),
            started: 0,
            network: network.transpose()?,
            struck: Struck::default(),
            began: now,
            length: Duration::ZERO,
            late: Duration::ZERO,
        })
    }

    /// A number that no process has had.
    pub(super) fn next_process(&mut self) -> u32 {
        self.started += 1;
        self.started
    }

    /// What it has done.
    pub(super) fn struck(&self) -> Struck {
        self.struck.clone()
    }

    /// For how long it has done its worst.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// How late the machine has woken us at most.
    pub(super) fn late(&self) -> Duration {
        self.late
    }

    /// Does its worst until that is over, and lets go of everybody.
    pub(super) async fn rage(&mut self, retired: &Cell<bool>) -> Verdict {
        let mut next = Instant::now() + self.pause();
        while !retired.get() {
            for slot in 0..self.slots.len() {
                self.look(slot)?;
            }
            self.length = self.began.elapsed();
            if Instant::now() >= next {
                self.strike()?;
                next = Instant::now() + self.pause();
            }
            let since = Instant::now();
            sleep(LOOK).await;
            let late = since.elapsed().saturating_sub(LOOK);
            if late > TICK {
                self.log.record(What::Late { by: nanos(late) });
            }
            self.late = self.late.max(late);
        }
        for slot in 0..self.slots.len() {
            self.go_on(slot)?;
        }
        if let Some(network) = &mut self.network {
            network.mend_all(&mut self.struck);
        }
        Ok(())
    }

    /// Until the next signal: the more processes, the shorter.
    fn pause(&mut self) -> Duration {
        let processes = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        up_to(&mut self.rng, self.ttl * 5 / processes.max(1))
    }

    /// Starts what is missing, and lets go on what has been stopped for long enough.
    fn look(&mut self, slot: usize) -> Verdict {
        let now = Instant::now();
        match &mut self.slots[slot] {
            Slot::Empty(then) if *then <= now => {
                let number = self.next_process();
                let role = number.to_string();
                let seed = self.rng.random();
                let network = self.network.as_ref();
                let url = network.map_or(self.url, |network| network.url(slot));
                self.slots[slot] = Slot::Full {
                    process: Process::spawn(url, &self.dir, &role, seed)?,
                    number,
                    stopped: None,
                };
            }
            Slot::Empty(_) => {}
            Slot::Full {
                process, stopped, ..
            } => {
                if process.was_killed()? {
                    // By itself; it has said so.
                    self.empty(slot);
                } else if stopped.is_some_and(|until| until <= now) {
                    self.go_on(slot)?;
                }
            }
        }
        if let (Some(network), Slot::Full { number, .. }) = (&mut self.network, &self.slots[slot]) {
            network.look(slot, *number, &mut self.struck);
        }
        Ok(())
    }

    fn empty(&mut self, slot: usize) {
        let then = Instant::now() + up_to(&mut self.rng, self.ttl / 2);
        self.slots[slot] = Slot::Empty(then);
    }

    /// Kills a process, or stops it for at most two TTL.
    fn strike(&mut self) -> Verdict {
        let slot = self.rng.random_range(0..self.slots.len());
        let kills = self.plan.kill_only || self.rng.random();
        // Half of them outlive their sessions.
        let (least, more) = match self.rng.random() {
            true => (self.ttl, self.ttl),
            false => (Duration::ZERO, self.ttl / 4),
        };
        let Slot::Full {
            process,
            number,
            stopped,
        } = &mut self.slots[slot]
        else {
            return Ok(());
        };
        if kills {
            self.log.record_of(*number, What::Killed);
            signal(process, Signal::KILL)?;
            self.struck.add(Fault::Process(ProcessFault::Killed));
            self.empty(slot);
        } else if stopped.is_none() {
            self.log.record_of(*number, What::Paused);
            signal(process, Signal::STOP)?;
            self.struck.add(Fault::Process(ProcessFault::Stopped));
            *stopped = Some(Instant::now() + least + up_to(&mut self.rng, more));
        }
        Ok(())
    }

    fn go_on(&mut self, slot: usize) -> Verdict {
        if let Slot::Full {
            process,
            number,
            stopped,
        } = &mut self.slots[slot]
            && stopped.take().is_some()
        {
            signal(process, Signal::CONT)?;
            self.log.record_of(*number, What::Resumed);
        }
        Ok(())
    }

    /// Kills whoever is left, in the middle of a line perhaps: that is written down as of any other.
    pub(super) fn kill_all(mut self) -> Verdict {
        for slot in &mut self.slots {
            if let Slot::Full {
                process, number, ..
            } = slot
                && !process.has_ended()?
            {
                self.log.record_of(*number, What::Killed);
                signal(process, Signal::KILL)?;
            }
        }
        Ok(())
    }

    /// Whether all processes come to the end of what they have to do, when they are told to.
    pub(super) async fn all_rest(&mut self) -> Verdict<bool> {
        let dir = self.dir.clone();
        self.all(|number| rests(&dir, number).exists()).await
    }

    /// Whether all processes end by themselves, when they are told to.
    pub(super) async fn all_end(&mut self) -> Verdict<bool> {
        self.all(|_| false).await
    }

    async fn all(&mut self, is_so: impl Fn(u32) -> bool) -> Verdict<bool> {
        let until = Instant::now() + self.plan.bound();
        for slot in &mut self.slots {
            let Slot::Full {
                process, number, ..
            } = slot
            else {
                continue;
            };
            while !is_so(*number) && !process.has_ended()? {
                if Instant::now() >= until {
                    return Ok(false);
                }
                sleep(LOOK).await;
            }
        }
        Ok(true)
    }
}

/// A process that is already dead, by its own hand, does not mind.
fn signal(process: &Process, signal: Signal) -> Verdict {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(id.expect("a process has a number"), signal)?)
}
