//! What an acquisition asks for: [`Want`] and [`Claim`].

use std::num::NonZeroU32;

use crate::{LockKey, LockPath, Mode};

/// The kind of lock that a claim asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Want {
    /// Exclusive, flat, never re-entered: granted if nobody at all holds the key. The book's global lock.
    Create,
    /// Exclusive, flat, re-entrant: granted if nobody holds the key, or only the same owner. The book's document lock.
    Upsert,
    /// Counted, flat, never re-entered: granted if there is no exclusive holder, and fewer shares on the key than the
    /// limit of *this* request. The limit binds this request only; it is not stored.
    Share {
        /// The most shares of the key, this one included; `None` for no limit.
        limit: Option<NonZeroU32>,
    },
    /// Exclusive on the path, counted shared (IX) on every ancestor; re-entrant. The book's tree lock.
    Write,
    /// Shared (S) on the path, counted shared (IS) on every ancestor; re-entrant.
    Read,
}

impl Want {
    /// The mode in which the key itself is held.
    #[must_use]
    pub const fn mode(self) -> Mode {
        match self {
            Want::Create | Want::Upsert | Want::Write => Mode::X,
            Want::Share { .. } => Mode::IS,
            Want::Read => Mode::S,
        }
    }

    /// The mode in which every ancestor is held; `None` for a flat claim.
    #[must_use]
    pub const fn above(self) -> Option<Mode> {
        match self {
            Want::Write => Some(Mode::IX),
            Want::Read => Some(Mode::IS),
            Want::Create | Want::Upsert | Want::Share { .. } => None,
        }
    }

    /// Whether holders of the same owner are no obstacle.
    #[must_use]
    pub const fn reenters(self) -> bool {
        matches!(self, Want::Upsert | Want::Write | Want::Read)
    }

    /// Whether the claim takes a path.
    #[must_use]
    pub const fn is_path(self) -> bool {
        self.above().is_some()
    }

    /// The limit of a share; `None` without one.
    #[must_use]
    pub const fn limit(self) -> Option<NonZeroU32> {
        match self {
            Want::Share { limit } => limit,
            _ => None,
        }
    }
}

/// A key and the kind of lock asked for on it. The kind of the key always fits: path claims have paths, flat claims
/// have flat keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    key: LockKey,
    want: Want,
}

impl Claim {
    /// A claim on a parsed key. `None` for a path claim on a flat key, and for a flat claim on a path.
    #[must_use]
    pub fn new(key: LockKey, want: Want) -> Option<Self> {
        (key.is_path() == want.is_path()).then_some(Self { key, want })
    }

    /// A claim to write a path.
    #[must_use]
    pub fn write(path: LockPath) -> Self {
        Self {
            key: path.into(),
            want: Want::Write,
        }
    }

    /// A claim to read a path.
    #[must_use]
    pub fn read(path: LockPath) -> Self {
        Self {
            key: path.into(),
            want: Want::Read,
        }
    }

    /// The claimed key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The kind of lock asked for.
    #[must_use]
    pub fn want(&self) -> Want {
        self.want
    }

    /// Whether the claim may be granted beside a holder of `mode` on the claim's own key.
    #[must_use]
    pub fn beside(&self, mode: Mode, same_owner: bool) -> bool {
        self.want.mode().beside(mode) || (same_owner && self.want.reenters())
    }

    /// Whether the claim may be granted beside a holder of `mode` on an ancestor of the claim's key.
    #[must_use]
    pub fn beside_above(&self, mode: Mode, same_owner: bool) -> bool {
        self.want.above().is_none_or(|above| above.beside(mode))
            || (same_owner && self.want.reenters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_take_keys_of_their_kind() {
        let path = LockKey::parse("/a").unwrap();
        let flat = LockKey::parse("a").unwrap();
        for want in [Want::Create, Want::Upsert, Want::Share { limit: None }] {
            assert!(Claim::new(flat.clone(), want).is_some());
            assert!(Claim::new(path.clone(), want).is_none());
        }
        for want in [Want::Write, Want::Read] {
            assert!(Claim::new(flat.clone(), want).is_none());
            assert!(Claim::new(path.clone(), want).is_some());
        }
    }
}
