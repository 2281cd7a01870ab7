//! [`Watched`]: a store as one process sees it, which writes down what only the store's client knows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{
    Acquire, Acquired, Adopt, Adoption, Changed, Claim, ClaimStore, End, Filter, Grant, Info,
    Inspect, IntentChange, Label, LockBackend, Opened, Page, Record, Renewal, Renewed, Result,
    SessionId, SessionState, SessionStore, Sweep, Swept, Wakeups,
};

use super::Breach;
use super::log::Log;
use crate::history::{Stored, What};

/// Writes down renewals before and after, and what becomes of adoptions after.
pub(super) struct Watched {
    store: Arc<dyn LockBackend>,
    log: Log,
    breach: Option<Breach>,
}

impl Watched {
    pub(super) fn new(store: Arc<dyn LockBackend>, log: Log, breach: Option<Breach>) -> Self {
        Self { store, log, breach }
    }
}

#[async_trait]
impl SessionStore for Watched {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.log.record(What::Renewing { session });
        let opened = self.store.open(session, label, ttl).await?;
        if opened == Opened::Opened {
            self.log.record(What::Renewed { session });
        }
        Ok(opened)
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        if self.breach == Some(Breach::Unrenewed) && renewal.intent == IntentChange::Keep {
            return Ok(Renewed::Living);
        }
        self.log.record(What::Renewing { session });
        let renewed = self.store.renew(session, renewal).await?;
        if renewed == Renewed::Living {
            self.log.record(What::Renewed { session });
        }
        Ok(renewed)
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let ended = self.store.end(sessions, how).await?;
        if self.breach == Some(Breach::IntentsLost) && how == End::Close {
            return self.store.end(sessions, End::Discard).await;
        }
        Ok(ended)
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        let answer = self.store.adopt(session, seen, adopter, how).await?;
        self.log.record(What::Stored(Stored::Adopt {
            session,
            seen,
            adopter,
            give_up: how == Adopt::GiveUp,
            number: answer.as_ref().map(|adoption| adoption.number),
        }));
        Ok(answer)
    }

    async fn settle(&self, session: SessionId, adoption: u64) -> Result<bool> {
        let settled = self.store.settle(session, adoption).await?;
        self.log.record(What::Stored(Stored::Settle {
            session,
            adoption,
            settled,
        }));
        Ok(settled)
    }
}

#[async_trait]
impl ClaimStore for Watched {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.store.acquire(request).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        self.store.release(grant, claims).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.store.confirm(grant, claims).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.store.sweep(which, limit).await
    }
}

#[async_trait]
impl Wakeups for Watched {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.store.watch(claims).await
    }
}

#[async_trait]
impl Inspect for Watched {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.store.records(filter, after, limit).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.store.sessions(after, limit).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.store.evict(seen).await
    }
}

impl LockBackend for Watched {
    fn info(&self) -> Info {
        self.store.info()
    }
}
