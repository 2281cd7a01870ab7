//! [`Schedule`]: work that runs at most once in a period, on one of many hosts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Busy;
use crate::client::acquisition::Attempt;
use crate::client::clock::{after, now};
use crate::client::error::RunError;
use crate::client::guard::{Guard, Held};
use crate::client::kept::{KeepError, Kept, check_ttl};
use crate::client::locks::Locks;

/// Work that runs at most once in a period, whichever host is first. [`Locks::schedule`] creates it.
///
/// Every host starts the work when its own clock says so. The first one takes the lock of that name, runs the work, and
/// keeps the lock for the rest of [`at_least`](Self::at_least): a host whose clock is behind by less than that comes too
/// late. Choose a time that is a little shorter than the period, and longer than the clocks differ.
///
/// A lock that is kept costs no request, and outlives the process. If the process dies while the work runs, the lock
/// ends with its lease (the TTL), and another host may run the work. So it may in a store that forgets its last writes in
/// a failover.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockcore::{Locks, MemoryBackend, Turn};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let report = || locks.schedule("report").at_least(Duration::from_secs(14 * 60));
/// let first = report().run(|_held| async { Ok::<_, std::io::Error>("sent") }).await?;
/// assert!(matches!(first, Turn::Ran { value: "sent", .. }));
/// let second = report().run(|_held| async { Ok::<_, std::io::Error>("sent again") }).await?;
/// assert!(matches!(second, Turn::Taken(_)));
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing runs until `run`"]
pub struct Schedule {
    locks: Locks,
    name: String,
    at_least: Duration,
}

/// What became of a turn of a [`Schedule`].
#[derive(Debug)]
#[must_use = "somebody else may have had the turn"]
#[non_exhaustive]
pub enum Turn<T> {
    /// The work has run here.
    #[non_exhaustive]
    Ran {
        /// The value of the work.
        value: T,
        /// What holds the lock for the rest of the time; `None` if that was over, and the lock was released. After an
        /// error the work may run again before the time is over.
        kept: Result<Option<Kept>, KeepError>,
    },
    /// Somebody else runs the work, or has run it in this period.
    Taken(Busy),
}

impl Locks {
    /// Work that runs at most once in a period. It shares the key space of [`lock`](Self::lock).
    pub fn schedule(&self, name: impl AsRef<str>) -> Schedule {
        Schedule {
            locks: self.clone(),
            name: name.as_ref().to_owned(),
            at_least: Duration::ZERO,
        }
    }
}

impl Schedule {
    /// The time for which the lock is held at least, from the moment it is acquired; at most 24 h. Without it the lock
    /// is held while the work runs, and no longer.
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// Runs the work, unless somebody else has the lock. Never waits for it. Whether the work succeeds, fails, panics or
    /// is dropped, the lock is kept for the rest of the time. The work is stopped if the lock is lost.
    ///
    /// # Errors
    ///
    /// Nothing was acquired; the lock was lost while the work ran; or the work failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work where it is. The lock is kept in the background.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<Turn<T>, RunError<E>>
    where
        F: FnOnce(Arc<Held>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let core = &self.locks.core;
        if !self.at_least.is_zero() {
            check_ttl(core, self.at_least.max(core.info.min_ttl))
                .map_err(|error| RunError::Acquire(error.into()))?;
        }
        let acquisition = self.locks.lock(&self.name).own_session();
        let guard = match acquisition.try_acquire().await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Ok(Turn::Taken(busy)),
        };
        let held = guard.held();
        let keeping = Keeping {
            guard: Some(guard),
            until: after(self.at_least),
        };
        let result = {
            let work = work(Arc::clone(&held));
            tokio::select! {
                biased;
                why = held.lost() => return Err(RunError::Lost(why)),
                result = work => result,
            }
        };
        let kept = keeping.keep().await;
        match result {
            Ok(value) => Ok(Turn::Ran { value, kept }),
            Err(error) => Err(RunError::Work(error)),
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("name", &self.name)
            .field("at_least", &self.at_least)
            .finish_non_exhaustive()
    }
}

/// A guard that is kept when it is dropped.
struct Keeping {
    guard: Option<Guard>,
    until: Instant,
}

impl Keeping {
    async fn keep(mut self) -> Result<Option<Kept>, KeepError> {
        let guard = self.guard.take().expect("it is taken once");
        if !guard.is_valid() && guard.chain.stands() {
            // Its work has taken longer than a lock may be held: the lock is kept when this is dropped.
            self.guard = Some(guard);
            return Err(KeepError::Lost);
        }
        match self.until.checked_duration_since(now()) {
            Some(left) if !left.is_zero() => guard.keep_for(left).await.map(Some),
            _ => match guard.release().await? {
                crate::Released::NotHeld => Err(KeepError::Lost),
                _ => Ok(None),
            },
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take()
            && self.until > now()
            // Also where its work has taken longer than a lock may be held.
            && guard.chain.stands()
        {
            let seq = guard.kept_under();
            drop(guard.keep_until(self.until, seq));
        }
    }
}
