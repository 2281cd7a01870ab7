//! [`Aliases`]: a store in which a session can get a second record, which the correct one does not allow.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, End, Filter, Incarnation, Opened, Page, Record, Renewal,
    Renewed, Settled, Stood, Sweep, Swept,
};
use lockcore::{
    Busy, Claim, Grant, Holder, Label, LockBackend, OwnerId, Refused, Result, SessionId,
    SessionState, async_trait,
};
use lockcore_conformance::Decorator;

use crate::support::{Store, lock};

/// By the newest name, in both directions.
pub(crate) struct Aliases {
    store: Store,
    there: Mutex<HashMap<SessionId, SessionId>>,
    back: Mutex<HashMap<SessionId, SessionId>>,
}

impl Aliases {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            there: Mutex::default(),
            back: Mutex::default(),
        }
    }

    /// Opens the session again, under another name.
    pub(crate) async fn reopen(
        &self,
        session: SessionId,
        label: &Label,
        ttl: Duration,
    ) -> Result<()> {
        let before = self.there(session);
        let name = SessionId::new(before.get().wrapping_mul(3).wrapping_add(1));
        if self.store.open(name, label, ttl).await? != Opened::Used {
            lock(&self.there).insert(session, name);
            lock(&self.back).insert(name, session);
        }
        Ok(())
    }

    fn there(&self, session: SessionId) -> SessionId {
        lock(&self.there).get(&session).copied().unwrap_or(session)
    }

    fn back(&self, session: SessionId) -> SessionId {
        lock(&self.back).get(&session).copied().unwrap_or(session)
    }

    fn grant(&self, grant: Grant) -> Grant {
        let session = self.there(grant.session);
        Grant { session, ..grant }
    }

    fn state(&self, mut state: SessionState) -> SessionState {
        state.session = self.back(state.session);
        state.adopter = state.adopter.map(|adopter| self.back(adopter));
        state
    }

    fn holder(&self, holder: &Holder) -> Holder {
        let mut holder = holder.clone();
        if let Some(grant) = &mut holder.grant {
            grant.session = self.back(grant.session);
        }
        if let Some(owner) = &mut holder.owner {
            owner.session = self.back(owner.session);
        }
        holder
    }
}

#[async_trait]
impl Decorator for Aliases {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.store.renew(self.there(session), renewal).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let names: Vec<SessionId> = sessions.iter().map(|id| self.there(*id)).collect();
        let states = self.store.end(&names, how).await?;
        Ok(states.into_iter().map(|state| self.state(state)).collect())
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let (session, adopter) = (self.there(session), self.there(adopter));
        self.store.adopt(session, seen, adopter, how, within).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let (session, adopter) = (self.there(session), self.there(adopter));
        self.store.settle(session, adoption, adopter, within).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut renamed = request.clone();
        renamed.grant = self.grant(request.grant);
        renamed.owner = OwnerId {
            session: renamed.grant.session,
            ..request.owner
        };
        let answer = self.store.acquire(&renamed).await?;
        let Acquired::Busy(busy) = answer else {
            return Ok(answer);
        };
        let refused = |refused: &Refused| Refused {
            claim: refused.claim.clone(),
            holders: refused
                .holders
                .iter()
                .map(|holder| self.holder(holder))
                .collect(),
            more: refused.more,
        };
        let listed = busy.refused().iter().map(refused).collect();
        Ok(Acquired::Busy(Busy::new(listed, busy.more)))
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.store.release(self.grant(grant), claims).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.store.confirm(self.grant(grant), claims).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let which = match which {
            Sweep::Session(session) => Sweep::Session(self.there(session)),
            Sweep::All => Sweep::All,
        };
        self.store.sweep(which, limit).await
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let filter = match filter {
            Filter::Session(session) => Filter::Session(self.there(*session)),
            filter => filter.clone(),
        };
        let mut page = self.store.records(&filter, after, limit).await?;
        for record in &mut page.items {
            record.holders = record
                .holders
                .iter()
                .map(|holder| self.holder(holder))
                .collect();
        }
        Ok(page)
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let page = self.store.sessions(after, limit).await?;
        Ok(Page {
            items: page
                .items
                .into_iter()
                .map(|state| self.state(state))
                .collect(),
            next: page.next,
        })
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let sessions: Vec<SessionId> = sessions.iter().map(|id| self.there(*id)).collect();
        let states = self.store.session_states(&sessions).await?.into_iter();
        Ok(states.map(|it| it.map(|it| self.state(it))).collect())
    }
}
