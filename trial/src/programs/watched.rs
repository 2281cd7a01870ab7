//! [`Watched`]: a store as one process sees it, which writes down every request and every answer.

use std::sync::Arc;

use async_trait::async_trait;
use lockcore::backend::{Acquire, Acquired, Adopt, Adopted, End, Opened, Settled, Stood};
use lockcore::{Claim, Holder, LockBackend, Result, SessionState};

use super::nanos;
use crate::history::{self, Call, Change, Ending, Met, Received, Refused, Reply, State, What};
use lockcore_conformance::{Answer, Request};
use lockcore_conformance::{Decorated, Decorator};

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
}

#[async_trait]
impl<S: Scribe> Decorator for Watched<S> {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn call(&self, request: Request) -> Result<Answer> {
        let Some(written) = written(&request) else {
            return request.send(self.inner()).await;
        };
        let call = self.scribe.next_call();
        self.scribe.write_down(What::Called {
            call,
            request: written,
        });
        let answer = request.send(self.inner()).await;
        let reply = match &answer {
            Ok(answer) => reply(&request, answer),
            Err(error) => Reply::Failed {
                settled: error.is_certainly_without_effect(),
            },
        };
        self.scribe.write_down(What::Answered { call, reply });
        if !matches!(request, Request::Watch { .. }) {
            return answer;
        }
        let mut watch = Watch {
            call,
            woken: false,
            scribe: self.scribe.clone(),
        };
        Ok(answer?.watching(|changed| {
            Box::pin(async move {
                // The whole of it: dropping this future ends the watch, polled or not.
                let watch = &mut watch;
                changed.await;
                watch.woken = true;
            })
        }))
    }
}

/// What is written down of a request; `None` if nothing is.
fn written(request: &Request) -> Option<Call> {
    Some(match request.clone() {
        Request::Open { session, ttl, .. } => Call::Open {
            session,
            ttl: nanos(ttl),
        },
        Request::Renew { session, renewal } => Call::Renew {
            session,
            seq: renewal.seq,
            change: Change::of(&renewal.intent),
            retired: renewal.retired,
            granted: renewal.granted,
        },
        Request::End { sessions, how } => Call::End {
            sessions,
            how: match how {
                End::IfDue => Ending::IfDue,
                End::Close => Ending::Close,
                End::Revoke => Ending::Revoke,
                End::Discard => Ending::Discard,
            },
        },
        Request::Adopt {
            session,
            seen,
            adopter,
            how,
            ..
        } => Call::Adopt {
            session,
            seen,
            adopter,
            give_up: how == Adopt::GiveUp,
        },
        Request::Settle {
            session, adoption, ..
        } => Call::Settle { session, adoption },
        Request::Acquire(request) => Call::Acquire {
            grant: request.grant,
            owner: request.owner,
            waits: request.waits && request.claims.len() == 1,
            claims: request.claims,
            joined: request.joined,
            past: request.past.iter().map(|past| past.grant).collect(),
        },
        Request::Release { grant, claims } => Call::Release { grant, claims },
        Request::Confirm { grant, claims } => Call::Confirm { grant, claims },
        Request::Sweep { .. } => Call::Sweep,
        Request::Watch { claims } => Call::Watch { claims },
        Request::Records { .. } => Call::Records,
        Request::Sessions { .. } => Call::Sessions,
        Request::Evict { seen } => Call::Evict { key: seen.key },
        Request::Note { .. }
        | Request::WatchTurn { .. }
        | Request::WatchSession { .. }
        | Request::SessionStates { .. }
        | Request::LeaseLeft { .. } => return None,
        // Both packages are of one version.
        other => unreachable!("a request that nobody writes down: {other:?}"),
    })
}

fn reply(request: &Request, answer: &Answer) -> Reply {
    match answer {
        Answer::Open(opened) => Reply::Opened(*opened != Opened::Used),
        Answer::Renew(renewed) => Reply::Renewed(history::Answer::of(renewed)),
        Answer::End(ended) => Reply::States(states(ended)),
        Answer::Adopt(Adopted::Adopted(adoption)) => Reply::Adopted(Some(Received {
            number: adoption.number,
            token: adoption.token.get(),
            old_token: adoption.left.token.get(),
        })),
        Answer::Adopt(Adopted::NotAdopted) => Reply::Adopted(None),
        Answer::Settle(Settled::Settled) => Reply::Settled(true),
        Answer::Settle(Settled::NotSettled) => Reply::Settled(false),
        Answer::Adopt(Adopted::Moved)
        | Answer::Settle(Settled::Moved)
        | Answer::Acquire(Acquired::Moved) => Reply::Moved,
        Answer::Acquire(Acquired::Acquired(token)) => Reply::Granted(token.get()),
        Answer::Acquire(Acquired::Busy(busy)) => {
            let Request::Acquire(Acquire { claims, .. }) = request else {
                unreachable!("the request of that answer")
            };
            let refused = busy.refused().iter();
            Reply::Busy(refused.map(|it| refusal(claims, it)).collect())
        }
        Answer::Acquire(Acquired::Void) => Reply::Void,
        Answer::Release(stood) => Reply::Released(*stood == Stood::Held),
        Answer::Confirm(held) => Reply::Confirmed(*held),
        Answer::Sweep(swept) => Reply::Swept(swept.removed),
        Answer::Watch(_) => Reply::Stands,
        Answer::Records(page) => {
            let holders = page.items.iter().flat_map(|record| &record.holders);
            let holders = holders.filter(|holder| holder.waiting.is_none());
            Reply::Listed(holders.filter_map(met).collect())
        }
        Answer::Sessions(page) => Reply::States(states(&page.items)),
        Answer::Evict(done) => Reply::Evicted(*done),
        Answer::Note(_)
        | Answer::WatchTurn(_)
        | Answer::WatchSession(_)
        | Answer::SessionStates(_)
        | Answer::LeaseLeft(_) => {
            unreachable!("its request is not written down")
        }
        other => unreachable!("an answer that nobody writes down: {other:?}"),
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

fn states(states: &[SessionState]) -> Vec<State> {
    let state = |state: &SessionState| State {
        session: state.session,
        life: history::Answer::of_life(state.life),
    };
    states.iter().map(state).collect()
}

fn met(holder: &Holder) -> Option<Met> {
    Some(Met {
        grant: holder.grant?,
        key: holder.key.clone(),
        mode: holder.mode,
        life: history::Answer::of_life(holder.life),
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
