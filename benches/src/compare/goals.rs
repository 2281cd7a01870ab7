//! What this project wants of each store, and whether it is so.

use lockkeeper_workloads::{ACQUIRE, HAND_OVER, READ_FOR, SWEPT, WAIT};

use super::result::{
    At, BASELINE, Comparison, FAIRNESS, OURS, PER_SECOND, Round, TO_BASELINE, Times, named,
    of_times, to_f64,
};
use super::{CONTENDED_BY_PROCESSES, WAITER};
use crate::rounds::Spread;

/// One figure that a store has to reach.
pub(super) struct Goal {
    pub(super) store: &'static str,
    pub(super) what: &'static str,
    limit: Limit,
    read: fn(&Comparison, &str) -> Option<Spread>,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

use Limit::{AtLeast, AtMost};

const PAIR: &str = "acquire and release of one lock, to the store's own pair";
const DEEP: &str = "a tree lock of depth 32, to one of depth 1";
const MILLION: &str = "acquisition of 1,000,000 documents, to as many bare records";
const MILLION_SWEPT: &str = "their release with every record swept, to the removal of bare records";
const TASKS: &str = "hand-overs by 8 tasks, to the pairs of one";
const SHARED: &str = "shares of one key by 16 tasks, to locks of a key each";
const PLACES: &str = "fairness of 100 tasks at a semaphore of 10 (Jain's index)";
const WRITER: &str = "a writer's wait beside readers of its process, in their hold times";
const NEXT_MS: &str = "ms from release to the next grant by 8 processes, median";
const WAITER_MS: &str = "ms that another process waits beside 8 tasks, longest";
const FAIR: &str = "waits of 8 processes, p99 to the mean";

const fn goal(
    store: &'static str,
    what: &'static str,
    limit: Limit,
    read: fn(&Comparison, &str) -> Option<Spread>,
) -> Goal {
    Goal {
        store,
        what,
        limit,
        read,
    }
}

pub(super) const GOALS: [Goal; 48] = [
    goal("elasticsearch", PAIR, AtMost(1.35), pair),
    goal(
        "elasticsearch",
        "a tree lock of depth 5, to one lock",
        AtMost(1.5),
        depth_5,
    ),
    goal("elasticsearch", MILLION, AtMost(1.15), million),
    goal("elasticsearch", MILLION_SWEPT, AtMost(1.3), million_swept),
    goal("elasticsearch", NEXT_MS, AtMost(50.0), next_ms),
    goal("elasticsearch", WAITER_MS, AtMost(100.0), waiter_ms),
    goal("elasticsearch", TASKS, AtLeast(20.0), tasks),
    goal("elasticsearch", SHARED, AtLeast(5.0), shared),
    goal("elasticsearch", PLACES, AtLeast(0.95), places),
    goal("elasticsearch", WRITER, AtMost(3.0), writer),
    goal("redis", PAIR, AtMost(1.4), pair),
    goal("redis", DEEP, AtMost(1.5), deep),
    goal("redis", MILLION, AtMost(3.0), million),
    goal("redis", FAIR, AtMost(10.0), fair),
    goal("redis", NEXT_MS, AtMost(1.0), next_ms),
    goal("redis", WAITER_MS, AtMost(100.0), waiter_ms),
    goal("redis", TASKS, AtLeast(20.0), tasks),
    goal("redis", SHARED, AtLeast(5.0), shared),
    goal("redis", PLACES, AtLeast(0.95), places),
    goal("redis", WRITER, AtMost(3.0), writer),
    goal("postgres", PAIR, AtMost(1.15), pair),
    goal("postgres", DEEP, AtMost(1.4), deep),
    goal("postgres", MILLION, AtMost(2.0), million),
    goal("postgres", FAIR, AtMost(10.0), fair),
    goal("postgres", NEXT_MS, AtMost(3.0), next_ms),
    goal("postgres", WAITER_MS, AtMost(100.0), waiter_ms),
    goal("postgres", TASKS, AtLeast(20.0), tasks),
    goal("postgres", SHARED, AtLeast(5.0), shared),
    goal("postgres", PLACES, AtLeast(0.95), places),
    goal("postgres", WRITER, AtMost(3.0), writer),
    goal("etcd", PAIR, AtMost(1.25), pair),
    goal("etcd", DEEP, AtMost(1.3), deep),
    goal("etcd", MILLION, AtMost(1.5), million),
    goal(
        "etcd",
        "hand-overs by 8 tasks, to those of etcd's own lock",
        AtLeast(5.0),
        etcds_lock,
    ),
    goal("etcd", FAIR, AtMost(10.0), fair),
    goal("etcd", WAITER_MS, AtMost(100.0), waiter_ms),
    goal("etcd", TASKS, AtLeast(20.0), tasks),
    goal("etcd", SHARED, AtLeast(5.0), shared),
    goal("etcd", PLACES, AtLeast(0.95), places),
    goal("etcd", WRITER, AtMost(3.0), writer),
    goal("sqlite", PAIR, AtMost(2.2), pair),
    goal("sqlite", FAIR, AtMost(10.0), fair),
    goal("sqlite", NEXT_MS, AtMost(50.0), next_ms),
    goal("sqlite", WAITER_MS, AtMost(100.0), waiter_ms),
    goal("sqlite", TASKS, AtLeast(10.0), tasks),
    goal("sqlite", SHARED, AtLeast(5.0), shared),
    goal("sqlite", PLACES, AtLeast(0.95), places),
    goal("sqlite", WRITER, AtMost(3.0), writer),
];

impl Goal {
    /// The figure, if it was measured, and whether its median is as wanted.
    pub(super) fn judge(&self, found: &Comparison) -> Option<(Spread, bool)> {
        let figure = (self.read)(found, self.store)?;
        let reached = match self.limit {
            AtMost(limit) => figure.median() <= limit,
            AtLeast(limit) => figure.median() >= limit,
        };
        Some((figure, reached))
    }

    pub(super) fn limit(&self) -> String {
        match self.limit {
            AtMost(limit) => format!("at most {limit}"),
            AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

fn at<'a>(store: &'a str, of: &'a str, workload: &'a str, size: u32) -> At<'a> {
    At {
        store,
        of,
        workload,
        size,
    }
}

/// What one takes to what another takes, by how many are done in a second.
fn time(found: &Comparison, of: At<'_>, to: At<'_>) -> Option<Spread> {
    found.ratio((to, named(PER_SECOND)), (of, named(PER_SECOND)))
}

pub(super) fn pair(found: &Comparison, store: &str) -> Option<Spread> {
    let of = |of| at(store, of, "uncontended", 1);
    time(found, of(OURS), of(BASELINE))
}

fn depth_5(found: &Comparison, store: &str) -> Option<Spread> {
    let global = at(store, OURS, "uncontended", 1);
    time(found, at(store, OURS, "tree", 5), global)
}

fn deep(found: &Comparison, store: &str) -> Option<Spread> {
    let tree = |depth| at(store, OURS, "tree", depth);
    time(found, tree(32), tree(1))
}

fn of_million(found: &Comparison, store: &str, what: &'static str) -> Option<Spread> {
    let mean = || of_times(what, |times| times.mean);
    let of = |of| at(store, of, "documents", 1_000_000);
    found.ratio((of(OURS), mean()), (of(BASELINE), mean()))
}

fn million(found: &Comparison, store: &str) -> Option<Spread> {
    of_million(found, store, ACQUIRE)
}

fn million_swept(found: &Comparison, store: &str) -> Option<Spread> {
    of_million(found, store, SWEPT)
}

pub(super) fn tasks(found: &Comparison, store: &str) -> Option<Spread> {
    found.figure(at(store, OURS, "contended", 8), named(TO_BASELINE))
}

/// The longest that a waiter of another process waits beside 8 tasks.
pub(super) fn waiter_ms(found: &Comparison, store: &str) -> Option<Spread> {
    let read = of_times(WAIT, |times| to_f64(times.longest) / 1e3);
    found.figure(at(store, OURS, WAITER, 8), read)
}

fn shared(found: &Comparison, store: &str) -> Option<Spread> {
    found.figure(at(store, OURS, "shared", 16), named(TO_BASELINE))
}

fn places(found: &Comparison, store: &str) -> Option<Spread> {
    found.figure(at(store, OURS, "semaphore", 100), named(FAIRNESS))
}

fn writer(found: &Comparison, store: &str) -> Option<Spread> {
    let holds = in_holds(|times| times.p50);
    found.figure(at(store, OURS, "writer beside readers", 3), holds)
}

/// A wait, in hold times of a reader.
pub(super) fn in_holds(read: fn(&Times) -> u64) -> impl Fn(&Round) -> Option<f64> {
    of_times(WAIT, move |times| {
        to_f64(read(times)) / 1e6 / READ_FOR.as_secs_f64()
    })
}

pub(super) fn longest(found: &Comparison, store: &str) -> Option<Spread> {
    let read = of_times(WAIT, |times| to_f64(times.longest) / times.mean);
    found.figure(at(store, OURS, "contended", 8), read)
}

pub(super) fn fair(found: &Comparison, store: &str) -> Option<Spread> {
    let read = of_times(WAIT, |times| to_f64(times.p99) / times.mean);
    found.figure(at(store, OURS, CONTENDED_BY_PROCESSES, 8), read)
}

pub(super) fn next_ms(found: &Comparison, store: &str) -> Option<Spread> {
    let read = of_times(HAND_OVER, |times| to_f64(times.p50) / 1e3);
    found.figure(at(store, OURS, CONTENDED_BY_PROCESSES, 8), read)
}

fn etcds_lock(found: &Comparison, store: &str) -> Option<Spread> {
    let ours = at(store, OURS, "contended", 8);
    let peers = found.peers(store).into_iter();
    let spread = |peer| {
        let theirs = at(store, peer, "contended", 8);
        found.ratio((ours, named(PER_SECOND)), (theirs, named(PER_SECOND)))
    };
    // The better one of theirs.
    peers
        .filter_map(spread)
        .min_by(|one, other| one.median().total_cmp(&other.median()))
}
