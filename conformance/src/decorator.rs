//! [`Decorator`]: a backend in front of another one.

use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, ClaimStore, End, Filter, Incarnation, Inspect,
    Opened, Page, Record, Renewal, Renewed, SessionStore, Settled, Stood, Sweep, Swept, Wakeups,
};
use lockcore::{
    Claim, Grant, Info, Label, LockBackend, Note, OwnerId, Result, SessionId, SessionState,
};

/// Changes some calls of a backend, and passes on the others. [`Decorated`] makes it a backend.
///
/// ```
/// use std::sync::Arc;
///
/// use lockcore::backend::Stood;
/// use lockcore::{Claim, Grant, LockBackend, MemoryBackend, async_trait};
/// use lockcore_conformance::{Decorated, Decorator};
///
/// /// Forgets what it is asked to release.
/// struct Forgetful(Arc<MemoryBackend>);
///
/// #[async_trait]
/// impl Decorator for Forgetful {
///     fn inner(&self) -> &dyn LockBackend { &*self.0 }
///     async fn release(&self, _: Grant, _: &[Claim]) -> lockcore::Result<Stood> { Ok(Stood::Held) }
/// }
///
/// let backend: Arc<dyn LockBackend> = Arc::new(Decorated(Forgetful(MemoryBackend::new())));
/// assert_eq!(backend.info().name, "memory");
/// ```
#[async_trait]
#[expect(missing_docs, reason = "the methods are those of the store's traits")]
pub trait Decorator: Send + Sync {
    /// The backend that receives the calls.
    fn inner(&self) -> &dyn LockBackend;

    fn info(&self) -> Info {
        self.inner().info()
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.inner().open(session, label, ttl).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.inner().renew(session, renewal).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.inner().end(sessions, how).await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        self.inner()
            .adopt(session, seen, adopter, how, within)
            .await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.inner()
            .settle(session, adoption, adopter, within)
            .await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.inner().note(session, note).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.inner().acquire(request).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.inner().release(grant, claims).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.inner().confirm(grant, claims).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.inner().sweep(which, limit).await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.inner().watch(claims).await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        self.inner().watch_turn(grant, owner, claim).await
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        self.inner().watch_session(session).await
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.inner().records(filter, after, limit).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.inner().sessions(after, limit).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.inner().evict(seen).await
    }
}

/// A [`Decorator`] as a backend.
#[derive(Debug)]
pub struct Decorated<D>(pub D);

impl<D> Deref for Decorated<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.0
    }
}

#[async_trait]
impl<D: Decorator> SessionStore for Decorated<D> {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.0.open(session, label, ttl).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.0.renew(session, renewal).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.0.end(sessions, how).await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        self.0.adopt(session, seen, adopter, how, within).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.0.settle(session, adoption, adopter, within).await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.0.note(session, note).await
    }
}

#[async_trait]
impl<D: Decorator> ClaimStore for Decorated<D> {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.0.acquire(request).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.0.release(grant, claims).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.0.confirm(grant, claims).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.0.sweep(which, limit).await
    }
}

#[async_trait]
impl<D: Decorator> Wakeups for Decorated<D> {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.0.watch(claims).await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        self.0.watch_turn(grant, owner, claim).await
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        self.0.watch_session(session).await
    }
}

#[async_trait]
impl<D: Decorator> Inspect for Decorated<D> {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.0.records(filter, after, limit).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.0.sessions(after, limit).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.0.evict(seen).await
    }
}

impl<D: Decorator> LockBackend for Decorated<D> {
    fn info(&self) -> Info {
        self.0.info()
    }
}
