//! The form of records: each target and each ancestor is a record, written by itself.
//!
//! The records of locks contain no time. To judge the holders that a request meets, their sessions are ended if they
//! are due, and the whole batch is sent once more, past the holders that are not live.

use std::collections::BTreeMap;

use super::record::{Entered, Held};
use super::{MemoryBackend, State, token};
use crate::backend::judge::{self, Aside, Ask, ByRecord, Tried, needed, stands_in_line};
use crate::{
    Acquire, Claim, End, Grant, Holder, Life, LockKey, SessionId, SessionState, SessionStore, Stood,
};

/// The records that claims need, in path order.
type Needed<'a> = BTreeMap<LockKey, Ask<'a>>;

/// Who is not in the way, by record.
type Asides = BTreeMap<LockKey, Aside>;

/// A record that was written.
struct Written<'a> {
    key: &'a LockKey,
    number: u64,
    /// The grant did not stand there before.
    new: bool,
}

/// What came of one record's write.
enum Wrote {
    /// Its number, and whether the grant is new there.
    Written(u64, bool),
    /// Somebody is in its way: all its entries.
    Met(Vec<Held>),
    /// The store is of another incarnation.
    Moved,
}

/// The store in the form of records, as the judging round sees it.
pub(super) struct Records<'a>(pub(super) &'a MemoryBackend);

impl ByRecord for Records<'_> {
    type Held = Held;
    type Failure = crate::Error;

    async fn attempt(
        &self,
        request: &Acquire,
        needed: &Needed<'_>,
        aside: &Asides,
    ) -> crate::Result<Tried<Held>> {
        Ok(match self.0.write_all(request, needed, aside).await {
            Ok(written) => self.0.checked(request, written).await,
            Err(tried) => tried,
        })
    }

    async fn end_due(&self, sessions: &[SessionId]) -> crate::Result<Vec<SessionState>> {
        self.0.end(sessions, End::IfDue).await
    }

    async fn entries(&self, keys: Vec<LockKey>) -> crate::Result<judge::Met<Held>> {
        let read = |state: &mut State| {
            let records = keys
                .iter()
                .filter_map(|key| state.records.get_key_value(key));
            let entries = records.map(|(key, record)| (key.clone(), record.holders.clone()));
            entries.collect()
        };
        Ok(self.0.update(read))
    }

    fn waits_for(_: &LockKey, waiter: &Held) -> LockKey {
        let claim = waiter.claim.as_ref();
        claim.expect("a waiter waits for something").clone()
    }

    fn holder(key: &LockKey, held: &Held, state: Option<&SessionState>) -> Holder {
        let label = state.map(|state| state.label.as_str().to_owned());
        let life = state.map_or(Life::Living, |state| state.life);
        held.holder(key, label.unwrap_or_default(), life)
    }
}

impl MemoryBackend {
    /// Writes every record. If some refuse, the others are given back.
    async fn write_all<'a>(
        &self,
        request: &Acquire,
        needed: &'a Needed<'_>,
        aside: &Asides,
    ) -> Result<Vec<Written<'a>>, Tried<Held>> {
        let mut written = Vec::new();
        let mut met = judge::Met::new();
        let of = needed.len();
        let attempt = self.update(State::attempt);
        for (key, ask) in needed {
            self.pause().await;
            let entry = Entered {
                request,
                ask: *ask,
                of,
                attempt,
            };
            match self.update(|state| state.write(key, entry, aside.get(key))) {
                Wrote::Written(number, new) => written.push(Written { key, number, new }),
                Wrote::Met(entries) => {
                    met.insert(key.clone(), entries);
                }
                Wrote::Moved => {
                    self.take_back(request.grant, &written).await;
                    return Err(Tried::Moved);
                }
            }
        }
        if met.is_empty() {
            return Ok(written);
        }
        let mut place = None;
        if stands_in_line(request) && needed.len() > 1 {
            self.pause().await;
            place = self.update(|state| state.place(request.grant, needed));
        }
        // Nobody is told: whoever waits would wake itself by every refusal of its own.
        match place {
            Some(place) => {
                for (key, ask) in needed.iter().rev() {
                    self.pause().await;
                    let entry = Entered {
                        request,
                        ask: *ask,
                        of,
                        attempt,
                    };
                    self.update(|state| state.stand(key, entry, place));
                }
            }
            None => {
                let keys = written.iter().map(|written| written.key);
                self.give_back(request.grant, keys).await;
            }
        }
        Err(Tried::Met(met))
    }

    /// A batch of several records, or a joined one, is granted only if its session outlived the last write. Otherwise
    /// its token could be greater than that of another request that took the first record meanwhile.
    async fn checked(&self, request: &Acquire, written: Vec<Written<'_>>) -> Tried<Held> {
        if written.len() == 1 && !request.joined {
            let last = written.last().expect("a claim needs a record");
            return Tried::Granted(token(last.number));
        }
        self.pause().await;
        let checked = self.update(|state| match state.is_elsewhere(request.incarnation) {
            true => Err(Tried::Moved),
            false => state.check(request.grant).ok_or(Tried::Void),
        });
        match checked {
            Ok(number) => Tried::Granted(token(number)),
            Err(refused) => {
                self.take_back(request.grant, &written).await;
                refused
            }
        }
    }

    /// Takes back what the request has written. What stood before stays: the session may be abandoned, and this a late copy
    /// of what its intent is about.
    async fn take_back(&self, grant: Grant, written: &[Written<'_>]) {
        let new = written.iter().filter(|written| written.new);
        self.give_back(grant, new.map(|written| written.key)).await;
    }

    /// Removes what the grant holds from records, the lowest first: whatever is held, its ancestors are too. Nobody is
    /// woken by what was written for a moment beside a refusal: two who wait would wake each other without end.
    ///
    /// Says how many there were.
    async fn give_back(
        &self,
        grant: Grant,
        keys: impl DoubleEndedIterator<Item = &LockKey>,
    ) -> usize {
        let own = |held: &Held| held.grant == Some(grant) && held.waits.is_none();
        let mut removed = 0;
        for key in keys.rev() {
            self.pause().await;
            removed += self.update(|state| state.remove(key, own));
        }
        removed
    }

    pub(super) async fn release_by_record(&self, grant: Grant, claims: &[Claim]) -> Stood {
        self.pause().await;
        // Asked before the first holder goes: who dies meanwhile held them until then.
        let lives = self.update(|state| state.lives(grant));
        let needed = needed(claims, None);
        let removed = self.give_back(grant, needed.keys()).await;
        if removed < needed.len() {
            // It leaves the line.
            for key in needed.keys().rev() {
                self.pause().await;
                self.update(|state| state.remove(key, |held| held.grant == Some(grant)));
            }
        }
        needed.keys().for_each(|key| self.watches.wake(key));
        match removed == needed.len() {
            true if lives => Stood::Held,
            true => Stood::Fallen,
            false => Stood::Absent,
        }
    }

    pub(super) async fn confirm_by_record(&self, grant: Grant, claims: &[Claim]) -> bool {
        for (key, ask) in needed(claims, None) {
            self.pause().await;
            let held = self.update(|state| {
                let number = state.writes + 1;
                let record = state.records.get_mut(&key)?;
                let stands = record.stands(grant, ask.mode());
                stands.then(|| {
                    record.version = number;
                    state.writes = number;
                })
            });
            if held.is_none() {
                return false;
            }
        }
        self.pause().await;
        self.update(|state| state.check(grant)).is_some()
    }
}

impl State {
    /// The number of an attempt that begins.
    fn attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// One record's write. Who needs no other one, and is refused, waits from then on if it may.
    fn write(&mut self, key: &LockKey, entry: Entered<'_>, aside: Option<&Aside>) -> Wrote {
        let (request, ask) = (entry.request, entry.ask);
        if self.is_elsewhere(request.incarnation) {
            return Wrote::Moved;
        }
        let (number, now) = (self.writes + 1, self.clock.now());
        if let Some(record) = self.records.get_mut(key)
            && !record.stands(request.grant, ask.mode())
        {
            let is_left = |held: &Held| aside.is_none_or(|aside| aside.leaves(held));
            if !ask.in_the_way(&record.holders, is_left).is_empty() {
                let mut changed = aside.is_some_and(|aside| record.remove_passed(aside));
                let stands = stands_in_line(request) && entry.of == 1;
                if stands && record.has_a_place_for(request) {
                    record.stand(entry, number, now);
                    changed = true;
                }
                if changed {
                    record.version = number;
                    self.writes = number;
                }
                return Wrote::Met(record.holders.clone());
            }
        }
        let record = self.records.entry(key.clone()).or_default();
        record.version = number;
        self.writes = number;
        Wrote::Written(number, record.enter(entry, aside, now))
    }

    /// The place in line of a refused attempt: the one that it has in all of its records, or else a new one. `None` if its
    /// session does not live.
    fn place(&mut self, grant: Grant, needed: &Needed<'_>) -> Option<u64> {
        let new = self.check(grant)?;
        let place = |key: &LockKey| {
            let own = self.records.get(key)?.get(Some(grant))?;
            Some(own.waits.or(own.waited)?.place)
        };
        let mut places = needed.keys().map(place);
        let first = places.next().flatten();
        Some(match places.all(|other| other == first) {
            true => first.unwrap_or(new),
            false => new,
        })
    }

    /// One record of a refused attempt: it waits there.
    fn stand(&mut self, key: &LockKey, entry: Entered<'_>, place: u64) {
        let (number, now) = (self.number(), self.clock.now());
        let record = self.records.entry(key.clone()).or_default();
        record.version = number;
        record.stand(entry, place, now);
        if record.holders.is_empty() {
            self.records.remove(key);
        }
    }

    /// A write of the session's record that changes nothing, made only if the session lives and the number is not
    /// over.
    fn check(&mut self, grant: Grant) -> Option<u64> {
        self.lives(grant).then(|| self.number())
    }
}
