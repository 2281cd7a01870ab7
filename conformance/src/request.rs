//! [`Request`] and [`Answer`]: every call of a backend as a value.

use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, End, Filter, Incarnation, Opened, Page, Record,
    Renewal, Renewed, Settled, Stood, Sweep, Swept,
};
use lockcore::{
    Claim, Grant, Label, LockBackend, Note, Operation, OwnerId, Result, SessionId, SessionState,
};

/// A call of a backend, with its arguments. It can be kept, and sent more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are the parameters of the methods")]
pub enum Request {
    /// [`SessionStore::open`](lockcore::backend::SessionStore::open).
    Open {
        session: SessionId,
        label: Label,
        ttl: Duration,
    },
    /// [`SessionStore::renew`](lockcore::backend::SessionStore::renew).
    Renew {
        session: SessionId,
        renewal: Renewal,
    },
    /// [`SessionStore::end`](lockcore::backend::SessionStore::end).
    End { sessions: Vec<SessionId>, how: End },
    /// [`SessionStore::adopt`](lockcore::backend::SessionStore::adopt).
    Adopt {
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    },
    /// [`SessionStore::settle`](lockcore::backend::SessionStore::settle).
    Settle {
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    },
    /// [`SessionStore::note`](lockcore::backend::SessionStore::note).
    Note { session: SessionId, note: Note },
    /// [`ClaimStore::acquire`](lockcore::backend::ClaimStore::acquire).
    Acquire(Acquire),
    /// [`ClaimStore::release`](lockcore::backend::ClaimStore::release).
    Release { grant: Grant, claims: Vec<Claim> },
    /// [`ClaimStore::confirm`](lockcore::backend::ClaimStore::confirm).
    Confirm { grant: Grant, claims: Vec<Claim> },
    /// [`ClaimStore::sweep`](lockcore::backend::ClaimStore::sweep).
    Sweep { which: Sweep, limit: usize },
    /// [`Wakeups::watch`](lockcore::backend::Wakeups::watch).
    Watch { claims: Vec<Claim> },
    /// [`Wakeups::watch_turn`](lockcore::backend::Wakeups::watch_turn).
    WatchTurn {
        grant: Grant,
        owner: OwnerId,
        claim: Claim,
    },
    /// [`Wakeups::watch_session`](lockcore::backend::Wakeups::watch_session).
    WatchSession { session: SessionId },
    /// [`Inspect::records`](lockcore::backend::Inspect::records).
    Records {
        filter: Filter,
        after: Option<String>,
        limit: usize,
    },
    /// [`Inspect::sessions`](lockcore::backend::Inspect::sessions).
    Sessions { after: Option<String>, limit: usize },
    /// [`Inspect::session_states`](lockcore::backend::Inspect::session_states).
    SessionStates { sessions: Vec<SessionId> },
    /// [`Inspect::lease_left`](lockcore::backend::Inspect::lease_left).
    LeaseLeft { sessions: Vec<SessionId> },
    /// [`Inspect::evict`](lockcore::backend::Inspect::evict).
    Evict { seen: Record },
}

/// The answer to a [`Request`], by its kind.
#[non_exhaustive]
#[expect(missing_docs, reason = "they are the results of the methods")]
pub enum Answer {
    Open(Opened),
    Renew(Renewed),
    End(Vec<SessionState>),
    Adopt(Adopted),
    Settle(Settled),
    Note(bool),
    Acquire(Acquired),
    Release(Stood),
    Confirm(bool),
    Sweep(Swept),
    Watch(Changed),
    WatchTurn(Option<Changed>),
    WatchSession(Changed),
    Records(Page<Record>),
    Sessions(Page<SessionState>),
    SessionStates(Vec<Option<SessionState>>),
    LeaseLeft(Vec<Option<Duration>>),
    Evict(bool),
}

impl Request {
    /// The operation that an error names.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Open { .. } => Operation::Open,
            Self::Renew { .. } => Operation::Renew,
            Self::End { .. } => Operation::End,
            Self::Adopt { .. } => Operation::Adopt,
            Self::Settle { .. } => Operation::Settle,
            Self::Note { .. } => Operation::Note,
            Self::Acquire(_) => Operation::Acquire,
            Self::Release { .. } => Operation::Release,
            Self::Confirm { .. } => Operation::Confirm,
            Self::Sweep { .. } => Operation::Sweep,
            Self::Watch { .. } | Self::WatchTurn { .. } | Self::WatchSession { .. } => {
                Operation::Watch
            }
            Self::Records { .. }
            | Self::Sessions { .. }
            | Self::SessionStates { .. }
            | Self::LeaseLeft { .. }
            | Self::Evict { .. } => Operation::Inspect,
        }
    }

    /// Calls the backend.
    ///
    /// # Errors
    ///
    /// The backend's.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the backend's.
    pub async fn send(&self, to: &dyn LockBackend) -> Result<Answer> {
        Ok(match self {
            Self::Open {
                session,
                label,
                ttl,
            } => Answer::Open(to.open(*session, label, *ttl).await?),
            Self::Renew { session, renewal } => Answer::Renew(to.renew(*session, renewal).await?),
            Self::End { sessions, how } => Answer::End(to.end(sessions, *how).await?),
            &Self::Adopt {
                session,
                seen,
                adopter,
                how,
                within,
            } => Answer::Adopt(to.adopt(session, seen, adopter, how, within).await?),
            &Self::Settle {
                session,
                adoption,
                adopter,
                within,
            } => Answer::Settle(to.settle(session, adoption, adopter, within).await?),
            Self::Note { session, note } => Answer::Note(to.note(*session, note).await?),
            Self::Acquire(request) => Answer::Acquire(to.acquire(request).await?),
            Self::Release { grant, claims } => Answer::Release(to.release(*grant, claims).await?),
            Self::Confirm { grant, claims } => Answer::Confirm(to.confirm(*grant, claims).await?),
            Self::Sweep { which, limit } => Answer::Sweep(to.sweep(*which, *limit).await?),
            Self::Watch { claims } => Answer::Watch(to.watch(claims).await?),
            Self::WatchTurn {
                grant,
                owner,
                claim,
            } => Answer::WatchTurn(to.watch_turn(*grant, *owner, claim).await?),
            Self::WatchSession { session } => {
                Answer::WatchSession(to.watch_session(*session).await?)
            }
            Self::Records {
                filter,
                after,
                limit,
            } => Answer::Records(to.records(filter, after.as_deref(), *limit).await?),
            Self::Sessions { after, limit } => {
                Answer::Sessions(to.sessions(after.as_deref(), *limit).await?)
            }
            Self::SessionStates { sessions } => {
                Answer::SessionStates(to.session_states(sessions).await?)
            }
            Self::LeaseLeft { sessions } => Answer::LeaseLeft(to.lease_left(sessions).await?),
            Self::Evict { seen } => Answer::Evict(to.evict(seen).await?),
        })
    }
}

impl Answer {
    /// The same; if it is a watch, with its future changed in this way.
    #[must_use]
    pub fn watching(self, change: impl FnOnce(Changed) -> Changed) -> Self {
        match self {
            Self::Watch(changed) => Self::Watch(change(changed)),
            Self::WatchTurn(Some(changed)) => Self::WatchTurn(Some(change(changed))),
            Self::WatchSession(changed) => Self::WatchSession(change(changed)),
            other => other,
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(answer) => answer.fmt(f),
            Self::Renew(answer) => answer.fmt(f),
            Self::End(answer) => answer.fmt(f),
            Self::Adopt(answer) => answer.fmt(f),
            Self::Settle(answer) => answer.fmt(f),
            Self::Acquire(answer) => answer.fmt(f),
            Self::Release(answer) => answer.fmt(f),
            Self::Sweep(answer) => answer.fmt(f),
            Self::Records(answer) => answer.fmt(f),
            Self::Sessions(answer) => answer.fmt(f),
            Self::SessionStates(answer) => answer.fmt(f),
            Self::LeaseLeft(answer) => answer.fmt(f),
            Self::Note(answer) | Self::Confirm(answer) | Self::Evict(answer) => answer.fmt(f),
            Self::WatchTurn(None) => f.write_str("no watch"),
            Self::Watch(_) | Self::WatchTurn(_) | Self::WatchSession(_) => f.write_str("a watch"),
        }
    }
}
