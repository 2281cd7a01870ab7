//! The atomic form: a step is one action, and a path is kept where it was claimed.
//!
//! The shares that a path casts on its ancestors are not written: everything below a path stands directly behind it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use super::record::{Ask, Listed, Place, Record, mode};
use super::{State, token};
use crate::limits::MAX_LISTED;
use crate::{Acquire, Acquired, Busy, Claim, Grant, LockKey, Refused};

impl State {
    pub(super) fn acquire(&mut self, request: &Acquire) -> Acquired {
        let now = self.clock.now();
        self.sessions.judge(request.grant, now);
        if !self.sessions.lives(request.grant) {
            return Acquired::Void;
        }
        let mut refused = Vec::new();
        for claim in &request.claims {
            let Some(refusal) = self.refusal(request, claim, now) else {
                continue;
            };
            if refused.len() == MAX_LISTED {
                return Acquired::Busy(Busy::new(refused, true));
            }
            refused.push(refusal);
        }
        if !refused.is_empty() {
            return Acquired::Busy(Busy::new(refused, false));
        }
        let number = self.number();
        for claim in &request.claims {
            self.records.entry(claim.key().clone()).or_default().enter(
                ask(request, claim),
                now,
                number,
            );
        }
        Acquired::Acquired(token(number))
    }

    fn refusal(&mut self, request: &Acquire, claim: &Claim, now: Duration) -> Option<Refused> {
        let key = claim.key();
        let ask = ask(request, claim);
        let record = self.records.get(key);
        if record.is_some_and(|record| record.stands(request.grant, mode(claim, Place::Key))) {
            return None;
        }
        let mut listed = Listed::default();
        let mut look = |ask: Ask<'_>, key: &LockKey, record: &Record| {
            for held in record.in_the_way(ask, |grant| self.sessions.judge(grant, now)) {
                listed.add(key, held, held.seen(ask.place), |id| {
                    self.sessions.shown(id)
                });
            }
            listed.more
        };
        for above in key.ancestor_keys() {
            if let Some(record) = self.records.get(&above) {
                look(ask.at(Place::Above), &above, record);
            }
        }
        if let Some(record) = record {
            look(ask, key, record);
        }
        for (_, record) in below(&self.records, key) {
            if look(ask.at(Place::Below), key, record) {
                break;
            }
        }
        listed.refusal(claim)
    }

    pub(super) fn release(&mut self, grant: Grant, claims: &[Claim]) {
        for claim in claims {
            self.remove(claim.key(), |held| held == Some(grant));
        }
    }

    pub(super) fn confirm(&mut self, grant: Grant, claims: &[Claim]) -> bool {
        let now = self.clock.now();
        self.sessions.judge(grant, now);
        self.sessions.lives(grant)
            && claims.iter().all(|claim| {
                self.records
                    .get(claim.key())
                    .is_some_and(|record| record.stands(grant, mode(claim, Place::Key)))
            })
    }
}

fn ask<'a>(request: &Acquire, claim: &'a Claim) -> Ask<'a> {
    Ask {
        grant: request.grant,
        owner: request.owner,
        claim,
        place: Place::Key,
    }
}

/// What is held below a path; nothing is below a flat key.
pub(super) fn below<'a>(
    records: &'a BTreeMap<LockKey, Record>,
    key: &'a LockKey,
) -> impl Iterator<Item = (&'a LockKey, &'a Record)> {
    let behind = || records.range::<LockKey, _>((Bound::Excluded(key), Bound::Unbounded));
    key.is_path()
        .then(behind)
        .into_iter()
        .flatten()
        .take_while(|(other, _)| key.is_above(other))
}
