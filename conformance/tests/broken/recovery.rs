//! Mistakes in keeping and handing on what a dead holder left.

use std::collections::HashMap;
use std::sync::Mutex;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Renewal, Renewed,
    Settled,
};
use lockcore::{Life, LockBackend, Result, SessionId, async_trait};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Store, lock};

pub(crate) fn all() -> Vec<Broken> {
    vec![
        Broken::new("intent lost", Law::Recovery, Loses),
        Broken::new("intent given to two adopters", Law::Recovery, Gives::new),
        Broken::new(
            "settle without the adoption number",
            Law::Recovery,
            Settles::new,
        ),
        Broken::new("settle by the number alone", Law::Recovery, Anybodys),
        Broken::new("expiry frees what has an intent", Law::Recovery, Hurries),
        Broken::new("adoption that cannot be given up", Law::Recovery, Clings),
    ]
}

struct Loses(Store);

#[async_trait]
impl Decorator for Loses {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        renewal.intent = IntentChange::Keep;
        self.0.renew(session, &renewal).await
    }
}

/// Reads the number, and writes without comparing it: two who have read the same both adopt.
struct Gives {
    store: Store,
    given: Mutex<HashMap<(SessionId, u64), Adoption>>,
}

impl Gives {
    fn new(store: Store) -> Self {
        let given = Mutex::default();
        Self { store, given }
    }
}

#[async_trait]
impl Decorator for Gives {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let adopted = self
            .store
            .adopt(session, seen, adopter, how, within)
            .await?;
        if how == Adopt::GiveUp {
            return Ok(adopted);
        }
        let mut given = lock(&self.given);
        if let Adopted::Adopted(adoption) = adopted {
            given.insert((session, seen), adoption);
        }
        let given = given.get(&(session, seen)).cloned();
        Ok(given.map_or(Adopted::NotAdopted, Adopted::Adopted))
    }
}

struct Settles {
    store: Store,
    latest: Mutex<HashMap<SessionId, (u64, SessionId)>>,
}

impl Settles {
    fn new(store: Store) -> Self {
        let latest = Mutex::default();
        Self { store, latest }
    }
}

#[async_trait]
impl Decorator for Settles {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let adopted = self
            .store
            .adopt(session, seen, adopter, how, within)
            .await?;
        if let Adopted::Adopted(adoption) = &adopted {
            lock(&self.latest).insert(session, (adoption.number, adopter));
        }
        Ok(adopted)
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let latest = lock(&self.latest).get(&session).copied();
        let (adoption, adopter) = latest.unwrap_or((adoption, adopter));
        self.store.settle(session, adoption, adopter, within).await
    }
}

/// Takes whoever settles for the adopter.
struct Anybodys(Store);

#[async_trait]
impl Decorator for Anybodys {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        _: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let states = self.0.end(&[session], End::IfDue).await?;
        let adopter = states.iter().find_map(|state| state.adopter);
        let adopter = adopter.unwrap_or(SessionId::new(0));
        self.0.settle(session, adoption, adopter, within).await
    }
}

/// Takes an abandoned session for a dead one.
struct Hurries(Store);

#[async_trait]
impl Decorator for Hurries {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        let Acquired::Busy(busy) = &answer else {
            return Ok(answer);
        };
        let holders = busy.refused().iter().flat_map(|refused| &refused.holders);
        let abandoned = holders.filter(|holder| holder.life == Life::Abandoned);
        let sessions: Vec<SessionId> = abandoned
            .filter_map(|holder| holder.grant.map(|grant| grant.session))
            .collect();
        if sessions.is_empty() {
            return Ok(answer);
        }
        let _ = self.0.end(&sessions, End::Discard).await?;
        self.0.acquire(request).await
    }
}

struct Clings(Store);

#[async_trait]
impl Decorator for Clings {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        match how {
            Adopt::Take => self.0.adopt(session, seen, adopter, how, within).await,
            Adopt::GiveUp => Ok(Adopted::NotAdopted),
        }
    }
}
