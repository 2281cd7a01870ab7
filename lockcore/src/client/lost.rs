//! [`LostReason`]: why a lock is no longer held.

use std::fmt;

use crate::Note;

/// Why a lock is no longer held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The store said that the session is dead, or the session was closed.
    Dead,
    /// An operator revoked the session, with everything that it held.
    Revoked(Box<Note>),
    /// An operator broke this lock. The session's other locks stay.
    Evicted(Box<Note>),
    /// The deadline passed without an acknowledged renewal: the store could not be reached, or this process was
    /// paused. Others may hold the locks from now on.
    Deadline,
    /// The [`max_hold`](crate::Acquisition::max_hold) has passed. The store keeps the lock for another TTL; then it is
    /// given back. An intent is left behind.
    TooLong,
    /// The store has lost writes of the session that it had acknowledged, for example in a failover to a copy that was
    /// behind, or in a restore. Or it may have lost some, and this is a guard with an intent, or a recovery. Or a
    /// [confirmation](crate::Held::confirm) found the lock gone, and nobody has noted why. Others may hold the locks.
    Forgotten,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, note) = match self {
            Self::Dead => return f.write_str("its session died or was closed"),
            Self::Deadline => return f.write_str("no renewal got through in time"),
            Self::TooLong => return f.write_str("it was held for as long as it may be"),
            Self::Forgotten => return f.write_str("the store has forgotten what it had written"),
            Self::Revoked(note) => ("its session was revoked", note),
            Self::Evicted(note) => ("it was broken", note),
        };
        write!(f, "{what} by {}: {}", note.by, note.reason)
    }
}
