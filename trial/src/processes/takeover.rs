//! How long the lock of a killed process waits for its next holder.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lockcore::{LockKey, SessionId, Want};

use crate::history::{Answer, Call, History, Reply, What};

/// Takeover times: from the sending of a killed holder's last acknowledged renewal to the next grant of its lock, for
/// locks that somebody waited for.
///
/// Only locks that are always asked for as one exclusive claim of one flat key are counted: an acquisition of several
/// keys may have one of them and wait for another.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Takeovers {
    /// The times, shortest first.
    pub times: Vec<Duration>,
    /// Those, shortest first, where a waiter was killed, too, who had asked before the next holder: its place in line
    /// lasts for a while.
    pub behind: Vec<Duration>,
    /// How many of all these were later than their limit, and than the machine was meanwhile.
    pub late: usize,
    /// Locks of killed processes for which nobody waited.
    pub unwanted: usize,
    /// Locks for which the start or the next holder is unknown: a renewal, a release or a grant was under way when the
    /// process was killed.
    pub unclear: usize,
}

impl Takeovers {
    /// The time that this percentage of them does not exceed; `None` if there are none.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.times.len() * percent).div_ceil(100);
        self.times.get(rank.saturating_sub(1)).copied()
    }

    /// `late`: how long after the TTL the lock may go to the next one.
    pub(super) fn of(history: &History, ttl: Duration, late: Duration) -> Self {
        let mut looking = Looking::new(history, ttl, late);
        for event in &history.events {
            looking.event(event.at, event.process, &event.what);
        }
        let mut found = looking.found;
        found.times.sort_unstable();
        found.behind.sort_unstable();
        found
    }
}

impl fmt::Display for Takeovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} takeovers", self.times.len())?;
        for (name, percent) in [("p50", 50), ("p99", 99), ("max", 100)] {
            if let Some(time) = self.percentile(percent) {
                write!(f, ", {name} {} ms", time.as_millis())?;
            }
        }
        write!(
            f,
            " ({} more behind dead waiters, {} locks unwanted, {} unclear)",
            self.behind.len(),
            self.unwanted,
            self.unclear
        )
    }
}

/// Who asked for which lock, and when.
struct Asked<'a> {
    key: &'a LockKey,
    process: u32,
    at: u64,
}

/// A lock, as far as it matters here.
#[derive(Default)]
struct Lock {
    /// Its holder was killed.
    orphan: Option<Orphan>,
    /// Whose guard was given back last; nobody has been granted it since.
    given_back: Option<u32>,
    /// Who waited for it and was killed.
    dead: Vec<DeadWaiter>,
}

struct DeadWaiter {
    process: u32,
    asked: u64,
    killed: u64,
}

/// So long after it stopped asking a waiter's place is gone.
const PLACE: Duration = Duration::from_secs(3);

struct Orphan {
    /// When the renewal was sent that it lives from; nobody knows if it is `None`.
    since: Option<u64>,
    /// Whose waiters had no place while it held the lock.
    process: Option<u32>,
}

struct Looking<'a> {
    ttl: u64,
    limit: Duration,
    /// How much too late the machine has woken somebody, by when.
    woken_late: BTreeMap<u64, u64>,
    /// The locks that are looked at.
    locks: BTreeMap<&'a LockKey, Lock>,
    /// Attempts that wait or hold.
    asked: BTreeMap<u64, Asked<'a>>,
    /// Those that hold, and in which session.
    held: BTreeMap<u64, SessionId>,
    /// When each session's last renewal was sent, and when the last acknowledged one was.
    renewals: BTreeMap<SessionId, (u64, Option<u64>)>,
    /// The renewals under way.
    calls: BTreeMap<(u32, u64), SessionId>,
    found: Takeovers,
}

impl<'a> Looking<'a> {
    fn new(history: &'a History, ttl: Duration, late: Duration) -> Self {
        let mut locks = BTreeMap::new();
        for event in &history.events {
            let What::Asked { claims, .. } = &event.what else {
                continue;
            };
            for claim in claims {
                let alone = claims.len() == 1 && claim.want() == Want::Create;
                let only = locks.entry(claim.key()).or_insert(true);
                *only &= alone;
            }
        }
        let locks = locks.into_iter().filter(|(_, only)| *only);
        Self {
            ttl: u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX),
            limit: ttl + late,
            woken_late: BTreeMap::new(),
            locks: locks.map(|(key, _)| (key, Lock::default())).collect(),
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            renewals: BTreeMap::new(),
            calls: BTreeMap::new(),
            found: Takeovers::default(),
        }
    }

    fn event(&mut self, at: u64, process: u32, what: &'a What) {
        match what {
            What::Asked {
                attempt, claims, ..
            } => {
                let key = claims.first().map(lockcore::Claim::key);
                if let Some(key) = key.filter(|key| self.locks.contains_key(key)) {
                    let asked = Asked { key, process, at };
                    self.asked.insert(*attempt, asked);
                }
            }
            What::Granted {
                attempt, session, ..
            } => self.granted(at, *attempt, *session),
            What::Refused { attempt, .. } => drop(self.asked.remove(attempt)),
            What::GivingBack { attempt, .. } => {
                self.held.remove(attempt);
                let asked = self.asked.remove(attempt);
                let lock = asked.and_then(|asked| self.locks.get_mut(asked.key));
                if let Some(lock) = lock {
                    lock.given_back = Some(process);
                }
            }
            What::Called {
                call,
                request: Call::Open { session, .. } | Call::Renew { session, .. },
            } => {
                self.calls.insert((process, *call), *session);
                let (last, _) = self.renewals.entry(*session).or_default();
                *last = at;
            }
            What::Answered { call, reply } => {
                let session = self.calls.remove(&(process, *call));
                let renewals = session.and_then(|session| self.renewals.get_mut(&session));
                if let Some((last, acknowledged)) = renewals
                    && let Reply::Opened(true) | Reply::Renewed(Answer::Living) = reply
                {
                    *acknowledged = Some(*last);
                }
            }
            What::Killed => self.killed(at, process),
            What::Late { by } => drop(self.woken_late.insert(at, *by)),
            _ => {}
        }
    }

    fn granted(&mut self, at: u64, attempt: u64, session: SessionId) {
        let Some(asked) = self.asked.get(&attempt) else {
            return;
        };
        self.held.insert(attempt, session);
        let lock = self.locks.entry(asked.key).or_default();
        lock.given_back = None;
        let Some(orphan) = lock.orphan.take() else {
            return;
        };
        let Some(since) = orphan.since else {
            self.found.unclear += 1;
            return;
        };
        if asked.at > since + self.ttl {
            self.found.unwanted += 1;
            return;
        }
        // Its place lasts for as long as its session, unless it is passed.
        let ahead = |dead: &&DeadWaiter| {
            dead.asked < asked.at && dead.killed > since && Some(dead.process) != orphan.process
        };
        let ahead: Vec<&DeadWaiter> = lock.dead.iter().filter(ahead).collect();
        let time = Duration::from_nanos(at - since);
        // Each process leaves one place, which goes with its session at the latest.
        let processes: BTreeSet<u32> = ahead.iter().map(|dead| dead.process).collect();
        let passed = PLACE * u32::try_from(processes.len()).unwrap_or(u32::MAX);
        let killed = ahead.iter().map(|dead| dead.killed - since).max();
        let limit = self.limit + passed.min(Duration::from_nanos(killed.unwrap_or(0)));
        let machine = self.woken_late.range(since..).map(|(_, by)| *by).max();
        let is_late = time > limit + Duration::from_nanos(machine.unwrap_or(0));
        self.found.late += usize::from(is_late);
        match ahead.is_empty() {
            true => self.found.times.push(time),
            false => self.found.behind.push(time),
        }
    }

    fn killed(&mut self, at: u64, process: u32) {
        for lock in self.locks.values_mut() {
            if lock.given_back == Some(process) {
                // Released or not.
                lock.orphan.get_or_insert(Orphan {
                    since: None,
                    process: None,
                });
            }
        }
        let gone = self
            .asked
            .extract_if(.., |_, asked| asked.process == process);
        for (attempt, asked) in gone {
            let lock = self.locks.entry(asked.key).or_default();
            if let Some(session) = self.held.remove(&attempt) {
                let renewals = self.renewals.get(&session).copied();
                let since = renewals.and_then(|(last, acknowledged)| {
                    acknowledged.filter(|acknowledged| *acknowledged == last)
                });
                lock.orphan = Some(Orphan {
                    since,
                    process: Some(process),
                });
                continue;
            }
            let (asked, killed) = (asked.at, at);
            lock.dead.push(DeadWaiter {
                process,
                asked,
                killed,
            });
            if let Some(orphan) = &mut lock.orphan
                && orphan.since.is_none_or(|since| at > since + self.ttl)
            {
                // Perhaps it had just got what was left.
                orphan.since = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::{Claim, FencingToken};

    use super::*;
    use crate::history::Event;

    const TTL: Duration = Duration::from_secs(1);

    /// Events of processes, each at a time in milliseconds.
    fn history(events: impl IntoIterator<Item = (u64, u32, What)>) -> History {
        let event = |(at, process, what)| Event {
            at: at * 1_000_000,
            process,
            what,
        };
        History {
            events: events.into_iter().map(event).collect(),
            real_time: true,
        }
    }

    fn session(process: u32) -> SessionId {
        SessionId::new(process.into())
    }

    fn ask(attempt: u64) -> What {
        What::Asked {
            attempt,
            owner: attempt,
            claims: vec![Claim::new(LockKey::parse("r").unwrap(), Want::Create).unwrap()],
            intent: false,
        }
    }

    fn granted(attempt: u64, process: u32) -> What {
        What::Granted {
            attempt,
            session: session(process),
            token: FencingToken::new(attempt).unwrap(),
            left: 1,
            numbers: vec![1],
            validity: 1,
        }
    }

    fn renewing(call: u64, session: SessionId) -> What {
        let retired = lockcore::backend::Ranges::EMPTY;
        let (seq, change) = (call, crate::history::Change::Keep);
        let request = Call::Renew {
            session,
            seq,
            granted: retired.clone(),
            retired,
            change,
        };
        What::Called { call, request }
    }

    fn renewed(call: u64) -> What {
        let reply = Reply::Renewed(Answer::Living);
        What::Answered { call, reply }
    }

    /// The first process holds the lock when it is killed at 500 ms, and was last renewed at 200.
    fn killed() -> Vec<(u64, u32, What)> {
        let session = session(1);
        vec![
            (0, 1, renewing(1, session)),
            (1, 1, renewed(1)),
            (2, 1, ask(1)),
            (3, 1, granted(1, 1)),
            (200, 1, renewing(2, session)),
            (201, 1, renewed(2)),
            (500, 1, What::Killed),
        ]
    }

    fn times(more: Vec<(u64, u32, What)>) -> Takeovers {
        let mut events = [killed(), more].concat();
        events.sort_by_key(|(at, ..)| *at);
        Takeovers::of(&history(events), TTL, Duration::from_millis(250))
    }

    fn counts(found: &Takeovers) -> (Vec<u128>, usize, usize) {
        let times = found.times.iter().map(Duration::as_millis).collect();
        (times, found.unwanted, found.unclear)
    }

    #[test]
    fn from_the_last_acknowledged_renewal_to_the_next_grant() {
        let found = times(vec![(300, 2, ask(2)), (1_210, 2, granted(2, 2))]);
        assert_eq!(counts(&found), (vec![1_010], 0, 0));
        assert_eq!(found.percentile(99), Some(Duration::from_millis(1_010)));
    }

    #[test]
    fn a_lock_that_nobody_waits_for_is_no_takeover() {
        let found = times(vec![(5_000, 2, ask(2)), (5_001, 2, granted(2, 2))]);
        assert_eq!(counts(&found), (vec![], 1, 0));
        assert_eq!(found.percentile(99), None);
    }

    #[test]
    fn what_was_under_way_is_unclear() {
        let session = session(1);
        let next = [(300, 2, ask(2)), (1_210, 2, granted(2, 2))];
        for before in [
            // The last renewal has no answer.
            vec![(499, 1, renewing(3, session))],
            // It was perhaps released already.
            vec![(
                499,
                1,
                What::GivingBack {
                    attempt: 1,
                    how: crate::history::How::Released,
                },
            )],
            // Another one was killed that had perhaps just got it.
            vec![(300, 3, ask(3)), (1_205, 3, What::Killed)],
        ] {
            let found = times([before, next.to_vec()].concat());
            assert_eq!(counts(&found), (vec![], 0, 1));
        }
        // Before that it cannot have got it.
        let other = vec![(301, 3, ask(3)), (1_100, 3, What::Killed)];
        let found = times([other, next.to_vec()].concat());
        assert_eq!(counts(&found), (vec![1_010], 0, 0));
    }

    #[test]
    fn who_waits_behind_the_dead_is_counted_apart() {
        for (who, asked, killed, is_behind) in [
            (3, 299, 1_100, true),
            (3, 299, 400, true),
            // It had asked later.
            (3, 301, 1_100, false),
            // Its session has ended before.
            (3, 100, 150, false),
            // Its process had the lock.
            (1, 299, 500, false),
        ] {
            let dead = [(asked, who, ask(3)), (killed, who, What::Killed)];
            let next = [(300, 2, ask(2)), (1_210, 2, granted(2, 2))];
            let found = times([dead, next].concat());
            let (behind, clean) = (found.behind.len(), found.times.len());
            assert_eq!((behind, clean), (is_behind.into(), (!is_behind).into()));
        }
    }

    #[test]
    fn what_is_later_than_its_limit_is_counted() {
        let late = |granted_at: u64, more: Vec<(u64, u32, What)>| {
            let next = vec![(300, 2, ask(2)), (granted_at, 2, granted(2, 2))];
            times([more, next].concat()).late
        };
        let dead = || vec![(299, 3, ask(3)), (400, 3, What::Killed)];
        let woken = |at| vec![(at, 0, What::Late { by: 100_000_000 })];
        // The last renewal was sent at 200 ms.
        assert_eq!(late(1_450, vec![]), 0);
        assert_eq!(late(1_451, vec![]), 1);
        // Whoever was killed at 400 ms is gone 200 ms later than the holder.
        assert_eq!(late(1_650, dead()), 0);
        assert_eq!(late(1_651, dead()), 1);
        // As late as the machine was meanwhile.
        assert_eq!(late(1_550, woken(1_300)), 0);
        assert_eq!(late(1_551, woken(1_300)), 1);
        assert_eq!(late(1_550, woken(150)), 1);
    }

    #[test]
    fn percentiles_are_of_times_that_were_measured() {
        let times = (1..=200).map(Duration::from_millis).collect();
        let found = Takeovers {
            times,
            ..Takeovers::default()
        };
        assert_eq!(found.percentile(50), Some(Duration::from_millis(100)));
        assert_eq!(found.percentile(99), Some(Duration::from_millis(198)));
        assert_eq!(found.percentile(100), Some(Duration::from_millis(200)));
    }
}
