//! [`Watched`]: a store as one process sees it, which writes down what only the store's client knows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{
    Adopt, Adoption, End, IntentChange, Label, LockBackend, Opened, Renewal, Renewed, Result,
    SessionId, SessionState,
};

use super::Breach;
use super::log::Log;
use crate::decorator::{Decorated, Decorator};
use crate::history::{Stored, What};

/// Writes down renewals before and after, and what becomes of adoptions after.
pub(super) struct Watched {
    store: Arc<dyn LockBackend>,
    log: Log,
    breach: Option<Breach>,
}

impl Watched {
    pub(super) fn new(
        store: Arc<dyn LockBackend>,
        log: Log,
        breach: Option<Breach>,
    ) -> Decorated<Self> {
        Decorated(Self { store, log, breach })
    }
}

#[async_trait]
impl Decorator for Watched {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

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
