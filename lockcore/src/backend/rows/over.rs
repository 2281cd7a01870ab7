//! Every store of rows is a backend.

use std::time::Duration;

use async_trait::async_trait;

use super::RowStore;
use super::claims::{Acquiring, Confirming, Releasing, Sweeping};
use super::inspect::{Evicting, Leases, Listing, ListingSessions, States};
use super::sessions::{Adopting, Ending, Noting, Open, Renew, Settle};
use crate::{
    Acquire, Acquired, Adopt, Adopted, Changed, Claim, ClaimStore, End, Error, ErrorKind, Filter,
    Grant, Incarnation, Info, Inspect, Label, LockBackend, Note, Opened, Operation, Page, Record,
    Renewal, Renewed, Result, SessionId, SessionState, SessionStore, Settled, Stood, Sweep, Swept,
    Wakeups, never,
};

impl<S: RowStore> LockBackend for S {
    fn info(&self) -> Info {
        Info {
            ..RowStore::info(self)
        }
    }
}

#[async_trait]
impl<S: RowStore> SessionStore for S {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let label = label.clone();
        self.transact(Open {
            session,
            label,
            ttl,
        })
        .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewal = renewal.clone();
        self.transact(Renew { session, renewal }).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let sessions = sessions.to_vec();
        self.transact(Ending { sessions, how }).await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        _: Incarnation,
    ) -> Result<Adopted> {
        self.transact(Adopting {
            session,
            seen,
            adopter,
            how,
        })
        .await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        _: Incarnation,
    ) -> Result<Settled> {
        self.transact(Settle {
            session,
            adoption,
            adopter,
        })
        .await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let note = note.clone();
        self.transact(Noting { session, note }).await
    }
}

#[async_trait]
impl<S: RowStore> ClaimStore for S {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        loop {
            let asked = self.transact(Acquiring(request.clone())).await?;
            let asked = asked.map_err(|too_much| too_much.error(RowStore::info(self).name))?;
            if let Some(acquired) = asked {
                return Ok(acquired);
            }
        }
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let claims = claims.to_vec();
        self.transact(Releasing { grant, claims }).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let claims = claims.to_vec();
        self.transact(Confirming { grant, claims }).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let mut sweeping = Sweeping::new(which, limit);
        loop {
            let portion = self.transact(sweeping).await?;
            match sweeping.then(portion) {
                Ok(next) => sweeping = next,
                Err(swept) => return Ok(swept),
            }
        }
    }
}

#[async_trait]
impl<S: RowStore> Wakeups for S {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        RowStore::watch(self, claims).await
    }

    async fn watch_session(&self, _: SessionId) -> Result<Changed> {
        Ok(never())
    }
}

#[async_trait]
impl<S: RowStore> Inspect for S {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let listing = Listing::new(filter, after, limit);
        let listing = listing.ok_or_else(|| not_ours(RowStore::info(self).name))?;
        self.transact(listing).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let listing = ListingSessions::new(after, limit);
        let listing = listing.ok_or_else(|| not_ours(RowStore::info(self).name))?;
        self.transact(listing).await
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        self.transact(States(sessions.to_vec())).await
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        self.transact(Leases(sessions.to_vec())).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let (key, version) = (seen.key.clone(), seen.version.clone());
        self.transact(Evicting { key, version }).await
    }
}

fn not_ours(backend: &'static str) -> Error {
    let what = "the place to go on from was not given out by this store";
    Error::new(ErrorKind::Config, backend, Operation::Inspect, what)
}
