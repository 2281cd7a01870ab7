//! The client's errors: input, acquiring, running.

use std::time::Duration;

use crate::client::lost::LostReason;
use crate::{Busy, Error, IntentError, KeyError, LabelError, PrepareError, SessionState};

/// Input that no store ever sees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// A text is no key, or no key of the kind that the scheme takes.
    #[error("{text:?}: {source}")]
    Key {
        /// The text, cut off where it is long.
        text: String,
        /// Why.
        source: KeyError,
    },
    /// Nothing, too many claims, or too many bytes of keys.
    #[error(transparent)]
    Claims(#[from] PrepareError),
    /// A limit of 0 shares.
    #[error("a limit of 0 shares grants nobody anything: use 1 or more, or no limit")]
    ZeroLimit,
    /// A longest hold of no time.
    #[error("a max_hold of no time would be lost at once: choose a longer one, or none")]
    NoHold,
    /// A TTL that the library or the store does not take.
    #[error("a TTL of {ttl:?} is not between {min:?} and {max:?}: choose one that is")]
    Ttl {
        /// The TTL asked for.
        ttl: Duration,
        /// The shortest that can be had.
        min: Duration,
        /// The longest that can be had.
        max: Duration,
    },
    /// A text is no label.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// Something is no intent.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// An explicit owner and an intent.
    #[error(
        "an acquisition with an intent has a session of its own, and so an owner of its own: leave out the owner, and \
         re-enter with the owner of the guard"
    )]
    OwnerWithIntent,
    /// The owner belongs to other locks.
    #[error("the owner was made by other locks: make one with the `owner` method of these")]
    ForeignOwner,
    /// As many of these are under way as the client allows.
    #[error(
        "{limit} {what} are under way already: wait for some to end, or raise the limit of the client"
    )]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// [`shutdown`](crate::Locks::shutdown) was called.
    #[error("the locks were shut down: connect again")]
    ShutDown,
}

/// Why nothing was acquired. Only [`Store`](AcquireError::Store) is a failure of the machinery.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The wait is over and somebody still holds a key.
    #[error("{:?} is still held when the wait is over", .0.first().claim.key().as_str())]
    Busy(Busy),
    /// Somebody died in the middle of a change and left a key held. The change has to be finished or undone first.
    #[error(
        "{:?} was left in the middle of a change by a holder that died: adopt the session and finish or undo it",
        .0.busy.first().claim.key().as_str()
    )]
    Abandoned(Abandoned),
    /// The session died while the acquisition was under way; its steps are gone. Acquire again.
    #[error("the session was lost while acquiring: acquire again")]
    Lost,
    /// Only the owner itself is in the way, so that waiting could never end.
    #[error(
        "{:?} is held by the same owner, which would wait for itself: release first, or use a re-entrant claim",
        .0.first().claim.key().as_str()
    )]
    WouldDeadlock(Busy),
    /// Bad input; nothing was sent.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The store failed. What it may have granted is given back.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Why a [recovery handler](crate::Recover) did not finish a change.
pub type RecoverError = Box<dyn std::error::Error + Send + Sync>;

/// A refusal by what dead sessions have left behind.
#[derive(Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// The sessions in the way that can be [adopted](crate::Locks::adopt), at least one.
    pub sessions: Vec<SessionState>,
    /// The refusal.
    pub busy: Busy,
    /// Why the [recovery handler](crate::Recover) did not finish the change, if there is one.
    pub recovery: Option<RecoverError>,
}

/// Why [`run`](crate::Acquisition::run) has no result. It is an error for whatever the work fails with, also for a boxed one
/// or one of `anyhow`, which are none themselves; so its [source](std::error::Error::source) is not the work's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// Nothing was acquired; the work did not begin.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the work ran; the work was stopped where it was.
    #[error("the lock was lost while the work ran: {0}")]
    Lost(LostReason),
    /// The work failed. An intent is left behind.
    #[error("the work failed: {0}")]
    Work(E),
}
