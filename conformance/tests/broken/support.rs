//! What the mistakes share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockcore::backend::{Acquire, Acquired, End};
use lockcore::{Claim, Grant, Label, Life, LockBackend, OwnerId, Result, SessionId, Want};

/// The correct backend.
pub(crate) type Store = Arc<dyn LockBackend>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the session is, as the store would tell anybody who meets it.
pub(crate) async fn life(store: &Store, session: SessionId) -> Result<Life> {
    Ok(store.end(&[session], End::IfDue).await?[0].life)
}

/// What was granted, until it is released.
#[derive(Default)]
pub(crate) struct Granted(Mutex<HashMap<Grant, Acquire>>);

impl Granted {
    pub(crate) fn note(&self, request: &Acquire) {
        lock(&self.0).insert(request.grant, request.clone());
    }

    pub(crate) fn forget(&self, grant: Grant) {
        lock(&self.0).remove(&grant);
    }

    pub(crate) fn has(&self, grant: Grant) -> bool {
        lock(&self.0).contains_key(&grant)
    }

    pub(crate) fn of(&self, session: SessionId) -> Vec<Acquire> {
        let granted = lock(&self.0);
        let of_session = granted
            .values()
            .filter(|request| request.grant.session == session);
        let mut requests: Vec<Acquire> = of_session.cloned().collect();
        requests.sort_by_key(|request| request.grant);
        requests
    }
}

/// Somebody who holds what nobody asked for.
pub(crate) struct Ghost {
    next: AtomicU64,
}

impl Ghost {
    const SESSION: SessionId = SessionId::new(0x6e6f_626f_6479);

    pub(crate) const fn new() -> Self {
        Self {
            next: AtomicU64::new(1),
        }
    }

    pub(crate) async fn acquires(&self, store: &Store, claims: Vec<Claim>) -> Result<Acquired> {
        let label = Label::parse("ghost").expect("a short text");
        // The second time the id is used.
        let _ = store
            .open(Self::SESSION, &label, store.info().max_ttl)
            .await?;
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let session = Self::SESSION;
        let request = Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims);
        store.acquire(&request).await
    }
}

/// The same key, wanted otherwise.
pub(crate) fn wanted(claim: &Claim, want: Want) -> Claim {
    Claim::new(claim.key().clone(), want).expect("of the same kind")
}
