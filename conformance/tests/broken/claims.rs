//! Mistakes in acquiring, releasing, waiting and listing.

use std::sync::Mutex;

use lockcore::backend::{
    Acquire, Acquired, Changed, Filter, Ranges, Renewal, Renewed, Stood, Sweep, Swept,
};
use lockcore::{
    Busy, Claim, Error, ErrorKind, Grant, Holder, Life, LockBackend, Operation, Refused, Result,
    SessionId, Want, async_trait,
};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Granted, Store, life, lock, wanted};

pub(crate) fn all() -> Vec<Broken> {
    vec![
        Broken::new("release without owner check", Law::OwnClaimsOnly, Careless),
        Broken::new(
            "release that always says held",
            Law::OwnClaimsOnly,
            |store| Says(store, |_| Stood::Held),
        ),
        Broken::new(
            "release that does not look at the session",
            Law::OwnClaimsOnly,
            |store| {
                Says(store, |stood| match stood {
                    Stood::Fallen => Stood::Held,
                    stood => stood,
                })
            },
        ),
        Broken::new(
            "release that does not look at what is there",
            Law::OwnClaimsOnly,
            |store| {
                Says(store, |stood| match stood {
                    Stood::Absent => Stood::Held,
                    stood => stood,
                })
            },
        ),
        Broken::new(
            "release that never says held",
            Law::OwnClaimsOnly,
            |store| Says(store, |_| Stood::Absent),
        ),
        Broken::new("refusal that leaves a key held", Law::NothingKept, Leaves),
        Broken::new("refusal as an error", Law::RefusalIsAValue, Fails),
        Broken::new(
            "busy reported for one's own grant",
            Law::OneGrantPerRequest,
            Jealous::new,
        ),
        Broken::new("over ignored", Law::UnknownIsSettled, NothingIsOver),
        Broken::new(
            "over in a column of 255 characters",
            Law::UnknownIsSettled,
            CutOff,
        ),
        Broken::new("garbage read as free", Law::GarbageIsHeld, Cleans),
        Broken::new(
            "one answer for all who ask for a key at once",
            Law::AtMostOneHolder,
            Joins::new,
        ),
        Broken::new("wake-up never sent", Law::Waiting, Sleeps),
        Broken::new(
            "shared asked for, exclusive taken",
            Law::AllowedIsGranted,
            Greedy,
        ),
        Broken::new("sweep takes what is held", Law::Listing, Sweeps),
        Broken::new(
            "confirmed because it was granted once",
            Law::DeadStaysDead,
            Believes::new,
        ),
    ]
}

/// Who asks for a key while another request of its session does so is answered what that one is.
struct Joins {
    store: Store,
    under_way: Mutex<Vec<Acquire>>,
}

impl Joins {
    fn new(store: Store) -> Self {
        let under_way = Mutex::default();
        Self { store, under_way }
    }
}

#[async_trait]
impl Decorator for Joins {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let is_alike = |other: &Acquire| {
            let (one, session) = (&request.claims[0], request.grant.session);
            session == other.grant.session && one.key() == other.claims[0].key()
        };
        let first = {
            let mut under_way = lock(&self.under_way);
            let first = under_way.iter().find(|other| is_alike(other)).cloned();
            under_way.push(request.clone());
            first
        };
        tokio::task::yield_now().await;
        let answer = self.store.acquire(first.as_ref().unwrap_or(request)).await;
        lock(&self.under_way).retain(|other| other.grant != request.grant);
        answer
    }
}

/// Releases whoever holds the keys.
struct Careless(Store);

#[async_trait]
impl Decorator for Careless {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let stood = self.0.release(grant, claims).await?;
        for claim in claims {
            let filter = Filter::Key(claim.key().clone());
            for record in self.0.records(&filter, None, 1).await?.items {
                for other in record.holders.iter().filter_map(|holder| holder.grant) {
                    self.0.release(other, claims).await?;
                }
            }
        }
        Ok(stood)
    }
}

/// A release says that all went well, whatever was there; or what is there counts for held, or for not held.
struct Says(Store, fn(Stood) -> Stood);

#[async_trait]
impl Decorator for Says {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.0.release(grant, claims).await.map(self.1)
    }
}

/// A batch that is refused keeps the claims before the refused one.
struct Leaves(Store);

#[async_trait]
impl Decorator for Leaves {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        if let Acquired::Busy(busy) = &answer {
            let mut rest = request.clone();
            let refused = |claim: &Claim| claim == &busy.first().claim;
            let first = request.claims.iter().position(refused).unwrap_or(0);
            rest.claims.truncate(first);
            if !rest.claims.is_empty() {
                let _ = self.0.acquire(&rest).await?;
            }
        }
        Ok(answer)
    }
}

struct Fails(Store);

#[async_trait]
impl Decorator for Fails {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.0.acquire(request).await? {
            Acquired::Busy(_) => {
                let (name, operation) = (self.0.info().name, Operation::Acquire);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    name,
                    operation,
                    "409 conflict",
                ))
            }
            answer => Ok(answer),
        }
    }
}

struct Jealous {
    store: Store,
    granted: Granted,
}

impl Jealous {
    fn new(store: Store) -> Self {
        let granted = Granted::default();
        Self { store, granted }
    }
}

#[async_trait]
impl Decorator for Jealous {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        if self.granted.has(request.grant) {
            let claim = &request.claims[0];
            let itself = Holder {
                key: claim.key().clone(),
                grant: Some(request.grant),
                owner: Some(request.owner),
                mode: claim.want().mode(),
                label: String::new(),
                since: None,
                life: Life::Living,
                waiting: None,
            };
            let refused = Refused {
                claim: claim.clone(),
                holders: vec![itself],
                more: false,
            };
            return Ok(Acquired::Busy(Busy::new(vec![refused], false)));
        }
        let answer = self.store.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
        }
        Ok(answer)
    }
}

struct NothingIsOver(Store);

#[async_trait]
impl Decorator for NothingIsOver {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        renewal.retired = Ranges::EMPTY;
        self.0.renew(session, &renewal).await
    }
}

/// Of what is over it keeps the ranges that fit.
struct CutOff(Store);

#[async_trait]
impl Decorator for CutOff {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        let text = renewal.retired.to_string();
        if let Some(column) = text.get(..255) {
            let whole = column.rsplit_once(',').map_or("", |(whole, _)| whole);
            renewal.retired = whole.parse().expect("the first of its ranges");
        }
        self.0.renew(session, &renewal).await
    }
}

/// Evicts whatever it cannot understand.
struct Cleans(Store);

#[async_trait]
impl Decorator for Cleans {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        let Acquired::Busy(busy) = &answer else {
            return Ok(answer);
        };
        let holders = busy.refused().iter().flat_map(|refused| &refused.holders);
        let mut evicted = false;
        for foreign in holders.filter(|holder| holder.grant.is_none()) {
            let filter = Filter::Key(foreign.key.clone());
            for record in self.0.records(&filter, None, 1).await?.items {
                evicted |= self.0.evict(&record).await?;
            }
        }
        if evicted {
            return self.0.acquire(request).await;
        }
        Ok(answer)
    }
}

struct Sleeps(Store);

#[async_trait]
impl Decorator for Sleeps {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn watch(&self, _: &[Claim]) -> Result<Changed> {
        Ok(Box::pin(std::future::pending()))
    }
}

struct Greedy(Store);

#[async_trait]
impl Decorator for Greedy {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut request = request.clone();
        for claim in &mut request.claims {
            *claim = match claim.want() {
                Want::Read => wanted(claim, Want::Write),
                Want::Share { .. } => wanted(claim, Want::Create),
                _ => claim.clone(),
            };
        }
        self.0.acquire(&request).await
    }
}

struct Sweeps(Store);

#[async_trait]
impl Decorator for Sweeps {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let all = Filter::Prefix(String::new());
        for record in self.0.records(&all, None, limit).await?.items {
            let upsert = Claim::new(record.key.clone(), Want::Upsert);
            let claim = upsert.or_else(|| Claim::new(record.key, Want::Write));
            let claim = claim.expect("of one kind or the other");
            for grant in record.holders.iter().filter_map(|holder| holder.grant) {
                self.0.release(grant, std::slice::from_ref(&claim)).await?;
            }
        }
        self.0.sweep(which, limit).await
    }
}

/// Does not ask whether the session still lives.
struct Believes {
    store: Store,
    granted: Granted,
}

impl Believes {
    fn new(store: Store) -> Self {
        let granted = Granted::default();
        Self { store, granted }
    }
}

#[async_trait]
impl Decorator for Believes {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
        }
        Ok(answer)
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.granted.forget(grant);
        self.store.release(grant, claims).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let held = self.store.confirm(grant, claims).await?;
        let dead = life(&self.store, grant.session).await? == Life::Dead;
        Ok(held || dead && self.granted.has(grant))
    }
}
