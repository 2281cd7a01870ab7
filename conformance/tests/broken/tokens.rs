//! Mistakes in giving out tokens.

use std::collections::HashMap;
use std::sync::Mutex;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Adoption, Filter, Incarnation, IntentChange, Renewal,
    Renewed, Stood, Sweep, Swept,
};
use lockcore::{Claim, FencingToken, Grant, LockBackend, LockKey, Result, SessionId, async_trait};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Store, lock};

pub(crate) fn all() -> Vec<Broken> {
    let resets = |when| move |store| Resets::new(store, when);
    vec![
        Broken::new(
            "token reset on release",
            Law::TokensOnlyRise,
            resets(When::Released),
        ),
        Broken::new(
            "token reset on deletion",
            Law::TokensOnlyRise,
            resets(When::Deleted),
        ),
        Broken::new(
            "token of which a guard's would not fit",
            Law::TokensOnlyRise,
            Large,
        ),
        Broken::new(
            "token of an intent kept in floating point",
            Law::TokensOnlyRise,
            Rounds,
        ),
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    Released,
    Deleted,
}

/// A counter in the record of the key, which goes with the record.
struct Resets {
    store: Store,
    when: When,
    counters: Mutex<HashMap<LockKey, u64>>,
}

impl Resets {
    fn new(store: Store, when: When) -> Self {
        let counters = Mutex::default();
        Self {
            store,
            when,
            counters,
        }
    }
}

#[async_trait]
impl Decorator for Resets {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        if !matches!(answer, Acquired::Acquired(_)) {
            return Ok(answer);
        }
        let mut counters = lock(&self.counters);
        let keys = || request.claims.iter().map(Claim::key);
        let last = keys().filter_map(|key| counters.get(key)).max();
        let next = last.map_or(1, |last| last + 1);
        for key in keys() {
            counters.insert(key.clone(), next);
        }
        let token = FencingToken::new(next).expect("from 1");
        Ok(Acquired::Acquired(token))
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let stood = self.store.release(grant, claims).await?;
        if self.when == When::Released {
            for claim in claims {
                lock(&self.counters).remove(claim.key());
            }
        }
        Ok(stood)
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let swept = self.store.sweep(which, limit).await?;
        let keys: Vec<LockKey> = lock(&self.counters).keys().cloned().collect();
        for key in keys {
            let left = self
                .store
                .records(&Filter::Key(key.clone()), None, 1)
                .await?;
            if left.items.is_empty() {
                lock(&self.counters).remove(&key);
            }
        }
        Ok(swept)
    }
}

/// Counts in nanoseconds.
struct Large(Store);

impl Large {
    fn token(token: FencingToken) -> FencingToken {
        FencingToken::new(token.get() * 1_000).expect("it is a small one")
    }
}

#[async_trait]
impl Decorator for Large {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.0.acquire(request).await? {
            Acquired::Acquired(token) => Ok(Acquired::Acquired(Self::token(token))),
            answer => Ok(answer),
        }
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        Ok(
            match self.0.adopt(session, seen, adopter, how, within).await? {
                Adopted::Adopted(adoption) => Adopted::Adopted(Adoption {
                    token: Self::token(adoption.token),
                    ..adoption
                }),
                other => other,
            },
        )
    }
}

/// Its scripts have no whole numbers.
struct Rounds(Store);

#[async_trait]
impl Decorator for Rounds {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        if let IntentChange::Put(registered) = &mut renewal.intent {
            let exact = registered.token.get();
            // What is behind the 53 bits of a number is rounded away.
            let lost = (u64::BITS - exact.leading_zeros()).saturating_sub(53);
            registered.token = FencingToken::new(exact >> lost << lost).expect("it is not greater");
        }
        self.0.renew(session, &renewal).await
    }
}
