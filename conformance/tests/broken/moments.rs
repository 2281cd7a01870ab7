//! Mistakes that show at a certain moment only, or to who remembers what was before.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Adoption, Changed, Filter, Incarnation, Page, Record,
    Renewal, Renewed, Stood, Sweep, Swept,
};
use lockcore::{
    Busy, Claim, FencingToken, Grant, Holder, LockBackend, Result, SessionId, async_trait,
};
use lockcore_conformance::{Decorator, Law};
use tokio::time::{Instant, sleep};

use crate::Broken;
use crate::fixture::GENERATION;
use crate::support::{Ghost, Granted, Store, lock};

pub(crate) fn all() -> Vec<Broken> {
    let says = |when| {
        move |store| Says {
            store,
            when,
            looks: AtomicU64::new(1),
        }
    };
    vec![
        Broken::new(
            "watch that holds a lock while it is made",
            Law::WaitingEnds,
            |store| Jams {
                store,
                making: tokio::sync::Mutex::default(),
            },
        ),
        Broken::new(
            "grant that lasts a millisecond",
            Law::AtMostOneHolder,
            Brief::new,
        ),
        Broken::new("sweep that does not look again", Law::Listing, Sweeps::new),
        Broken::new("eviction without comparing", Law::Listing, Evicts),
        Broken::new(
            "since is the time of the look",
            Law::Listing,
            says(Since::Looked),
        ),
        Broken::new(
            "since in seconds for milliseconds",
            Law::Listing,
            says(Since::Seconds),
        ),
        Broken::new(
            "since told by the refusal only",
            Law::Listing,
            says(Since::Refused),
        ),
        Broken::new("batch cut to what fits", Law::Limits, Cuts),
        Broken::new(
            "request that outlives its renewal",
            Law::UnknownIsSettled,
            Outlives::new,
        ),
        Broken::new(
            "confirmed because it was confirmed once",
            Law::DeadStaysDead,
            Remembers::new,
        ),
        Broken::new(
            "token that begins anew with the namespace",
            Law::TokensOnlyRise,
            Forgets,
        ),
        Broken::new(
            "token counted by the process",
            Law::TokensOnlyRise,
            Counts::new,
        ),
    ]
}

/// Takes the key from whoever has it for more than a moment.
struct Brief {
    store: Store,
    granted: Granted,
    since: Mutex<HashMap<Grant, Instant>>,
}

impl Brief {
    fn new(store: Store) -> Self {
        Self {
            store,
            granted: Granted::default(),
            since: Mutex::default(),
        }
    }
}

#[async_trait]
impl Decorator for Brief {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut answer = self.store.acquire(request).await?;
        if let Acquired::Busy(busy) = &answer {
            let holders = busy.refused().iter().flat_map(|refused| &refused.holders);
            for grant in holders.filter_map(|holder| holder.grant) {
                let since = lock(&self.since).get(&grant).copied();
                let retired =
                    since.is_some_and(|since| since.elapsed() >= Duration::from_millis(1));
                let held = self.granted.of(grant.session);
                let held = held.into_iter().find(|held| held.grant == grant);
                // Of several keys, or of a batch that others join, somebody else may have seen it.
                let held = held.filter(|held| held.claims.len() == 1 && !held.joined);
                if let (true, Some(held)) = (retired, held) {
                    self.store.release(grant, &held.claims).await?;
                }
            }
            answer = self.store.acquire(request).await?;
        }
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
            lock(&self.since).insert(request.grant, Instant::now());
        }
        Ok(answer)
    }
}

/// Looks for keys that the dead one held and nobody holds by now, and a moment later removes whoever holds them.
struct Sweeps {
    store: Store,
    granted: Granted,
}

impl Sweeps {
    fn new(store: Store) -> Self {
        let granted = Granted::default();
        Self { store, granted }
    }

    async fn holders(&self, claim: &Claim) -> Result<Vec<Grant>> {
        let filter = Filter::Key(claim.key().clone());
        let records = self.store.records(&filter, None, 1).await?.items;
        let holders = records.iter().flat_map(|record| &record.holders);
        Ok(holders.filter_map(|holder| holder.grant).collect())
    }
}

#[async_trait]
impl Decorator for Sweeps {
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

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        if let Sweep::Session(session) = which {
            let held = self.granted.of(session);
            let mut claims = Vec::new();
            for claim in held.into_iter().flat_map(|request| request.claims) {
                if self.holders(&claim).await?.is_empty() {
                    claims.push(claim);
                }
            }
            sleep(Duration::from_millis(1)).await;
            for claim in claims {
                for grant in self.holders(&claim).await? {
                    let claims = std::slice::from_ref(&claim);
                    self.store.release(grant, claims).await?;
                }
            }
        }
        self.store.sweep(which, limit).await
    }
}

struct Evicts(Store);

#[async_trait]
impl Decorator for Evicts {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let filter = Filter::Key(seen.key.clone());
        match self.0.records(&filter, None, 1).await?.items.first() {
            Some(record) => self.0.evict(record).await,
            None => Ok(false),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Since {
    Looked,
    Seconds,
    Refused,
}

/// Says something wrong of since when a key is held.
struct Says {
    store: Store,
    when: Since,
    looks: AtomicU64,
}

impl Says {
    fn wrong(&self, holder: &mut Holder) {
        let since = holder
            .since
            .and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        holder.since = match self.when {
            Since::Looked => since.map(|_| {
                let looks = self.looks.fetch_add(1, Ordering::Relaxed);
                SystemTime::UNIX_EPOCH + Duration::from_secs(looks)
            }),
            Since::Seconds => since.map(|since| SystemTime::UNIX_EPOCH + since / 1_000),
            Since::Refused => None,
        };
    }
}

#[async_trait]
impl Decorator for Says {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let mut page = self.store.records(filter, after, limit).await?;
        let holders = page.items.iter_mut().flat_map(|record| &mut record.holders);
        holders.for_each(|holder| self.wrong(holder));
        Ok(page)
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        let Acquired::Busy(busy) = &answer else {
            return Ok(answer);
        };
        if self.when == Since::Refused {
            return Ok(answer);
        }
        let mut refused = busy.refused().to_vec();
        let holders = refused.iter_mut().flat_map(|refused| &mut refused.holders);
        holders.for_each(|holder| self.wrong(holder));
        Ok(Acquired::Busy(Busy::new(refused, busy.more)))
    }
}

/// Takes as many as it can, and says nothing of the rest.
struct Cuts(Store);

#[async_trait]
impl Decorator for Cuts {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut request = request.clone();
        request.claims.truncate(self.0.info().keys_per_batch);
        self.0.acquire(&request).await
    }
}

/// A request whose sender has gone away is obeyed after the next renewal, whatever that says.
struct Outlives {
    store: Store,
    ghost: Ghost,
    alone: Arc<Mutex<Vec<Acquire>>>,
}

impl Outlives {
    fn new(store: Store) -> Self {
        Self {
            store,
            ghost: Ghost::new(),
            alone: Arc::default(),
        }
    }
}

/// Somebody waits for the answer.
struct Waited {
    request: Option<Acquire>,
    alone: Arc<Mutex<Vec<Acquire>>>,
}

impl Drop for Waited {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            lock(&self.alone).push(request);
        }
    }
}

#[async_trait]
impl Decorator for Outlives {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut waited = Waited {
            request: Some(request.clone()),
            alone: Arc::clone(&self.alone),
        };
        sleep(Duration::from_millis(1)).await;
        let answer = self.store.acquire(request).await;
        waited.request = None;
        answer
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewed = self.store.renew(session, renewal).await?;
        let alone = std::mem::take(&mut *lock(&self.alone));
        for request in alone {
            let _ = self.ghost.acquires(&self.store, request.claims).await?;
        }
        Ok(renewed)
    }
}

/// Confirms from memory what it has confirmed before, until that is released.
struct Remembers {
    store: Store,
    confirmed: Mutex<HashSet<Grant>>,
}

impl Remembers {
    fn new(store: Store) -> Self {
        let confirmed = Mutex::default();
        Self { store, confirmed }
    }
}

#[async_trait]
impl Decorator for Remembers {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        lock(&self.confirmed).remove(&grant);
        self.store.release(grant, claims).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let retired = |grant: &Grant| grant.session == session && renewal.retired.contains(grant.n);
        lock(&self.confirmed).retain(|grant| !retired(grant));
        self.store.renew(session, renewal).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        if lock(&self.confirmed).contains(&grant) {
            return Ok(true);
        }
        let held = self.store.confirm(grant, claims).await?;
        if held {
            lock(&self.confirmed).insert(grant);
        }
        Ok(held)
    }
}

/// Numbers its grants itself, from the first one on.
struct Counts {
    store: Store,
    last: AtomicU64,
}

impl Counts {
    fn new(store: Store) -> Self {
        let last = AtomicU64::new(0);
        Self { store, last }
    }

    fn token(&self) -> FencingToken {
        let next = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        FencingToken::new(next).expect("from 1")
    }
}

#[async_trait]
impl Decorator for Counts {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.store.acquire(request).await? {
            Acquired::Acquired(_) => Ok(Acquired::Acquired(self.token())),
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
            match self
                .store
                .adopt(session, seen, adopter, how, within)
                .await?
            {
                Adopted::Adopted(adoption) => Adopted::Adopted(Adoption {
                    token: self.token(),
                    ..adoption
                }),
                other => other,
            },
        )
    }
}

/// Its tokens say nothing of the namespaces that were there before.
struct Forgets(Store);

impl Forgets {
    fn token(token: FencingToken) -> FencingToken {
        FencingToken::new(token.get() % (1 << GENERATION)).expect("from 1")
    }
}

#[async_trait]
impl Decorator for Forgets {
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

/// Whoever makes a watch keeps everybody else from it until it is polled again.
struct Jams {
    store: Store,
    making: tokio::sync::Mutex<()>,
}

#[async_trait]
impl Decorator for Jams {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let _one_at_a_time = self.making.lock().await;
        tokio::task::yield_now().await;
        self.store.watch(claims).await
    }
}
