//! Real processes on one store, killed, stopped and continued at random, and the laws of what they saw.
//!
//! A run starts processes that do what the programs of the seeded simulation do, through the real client: all kinds of
//! claims, re-entrant owners, intents and their recovery, changes of resources under a lock. Each process records what
//! it asks for, sees and does, one line at a time, on a clock that all of them share. Meanwhile they receive SIGKILL,
//! SIGSTOP and SIGCONT at random, and operators revoke sessions and discard intents. In the end their lines are one
//! [`History`], which is [checked](crate::history::check).
//!
//! Programs record on the safe side: the beginning of something before it begins, its end after it has ended, a guard's
//! validity counted from before the check. Besides, each process, and the program outside, records every request to the
//! store before it is sent and every answer when it came. Each is one line with one write, so a SIGKILL loses at most
//! the event under way. Nobody sees the order in which a store executes requests. What is certain follows from the
//! times alone: a grant certainly holds from its answer to the call of its release, and no incompatible one may be
//! granted in between. The report counts the events that each law has judged; the run has not tested a law that has
//! judged few.
//!
//! In a run with SIGKILL only, the [`Takeovers`] say how long the locks of dead processes waited for their next holder.
//!
//! # Running it against your own backend
//!
//! A test target of one line, for the same [`Fixture`] as the conformance suite's:
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     lockcore_trial::processes::main(MyWorld)
//! }
//! ```
//!
//! `cargo test` then runs each kind for a few seconds, and runs in which something is broken on purpose, which the
//! broken law must notice; `-- --include-ignored` runs one for every law. `cargo test --release --test trial --
//! --seconds 300 --processes 10 --seed 7` is one long run. `--kill-only` sends nothing but SIGKILL and compares the
//! takeover times with their limit. `--history FILE` keeps the history as JSON lines, `--check FILE` checks one that
//! was kept, and `--cost` measures the cost of recording.
//!
//! # More faults
//!
//! `--also requests` puts [`Faulty`](crate::faults::Faulty) between each process's client and the store, and `--also
//! network` a [`Proxy`](crate::faults::Proxy) of its own between each process and each host of the store's URL. The
//! network of every second process stays well: there wake-ups are compared with their limit. In a trial of a
//! [`cluster`], members are killed, stopped and paused besides.
//!
//! A process records what its client sends and is told, above all of these faults: a law is about what clients may
//! believe. A request that is lost, doubled or late below is the store's truth, which shows in its answers to others.

mod breach;
mod breaking;
pub mod cluster;
mod command;
mod cost;
mod log;
mod nemesis;
mod network;
mod resource;
mod struck;
mod takeover;
mod worker;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockcore::{Claim, Guard, LockBackend, LockKey, Want};
use lockcore_conformance::parts::{Shared, Verdict, Wrong, main as child_main};
use lockcore_conformance::{BoxError, Fixture, Law};
use tokio::time::{sleep, timeout};

pub use breach::Breach;
pub use command::{Further, main, main_and, report};
pub use struck::Struck;
pub use takeover::Takeovers;

use crate::faults::{Fault, NetworkFault, ServerFault};
use crate::history::{History, Report, What, check, check_but};
use crate::programs::ending::{left, probe, recover_all, unanswered};
use crate::programs::{Place, Request, ask, chance, nanos};
use nemesis::Nemesis;
use worker::{Orders, Site, end, stop, work};

/// With SIGKILL only, a run continues until this many locks of dead processes were taken over. Of two the slower one decides;
/// how long most of them take is measured by the soak.
const TAKEOVERS: usize = 2;
/// At most so much longer, as a multiple of its length.
const LONGER: u32 = 10;
/// The longest wait of a waiter once there are no more faults.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The options of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The seed of the random choices, as far as the system permits.
    pub seed: u64,
    /// Concurrent processes.
    pub processes: usize,
    /// How long faults go on. With a breach, at most: the run ends when something is found.
    pub length: Duration,
    /// The time to live of the sessions; by default the store's shortest.
    pub ttl: Option<Duration>,
    /// Nothing but SIGKILL: no process is stopped, and no operator does anything.
    pub kill_only: bool,
    /// Further faults, besides those of the processes.
    pub also: Also,
    /// The faults of the network, if there are some; by default all.
    pub network: Vec<NetworkFault>,
    /// What lists and refusals say of sessions may be lost with the server.
    pub unsure: bool,
    /// The laws that the store does not promise of what was there when a [fault met a server](crate::history::check_but).
    pub may_break: &'static [Law],
    /// The breach: what is wrong on purpose.
    pub breach: Option<Breach>,
    /// Something else is wrong on purpose and breaks one of these laws. The run ends when that is found, as with a
    /// breach. Empty if nothing is.
    pub until_found: &'static [Law],
    /// Where a [`report`] keeps the history, as lines.
    pub history: Option<PathBuf>,
}

impl Plan {
    /// A run of eight processes, 10 s of all kinds of faults, and nothing wrong on purpose.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            processes: 8,
            length: Duration::from_secs(10),
            ttl: None,
            kill_only: false,
            also: Also::default(),
            network: NetworkFault::ALL.into(),
            unsure: false,
            may_break: &[],
            breach: None,
            until_found: &[],
            history: None,
        }
    }

    /// How long processes may take to end once there are no more faults.
    fn bound(&self) -> Duration {
        match self.breach {
            // They never do.
            Some(Breach::NeverAnswered) => BOUND / 6,
            _ => BOUND,
        }
    }
}

/// Faults between processes and their store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Also {
    /// The network: each process reaches the store through proxies of its own. On those of every second process every
    /// [`NetworkFault`] is switched at random.
    pub network: bool,
    /// Requests: a request or its answer is late or lost, some are executed once more, and later ones overtake. This is
    /// [`Faulty`](crate::faults::Faulty) in real time. What the client is told is recorded above it, so the store
    /// executes copies that nobody sees.
    pub requests: bool,
}

impl FromStr for Also {
    type Err = String;

    /// Parses `network`, `requests`, or both with a comma between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut also = Self::default();
        for what in text.split(',') {
            match what {
                "network" => also.network = true,
                "requests" => also.requests = true,
                _ => return Err(format!("{what:?} is none of network and requests")),
            }
        }
        Ok(also)
    }
}

/// The result of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// Everything that the processes have recorded.
    pub history: History,
    /// The violations in it.
    pub report: Report,
    /// The faults of the processes and of their connections.
    pub struck: Struck,
    /// How long the faults went on.
    pub length: Duration,
    /// The takeovers of killed processes' locks. They measure the store only in a run with SIGKILL alone.
    pub takeovers: Takeovers,
    /// How much too late the machine has woken this process at most. It was to be woken every few milliseconds.
    pub late: Duration,
}

/// Runs processes on a fresh space of the fixture, and checks what they have recorded.
///
/// # Errors
///
/// No space or no processes could be created, or a process ended in another way than by a signal.
pub async fn run(fixture: &dyn Fixture, plan: &Plan) -> Result<Run, BoxError> {
    let passes = async |_: &Witness| {
        sleep(plan.length).await;
        Ok(())
    };
    let run = run_here(fixture, plan, passes, true).await;
    run.map_err(|unpassed| unpassed.to_string().into())
}

/// As [`run`], for as long as something else takes: faults of the store itself, which must serve all processes again
/// when they end.
///
/// # Errors
///
/// Those of [`run`], and that of the other future.
pub async fn run_beside(
    fixture: &dyn Fixture,
    plan: &Plan,
    trouble: impl AsyncFnOnce(&Witness) -> Result<(), BoxError>,
) -> Result<Run, BoxError> {
    let run = run_here(fixture, plan, trouble, false).await;
    run.map_err(|unpassed| unpassed.to_string().into())
}

/// Records the faults that a test applies to the servers of a run.
#[derive(Debug)]
pub struct Witness(Site);

impl Witness {
    /// The fault begins now.
    pub fn begins(&self, fault: ServerFault) {
        let fault = Fault::Server(fault);
        self.0.record(What::Struck { fault });
    }

    /// The fault ends now.
    pub fn ends(&self, fault: ServerFault) {
        let fault = Fault::Server(fault);
        self.0.record(What::Mended { fault });
    }

    /// The store's clock is about to be set forward or back by so many nanoseconds. 0: it has been.
    pub fn steps(&self, by: i64) {
        self.0.record(What::Stepped { by });
    }

    /// Acquires a key with a client of its own, and records that. Asks again for as long as `within`, whatever the
    /// answer.
    ///
    /// # Errors
    ///
    /// The key could not be acquired.
    pub async fn hold(
        &self,
        store: Arc<dyn LockBackend>,
        key: &LockKey,
        within: Duration,
    ) -> Result<Guard, BoxError> {
        let user = self.0.user(store, None);
        let user = user.map_err(|unpassed| unpassed.to_string())?;
        let claim = Claim::new(key.clone(), Want::Create);
        let claim = claim.ok_or_else(|| format!("{key} is a path: a flat key is needed"))?;
        let granted = async {
            loop {
                let request = Request::trying(vec![claim.clone()], false);
                if let Some(got) = ask(&self.0, &user, request).await {
                    return got.guard;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let granted = timeout(within, granted).await;
        Ok(granted.map_err(|_| format!("{key} was not to be had within {within:?}"))?)
    }
}

/// Does the work of a process of a run, if this is one. Call it at the beginning of the `main` that calls [`run`].
#[must_use]
pub fn child(fixture: &dyn Fixture) -> Option<ExitCode> {
    child_main(std::iter::once(fixture), BOUND, work)
}

async fn run_here(
    fixture: &dyn Fixture,
    plan: &Plan,
    trouble: impl AsyncFnOnce(&Witness) -> Result<(), BoxError>,
    steady: bool,
) -> Verdict<Run> {
    let space = fixture.fresh().await?;
    let store = space.connect().await?;
    let info = store.info();
    let ttl = plan.ttl.unwrap_or(info.min_ttl);
    let dir = Shared::new()?;
    let orders = Orders {
        ttl,
        breach: plan.breach,
        requests: plan.also.requests,
    };
    orders.write(dir.path())?;
    let outside = Site::new(dir.path(), 0, orders)?;
    outside.record(What::Begun {
        ttl: nanos(ttl),
        poll: info.poll.map(nanos),
        allowance: nanos(space.allowance()),
        steady: steady && !plan.also.requests,
    });
    if plan.also.requests {
        outside.record(What::Repeats);
    }
    if info.repeats && !steady {
        outside.record(What::Doubles);
    }
    if plan.unsure {
        outside.record(What::Unsure);
    }
    let store = outside.watched(store);
    let Some(url) = space.url() else {
        return Err(Wrong("other processes cannot reach this store".to_owned()));
    };
    let mut nemesis = Nemesis::new(plan, ttl, &url, dir.path(), outside.log())?;
    // Where wake-ups tell of releases only, who waits for an expiry asks now and then.
    let look = info.poll.unwrap_or_default() * 10;
    let late = look.max(space.allowance()) + Duration::from_millis(250);
    let retired = Cell::new(false);
    let faults = async {
        let passes = async {
            trouble(&Witness(outside.clone())).await?;
            if plan.kill_only {
                taken_over(dir.path(), (ttl, late), plan.length * LONGER).await?;
            }
            retired.set(true);
            Ok(())
        };
        let operators = async {
            operators(plan, ttl, &retired, &outside, &*store).await;
            Ok(())
        };
        tokio::try_join!(passes, nemesis.rage(&retired), operators)
    };
    let wanted = plan.breach.map_or(plan.until_found, Breach::laws);
    let at_the_end = plan.breach.is_some_and(Breach::shows_at_the_end);
    if !wanted.is_empty() && !at_the_end {
        tokio::select! {
            raged = faults => drop(raged?),
            found = found(dir.path(), wanted) => found?,
        }
        // What is broken need not end well.
        return finish(nemesis, plan, dir.path(), ttl, late);
    }
    faults.await?;

    outside.record(What::Calm);
    std::fs::write(stop(dir.path()), "")?;
    if nemesis.all_rest().await? {
        // What the last of the dead have left is due, and what was in doubt is over.
        sleep(ttl + space.allowance() + Duration::from_secs(1)).await;
        let orders = Orders {
            breach: None,
            ..orders
        };
        let last = Site::new(dir.path(), nemesis.next_process(), orders)?;
        let prober = last.user(space.connect().await?, None)?;
        recover_all(&last, &prober, &mut chance(plan.seed, 2)).await;
        left(&last, &*store).await?;
        std::fs::write(end(dir.path()), "")?;
        if !nemesis.all_end().await? {
            outside.record(What::ShutDown { done: false });
        }
        probe(&last, &prober, ttl * 2).await;
        let done = prober.locks.shutdown(BOUND).await;
        last.record(What::ShutDown { done });
    } else {
        let mut open = unanswered(&log::collect(dir.path())?);
        if open.is_empty() {
            // Nobody waits for a lock, and still somebody is not done.
            open.insert(0, 0);
        }
        for attempt in open.into_keys() {
            outside.record(What::Stuck { attempt });
        }
    }
    finish(nemesis, plan, dir.path(), ttl, late)
}

/// Checks what has been recorded, after all have ended.
fn finish(
    nemesis: Nemesis<'_>,
    plan: &Plan,
    dir: &Path,
    ttl: Duration,
    late: Duration,
) -> Verdict<Run> {
    let (mut struck, length, woken_late) = (nemesis.struck(), nemesis.length(), nemesis.late());
    nemesis.kill_all()?;
    let history = log::collect_all(dir)?;
    struck.add_those_of(&history);
    Ok(Run {
        report: check_but(&history, plan.may_break),
        takeovers: Takeovers::of(&history, ttl, late),
        late: woken_late,
        struck,
        length,
        history,
    })
}

/// Resolves when enough locks of dead processes were taken over, or after that time.
async fn taken_over(dir: &Path, (ttl, late): (Duration, Duration), at_most: Duration) -> Verdict {
    let until = tokio::time::Instant::now() + at_most;
    while Takeovers::of(&log::collect(dir)?, ttl, late).times.len() < TAKEOVERS
        && tokio::time::Instant::now() < until
    {
        sleep(ttl).await;
    }
    Ok(())
}

/// Resolves when one of the laws is broken, and still is at the next check: its excuse may be recorded later.
async fn found(dir: &Path, wanted: &[Law]) -> Verdict {
    let mut before = false;
    loop {
        sleep(Duration::from_millis(500)).await;
        let broken = check(&log::collect(dir)?).breach_of(wanted).is_some();
        if broken && before {
            return Ok(());
        }
        before = broken;
    }
}

/// Now and then an operator revokes a session or discards an intent.
async fn operators(
    plan: &Plan,
    ttl: Duration,
    retired: &Cell<bool>,
    place: &Site,
    store: &dyn lockcore::LockBackend,
) {
    use lockcore::Life;
    use lockcore::backend::End;
    use rand::seq::IndexedRandom;
    let mut rng = chance(plan.seed, 3);
    loop {
        sleep(crate::programs::up_to(&mut rng, ttl * 2)).await;
        if plan.kill_only || retired.get() {
            return;
        }
        // A stopped process may block the store; there is a next time.
        let Ok(sessions) = store.sessions(None, 1_000).await else {
            continue;
        };
        let mut states = sessions.items;
        states.retain(|state| state.life != Life::Dead);
        let Some(state) = states.choose(&mut rng) else {
            continue;
        };
        let session = state.session;
        let (what, how) = match state.life {
            Life::Living => (What::Revoking { session }, End::Revoke),
            Life::Abandoned => (What::Discarding { session }, End::Discard),
            Life::Dead => continue,
        };
        place.record(what);
        drop(store.end(&[session], how).await);
    }
}
