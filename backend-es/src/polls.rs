//! The polls of this process's waiters. Those that poll at about the same time share their requests.
//!
//! A waiter in line polls for its turn. The next one in line polls often at first, then less and less often; the others
//! poll the more seldom the more waiters stand before them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockcore::backend::Task;
use lockcore::backend::judge::{Entry as _, asks};
use lockcore::{Claim, Grant, LockKey, OwnerId, SessionId};
use tokio::sync::watch::{self, Receiver};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::EsBackend;
use crate::error::Outcome;
use crate::read::{States, states};
use crate::record::{Held, held, lock_id, session_id};
use crate::sweep::sessions_of;
use crate::wakeups::counts_by;

/// Longest time from one poll to the next, for who is not in line, and for who comes next in it.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(60);
/// Polls come up to that much earlier, at random, so that processes do not poll at the same time.
const JITTER_MS: u64 = 30;
/// The first poll of who comes next in line; each later one takes twice as long to come.
const NEXT: Duration = Duration::from_millis(1);
/// The first poll of any other for each waiter before it; about as long as a hand-over takes.
const HAND_OVER: Duration = Duration::from_millis(4);
/// Longest time from one poll to the next of who does not come next.
const SELDOM: Duration = Duration::from_millis(500);
/// So many documents are read by one request.
const AT_ONCE: usize = 1_000;
/// So many waiters in the way are looked up: any one that lives keeps those behind it waiting. Each of the others looks at as
/// many.
const NEAREST: usize = 16;

/// Somebody in the way, with the record in which he stands.
type InTheWay = (LockKey, Held);

/// Who waits for whom, and their next poll.
#[derive(Debug)]
pub(crate) struct Polls {
    watching: Mutex<Watching>,
    /// A poll that takes longer says nothing any more: its runtime may stand still.
    patience: Duration,
}

#[derive(Debug, Default)]
struct Watching {
    next: u64,
    watches: BTreeMap<u64, Watched>,
    round: Option<Arc<Round>>,
}

/// What is polled.
#[derive(Debug, Clone)]
enum Watched {
    /// Whether all of these still stand there and are live.
    All(Arc<[InTheWay]>),
    /// Whether this waiter may go.
    Turn(Arc<Turn>),
}

/// A waiter that polls for its turn.
#[derive(Debug)]
struct Turn {
    grant: Grant,
    owner: OwnerId,
    claim: Claim,
    /// The sessions of those who were in the way last.
    sessions: Mutex<BTreeSet<SessionId>>,
}

/// One poll of what some of the watches watch.
#[derive(Debug)]
struct Round {
    at: Instant,
    numbers: Mutex<BTreeSet<u64>>,
    poll: OnceLock<Poll>,
}

#[derive(Debug)]
struct Poll {
    /// In the runtime of whoever was first. When that ends, nothing is said, and everybody asks by himself.
    _task: Task,
    said: Receiver<Option<Arc<BTreeMap<u64, Said>>>>,
}

/// What a poll says of a watch.
#[derive(Debug, Clone)]
enum Said {
    /// It is worth asking.
    Changed,
    /// It is not.
    Same,
    /// So many waiters stand before this one.
    Behind(usize),
    /// It is not in line. Who is in its way.
    NotInLine(Arc<[InTheWay]>),
}

/// A watch, which stands until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    polls: Arc<Polls>,
    number: u64,
    pace: Pace,
}

/// How often to poll.
#[derive(Debug)]
struct Pace {
    /// How many waiters stand before it; `None` for who is not in line.
    behind: Option<usize>,
    pause: Duration,
}

impl Pace {
    fn not_in_line() -> Self {
        Self {
            behind: None,
            pause: POLL_EVERY,
        }
    }

    fn in_line() -> Self {
        Self {
            behind: Some(0),
            pause: NEXT,
        }
    }

    /// So many stand before it.
    fn is_behind(&mut self, waiters: usize) {
        let (first, longest) = match u32::try_from(waiters).unwrap_or(u32::MAX) {
            0 => (NEXT, POLL_EVERY),
            some => (
                HAND_OVER.saturating_mul(some).min(SELDOM),
                POLL_EVERY
                    .saturating_mul(some.saturating_add(1))
                    .min(SELDOM),
            ),
        };
        self.pause = match self.behind == Some(waiters) {
            true => (2 * self.pause).clamp(first, longest),
            false => first,
        };
        self.behind = Some(waiters);
    }

    fn next(&self) -> Instant {
        let early = match self.behind {
            None => Duration::from_millis(rand::random_range(0..=JITTER_MS)),
            Some(_) => Duration::ZERO,
        };
        Instant::now() + self.pause - early
    }
}

impl Polls {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            watching: Mutex::default(),
            patience,
        }
    }

    /// A watch over those in the way.
    pub(crate) fn all(polls: &Arc<Self>, in_the_way: Vec<InTheWay>) -> Watch {
        Self::add(polls, Watched::All(in_the_way.into()), Pace::not_in_line())
    }

    /// A watch for the turn of a waiter.
    pub(crate) fn turn(polls: &Arc<Self>, grant: Grant, owner: OwnerId, claim: Claim) -> Watch {
        let turn = Turn {
            grant,
            owner,
            claim,
            sessions: Mutex::default(),
        };
        Self::add(polls, Watched::Turn(Arc::new(turn)), Pace::in_line())
    }

    fn add(polls: &Arc<Self>, watched: Watched, pace: Pace) -> Watch {
        let mut watching = polls.watching();
        watching.next += 1;
        let number = watching.next;
        watching.watches.insert(number, watched);
        drop(watching);
        Watch {
            polls: Arc::clone(polls),
            number,
            pace,
        }
    }

    /// The next poll of a watch: the one that is to come, if it comes neither later nor much earlier than it should, or else
    /// one of its own.
    fn round(&self, number: u64, pace: &Pace) -> Arc<Round> {
        let (soonest, at) = (Instant::now() + pace.pause / 4, pace.next());
        let mut watching = self.watching();
        let fits = |round: &Round| {
            round.poll.get().is_none() && (soonest..=at.max(soonest)).contains(&round.at)
        };
        watching.round.take_if(|round| !fits(round));
        let round = watching.round.get_or_insert_with(|| {
            Arc::new(Round {
                at,
                numbers: Mutex::default(),
                poll: OnceLock::new(),
            })
        });
        round.numbers().insert(number);
        Arc::clone(round)
    }

    /// What the watches of a round watch; nobody joins it any more.
    fn begin(&self, round: &Round) -> BTreeMap<u64, Watched> {
        let watching = self.watching();
        let numbers = std::mem::take(&mut *round.numbers());
        let watched = |number: u64| Some((number, watching.watches.get(&number)?.clone()));
        numbers.into_iter().filter_map(watched).collect()
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    fn numbers(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the poll, where nobody has.
    fn poll(self: &Arc<Self>, backend: &EsBackend) -> &Poll {
        self.poll.get_or_init(|| {
            let (says, said) = watch::channel(None);
            let (backend, round) = (backend.clone(), Arc::clone(self));
            let task = Task::begin(async move {
                let watches = backend.polls.begin(&round);
                // A store that cannot be read ends the watches: the clients ask by themselves.
                if let Ok(found) = backend.poll(&watches).await {
                    says.send_replace(Some(Arc::new(found)));
                }
            });
            Poll { _task: task, said }
        })
    }
}

impl Watch {
    /// Resolves when it is worth asking again.
    pub(crate) async fn changed(mut self, backend: EsBackend) {
        loop {
            let round = self.polls.round(self.number, &self.pace);
            sleep_until(round.at).await;
            let mut said = round.poll(&backend).said.clone();
            let said = timeout_at(
                round.at + self.polls.patience,
                said.wait_for(Option::is_some),
            );
            let Ok(Ok(said)) = said.await else {
                // What they ask may be answered all the same, so that each would ask at once, again and again.
                sleep_until(round.at + SELDOM).await;
                return;
            };
            match said.as_ref().and_then(|said| said.get(&self.number)) {
                Some(Said::Changed) => return,
                Some(Said::Behind(waiters)) => self.pace.is_behind(*waiters),
                Some(Said::NotInLine(in_the_way)) => {
                    self.pace = Pace::not_in_line();
                    let watched = Watched::All(Arc::clone(in_the_way));
                    self.polls.watching().watches.insert(self.number, watched);
                }
                // One that joined after the poll began is in the next.
                Some(Said::Same) | None => {}
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.polls.watching().watches.remove(&self.number);
    }
}

impl Turn {
    fn sessions(&self) -> MutexGuard<'_, BTreeSet<SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of its records who are in its way if they count, and whether it is in line itself: in all of its records.
    fn in_the_way(
        &self,
        records: &Records,
        counts: impl Fn(&Held) -> bool,
    ) -> (Vec<InTheWay>, bool) {
        let (mut found, mut in_line) = (Vec::new(), true);
        for (key, ask) in asks(&self.claim, Some((self.grant, self.owner))) {
            let entries = records.get(&key).map_or(&[][..], Vec::as_slice);
            let is_own = |held: &&Held| held.grant() == Some(self.grant);
            let own = entries.iter().find(is_own);
            in_line &= own.is_some_and(|own| own.waits().is_some());
            let met = ask.in_the_way(entries, &counts);
            found.extend(met.into_iter().map(|held| (key.clone(), held.clone())));
        }
        (found, in_line)
    }

    /// The sessions of the holders who are in its way, and of the waiters who came first.
    fn met(&self, records: &Records) -> Vec<SessionId> {
        let (met, _) = self.in_the_way(records, |_| true);
        sessions_of(nearest(met).iter().map(|(_, held)| held))
    }

    /// What there is to say where those sessions were looked up. Of others it is not known that they are dead.
    fn said(&self, records: &Records, looked_up: &BTreeSet<SessionId>, states: &States) -> Said {
        let counts = |held: &Held| {
            let known = held.grant().map(|grant| grant.session);
            known.is_some_and(|session| !looked_up.contains(&session)) || counts_by(held, states)
        };
        let (in_the_way, in_line) = self.in_the_way(records, counts);
        let waiters = in_the_way.iter().filter(|(_, held)| held.waits().is_some());
        match in_line {
            _ if in_the_way.is_empty() => Said::Changed,
            true => Said::Behind(waiters.count()),
            false => Said::NotInLine(nearest(in_the_way).into()),
        }
    }
}

/// The holders, and the first of the waiters.
fn nearest(mut met: Vec<InTheWay>) -> Vec<InTheWay> {
    met.sort_by_key(|(_, held)| held.waits().map(|waits| waits.place));
    let holders = met.partition_point(|(_, held)| held.waits().is_none());
    met.truncate(holders + NEAREST);
    met
}

/// Who is in records.
type Records = BTreeMap<LockKey, Vec<Held>>;

impl Watched {
    fn keys(&self) -> Vec<LockKey> {
        match self {
            Watched::All(all) => all.iter().map(|(key, _)| key.clone()).collect(),
            Watched::Turn(turn) => asks(&turn.claim, None).map(|(key, _)| key).collect(),
        }
    }

    /// The sessions of those who were in the way before.
    fn sessions(&self) -> Vec<SessionId> {
        match self {
            Watched::All(all) => sessions_of(all.iter().map(|(_, held)| held)),
            Watched::Turn(turn) => turn.sessions().iter().copied().collect(),
        }
    }

    fn said(&self, records: &Records, looked_up: &BTreeSet<SessionId>, states: &States) -> Said {
        let stands = |(key, held): &InTheWay| {
            let there = records.get(key).is_some_and(|all| all.contains(held));
            there && counts_by(held, states)
        };
        match self {
            Watched::Turn(turn) => turn.said(records, looked_up, states),
            Watched::All(all) if all.iter().all(stands) => Said::Same,
            Watched::All(_) => Said::Changed,
        }
    }
}

impl EsBackend {
    /// What there is to say of each of these watches.
    async fn poll(&self, watches: &BTreeMap<u64, Watched>) -> Outcome<BTreeMap<u64, Said>> {
        let keys: BTreeSet<LockKey> = watches.values().flat_map(Watched::keys).collect();
        let mut looked_up: BTreeSet<SessionId> =
            watches.values().flat_map(Watched::sessions).collect();
        let sessions: Vec<SessionId> = looked_up.iter().copied().collect();
        let records = keys.iter().map(|key| lock_id(key).into_owned());
        let ids = records.chain(sessions.iter().map(|session| session_id(*session)));
        let ids: Vec<String> = ids.collect();
        let mut documents = Vec::with_capacity(ids.len());
        for some in ids.chunks(AT_ONCE) {
            documents.extend(self.get(some.to_vec()).await?);
        }
        let mut states = states(&sessions, documents.split_off(keys.len()));
        let records = keys.into_iter().zip(documents);
        let records: Records = records
            .filter_map(|(key, document)| {
                let held = held(&key, &document?.source);
                Some((key, held))
            })
            .collect();
        let mut unknown = BTreeSet::new();
        for watched in watches.values() {
            if let Watched::Turn(turn) = watched {
                let met = turn.met(&records);
                unknown.extend(met.iter().filter(|it| !looked_up.contains(it)));
                *turn.sessions() = met.into_iter().collect();
            }
        }
        let unknown: Vec<SessionId> = unknown.into_iter().collect();
        for some in unknown.chunks(AT_ONCE) {
            states.extend(self.states(some).await?);
        }
        looked_up.extend(unknown);
        let said = |(number, watched): (&u64, &Watched)| {
            (*number, watched.said(&records, &looked_up, &states))
        };
        Ok(watches.iter().map(said).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_next_polls_often_and_the_others_the_more_seldom_the_more_come_first() {
        let ms = |pace: &Pace| pace.pause.as_millis();
        let mut pace = Pace::in_line();
        let mut next = Vec::new();
        for _ in 0..7 {
            pace.is_behind(0);
            next.push(ms(&pace));
        }
        assert_eq!(next, [2, 4, 8, 16, 32, 60, 60]);
        let mut third = Pace::in_line();
        let mut pauses = Vec::new();
        for waiters in [2, 2, 2, 2, 2, 2, 1, 0, 0] {
            third.is_behind(waiters);
            pauses.push(ms(&third));
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 180, 4, 1, 2]);
        third.is_behind(100_000);
        assert_eq!(third.pause, SELDOM);
    }
}
