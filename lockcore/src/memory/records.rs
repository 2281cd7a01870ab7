//! The form of records: each target and each ancestor is a record, written by itself.
//!
//! No time is looked at in the records of locks. Holders that were met are judged by ending their sessions, if these
//! are due, and the whole step is sent once more, to go past those that do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Ask, Held, Listed, Place, mode};
use super::{MemoryBackend, State, token};
use crate::limits::MAX_LISTED;
use crate::session::Life;
use crate::{
    Acquire, Acquired, Busy, Claim, End, Grant, LockKey, Refused, SessionId, SessionState,
    SessionStore,
};

/// The records that claims need, in path order, each with the claim that needs it most.
type Needed<'a> = BTreeMap<LockKey, (&'a Claim, Place)>;

/// A record that was written.
struct Written<'a> {
    key: &'a LockKey,
    number: u64,
    /// The grant did not stand there before.
    new: bool,
}

/// Who was in the way, by record.
type Met = BTreeMap<LockKey, Vec<Held>>;

impl MemoryBackend {
    pub(super) async fn acquire_by_record(&self, request: &Acquire) -> crate::Result<Acquired> {
        let needed = needed(&request.claims);
        let mut free = BTreeSet::new();
        // Ends: each round but the last has learnt of somebody who will never count again.
        loop {
            let met = match self.write_all(request, &needed, &free).await {
                Ok(written) => return Ok(self.checked(request, written).await),
                Err(met) => met,
            };
            let grants: BTreeSet<Grant> = met
                .values()
                .flatten()
                .filter_map(|held| held.grant)
                .collect();
            // Who asks, too: what a dead session has left stands, so its refusal could not name the first claim.
            let own = request.grant.session;
            let mut ids: BTreeSet<SessionId> = grants.iter().map(|grant| grant.session).collect();
            ids.insert(own);
            let ids: Vec<SessionId> = ids.into_iter().collect();
            let states = self.end(&ids, End::IfDue).await?;
            let states: BTreeMap<SessionId, SessionState> = states
                .into_iter()
                .map(|state| (state.session, state))
                .collect();
            if states[&own].life != Life::Living || !counts(&states[&own], request.grant) {
                return Ok(Acquired::Void);
            }
            let known = free.len();
            free.extend(
                grants
                    .into_iter()
                    .filter(|grant| !counts(&states[&grant.session], *grant)),
            );
            if free.len() == known {
                return Ok(Acquired::Busy(busy(request, &met, &states)));
            }
        }
    }

    /// Writes every record. If some refuse, the others are given back.
    async fn write_all<'a>(
        &self,
        request: &Acquire,
        needed: &'a Needed<'_>,
        free: &BTreeSet<Grant>,
    ) -> Result<Vec<Written<'a>>, Met> {
        let mut written = Vec::new();
        let mut met = Met::new();
        for (key, (claim, place)) in needed {
            self.pause().await;
            let ask = ask(request, claim, *place);
            match self.update(|state| state.write(key, ask, free)) {
                Ok((number, new)) => written.push(Written { key, number, new }),
                Err(in_the_way) => {
                    met.insert(key.clone(), in_the_way);
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
        Err(met)
    }

    /// A step of several records, or a joined one, is granted only if its session outlived the last write: else its
    /// token could be greater than that of whoever took the first record meanwhile.
    async fn checked(&self, request: &Acquire, written: Vec<Written<'_>>) -> Acquired {
        if written.len() == 1 && !request.joined {
            let last = written.last().expect("a claim needs a record");
            return Acquired::Acquired(token(last.number));
        }
        self.pause().await;
        if let Some(number) = self.update(|state| state.check(request.grant)) {
            return Acquired::Acquired(token(number));
        }
        // What stood before stays: the session may be abandoned, and this a late copy of what its intent is about.
        let new = written.iter().filter(|written| written.new);
        self.give_back(request.grant, new.map(|written| written.key))
            .await;
        Acquired::Void
    }

    /// Removes the grant from records, the lowest first: whatever is held, its ancestors are too. Nobody is woken by
    /// what was written for a moment beside a refusal: two who wait would wake each other without end.
    async fn give_back(&self, grant: Grant, keys: impl DoubleEndedIterator<Item = &LockKey>) {
        for key in keys.rev() {
            self.pause().await;
            self.update(|state| state.remove(key, |held| held == Some(grant)));
        }
    }

    pub(super) async fn release_by_record(&self, grant: Grant, claims: &[Claim]) {
        let needed = needed(claims);
        self.give_back(grant, needed.keys()).await;
        self.watchers.wake(needed.keys());
    }

    pub(super) async fn confirm_by_record(&self, grant: Grant, claims: &[Claim]) -> bool {
        for (key, (claim, place)) in needed(claims) {
            self.pause().await;
            let held = self.update(|state| {
                let number = state.writes + 1;
                let record = state.records.get_mut(&key)?;
                let stands = record.stands(grant, mode(claim, place));
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
    /// One record's write, with its number and whether the grant is new there; or who is in its way.
    fn write(
        &mut self,
        key: &LockKey,
        ask: Ask<'_>,
        free: &BTreeSet<Grant>,
    ) -> Result<(u64, bool), Vec<Held>> {
        if let Some(record) = self.records.get(key)
            && !record.stands(ask.grant, mode(ask.claim, ask.place))
        {
            let in_the_way = record.in_the_way(ask, |grant| !free.contains(&grant));
            if !in_the_way.is_empty() {
                return Err(in_the_way.into_iter().copied().collect());
            }
        }
        let (number, now) = (self.number(), self.clock.now());
        let record = self.records.entry(key.clone()).or_default();
        let new = record.enter(ask, now, number);
        Ok((number, new))
    }

    /// A write of the session's record that changes nothing, made only if the session lives and the number is not
    /// over.
    fn check(&mut self, grant: Grant) -> Option<u64> {
        self.sessions.lives(grant).then(|| self.number())
    }
}

fn counts(state: &SessionState, grant: Grant) -> bool {
    state.life.counts() && !state.over.contains(grant.n)
}

fn ask<'a>(request: &Acquire, claim: &'a Claim, place: Place) -> Ask<'a> {
    Ask {
        grant: request.grant,
        owner: request.owner,
        claim,
        place,
    }
}

fn needed(claims: &[Claim]) -> Needed<'_> {
    let mut needed = Needed::new();
    for claim in claims {
        let above = claim.key().ancestor_keys().map(|key| (key, Place::Above));
        for (key, place) in above.chain([(claim.key().clone(), Place::Key)]) {
            let most = needed.entry(key).or_insert((claim, place));
            // IS and IX is IX, X is all; S and IX never meet in prepared claims.
            if mode(most.0, most.1) < mode(claim, place) {
                *most = (claim, place);
            }
        }
    }
    needed
}

/// Who refused which claims. A record may have been asked for more than one claim needs of it, so each is judged
/// again.
fn busy(request: &Acquire, met: &Met, states: &BTreeMap<SessionId, SessionState>) -> Busy {
    let shown = |id| {
        let state: &SessionState = &states[&id];
        (state.label.as_str().to_owned(), state.life)
    };
    let refusal = |claim: &Claim| -> Option<Refused> {
        let mut listed = Listed::default();
        let above = claim.key().ancestor_keys().map(|key| (key, Place::Above));
        for (key, place) in above.chain([(claim.key().clone(), Place::Key)]) {
            let ask = ask(request, claim, place);
            for held in met.get(&key).into_iter().flatten() {
                // A share that is in the way is there because of the limit.
                if !ask.beside(held) || claim.want().limit().is_some() {
                    listed.add(&key, held, held.mode, shown);
                }
            }
        }
        listed.refusal(claim)
    };
    let mut refused: Vec<Refused> = request.claims.iter().filter_map(refusal).collect();
    let more = refused.len() > MAX_LISTED;
    refused.truncate(MAX_LISTED);
    Busy::new(refused, more)
}
