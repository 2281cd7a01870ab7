//! Locks for programs without async: the same client, on a thread with a runtime of its own.
//!
//! Each call waits on the calling thread. Renewals go on in the thread of the client, so a program may take as long as it
//! likes between two calls. A handler of [recoveries](lockcore::LocksBuilder::recovery) runs in that thread, too, and must not
//! block it for longer than two thirds of the TTL: let it use `tokio::task::spawn_blocking`. Do not call these functions on a thread of an async runtime, which they would block; there
//! they panic. The thread ends when the last [`Locks`] and the last [`Guard`] are gone.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//!
//! use lockkeeper::{Released, blocking};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = blocking::Locks::connect("memory:")?;               // "sqlite:locks.db", "redis://…", …
//! let guard = locks.acquire(|locks| locks.lock("reindex"))?;
//! assert!(guard.is_valid());
//! let busy = locks.acquire(|locks| locks.lock("reindex").wait(Duration::from_millis(10)));
//! assert!(busy.is_err());
//! assert_eq!(guard.release()?, Released::Released);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use lockcore::{
    AcquireError, Acquisition, Attempt, Held, LocksBuilder, LostReason, OwnThread, Released, Result,
};

use crate::ConnectError;

/// The locks of one namespace, for programs without async. Cloning is cheap.
#[derive(Clone)]
pub struct Locks {
    locks: lockcore::Locks,
    thread: OwnThread,
}

/// A held lock. Dropping it gives the lock back in the background. It derefs to [`Held`], of which `token()`,
/// `is_valid()` and `remaining()` do not wait for anything; the others are async, and their results are here.
#[must_use = "dropping a guard gives the lock back at once"]
pub struct Guard {
    // Before the thread that gives it back.
    guard: lockcore::Guard,
    thread: OwnThread,
}

impl Locks {
    /// Connects to the store that the URL names, with the client's defaults.
    ///
    /// # Errors
    ///
    /// As [`connect`](crate::connect()).
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn connect(url: &str) -> std::result::Result<Self, ConnectError> {
        Self::connect_with(url, |builder| builder)
    }

    /// Connects to the store that the URL names, with other options of the client.
    ///
    /// # Errors
    ///
    /// As [`connect`](crate::connect()), and if the client does not take an option.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn connect_with(
        url: &str,
        options: impl FnOnce(LocksBuilder) -> LocksBuilder,
    ) -> std::result::Result<Self, ConnectError> {
        let thread = OwnThread::start()?;
        let backend = thread.block_on(crate::backend(url))?;
        let builder = lockcore::Locks::builder(backend).own_thread(&thread);
        let locks = options(builder).build()?;
        Ok(Self { locks, thread })
    }

    /// Acquires what the function asks for, and waits for it as long as that says.
    ///
    /// # Errors
    ///
    /// As [`Acquisition::acquire`].
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn acquire<S>(
        &self,
        what: impl FnOnce(&lockcore::Locks) -> Acquisition<S>,
    ) -> std::result::Result<Guard, AcquireError> {
        let guard = self.thread.block_on(what(&self.locks).acquire())?;
        Ok(self.guard(guard))
    }

    /// Tries once; `None` if somebody is in the way.
    ///
    /// # Errors
    ///
    /// As [`Acquisition::try_acquire`].
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn try_acquire<S>(
        &self,
        what: impl FnOnce(&lockcore::Locks) -> Acquisition<S>,
    ) -> std::result::Result<Option<Guard>, AcquireError> {
        let attempt = self.thread.block_on(what(&self.locks).try_acquire())?;
        Ok(match attempt {
            Attempt::Acquired(guard) => Some(self.guard(guard)),
            Attempt::Busy(_) => None,
        })
    }

    /// Waits for any other future of the client: an election, a schedule, the renewal of a kept lock.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn block_on<F: Future>(&self, future: impl FnOnce(&lockcore::Locks) -> F) -> F::Output {
        self.thread.block_on(async { future(&self.locks).await })
    }

    /// As [`shutdown`](lockcore::Locks::shutdown) of the client.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn shutdown(&self, limit: Duration) -> bool {
        self.thread.block_on(self.locks.shutdown(limit))
    }

    fn guard(&self, guard: lockcore::Guard) -> Guard {
        let thread = self.thread.clone();
        Guard { guard, thread }
    }
}

impl Guard {
    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](lockcore::Guard::release).
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn release(self) -> Result<Released> {
        let Self { guard, thread } = self;
        thread.block_on(guard.release())
    }

    /// Asks the store whether the lock is still held.
    ///
    /// # Errors
    ///
    /// The store failed: the lock may be held or not.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    pub fn confirm(&self) -> Result<bool> {
        self.thread.block_on(self.guard.confirm())
    }

    /// Waits for at most this time until the lock is lost; `None` if it is still held then.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime.
    #[must_use]
    pub fn lost_within(&self, time: Duration) -> Option<LostReason> {
        let lost = async { tokio::time::timeout(time, self.guard.lost()).await.ok() };
        self.thread.block_on(lost)
    }

    /// What is held, to ask about it from other threads, or within [`Locks::block_on`].
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        self.guard.held()
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.guard
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.locks, f)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_lock_is_renewed_while_its_program_does_something_else() {
        let options = |builder: LocksBuilder| builder.ttl(Duration::from_secs(1));
        let locks = Locks::connect_with("memory:", options).unwrap();
        let guard = locks.acquire(|locks| locks.lock("a")).unwrap();
        // No thread of the program drives anything meanwhile.
        thread::sleep(Duration::from_millis(2_500));
        assert!(guard.is_valid() && guard.confirm().unwrap());
        assert!(
            locks
                .try_acquire(|locks| locks.lock("a"))
                .unwrap()
                .is_none()
        );
        assert!(guard.lost_within(Duration::from_millis(10)).is_none());
        // A guard outlives its locks.
        let other = locks.clone();
        drop(locks);
        assert_eq!(guard.release().unwrap(), Released::Released);
        drop(other.acquire(|locks| locks.tree().write("/a")).unwrap());
        let election = other.block_on(|locks| {
            let election = locks.election("e").unwrap();
            async move { election.campaign().await.unwrap().resign().await }
        });
        assert_eq!(election.unwrap(), Released::Released);
        assert!(other.shutdown(Duration::from_secs(5)));
    }

    #[test]
    fn what_no_store_takes() {
        let error = Locks::connect("locks.db").unwrap_err();
        assert!(matches!(error, ConnectError::MissingScheme));
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn what_is_dropped_last_is_given_back_before_the_thread_ends() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        drop(
            Locks::connect(&url)
                .unwrap()
                .acquire(|locks| locks.lock("a"))
                .unwrap(),
        );
        let wait = Duration::from_secs(5);
        let next = Locks::connect(&url).unwrap();
        let next = next.acquire(|locks| locks.lock("a").wait(wait)).unwrap();
        assert!(next.is_valid());
    }
}
