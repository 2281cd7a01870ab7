//! [`Observed`]: a store that records what it executes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, End, Incarnation, Opened, Renewal, Renewed, Settled, Stood,
};
use lockcore::{Claim, Grant, Label, LockBackend, Result, SessionId, SessionState};

use crate::history::{Answer, Change, Recorder, Stored, What};
use lockcore_conformance::{Decorated, Decorator};

/// A store, and the history that records what it executes.
#[derive(Debug)]
pub struct Observed<B> {
    store: Arc<B>,
    recorder: Recorder,
}

impl<B: LockBackend> Observed<B> {
    /// Observes a store. Intents must be numbers of attempts, as JSON.
    #[must_use]
    pub fn new(store: Arc<B>, recorder: Recorder) -> Decorated<Self> {
        Decorated(Self { store, recorder })
    }

    fn stored(&self, stored: Stored) {
        self.recorder.record(0, What::Stored(stored));
    }
}

#[async_trait]
impl<B: LockBackend> Decorator for Observed<B> {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let answer = self.store.open(session, label, ttl).await?;
        self.stored(Stored::Open {
            session,
            ttl: nanos(ttl),
            opened: answer != Opened::Used,
        });
        Ok(answer)
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let answer = self.store.renew(session, renewal).await?;
        // One that follows itself compares the number of the record: nothing is forgotten.
        if renewal.acknowledged >= renewal.seq && answer == Renewed::Forgotten {
            return Ok(answer);
        }
        self.stored(Stored::Renew {
            session,
            seq: renewal.seq,
            retired: renewal.retired.clone(),
            change: Change::of(&renewal.intent),
            ttl: renewal.ttl.map(nanos),
            answer: Answer::of(&answer),
        });
        Ok(answer)
    }

    /// Ends one session after the other, and records each when it ends.
    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = Vec::with_capacity(sessions.len());
        for session in sessions {
            let ended = self.store.end(std::slice::from_ref(session), how).await?;
            for state in &ended {
                self.stored(Stored::End {
                    session: state.session,
                    if_due: how == End::IfDue,
                    discard: how == End::Discard,
                    answer: Answer::of_life(state.life),
                });
            }
            states.extend(ended);
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
        let answer = self
            .store
            .adopt(session, seen, adopter, how, within)
            .await?;
        if answer != Adopted::Moved {
            self.stored(Stored::Adopt {
                session,
                seen,
                adopter,
                give_up: how == Adopt::GiveUp,
                number: match &answer {
                    Adopted::Adopted(adoption) => Some(adoption.number),
                    Adopted::NotAdopted | Adopted::Moved => None,
                },
            });
        }
        Ok(answer)
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let settled = self
            .store
            .settle(session, adoption, adopter, within)
            .await?;
        self.stored(Stored::Settle {
            session,
            adoption,
            adopter,
            settled: settled.is_settled(),
        });
        Ok(settled)
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let begun = (self.recorder.now(), self.recorder.len());
        let acquired = self.store.acquire(request).await?;
        let (mut met, mut token) = (Vec::new(), None);
        let answer = match &acquired {
            Acquired::Acquired(granted) => {
                token = Some(granted.get());
                Answer::Acquired
            }
            Acquired::Busy(busy) => {
                let holders = busy.refused().iter().flat_map(|refused| &refused.holders);
                met.extend(holders.filter_map(|holder| holder.grant));
                met.sort_unstable();
                met.dedup();
                Answer::Busy
            }
            Acquired::Void => Answer::Void,
            Acquired::Moved => Answer::Moved,
        };
        self.stored(Stored::Acquire {
            grant: request.grant,
            owner: request.owner,
            claims: request.claims.clone(),
            joined: request.joined,
            begun,
            answer,
            token,
            met,
        });
        Ok(acquired)
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.stored(Stored::Release {
            grant,
            claims: claims.to_vec(),
        });
        let stood = self.store.release(grant, claims).await?;
        self.stored(Stored::Released { grant });
        Ok(stood)
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let begun = self.recorder.len();
        let held = self.store.confirm(grant, claims).await?;
        self.stored(Stored::Confirm {
            grant,
            claims: claims.to_vec(),
            begun,
            held,
        });
        Ok(held)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
