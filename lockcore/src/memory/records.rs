//! The form of records: each target and each ancestor is a record, written by itself.
//!
//! The records of locks contain no time. To judge the holders that a request meets, their sessions are ended if they
//! are due, and the whole batch is sent once more, past the holders that are not live.

use std::collections::BTreeMap;

use super::record::Held;
use super::{MemoryBackend, State, token};
use crate::backend::judge::{self, Ask, ByRecord, Past, Tried, needed};
use crate::{
    Acquire, Claim, End, Grant, Holder, Life, LockKey, SessionId, SessionState, SessionStore, Stood,
};

/// The records that claims need, in path order.
type Needed<'a> = BTreeMap<LockKey, Ask<'a>>;

/// Who was in the way.
type Met = judge::Met<Held>;

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
    /// Who is in its way.
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
        past: &Past,
    ) -> crate::Result<Tried<Held>> {
        Ok(match self.0.write_all(request, needed, past).await {
            Ok(written) => self.0.checked(request, written).await,
            Err(tried) => tried,
        })
    }

    async fn end_due(&self, sessions: &[SessionId]) -> crate::Result<Vec<SessionState>> {
        self.0.end(sessions, End::IfDue).await
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
        past: &Past,
    ) -> Result<Vec<Written<'a>>, Tried<Held>> {
        let mut written = Vec::new();
        let mut met = Met::new();
        let of = needed.len();
        for (key, ask) in needed {
            self.pause().await;
            match self.update(|state| state.write(key, request, (*ask, of), past)) {
                Wrote::Written(number, new) => written.push(Written { key, number, new }),
                Wrote::Met(in_the_way) => {
                    met.insert(key.clone(), in_the_way);
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
        // Nobody is told: whoever waits would wake itself by every refusal of its own.
        for written in written.iter().rev() {
            self.pause().await;
            self.update(|state| state.remove(written.key, |held| held == Some(request.grant)));
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

    /// Removes the grant from records, the lowest first: whatever is held, its ancestors are too. Nobody is woken by
    /// what was written for a moment beside a refusal: two who wait would wake each other without end.
    ///
    /// Says how many there were.
    async fn give_back(
        &self,
        grant: Grant,
        keys: impl DoubleEndedIterator<Item = &LockKey>,
    ) -> usize {
        let mut removed = 0;
        for key in keys.rev() {
            self.pause().await;
            removed += self.update(|state| state.remove(key, |held| held == Some(grant)));
        }
        removed
    }

    pub(super) async fn release_by_record(&self, grant: Grant, claims: &[Claim]) -> Stood {
        self.pause().await;
        // Asked before the first holder goes: who dies meanwhile held them until then.
        let lives = self.update(|state| state.lives(grant));
        let needed = needed(claims, None);
        let removed = self.give_back(grant, needed.keys()).await;
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
    /// One record's write, of so many.
    fn write(
        &mut self,
        key: &LockKey,
        request: &Acquire,
        (ask, of): (Ask<'_>, usize),
        past: &Past,
    ) -> Wrote {
        if self.is_elsewhere(request.incarnation) {
            return Wrote::Moved;
        }
        if let Some(record) = self.records.get(key)
            && !record.stands(request.grant, ask.mode())
        {
            let past = past.get(key);
            let in_the_way = ask.in_the_way(&record.holders, |grant| {
                !past.is_some_and(|past| past.contains(&grant))
            });
            if !in_the_way.is_empty() {
                return Wrote::Met(in_the_way.into_iter().copied().collect());
            }
        }
        let (number, now) = (self.number(), self.clock.now());
        let record = self.records.entry(key.clone()).or_default();
        let new = record.enter(request, ask, of, now, number);
        Wrote::Written(number, new)
    }

    /// A write of the session's record that changes nothing, made only if the session lives and the number is not
    /// over.
    fn check(&mut self, grant: Grant) -> Option<u64> {
        self.lives(grant).then(|| self.number())
    }
}
