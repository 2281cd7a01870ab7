//! [`Model`]: what a store should answer to one request after the other, said as plainly as possible.
//!
//! It knows nothing of time, and shares no code with lockcore's own judgement.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::backend::{
    Acquire, Adopt, End, IntentChange, Ranges, Registered, Renewal, Renewed, Stood,
};
use lockcore::{Claim, Grant, Life, LockKey, OwnerId, SessionId, Want};

#[derive(Default)]
pub(crate) struct Model {
    sessions: BTreeMap<SessionId, Session>,
    holders: Vec<Held>,
}

#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) life: Life,
    pub(crate) retired: Ranges,
    pub(crate) adoption: u64,
    pub(crate) adopter: Option<SessionId>,
    seq: u64,
    intent: Option<Registered>,
    settled: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) claim: Claim,
    pub(crate) grant: Grant,
    pub(crate) owner: OwnerId,
}

/// The claims of a request that are refused, in order, and who is in the way of each.
pub(crate) type InTheWay = Vec<(Claim, BTreeSet<Grant>)>;

/// Whether the holder alone is in the way of the claim. Limits of shares are counted apart.
pub(crate) fn conflict(asked: &Claim, owner: OwnerId, held: &Held) -> bool {
    let reenters = matches!(asked.want(), Want::Upsert | Want::Write | Want::Read);
    if reenters && owner == held.owner {
        return false;
    }
    let (ours, theirs) = (asked.key(), held.claim.key());
    if !(ours == theirs || above(ours, theirs) || above(theirs, ours)) {
        return false;
    }
    match (asked.want(), held.claim.want()) {
        (Want::Share { .. }, Want::Share { .. }) | (Want::Read, Want::Read) => false,
        (_, _) => true,
    }
}

fn above(left: &LockKey, right: &LockKey) -> bool {
    left.as_str().starts_with('/') && right.as_str().starts_with(&format!("{left}/"))
}

fn is_share(want: Want) -> bool {
    matches!(want, Want::Share { .. })
}

impl Model {
    pub(crate) fn open(&mut self, session: SessionId) {
        self.sessions.insert(
            session,
            Session {
                life: Life::Living,
                retired: Ranges::EMPTY,
                adoption: 0,
                adopter: None,
                seq: 0,
                intent: None,
                settled: None,
            },
        );
    }

    pub(crate) fn session(&self, session: SessionId) -> &Session {
        &self.sessions[&session]
    }

    fn known(&mut self, session: SessionId) -> &mut Session {
        self.sessions
            .get_mut(&session)
            .expect("the model opened it")
    }

    /// Whether requests of that grant may be granted.
    pub(crate) fn may_acquire(&self, grant: Grant) -> bool {
        let session = self.session(grant.session);
        session.life == Life::Living && !session.retired.contains(grant.n)
    }

    fn is_live(&self, grant: Grant) -> bool {
        let session = self.session(grant.session);
        session.life != Life::Dead && !session.retired.contains(grant.n)
    }

    pub(crate) fn holds(&self, grant: Grant) -> bool {
        self.is_live(grant) && self.holders.iter().any(|held| held.grant == grant)
    }

    /// Who counts and is in the way of the request.
    pub(crate) fn in_the_way(&self, request: &Acquire) -> InTheWay {
        let others: Vec<&Held> = self
            .holders
            .iter()
            .filter(|held| held.grant != request.grant && self.is_live(held.grant))
            .collect();
        let mut refused = InTheWay::new();
        for claim in &request.claims {
            let mut in_the_way: BTreeSet<Grant> = others
                .iter()
                .filter(|held| conflict(claim, request.owner, held))
                .map(|held| held.grant)
                .collect();
            if let Want::Share { limit: Some(limit) } = claim.want() {
                let shares: BTreeSet<Grant> = others
                    .iter()
                    .filter(|held| held.claim.key() == claim.key() && is_share(held.claim.want()))
                    .map(|held| held.grant)
                    .collect();
                if shares.len() as u64 >= u64::from(limit.get()) {
                    in_the_way.extend(shares);
                }
            }
            if !in_the_way.is_empty() {
                refused.push((claim.clone(), in_the_way));
            }
        }
        refused
    }

    pub(crate) fn granted(&mut self, request: &Acquire) {
        for claim in &request.claims {
            let held = Held {
                claim: claim.clone(),
                grant: request.grant,
                owner: request.owner,
            };
            if !self.holders.contains(&held) {
                self.holders.push(held);
            }
        }
    }

    /// What a release says; what does not count may be gone already.
    pub(crate) fn release(&mut self, grant: Grant) -> Stood {
        let before = self.holders.len();
        self.holders.retain(|held| held.grant != grant);
        if self.holders.len() == before {
            Stood::Absent
        } else if self.may_acquire(grant) {
            Stood::Held
        } else {
            Stood::Fallen
        }
    }

    /// Grants that count on exactly this key.
    pub(crate) fn on(&self, key: &LockKey) -> BTreeSet<Grant> {
        self.holders
            .iter()
            .filter(|held| held.claim.key() == key && self.is_live(held.grant))
            .map(|held| held.grant)
            .collect()
    }

    /// Grants that count on this path or below it.
    pub(crate) fn on_or_below(&self, key: &LockKey) -> BTreeSet<Grant> {
        self.holders
            .iter()
            .filter(|held| held.claim.key() == key || above(key, held.claim.key()))
            .filter(|held| self.is_live(held.grant))
            .map(|held| held.grant)
            .collect()
    }

    pub(crate) fn renew(&mut self, session: SessionId, renewal: &Renewal) -> Renewed {
        let session = self.known(session);
        if session.life != Life::Living {
            return Renewed::Dead;
        }
        if session.seq < renewal.acknowledged {
            return Renewed::Forgotten;
        }
        if renewal.seq <= session.seq {
            return Renewed::Overtaken;
        }
        session.seq = renewal.seq;
        session.retired = renewal.retired.clone();
        match &renewal.intent {
            IntentChange::Keep => {}
            IntentChange::Put(intent) => session.intent = Some(intent.clone()),
            IntentChange::Drop => session.intent = None,
        }
        Renewed::Living
    }

    /// Nothing is ever due here.
    pub(crate) fn end(&mut self, session: SessionId, how: End) -> Session {
        let session = self.known(session);
        match (how, session.life) {
            (End::Close | End::Revoke, Life::Living) => {
                session.life = if session.intent.is_some() {
                    Life::Abandoned
                } else {
                    Life::Dead
                };
            }
            (End::Discard, Life::Abandoned) => {
                session.life = Life::Dead;
                session.adoption += 1;
                session.adopter = None;
                session.intent = None;
            }
            _ => {}
        }
        session.clone()
    }

    /// The number of the adoption and what was left, if it is granted.
    pub(crate) fn adopt(
        &mut self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Option<(u64, Registered)> {
        let session = self.known(session);
        if session.life != Life::Abandoned {
            return None;
        }
        let has_it = session.adoption == seen + 1 && session.adopter == Some(adopter);
        match how {
            Adopt::Take if session.adoption == seen || has_it => {
                session.adoption = seen + 1;
                session.adopter = Some(adopter);
                session.intent.clone().map(|intent| (seen + 1, intent))
            }
            Adopt::GiveUp if session.adoption == seen || has_it => {
                session.adoption += 1;
                session.adopter = None;
                None
            }
            Adopt::Take | Adopt::GiveUp => None,
        }
    }

    pub(crate) fn settle(&mut self, session: SessionId, adoption: u64, adopter: SessionId) -> bool {
        let session = self.known(session);
        if session.settled == Some(adoption) {
            return session.adopter.is_none_or(|it| it == adopter);
        }
        if session.life != Life::Abandoned
            || session.adopter != Some(adopter)
            || session.adoption != adoption
        {
            return false;
        }
        session.life = Life::Dead;
        session.intent = None;
        session.settled = Some(adoption);
        true
    }
}
