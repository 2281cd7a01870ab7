//! [`LostReason`]: why something is not held any more.

use std::fmt;

use crate::Note;

/// Why something is not held any more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The store said that the session is dead, or the session was closed.
    Dead,
    /// An operator has revoked the session, with everything that it held.
    Revoked(Box<Note>),
    /// An operator has taken this away, and left the session's others alone.
    Evicted(Box<Note>),
    /// The deadline passed without an acknowledged renewal: the store could not be reached, or this process was
    /// paused. Others may hold the locks from now on.
    Deadline,
    /// It was held for as long as its [`max_hold`](crate::Acquisition::max_hold) allows. The store keeps it for another
    /// TTL, then it is given back; an intent is left behind.
    TooLong,
    /// The store has lost writes that it acknowledged to the session, as one does that fails over to a copy that was
    /// behind, or is restored; or it may have, and the guard has an intent, or it is a recovery. Or a
    /// [confirmation](crate::Held::confirm) was answered that it is not held, and nobody has noted why. Others may hold the
    /// locks.
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
