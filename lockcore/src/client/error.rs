//! The client's errors: bad input, acquiring, running.

use std::time::Duration;

use crate::client::lost::LostReason;
use crate::{Busy, Error, IntentError, KeyError, LabelError, PrepareError, SessionState};

/// Bad input. It never reaches the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The text is no key, or no key of the kind that the scheme takes.
    #[error("{text:?}: {source}")]
    Key {
        /// The text, cut off if it is long.
        text: String,
        /// The reason.
        source: KeyError,
    },
    /// No claim, too many claims, or too many bytes of keys.
    #[error(transparent)]
    Claims(#[from] PrepareError),
    /// A limit of 0 shares.
    #[error("a limit of 0 shares grants nobody anything: use 1 or more, or no limit")]
    ZeroLimit,
    /// A `max_hold` of zero.
    #[error("a max_hold of no time would be lost at once: choose a longer one, or none")]
    NoHold,
    /// The library or the store does not take this TTL.
    #[error("a TTL of {ttl:?} is not between {min:?} and {max:?}: choose one that is")]
    Ttl {
        /// The requested TTL.
        ttl: Duration,
        /// The shortest possible TTL.
        min: Duration,
        /// The longest possible TTL.
        max: Duration,
    },
    /// The text is no label.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// The value is no intent.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// An owner and an intent were given.
    #[error(
        "an acquisition with an intent has a session of its own, and so an owner of its own: leave out the owner, and \
         re-enter with the owner of the guard"
    )]
    OwnerWithIntent,
    /// The owner belongs to another client.
    #[error("the owner was made by other locks: make one with the `owner` method of these")]
    ForeignOwner,
    /// The lock has an intent, or no session of its own.
    #[error(
        "only a lock that was acquired with `own_session`, and without an intent or an owner, can be kept: acquire it so"
    )]
    NotKeepable,
    /// Others hold something in the same session.
    #[error(
        "the lock cannot be kept while something else is held with its owner: release that first"
    )]
    SharedSession,
    /// The handle of a kept lock does not fit the session that it names.
    #[error(
        "the handle is not that of this lock: give the one that was printed when it was acquired"
    )]
    WrongHandle,
    /// The client's limit of concurrent calls, or of remembered requests of unknown outcome, is reached.
    #[error(
        "{limit} {what} are under way already: wait for some to end, or raise the limit of the client"
    )]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// [`shutdown`](crate::Locks::shutdown) was called.
    #[error("the locks were shut down: connect again")]
    ShutDown,
}

/// Why nothing was acquired. Only [`Store`](AcquireError::Store) is a failure of the store or of the way to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The wait has ended and somebody still holds a key. If the task holds another lock meanwhile, that one's
    /// [`find_deadlock`](crate::Held::find_deadlock) says whether they wait for each other.
    #[error("{:?} is still held when the wait is over", .0.first().claim.key().as_str())]
    Busy(Busy),
    /// A holder died in the middle of a change and left a key held. The change must be finished or undone first.
    #[error(
        "{:?} was left in the middle of a change by a holder that died: adopt the session and finish or undo it",
        .0.busy.first().claim.key().as_str()
    )]
    Abandoned(Abandoned),
    /// The session died during the acquisition, and its grants with it. Acquire again.
    #[error("the session was lost while acquiring: acquire again")]
    Lost,
    /// Only the owner itself is in the way. The wait could never end.
    #[error(
        "{:?} is held by the same owner, which would wait for itself: release first, or use a re-entrant claim",
        .0.first().claim.key().as_str()
    )]
    WouldDeadlock(Busy),
    /// Bad input. Nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The store failed. Whatever it granted is given back.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Why a [recovery handler](crate::Recover) did not finish a change.
pub type RecoverError = Box<dyn std::error::Error + Send + Sync>;

/// A refusal because of changes that dead sessions left unfinished.
#[derive(Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// The sessions in the way that can be [adopted](crate::Locks::adopt), at least one.
    pub sessions: Vec<SessionState>,
    /// The refusal.
    pub busy: Busy,
    /// Why the [recovery handler](crate::Recover) did not finish the change; `None` without a handler.
    pub recovery: Option<RecoverError>,
}

/// Why [`run`](crate::Acquisition::run) has no result. It implements [`Error`](std::error::Error) for every work error
/// that can be displayed, also for boxed errors and those of `anyhow`, which do not implement it themselves. Therefore
/// its [source](std::error::Error::source) is never the work's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// Nothing was acquired. The work did not begin.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the work ran, and the work was stopped. An intent is left behind.
    #[error("the lock was lost while the work ran: {0}")]
    Lost(LostReason),
    /// The work failed. An intent is left behind.
    #[error("the work failed: {0}")]
    Work(E),
}
