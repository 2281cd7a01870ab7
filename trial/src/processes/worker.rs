//! One process of a trial: programs by chance, until it is told to stop or killed.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockcore::{Guard, Label, LockBackend, Locks, Want};
use lockcore_conformance::parts::{Task, Verdict};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::breaking::{BrokenClient, BrokenStore, Known};
use super::log::{Log, now};
use super::resource::Resources;
use super::{BOUND, Breach};
use crate::faults::{Fault, Faulty, Link, Weather};
use crate::history::What;
use crate::programs::{self, Access, Handler, Place, Request, User, Watched, ask, chance, flat};
use crate::programs::{confirm_and_give_back, nanos, relay, up_to, use_up, validity};

/// Programs of each process.
const PROGRAMS: u64 = 2;
/// Programs of each process that wait for one exclusive lock after the other, so that somebody waits for most of them.
const RELAYS: u64 = 3;
/// Those locks: nobody asks for them in another way.
const RELAYED: [&str; 5] = ["r1", "r2", "r3", "r4", "r5"];
/// Keys of which there are only so many shares, at most: nobody asks for them in another way.
const SHARED: [&str; 2] = ["s1", "s2"];
const SHARES: u32 = 3;

/// Documents that each process takes many of at a time, and not for long: most of its writes are these.
const DOCUMENTS: usize = 500;
const AT_A_TIME: usize = 40;

/// How often a process looks whether it is late. It is when it is woken later by as much.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// What all processes of a trial are told, in a file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) ttl: Duration,
    pub(super) breach: Option<Breach>,
    /// Requests and answers are late, lost and doubled.
    pub(super) requests: bool,
}

impl Orders {
    const FILE: &str = "orders";

    pub(super) fn write(&self, dir: &Path) -> Verdict {
        Ok(std::fs::write(
            dir.join(Self::FILE),
            serde_json::to_vec(self)?,
        )?)
    }

    fn read(dir: &Path) -> Verdict<Self> {
        Ok(serde_json::from_slice(&std::fs::read(
            dir.join(Self::FILE),
        )?)?)
    }
}

/// The file that tells processes to begin nothing new.
pub(super) fn stop(dir: &Path) -> PathBuf {
    dir.join("stop")
}

/// The file of a process that has nothing left to do, and keeps its sessions.
pub(super) fn rests(dir: &Path, process: u32) -> PathBuf {
    dir.join(format!("rests-{process}"))
}

/// The file that tells processes to end.
pub(super) fn end(dir: &Path) -> PathBuf {
    dir.join("end")
}

/// One process, and what its programs need.
#[derive(Debug, Clone)]
pub(super) struct Site {
    log: Log,
    process: u32,
    orders: Orders,
    stop: PathBuf,
    resources: Resources,
    next: Arc<AtomicU64>,
    looks: Arc<AtomicU64>,
}

impl Site {
    pub(super) fn new(dir: &Path, process: u32, orders: Orders) -> Verdict<Self> {
        Ok(Self {
            log: Log::create(dir, process)?,
            process,
            orders,
            stop: stop(dir),
            resources: Resources {
                dir: dir.to_owned(),
                process,
                breach: orders.breach,
            },
            next: Arc::default(),
            looks: Arc::default(),
        })
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// The store as this process sees it, which is written down, and which does wrong what it is to do wrong.
    pub(super) fn watched(&self, store: Arc<dyn LockBackend>) -> Arc<dyn LockBackend> {
        let watched =
            |store| -> Arc<dyn LockBackend> { Arc::new(Watched::new(store, self.log.clone())) };
        let Some(breach) = self.orders.breach else {
            return watched(store);
        };
        let (known, ttl) = (Arc::<Known>::default(), self.orders.ttl);
        let store = BrokenStore::before(store, breach, &known, ttl);
        BrokenClient::before(watched(store), breach, &known, ttl)
    }

    /// The client of this process.
    pub(super) fn user(
        &self,
        store: Arc<dyn LockBackend>,
        recovery: Option<Xoshiro256PlusPlus>,
    ) -> Verdict<User> {
        let mut builder = Locks::builder(self.watched(store))
            .ttl(self.orders.ttl)
            .label(Label::parse(format!("p{}", self.process))?);
        if let Some(chance) = recovery {
            builder = builder.recovery(Handler::new(self.clone(), chance));
        }
        Ok(User::new(builder.build()?))
    }
}

impl Place for Site {
    fn now(&self) -> u64 {
        now()
    }

    fn record_at(&self, at: u64, what: What) {
        self.log.record_at(at, what);
    }

    fn number(&self) -> u64 {
        (u64::from(self.process) << 32) + self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn is_stopped(&self) -> bool {
        self.stop.exists()
    }

    fn ttl(&self) -> Duration {
        self.orders.ttl
    }

    fn left(&self, guard: &Guard) -> u64 {
        match self.orders.breach {
            Some(Breach::DeadlineIgnored) => nanos(validity(self.orders.ttl)),
            Some(Breach::Revived) if self.looks.fetch_add(1, Ordering::Relaxed) % 5 == 4 => 0,
            _ => nanos(guard.remaining()),
        }
    }

    // What a process did with a handle the files of another one do not tell.
    fn may_keep(&self) -> bool {
        false
    }

    fn may_die(&self) -> bool {
        true
    }

    async fn die(&self) {
        self.record(What::Killed);
        kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    }

    async fn read(&self, access: &Access) -> Option<u64> {
        let read = self.resources.read(access).await;
        read.expect("a resource can be read")
    }

    async fn write(&self, access: Access, read: u64, delay: Duration) {
        sleep(delay).await;
        if self.orders.breach == Some(Breach::TokensIgnored) && access.fenced {
            let (resources, access) = (self.resources.clone(), access.clone());
            let late = self.orders.ttl / 2;
            #[expect(clippy::disallowed_methods, reason = "it outlives its guard")]
            drop(tokio::spawn(async move {
                sleep(late).await;
                resources.write_stale(access, read).await
            }));
        }
        let written = self.resources.write(access, read).await;
        written.expect("a resource can be written");
    }
}

/// What goes wrong with requests on a real store: so much that sessions are lost of it, and most are not.
fn weather(ttl: Duration) -> Weather {
    Weather {
        delay: Duration::from_millis(2),
        slow: 0.05,
        lost_request: 0.01,
        lost_answer: 0.02,
        repeated: 0.05,
        late: ttl * 2,
        unavailable: 0.01,
    }
}

/// What a process does from its beginning to its end.
pub(super) async fn work(task: Task) -> Verdict {
    let process = task.role.parse()?;
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let site = Site::new(&task.dir, process, Orders::read(&task.dir)?)?;
    let recovers = chance(task.seed, 0).random_bool(0.6);
    let link = Link::new(task.seed, weather(site.orders.ttl));
    let store: Arc<dyn LockBackend> = match site.orders.requests {
        true => Arc::new(Faulty::new(task.backend, link.clone(), site.orders.ttl / 2)),
        false => task.backend,
    };
    let user = site.user(store, recovers.then(|| chance(task.seed, 1)))?;
    let programs =
        (0..PROGRAMS).map(|part| programs::run(&site, &user, chance(task.seed, 10 + part)));
    let relays =
        (0..RELAYS).map(|part| relay(&site, &user, &RELAYED, chance(task.seed, 20 + part)));
    let churn = churn(&site, &user, chance(task.seed, 30));
    let share = share(&site, &user, chance(task.seed, 40));
    let clears_up = async {
        while !site.is_stopped() {
            sleep(Duration::from_millis(50)).await;
            for (fault, count) in link.met() {
                for _ in 0..count {
                    let fault = Fault::Request(fault);
                    site.record(What::Struck { fault });
                }
            }
        }
        link.set(Weather::FAIR);
    };
    let work = async {
        tokio::join!(
            join_all(programs),
            join_all(relays),
            churn,
            share,
            clears_up
        )
    };
    tokio::select! {
        _ = work => {}
        () = lateness(&site) => {}
    }
    user.forget_owner(None);
    // What it keeps by mistake would go with its sessions.
    std::fs::write(rests(&task.dir, process), "")?;
    while !end(&task.dir).exists() {
        sleep(Duration::from_millis(50)).await;
    }
    let done = user.locks.shutdown(BOUND).await;
    site.record(What::ShutDown { done });
    Ok(())
}

/// Writes down whenever the machine wakes this process late; does not end.
async fn lateness(site: &Site) {
    loop {
        let since = Instant::now();
        sleep(TICK).await;
        let late = since.elapsed().saturating_sub(TICK);
        if late > TICK {
            site.record(What::Late { by: nanos(late) });
        }
    }
}

/// Asks for one of a few shares after the other.
async fn share(site: &Site, user: &User, mut rng: Xoshiro256PlusPlus) {
    while !site.is_stopped() {
        sleep(up_to(&mut rng, Duration::from_millis(150))).await;
        let key = SHARED[rng.random_range(0..SHARED.len())];
        let limit = NonZeroU32::new(rng.random_range(1..=SHARES));
        let intent = rng.random_bool(0.3);
        let request = Request::trying(vec![flat(key, Want::Share { limit })], intent);
        if let Some(got) = ask(site, user, request).await {
            confirm_and_give_back(site, &mut rng, got).await;
        }
    }
}

/// Takes many documents at a time.
async fn churn(site: &Site, user: &User, mut rng: Xoshiro256PlusPlus) {
    while !site.is_stopped() {
        sleep(up_to(&mut rng, Duration::from_millis(10))).await;
        let count = rng.random_range(1..=AT_A_TIME);
        let documents = rand::seq::index::sample(&mut rng, DOCUMENTS, count);
        let claims = documents
            .iter()
            .map(|number| flat(&format!("d{number}"), Want::Upsert));
        let request = Request::waiting(claims.collect(), rng.random_bool(0.3));
        if let Some(got) = ask(site, user, request).await {
            use_up(site, &mut rng, got).await;
        }
    }
}
