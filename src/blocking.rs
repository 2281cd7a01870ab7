//! Locks for programs without async: the same client, on a thread with a runtime of its own.
//!
//! Each call waits on the calling thread. Renewals go on in the thread of the client, so a program may take as long as it
//! likes between two calls. Do not call these functions on a thread of an async runtime, which they would block; there
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
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockcore::{
    AcquireError, Acquisition, Attempt, Error, ErrorKind, Held, LocksBuilder, LostReason,
    Operation, Released, Result,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::ConnectError;

/// The locks of one namespace, for programs without async. Cloning is cheap.
#[derive(Clone)]
pub struct Locks {
    locks: lockcore::Locks,
    thread: Thread,
}

/// A held lock. Dropping it gives the lock back in the background. It derefs to [`Held`], of which `token()`,
/// `is_valid()` and `remaining()` do not wait for anything; the others are async, and their results are here.
#[must_use = "dropping a guard gives the lock back at once"]
pub struct Guard {
    // Before the thread that gives it back.
    guard: lockcore::Guard,
    thread: Thread,
}

/// The thread with the runtime. It goes on until nobody needs it, and until the client is shut down.
#[derive(Clone)]
struct Thread {
    runtime: Handle,
    _needed: Arc<Needed>,
}

/// Dropping it ends the thread.
struct Needed {
    _until: oneshot::Sender<()>,
}

/// How long the end of the thread waits for releases.
const PATIENCE: Duration = Duration::from_secs(10);

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
        let (thread, ending) = Thread::start()?;
        let backend = thread.block_on(crate::backend(url))?;
        let locks = options(lockcore::Locks::builder(backend)).build()?;
        // It is the thread's, too: what is given back last is waited for.
        let _ = ending.send(locks.clone());
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
        let _entered = self.thread.runtime.enter();
        self.thread.block_on(future(&self.locks))
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

impl Thread {
    /// Starts the thread, which takes the client that it shuts down in the end.
    fn start() -> Result<(Self, oneshot::Sender<lockcore::Locks>)> {
        let failed = |error: std::io::Error| {
            let what = "no thread with a runtime can be started";
            Error::new(ErrorKind::Unavailable, "blocking", Operation::Connect, what)
                .with_source(error)
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (needed, until) = oneshot::channel::<()>();
        let (client, taken) = oneshot::channel::<lockcore::Locks>();
        let (started, starts) = mpsc::channel();
        thread::Builder::new()
            .name("lockkeeper".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let _ = started.send(());
                    let client = taken.await;
                    let _ = until.await;
                    if let Ok(locks) = client {
                        locks.shutdown(PATIENCE).await;
                    }
                });
            })
            .map_err(failed)?;
        let _ = starts.recv();
        let needed = Arc::new(Needed { _until: needed });
        let thread = Self {
            runtime: handle,
            _needed: needed,
        };
        Ok((thread, client))
    }

    /// Waits for a future on this thread; what it spawns runs on the other one, which drives its timers and sockets.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
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
    fn the_thread_ends_with_what_needs_it() {
        let (thread, client) = Thread::start().unwrap();
        let runtime = thread.runtime.clone();
        let ended = runtime.spawn(std::future::pending::<()>());
        drop((thread, client));
        // The runtime is gone with its thread, and what ran there is cancelled.
        let since = std::time::Instant::now();
        while !ended.is_finished() {
            assert!(since.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(5));
        }
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
