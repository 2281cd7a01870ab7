//! The atomic form: a step is one action, and a path is kept where it was claimed.
//!
//! The shares that a path casts on its ancestors are not written: everything below a path stands directly behind it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use super::record::Record;
use super::{State, token};
use crate::judge::{Ask, Listed, Place};
use crate::{Acquire, Acquired, Busy, Claim, Grant, LockKey, Refused};

impl State {
    pub(super) fn acquire(&mut self, request: &Acquire) -> Acquired {
        let now = self.clock.now();
        self.sessions.judge(request.grant, now);
        if !self.sessions.lives(request.grant) {
            return Acquired::Void;
        }
        let refusal = |claim| self.refusal(request, claim, now);
        if let Some(busy) = Busy::of(request.claims.iter().filter_map(refusal)) {
            return Acquired::Busy(busy);
        }
        let number = self.number();
        for claim in &request.claims {
            let record = self.records.entry(claim.key().clone()).or_default();
            record.enter(request, Ask::of(request, claim), now, number);
        }
        Acquired::Acquired(token(number))
    }

    fn refusal(&mut self, request: &Acquire, claim: &Claim, now: Duration) -> Option<Refused> {
        let key = claim.key();
        let ask = Ask::of(request, claim);
        let record = self.records.get(key);
        if record.is_some_and(|record| record.stands(request.grant, ask.mode())) {
            return None;
        }
        let mut listed = Listed::default();
        let mut look = |ask: Ask<'_>, key: &LockKey, record: &Record| {
            let counts = |grant| self.sessions.judge(grant, now);
            for held in ask.in_the_way(&record.holders, counts) {
                let mode = ask.place.seen(held.mode);
                listed.add(held.holder(key, mode, |id| self.sessions.shown(id)));
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
                    .is_some_and(|record| record.stands(grant, claim.want().mode()))
            })
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
