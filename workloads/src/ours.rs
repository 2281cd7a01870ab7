//! Our own locks, to take turns at.

use async_trait::async_trait;
use lockcore::{Guard, Locks};

use crate::turns::{Failure, Granted, Lock};

/// Which locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Locks by their names.
    Lock,
    /// Shares that any number can have, by their names.
    Shared,
    /// Shares that so many can have, by their names.
    Share {
        /// How many.
        limit: u32,
    },
    /// Tree locks, by the paths that are written.
    Tree,
}

/// Our own locks.
#[derive(Debug)]
pub struct Ours {
    locks: Locks,
    kind: Kind,
}

impl Ours {
    /// The locks of a kind, through this client.
    #[must_use]
    pub fn new(locks: &Locks, kind: Kind) -> Self {
        Self {
            locks: locks.clone(),
            kind,
        }
    }

    pub(crate) async fn acquire(&self, key: &str) -> Result<Guard, Failure> {
        let acquired = match self.kind {
            Kind::Lock => self.locks.lock(key).acquire().await,
            Kind::Shared => self.locks.rwlock(key).read().acquire().await,
            Kind::Share { limit } => self.locks.semaphore(key, limit).acquire().await,
            Kind::Tree => self.locks.tree().write(key).acquire().await,
        };
        Ok(acquired?)
    }
}

#[async_trait]
impl Lock for Ours {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let guard = self.acquire(key).await?;
        granted().over().await;
        release(guard).await
    }
}

/// Gives back what has to be held still.
pub(crate) async fn release(guard: Guard) -> Result<(), Failure> {
    match guard.release().await? {
        lockcore::Released::NotHeld | lockcore::Released::Unknown => {
            Err("a lock was lost in the middle of a turn".into())
        }
        // Other answers are not of every version.
        _ => Ok(()),
    }
}
