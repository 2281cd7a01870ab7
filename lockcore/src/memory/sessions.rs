//! The sessions, the same for both forms.

use std::time::Duration;

use async_trait::async_trait;

use super::{MemoryBackend, State};
use crate::backend::rows::sessions::{Adopting, Ending, Noting, Open, Renew, Settle};
use crate::backend::rows::{Act, ready};
use crate::{
    Adopt, Adopted, End, Incarnation, Label, Life, Note, Opened, Operation, Renewal, Renewed,
    Result, SessionId, SessionState, SessionStore, Settled,
};

#[async_trait]
impl SessionStore for MemoryBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.pause().await;
        let label = label.clone();
        let act = Open {
            session,
            label,
            ttl,
        };
        self.rules(Operation::Open, |state| {
            let opened = ready(act.run(state))?;
            Ok(match opened {
                Opened::Opened(_) => Opened::Opened(state.incarnation),
                Opened::Used => Opened::Used,
            })
        })
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.pause().await;
        let renewal = renewal.clone();
        self.rules(Operation::Renew, |state| {
            match state.objects(session, &renewal) {
                Some(objection) => Ok(objection),
                None => ready(Renew { session, renewal }.run(state)),
            }
        })
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
        within: Incarnation,
    ) -> Result<Adopted> {
        self.pause().await;
        let act = Adopting {
            session,
            seen,
            adopter,
            how,
        };
        self.rules(Operation::Adopt, |state| match state.is_elsewhere(within) {
            true => Ok(Adopted::Moved),
            false => ready(act.run(state)),
        })
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.pause().await;
        let act = Settle {
            session,
            adoption,
            adopter,
        };
        self.rules(Operation::Settle, |state| {
            match state.is_elsewhere(within) {
                true => Ok(Settled::Moved),
                false => ready(act.run(state)),
            }
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

impl State {
    /// What a store with a name says to a living session instead of renewing it.
    fn objects(&self, session: SessionId, renewal: &Renewal) -> Option<Renewed> {
        let row = self.sessions.get(session);
        let lives = row.is_some_and(|row| row.life == Life::Living);
        if !lives || !self.incarnation.is_known() {
            None
        } else if self.is_elsewhere(renewal.incarnation) {
            Some(Renewed::Moved(self.incarnation))
        } else {
            let has_all = self.has_granted(session, &renewal.granted);
            (!has_all).then_some(Renewed::Forgotten)
        }
    }
}
