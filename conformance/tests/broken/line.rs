//! Mistakes in the line of those who wait.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use lockcore::backend::{
    Acquire, Acquired, Changed, Filter, Page, Past, Record, Stood, Sweep, Swept, never,
};
use lockcore::{Claim, Grant, Holder, LockBackend, OwnerId, Result, SessionId, Want, async_trait};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Store, lock};

fn waiting<D: Decorator + 'static>(
    name: &str,
    wrap: impl Fn(Store) -> D + Send + Sync + 'static,
) -> Broken {
    Broken::new(name, Law::Waiting, wrap)
}

pub(crate) fn all() -> Vec<Broken> {
    vec![
        waiting("nobody stands in line", NoLine),
        waiting("a line of eight", Short),
        waiting("who asks again stands at the end", Anew),
        waiting("who may go is removed at once", Impatient),
        waiting("nobody makes room", Stays),
        waiting("a waiter's release says that it held", Held),
        waiting("who gives up stays in line", |store| GivesUp {
            store,
            waiting: Mutex::default(),
        }),
        waiting("a sweep takes who waits, too", SweepsAll),
        waiting("a sweep of a session leaves who waited", |store| Leaves {
            store,
            waited: Mutex::default(),
        }),
        Broken::new(
            "a list of some who wait, without the holder",
            Law::Listing,
            Unled,
        ),
        waiting("who waits never learns that it may go", Deaf),
        waiting("who waits is woken before its turn, without end", Restless),
    ]
}

/// Of many that stand there it lists whoever comes to hand.
struct Unled(Store);

#[async_trait]
impl Decorator for Unled {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let mut page = self.0.records(filter, after, limit).await?;
        for record in page.items.iter_mut().filter(|record| record.more) {
            let waits = |holder: &Holder| holder.waiting.is_some();
            if record.holders.iter().any(waits) {
                record.holders.retain(waits);
            }
        }
        Ok(page)
    }
}

struct NoLine(Store);

#[async_trait]
impl Decorator for NoLine {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut alone = request.clone();
        alone.waits = false;
        self.0.acquire(&alone).await
    }
}

struct Short(Store);

#[async_trait]
impl Decorator for Short {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut request = request.clone();
        if request.waits && request.claims.len() == 1 {
            let filter = Filter::Key(request.claims[0].key().clone());
            let page = self.0.records(&filter, None, 1).await?;
            let holders = page.items.iter().flat_map(|record| &record.holders);
            let others = holders.filter(|it| it.grant != Some(request.grant));
            request.waits = others.filter(|it| it.waiting.is_some()).count() < 8;
        }
        self.0.acquire(&request).await
    }
}

struct Anew(Store);

#[async_trait]
impl Decorator for Anew {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        if request.waits && matches!(answer, Acquired::Busy(_)) {
            self.0.release(request.grant, &request.claims).await?;
            return self.0.acquire(request).await;
        }
        Ok(answer)
    }
}

/// Those who wait before somebody.
fn before(answer: &Acquired) -> Vec<Past> {
    let Acquired::Busy(busy) = answer else {
        return Vec::new();
    };
    let holders = busy.first().holders.iter();
    let waiting = holders.filter_map(|holder| Some((holder.grant?, holder.waiting?)));
    waiting
        .map(|(grant, waiting)| Past { grant, waiting })
        .collect()
}

struct Impatient(Store);

#[async_trait]
impl Decorator for Impatient {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        let may_go: Vec<Past> = before(&answer)
            .into_iter()
            .filter(|past| past.waiting.may_go)
            .collect();
        if may_go.is_empty() {
            return Ok(answer);
        }
        self.0.acquire(&request.clone().past(may_go)).await
    }
}

struct Stays(Store);

#[async_trait]
impl Decorator for Stays {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.0.acquire(&request.clone().past(Vec::new())).await
    }
}

struct Held(Store);

#[async_trait]
impl Decorator for Held {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let page = self
            .0
            .records(
                &lockcore::backend::Filter::Session(grant.session),
                None,
                100,
            )
            .await?;
        let holders = page.items.iter().flat_map(|record| &record.holders);
        let waits = holders
            .filter(|holder| holder.grant == Some(grant))
            .any(|holder| holder.waiting.is_some());
        let stood = self.0.release(grant, claims).await?;
        Ok(if waits { Stood::Held } else { stood })
    }
}

struct GivesUp {
    store: Store,
    waiting: Mutex<HashMap<Grant, bool>>,
}

#[async_trait]
impl Decorator for GivesUp {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        let waits = request.waits && matches!(answer, Acquired::Busy(_));
        lock(&self.waiting).insert(request.grant, waits);
        Ok(answer)
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        if lock(&self.waiting).get(&grant) == Some(&true) {
            return Ok(Stood::Absent);
        }
        self.store.release(grant, claims).await
    }
}

/// The keys on which somebody waits, and who.
async fn who_wait(store: &Store) -> Result<Vec<(Grant, Claim)>> {
    let all = Filter::Prefix(String::new());
    let page = store.records(&all, None, 1_000).await?;
    let wait = page.items.iter().flat_map(|record| {
        let wait = record.holders.iter().filter(|it| it.waiting.is_some());
        let claim = Claim::new(record.key.clone(), Want::Create);
        wait.filter_map(move |it| Some((it.grant?, claim.clone()?)))
    });
    Ok(wait.collect())
}

struct SweepsAll(Store);

#[async_trait]
impl Decorator for SweepsAll {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        for (grant, claim) in who_wait(&self.0).await? {
            self.0.release(grant, &[claim]).await?;
        }
        self.0.sweep(which, limit).await
    }
}

struct Leaves {
    store: Store,
    waited: Mutex<HashSet<SessionId>>,
}

#[async_trait]
impl Decorator for Leaves {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        if request.waits && matches!(answer, Acquired::Busy(_)) {
            lock(&self.waited).insert(request.grant.session);
        }
        Ok(answer)
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        match which {
            Sweep::Session(session) if lock(&self.waited).contains(&session) => {
                Ok(Swept::new(0, false))
            }
            _ => self.store.sweep(which, limit).await,
        }
    }
}

struct Deaf(Store);

#[async_trait]
impl Decorator for Deaf {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn watch_turn(&self, _: Grant, _: OwnerId, _: &Claim) -> Result<Option<Changed>> {
        Ok(Some(never()))
    }
}

struct Restless(Store);

#[async_trait]
impl Decorator for Restless {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn watch_turn(&self, _: Grant, _: OwnerId, _: &Claim) -> Result<Option<Changed>> {
        Ok(Some(Box::pin(async {})))
    }
}
