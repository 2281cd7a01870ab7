//! Sessions: opened once, renewed by one writer, dead for good, adopted by number.

use std::collections::BTreeSet;

use lockcore::SessionId;
use lockcore::backend::Ranges;

use super::Store;
use crate::history::Law;
use crate::history::event::{Answer, Change};
use crate::history::index::Pos;

#[derive(Clone)]
pub(super) struct Session {
    pub(super) ttl: i128,
    /// When it is due by the store's clock, and since when.
    pub(super) until: i128,
    pub(super) since: u64,
    pub(super) seq: u64,
    pub(super) retired: Ranges,
    /// The attempt whose intent is registered.
    pub(super) intent: Option<u64>,
    /// Known to be dead or abandoned, by that event.
    pub(super) dead: Option<Pos>,
    /// Its change was settled or discarded.
    pub(super) settled: Option<Pos>,
    pub(super) adoption: u64,
    pub(super) adopter: Option<SessionId>,
    /// Its grants.
    pub(super) grants: BTreeSet<u64>,
}

impl Session {
    pub(super) fn is_live(&self, n: u64) -> bool {
        (self.dead.is_none() || self.abandoned()) && !self.retired.contains(n)
    }

    /// Whether its locks outlive it.
    pub(super) fn abandoned(&self) -> bool {
        self.intent.is_some() && self.settled.is_none()
    }

    /// Whether its locks were known to be free before that event.
    pub(super) fn free_before(&self, number: usize) -> bool {
        let before = |pos: Option<Pos>| pos.is_some_and(|pos| pos.number <= number);
        before(self.dead) && (self.intent.is_none() || before(self.settled))
    }
}

impl Store<'_> {
    pub(super) fn opened(&mut self, at: Pos, id: SessionId, ttl: u64) {
        let session = Session {
            ttl: i128::from(ttl),
            until: self.clock.now(at.at) + i128::from(ttl),
            since: at.at,
            seq: 0,
            retired: Ranges::EMPTY,
            intent: None,
            dead: None,
            settled: None,
            adoption: 0,
            adopter: None,
            grants: BTreeSet::new(),
        };
        // A late copy of its opening, after a failover: it is there again, and nobody can tell.
        self.forgotten.sessions.remove(&id);
        if self.sessions.insert(id, session).is_some() {
            self.found(Law::DeadStaysDead, at, format!("{id} was opened twice"));
        }
    }

    pub(super) fn renewed(
        &mut self,
        at: Pos,
        id: SessionId,
        (seq, retired, change): (u64, &Ranges, Change),
        ttl: Option<u64>,
        answer: Answer,
    ) {
        let now = self.clock.now(at.at);
        let due = self.was_due(id, at);
        let forgotten = self.forgotten.sessions.get(&id);
        if answer == Answer::Living && forgotten.is_some_and(|(_, last)| seq <= *last) {
            // A late copy of the renewal that was lost: it is there again, and nobody can tell.
            self.forgotten.sessions.remove(&id);
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match answer {
            Answer::Dead if session.dead.is_none() => {
                session.dead = Some(at);
                if !due {
                    let what = format!("{id} is dead, and nobody ended it, nor was it due");
                    self.found(Law::DeadStaysDead, at, what);
                }
            }
            Answer::Living if session.dead.is_some() => {
                self.found(
                    Law::DeadStaysDead,
                    at,
                    format!("{id} was dead, and was renewed"),
                );
            }
            Answer::Living => {
                let shrank = session.retired.as_slice().iter().any(|(from, to)| {
                    // Ranges do not touch, so one that is still over is inside one of the others.
                    !retired
                        .as_slice()
                        .iter()
                        .any(|(first, last)| first <= from && to <= last)
                });
                let stale = seq <= session.seq;
                session.seq = seq;
                session.retired = retired.clone();
                session.ttl = ttl.map_or(session.ttl, i128::from);
                session.until = now + session.ttl;
                session.since = at.at;
                match change {
                    Change::Keep => {}
                    Change::Put(attempt) => session.intent = Some(attempt),
                    Change::Drop => session.intent = None,
                }
                if stale {
                    let what = format!("{id} was renewed by an old renewal, number {seq}");
                    self.found(Law::DeadStaysDead, at, what);
                }
                if shrank {
                    let what = format!("{id}: numbers that were over are not any more");
                    self.found(Law::UnknownIsSettled, at, what);
                }
                self.covered(at, id);
            }
            Answer::Forgotten if self.guards.failovers.before(at).is_empty() => {
                let what =
                    format!("{id}: the store has lost nothing, and renewal {seq} was told so");
                self.found(Law::OneWriter, at, what);
            }
            _ => {}
        }
    }

    pub(super) fn ended(
        &mut self,
        at: Pos,
        id: SessionId,
        (if_due, discard): (bool, bool),
        answer: Answer,
    ) {
        let due = self.was_due(id, at);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let abandoned = session.abandoned();
        let wrong = match answer {
            Answer::Living => session.dead.is_some().then_some("lives again"),
            _ if session.dead.is_none() && !due && (if_due || discard) => {
                Some("was ended before it was due")
            }
            Answer::Dead if abandoned && !discard => Some("has lost its intent"),
            Answer::Abandoned if !abandoned => Some("has an intent that nobody registered"),
            _ => None,
        };
        if answer != Answer::Living {
            session.dead.get_or_insert(at);
            if discard && answer == Answer::Dead && abandoned {
                session.settled = Some(at);
                session.adoption += 1;
                session.adopter = None;
            }
        }
        if let Some(wrong) = wrong {
            self.found(Law::DeadStaysDead, at, format!("{id} {wrong}"));
        }
    }

    pub(super) fn adopted(
        &mut self,
        at: Pos,
        (id, seen): (SessionId, u64),
        adopter: SessionId,
        give_up: bool,
        number: Option<u64>,
    ) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let mine = session.adopter == Some(adopter) && session.adoption == seen + 1;
        if give_up {
            if session.adoption == seen || mine {
                let session = self.sessions.get_mut(&id).expect("it was there");
                session.adoption += 1;
                session.adopter = None;
            }
            return;
        }
        let Some(number) = number else {
            return;
        };
        let former = session.adopter.filter(|former| *former != adopter);
        let living = former.is_some_and(|former| {
            let alive = self
                .sessions
                .get(&former)
                .is_some_and(|former| former.dead.is_none());
            alive && !self.was_due(former, at)
        });
        let wrong = if number != seen + 1 || (session.adoption != seen && !mine) {
            Some("under a number that is used")
        } else if !session.abandoned() {
            Some("without an intent")
        } else if session.dead.is_none() && !self.was_due(id, at) {
            Some("while it lives")
        } else if living && !self.guards.failovers.has_lost_adoption(id, at) {
            Some("while its former adopter lives")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            self.found(
                Law::OneAdopter,
                at,
                format!("{id} was adopted by {adopter} {wrong}"),
            );
        }
        let session = self.sessions.get_mut(&id).expect("it was there");
        session.dead.get_or_insert(at);
        session.adoption = number;
        session.adopter = Some(adopter);
    }

    pub(super) fn settled(
        &mut self,
        at: Pos,
        id: SessionId,
        (adoption, adopter): (u64, SessionId),
        settled: bool,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !settled || session.settled.is_some() {
            return;
        }
        let own = session.adopter == Some(adopter) && session.adoption == adoption;
        session.settled = Some(at);
        if !own {
            let what = format!("{id} was settled by adoption {adoption}, which it does not have");
            self.found(Law::OneAdopter, at, what);
        }
    }

    pub(super) fn dies(&mut self, id: SessionId, at: Pos) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let abandoned = session.abandoned();
            session.dead.get_or_insert(at);
            if abandoned {
                let what = format!("{id} has an intent, and its locks were passed over");
                self.found(Law::IntentHasItsLocks, at, what);
            }
        }
    }

    pub(super) fn has_intent(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(Session::abandoned)
    }

    /// Whether the session was due at some instant since it was renewed.
    pub(super) fn was_due(&self, id: SessionId, at: Pos) -> bool {
        self.sessions.get(&id).is_none_or(|session| {
            let (latest, _) = self.clock.between(session.since, at.at);
            session.until <= latest
        })
    }

    /// By any clock that runs right, a session lasts longer than its guards say.
    pub(super) fn believed(&mut self, at: Pos, attempt: u64, left: u64) {
        let Some(guard) = self.guards.of_attempt(attempt) else {
            return;
        };
        let sent = (at.at + left).saturating_sub(guard.validity);
        if left == 0 {
            self.stopped(at, guard);
            return;
        }
        self.believed.insert(attempt, sent);
        self.believes(at, guard, sent);
        let failover = self.guards.failovers.before(at).last();
        let counts_from_before = failover.is_some_and(|failover| sent <= failover.at.at);
        if let Some(session) = self.sessions.get(&guard.session)
            && !counts_from_before
            && i128::from(at.at) + i128::from(left) > i128::from(session.since) + session.ttl
        {
            let what = format!(
                "the guard of attempt {attempt} says to be valid for longer than its lease"
            );
            self.found(Law::DeadlineWithinLease, at, what);
        }
    }
}
