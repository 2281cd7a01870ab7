//! A store that forgets, and whoever believes in what is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{Grant, SessionId};

use super::sessions::Session;
use super::{Holder, Store};
use crate::history::Law;
use crate::history::check::{Subject, Violation};
use crate::history::guards::Guard;
use crate::history::index::Pos;

/// What the store had when a copy of it was made.
#[derive(Default)]
pub(super) struct Copied {
    sessions: BTreeMap<SessionId, Session>,
    holders: BTreeMap<Grant, Holder>,
    by_key: BTreeMap<usize, BTreeSet<Grant>>,
}

/// What is certainly forgotten, each since when.
#[derive(Default)]
pub(super) struct Forgotten {
    /// And whether the store has told that it is another one.
    pub(super) grants: BTreeMap<Grant, (Pos, bool)>,
    /// Sessions of which the store has lost a renewal that it has acknowledged, and the number of the last one.
    pub(super) sessions: BTreeMap<SessionId, (Pos, u64)>,
}

impl Store<'_> {
    pub(super) fn copied(&mut self) {
        self.copy = Copied {
            sessions: self.sessions.clone(),
            holders: self.holders.clone(),
            by_key: self.by_key.clone(),
        };
    }

    pub(super) fn failed_over(&mut self, at: Pos, named: bool) {
        let copy = std::mem::take(&mut self.copy);
        let Some(failover) = self.guards.failovers.iter().find(|it| it.at == at) else {
            return;
        };
        for (grant, holder) in &self.holders {
            if !copy.holders.contains_key(grant) && failover.has_none_of(holder.begun) {
                self.forgotten.grants.insert(*grant, (at, named));
            }
        }
        for (attempt, sent) in &self.believed {
            let Some(guard) = self.guards.of_attempt(*attempt) else {
                continue;
            };
            // What its client believes in was renewed after the last renewal that is kept.
            let kept = copy.sessions.get(&guard.session);
            if kept.is_none_or(|kept| kept.since < *sent) {
                let last = self.sessions.get(&guard.session).map_or(0, |it| it.seq);
                let forgotten = &mut self.forgotten.sessions;
                forgotten.entry(guard.session).or_insert((at, last));
            }
        }
        self.sessions = copy.sessions;
        self.holders = copy.holders;
        self.by_key = copy.by_key;
    }

    /// Whoever is renewed by a store that has forgotten is told, and believes nothing of it any more.
    pub(super) fn believes(&mut self, at: Pos, guard: &Guard, sent: u64) {
        let session = guard.session;
        let of_session = self.forgotten.sessions.get(&session).map(|(at, _)| *at);
        let grants = guard.numbers.iter().filter_map(|n| {
            let forgotten = self.forgotten.grants.get(&Grant { session, n: *n });
            forgotten.and_then(|(at, told)| told.then_some(*at))
        });
        let mut since = of_session.into_iter().chain(grants);
        if let Some(since) = since.find(|since| since.at < sent) {
            let what = format!(
                "the guard of attempt {} says to be valid by a renewal after event {}, with which it was forgotten",
                guard.attempt, since.number
            );
            self.lies(at, guard.attempt, what);
        }
    }

    /// Whoever has lost nothing stays.
    pub(super) fn stopped(&mut self, at: Pos, guard: &Guard) {
        let Some(sent) = self.believed.remove(&guard.attempt) else {
            return;
        };
        if at.at < sent + guard.validity && self.lives_on(at, guard) {
            let what = format!(
                "the guard of attempt {} says that it is lost, and nothing has happened to it",
                guard.attempt
            );
            self.lies(at, guard.attempt, what);
        }
    }

    /// The guard of that attempt does.
    pub(super) fn lies(&mut self, at: Pos, attempt: u64, what: String) {
        let violation = Violation::new(Law::Guard, at, what);
        self.findings
            .add(violation.about([Subject::Attempt(attempt)]));
    }

    /// Whether nothing has happened to the session of a guard that could have ended it.
    pub(super) fn lives_on(&self, at: Pos, guard: &Guard) -> bool {
        let id = guard.session;
        let session = self.sessions.get(&id);
        let living = session.is_some_and(|session| session.dead.is_none());
        let touched = self.guards.failovers.touched(id).is_some();
        let broken = self.guards.was_broken(id) || self.guards.has_intent(id);
        living && !self.was_due(id, at) && !touched && !broken && !guard.closed
    }
}
