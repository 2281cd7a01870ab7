//! Mistakes in counting shares.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use lockcore::backend::{Acquire, Acquired, Stood};
use lockcore::{
    Busy, Claim, Grant, Holder, Life, LockBackend, LockKey, OwnerId, Refused, Result, Want,
    async_trait,
};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Ghost, Granted, Store, lock, wanted};

pub(crate) fn all() -> Vec<Broken> {
    vec![
        Broken::new("share counted twice", Law::SharedAreASet, Twice::new),
        Broken::new("dead share still counted", Law::SharedAreASet, Counts::new),
        Broken::new("limit off by one", Law::AtMostOneHolder, OneMore),
    ]
}

fn shares(request: &Acquire) -> impl Iterator<Item = &Claim> {
    let share = |claim: &&Claim| matches!(claim.want(), Want::Share { .. });
    request.claims.iter().filter(share)
}

/// A counter in place of a set: a share that is sent again is one more.
struct Twice {
    store: Store,
    granted: Granted,
    ghost: Ghost,
}

impl Twice {
    fn new(store: Store) -> Self {
        let (granted, ghost) = (Granted::default(), Ghost::new());
        Self {
            store,
            granted,
            ghost,
        }
    }
}

#[async_trait]
impl Decorator for Twice {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let again = self.granted.has(request.grant);
        let answer = self.store.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
            let unlimited = Want::Share { limit: None };
            let more: Vec<Claim> = shares(request)
                .map(|claim| wanted(claim, unlimited))
                .collect();
            if again && !more.is_empty() {
                let _ = self.ghost.acquires(&self.store, more).await?;
            }
        }
        Ok(answer)
    }
}

/// A counter in place of a set: only a release takes from it.
struct Counts {
    store: Store,
    counted: Mutex<HashMap<LockKey, BTreeSet<Grant>>>,
}

impl Counts {
    fn new(store: Store) -> Self {
        let counted = Mutex::default();
        Self { store, counted }
    }

    fn full(&self, request: &Acquire, claim: &Claim) -> Option<Busy> {
        let counted = lock(&self.counted);
        let others = counted.get(claim.key())?;
        let limit = usize::try_from(claim.want().limit()?.get()).unwrap_or(usize::MAX);
        if others.contains(&request.grant) || others.len() < limit {
            return None;
        }
        let holder = |grant: &Grant| Holder {
            key: claim.key().clone(),
            grant: Some(*grant),
            owner: Some(OwnerId {
                session: grant.session,
                m: 1,
            }),
            mode: claim.want().mode(),
            label: String::new(),
            since: None,
            life: Life::Living,
            waiting: None,
        };
        let refused = Refused {
            claim: claim.clone(),
            holders: others.iter().take(16).map(holder).collect(),
            more: others.len() > 16,
        };
        Some(Busy::new(vec![refused], false))
    }
}

#[async_trait]
impl Decorator for Counts {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        if let Some(busy) = shares(request).find_map(|claim| self.full(request, claim)) {
            return Ok(Acquired::Busy(busy));
        }
        let answer = self.store.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            for claim in shares(request) {
                let mut counted = lock(&self.counted);
                let grants = counted.entry(claim.key().clone()).or_default();
                grants.insert(request.grant);
            }
        }
        Ok(answer)
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        for grants in lock(&self.counted).values_mut() {
            grants.remove(&grant);
        }
        self.store.release(grant, claims).await
    }
}

struct OneMore(Store);

#[async_trait]
impl Decorator for OneMore {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut more = request.clone();
        for claim in &mut more.claims {
            if let Some(limit) = claim.want().limit() {
                let limit = Some(limit.saturating_add(1));
                *claim = wanted(claim, Want::Share { limit });
            }
        }
        let answer = self.0.acquire(&more).await?;
        let Acquired::Busy(busy) = answer else {
            return Ok(answer);
        };
        let as_asked = |refused: &Refused| {
            let key = refused.claim.key();
            let asked = request.claims.iter().find(|claim| claim.key() == key);
            Refused {
                claim: asked.unwrap_or(&refused.claim).clone(),
                ..refused.clone()
            }
        };
        let listed = busy.refused().iter().map(as_asked).collect();
        Ok(Acquired::Busy(Busy::new(listed, busy.more)))
    }
}
