//! [`Watched`]: a store as one process sees it, which writes down every request and every answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, End, Filter, Incarnation, IntentChange, Opened,
    Page, Record, Renewal, Renewed, Settled, Stood, Sweep, Swept,
};
use lockcore::{Claim, Grant, Holder, Label, Life, LockBackend, Result, SessionId, SessionState};

use super::nanos;
use crate::decorator::{Decorated, Decorator};
use crate::history::{Answer, Call, Change, Ending, Met, Received, Refused, Reply, State, What};

/// Where a process writes down what it does.
pub(crate) trait Scribe: Clone + Send + Sync + 'static {
    /// Writes down that something happens now.
    fn write_down(&self, what: What);

    /// A number for a call, unique in the process.
    fn next_call(&self) -> u64;
}

/// The store, and who writes. Each request is written down before it is sent, each answer after it came. A request
/// that is dropped on the way has no answer.
pub(crate) struct Watched<S> {
    store: Arc<dyn LockBackend>,
    scribe: S,
}

impl<S: Scribe> Watched<S> {
    pub(crate) fn new(store: Arc<dyn LockBackend>, scribe: S) -> Decorated<Self> {
        Decorated(Self { store, scribe })
    }

    fn called(&self, request: Call) -> u64 {
        let call = self.scribe.next_call();
        self.scribe.write_down(What::Called { call, request });
        call
    }

    fn answered<T>(&self, call: u64, answer: &Result<T>, reply: impl FnOnce(&T) -> Reply) {
        let reply = match answer {
            Ok(answer) => reply(answer),
            Err(error) => Reply::Failed {
                settled: error.is_certainly_without_effect(),
            },
        };
        self.scribe.write_down(What::Answered { call, reply });
    }
}

#[async_trait]
impl<S: Scribe> Decorator for Watched<S> {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let call = self.called(Call::Open {
            session,
            ttl: nanos(ttl),
        });
        let answer = self.store.open(session, label, ttl).await;
        self.answered(call, &answer, |opened| {
            Reply::Opened(*opened != Opened::Used)
        });
        answer
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let change = match &renewal.intent {
            IntentChange::Keep => Change::Keep,
            IntentChange::Put(put) => {
                let attempt = serde_json::from_slice(put.intent.as_bytes());
                Change::Put(attempt.unwrap_or(u64::MAX))
            }
            IntentChange::Drop => Change::Drop,
        };
        let call = self.called(Call::Renew {
            session,
            seq: renewal.seq,
            over: renewal.over.clone(),
            change,
            granted: renewal.granted.clone(),
        });
        let answer = self.store.renew(session, renewal).await;
        self.answered(call, &answer, |renewed| {
            Reply::Renewed(match renewed {
                Renewed::Living | Renewed::Noted(_) => Answer::Living,
                Renewed::Overtaken => Answer::Overtaken,
                Renewed::Forgotten => Answer::Forgotten,
                Renewed::Moved(_) => Answer::Moved,
                Renewed::Dead => Answer::Dead,
            })
        });
        answer
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let call = self.called(Call::End {
            sessions: sessions.to_vec(),
            how: match how {
                End::IfDue => Ending::IfDue,
                End::Close => Ending::Close,
                End::Revoke => Ending::Revoke,
                End::Discard => Ending::Discard,
            },
        });
        let answer = self.store.end(sessions, how).await;
        self.answered(call, &answer, |ended| Reply::States(states(ended)));
        answer
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let call = self.called(Call::Adopt {
            session,
            seen,
            adopter,
            give_up: how == Adopt::GiveUp,
        });
        let answer = self.store.adopt(session, seen, adopter, how, within).await;
        self.answered(call, &answer, |adopted| match adopted {
            Adopted::Adopted(adoption) => Reply::Adopted(Some(Received {
                number: adoption.number,
                token: adoption.token.get(),
                old_token: adoption.left.token.get(),
            })),
            Adopted::NotAdopted => Reply::Adopted(None),
            Adopted::Moved => Reply::Moved,
        });
        answer
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let call = self.called(Call::Settle { session, adoption });
        let answer = self.store.settle(session, adoption, adopter, within).await;
        self.answered(call, &answer, |settled| match settled {
            Settled::Settled => Reply::Settled(true),
            Settled::NotSettled => Reply::Settled(false),
            Settled::Moved => Reply::Moved,
        });
        answer
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let call = self.called(Call::Acquire {
            grant: request.grant,
            owner: request.owner,
            claims: request.claims.clone(),
            joined: request.joined,
        });
        let answer = self.store.acquire(request).await;
        self.answered(call, &answer, |acquired| match acquired {
            Acquired::Acquired(token) => Reply::Granted(token.get()),
            Acquired::Busy(busy) => {
                let refused = busy.refused().iter();
                Reply::Busy(refused.map(|it| refusal(&request.claims, it)).collect())
            }
            Acquired::Void => Reply::Void,
            Acquired::Moved => Reply::Moved,
        });
        answer
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let call = self.called(Call::Release {
            grant,
            claims: claims.to_vec(),
        });
        let answer = self.store.release(grant, claims).await;
        self.answered(call, &answer, |stood| {
            Reply::Released(*stood == Stood::Held)
        });
        answer
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let call = self.called(Call::Confirm {
            grant,
            claims: claims.to_vec(),
        });
        let answer = self.store.confirm(grant, claims).await;
        self.answered(call, &answer, |held| Reply::Confirmed(*held));
        answer
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let call = self.called(Call::Sweep);
        let answer = self.store.sweep(which, limit).await;
        self.answered(call, &answer, |swept| Reply::Swept(swept.removed));
        answer
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let call = self.called(Call::Watch {
            claims: claims.to_vec(),
        });
        let answer = self.store.watch(claims).await;
        self.answered(call, &answer, |_| Reply::Stands);
        let watch = Watch {
            call,
            woken: false,
            scribe: self.scribe.clone(),
        };
        let changed = answer?;
        Ok(Box::pin(async move {
            // The whole of it: dropping this future ends the watch, polled or not.
            let mut watch = watch;
            changed.await;
            watch.woken = true;
        }))
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let call = self.called(Call::Records);
        let answer = self.store.records(filter, after, limit).await;
        self.answered(call, &answer, |page| {
            let holders = page.items.iter().flat_map(|record| &record.holders);
            let holders = holders.filter(|holder| holder.waiting.is_none());
            Reply::Listed(holders.filter_map(met).collect())
        });
        answer
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let call = self.called(Call::Sessions);
        let answer = self.store.sessions(after, limit).await;
        self.answered(call, &answer, |page| Reply::States(states(&page.items)));
        answer
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let call = self.called(Call::Evict {
            key: seen.key.clone(),
        });
        let answer = self.store.evict(seen).await;
        self.answered(call, &answer, |done| Reply::Evicted(*done));
        answer
    }
}

/// A watch that stands, or could not be set up.
struct Watch<S: Scribe> {
    call: u64,
    woken: bool,
    scribe: S,
}

impl<S: Scribe> Drop for Watch<S> {
    fn drop(&mut self) {
        let call = self.call;
        self.scribe.write_down(match self.woken {
            true => What::Woken { call },
            false => What::Unwatched { call },
        });
    }
}

fn life(life: Life) -> Answer {
    match life {
        Life::Living => Answer::Living,
        Life::Abandoned => Answer::Abandoned,
        Life::Dead => Answer::Dead,
    }
}

fn states(states: &[SessionState]) -> Vec<State> {
    let state = |state: &SessionState| State {
        session: state.session,
        life: life(state.life),
    };
    states.iter().map(state).collect()
}

fn met(holder: &Holder) -> Option<Met> {
    Some(Met {
        grant: holder.grant?,
        key: holder.key.clone(),
        mode: holder.mode,
        life: life(holder.life),
    })
}

fn refusal(claims: &[Claim], refused: &lockcore::Refused) -> Refused {
    let waits = |holder: &&Holder| holder.waiting.is_some();
    let (waiters, holders): (Vec<&Holder>, Vec<&Holder>) = refused.holders.iter().partition(waits);
    let by: Vec<Met> = holders.iter().filter_map(|holder| met(holder)).collect();
    let claim = claims.iter().position(|claim| *claim == refused.claim);
    Refused {
        claim: claim.unwrap_or(usize::MAX),
        more: refused.more || by.len() < holders.len(),
        by,
        waiters: !waiters.is_empty(),
    }
}
