//! The sessions, the same for both forms.

use std::time::Duration;

use async_trait::async_trait;

use super::MemoryBackend;
use crate::backend::rows::sessions::{Adopting, Ending, Noting, Open, Renew, Settle};
use crate::{
    Adopt, Adoption, End, Label, Note, Opened, Renewal, Renewed, Result, SessionId, SessionState,
    SessionStore,
};

#[async_trait]
impl SessionStore for MemoryBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.pause().await;
        let label = label.clone();
        self.act(&Open {
            session,
            label,
            ttl,
        })
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.pause().await;
        let renewal = renewal.clone();
        self.act(&Renew { session, renewal })
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = Vec::with_capacity(sessions.len());
        for id in sessions {
            self.pause().await;
            let sessions = vec![*id];
            states.extend(self.act(&Ending { sessions, how })?);
            if how == End::Revoke {
                self.watches.wake_session(*id);
            }
        }
        Ok(states)
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        self.pause().await;
        self.act(&Adopting {
            session,
            seen,
            adopter,
            how,
        })
    }

    async fn settle(&self, session: SessionId, adoption: u64, adopter: SessionId) -> Result<bool> {
        self.pause().await;
        self.act(&Settle {
            session,
            adoption,
            adopter,
        })
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.pause().await;
        let note = note.clone();
        let noted = self.act(&Noting { session, note })?;
        self.watches.wake_session(session);
        Ok(noted)
    }
}
