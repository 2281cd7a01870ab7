//! What a release says of its guard, against what the store had.

use std::collections::BTreeMap;

use lockcore::{Claim, Grant};

use super::Store;
use crate::history::guards::Guard;
use crate::history::index::Pos;
use crate::history::{How, Law};

/// A guard that is being given back.
pub(super) struct Given {
    since: Pos,
    /// It said that it is valid.
    believed: bool,
    /// The grants whose release was executed, and whether each certainly stood then; whether its number was over is nobody
    /// else's doing.
    stood: BTreeMap<u64, bool>,
}

impl Store<'_> {
    pub(super) fn gives_back(&mut self, at: Pos, attempt: u64, how: How) {
        let Some(guard) = self.guards.of_attempt(attempt) else {
            return;
        };
        let sent = self.believed.remove(&attempt);
        let believed = sent.is_some_and(|sent| at.at < sent + guard.validity);
        if how == How::Released {
            let given = Given {
                since: at,
                believed,
                stood: BTreeMap::new(),
            };
            self.given.insert(attempt, given);
        }
    }

    /// A release is executed.
    pub(super) fn releases_what_stands(&mut self, grant: Grant, claims: &[Claim]) {
        let casts = self.keys.casts(claims);
        let holder = self.holders.get(&grant);
        let session = self.sessions.get(&grant.session);
        let all = holder.is_some_and(|holder| holder.casts == casts);
        let stands = all && session.is_some_and(|session| session.dead.is_none());
        for (attempt, given) in &mut self.given {
            let guard = self.guards.of_attempt(*attempt);
            let its_own = guard.is_some_and(|guard| {
                guard.session == grant.session && guard.numbers.contains(&grant.n)
            });
            if its_own {
                given.stood.entry(grant.n).or_insert(stands);
            }
        }
    }

    /// A release tells the truth.
    pub(super) fn gave_back(&mut self, at: Pos, attempt: u64, held: Option<bool>) {
        let (Some(given), Some(guard)) =
            (self.given.remove(&attempt), self.guards.of_attempt(attempt))
        else {
            return;
        };
        let wrong = match held {
            Some(true) => self.not_held(&given, guard),
            Some(false) => self.held(at, &given, guard),
            None => None,
        };
        // Where the store itself is not seen, nothing of it is known.
        if self.sessions.contains_key(&guard.session) {
            self.findings.judged(Law::Guard, 1);
        }
        if let Some(wrong) = wrong {
            let what = format!("the release of the guard of attempt {attempt} says {wrong}");
            self.lies(at, attempt, what);
        }
    }

    /// What is wrong with saying that it was held: it certainly was not when it began to be given back.
    fn not_held(&self, given: &Given, guard: &Guard) -> Option<&'static str> {
        let session = guard.session;
        let forgotten = guard.numbers.iter().any(|n| {
            let forgotten = self.forgotten.grants.get(&Grant { session, n: *n });
            forgotten.is_some_and(|(since, _)| *since < given.since)
        });
        let dead = self.sessions.get(&session).and_then(|it| it.dead);
        if forgotten {
            Some("that it was held, and the store had forgotten it")
        } else if dead.is_some_and(|dead| dead < given.since) {
            Some("that it was held, and its session was dead before")
        } else {
            None
        }
    }

    /// What is wrong with saying that it was not held.
    fn held(&self, at: Pos, given: &Given, guard: &Guard) -> Option<&'static str> {
        let stood = |n| given.stood.get(n) == Some(&true);
        let held = given.believed && guard.numbers.iter().all(stood) && self.lives_on(at, guard);
        held.then_some("that it was not held, and it was")
    }
}
