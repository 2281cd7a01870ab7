//! [`Acquisition`]: what to acquire, and how.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use crate::client::attempt::{Observer, Plan, Progress, Seen};
use crate::client::clock::{after, sleep_until};
use crate::client::core::{Alive, Core};
use crate::client::error::{AcquireError, InputError, RunError};
use crate::client::guard::{Guard, Held};
use crate::client::locks::Locks;
use crate::client::order::Released;
use crate::client::owner::Owner;
use crate::client::task;
use crate::limits::{MAX_KEYS, MAX_KEYS_BYTES};
use crate::{
    Busy, Claim, Error, ErrorKind, Intent, IntentError, KeyError, LockKey, LockPath, Operation,
    PrepareError, Want, prepare,
};

/// More claims than this are sorted on a thread of their own, to delay nobody.
const SORTED_HERE: usize = 10_000;

/// Marks an [`Acquisition`] of names or of document ids.
#[derive(Debug)]
pub enum Flat {}
/// Marks an [`Acquisition`] of [paths](Locks::tree).
#[derive(Debug)]
pub enum Tree {}

/// The answer to [`try_acquire`](Acquisition::try_acquire).
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back at once"]
pub enum Attempt {
    /// Everything is held.
    Acquired(Guard),
    /// Somebody is in the way. Nothing is held.
    Busy(Busy),
}

impl Attempt {
    /// The guard, if everything is held.
    pub fn acquired(self) -> Option<Guard> {
        match self {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(_) => None,
        }
    }
}

/// An acquisition to be made. [`Locks`] creates it; nothing happens until [`acquire`](Self::acquire),
/// [`try_acquire`](Self::try_acquire) or [`run`](Self::run). These also report bad input, before anything is sent.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockcore::{AcquireError, InputError, Locks, MemoryBackend};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let guard = locks.tree().read("/clinton").write("/bush").acquire().await?;
/// let late = locks.tree().write("/clinton/projects").wait(Duration::from_secs(5)).acquire().await;
/// assert!(matches!(late, Err(AcquireError::Busy(_))));
/// let bad = locks.documents(["fine", "/a/path"]).acquire().await;
/// assert!(matches!(bad, Err(AcquireError::Input(InputError::Key { .. }))));
/// # guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is acquired until `acquire`, `try_acquire` or `run`"]
pub struct Acquisition<S = Flat> {
    locks: Locks,
    keys: Keys,
    wait: Option<Duration>,
    owner: Option<Owner>,
    intent: Option<Intent>,
    own_session: bool,
    max_hold: Option<Duration>,
    observer: Option<Observer>,
    scheme: PhantomData<fn() -> S>,
}

impl Locks {
    /// One name, one holder: the book's global lock.
    ///
    /// All flat keys of a namespace share one key space: `lock("a")` excludes `rwlock("a")`, `semaphore("a", n)` and
    /// `documents(["a"])`.
    pub fn lock(&self, name: impl AsRef<str>) -> Acquisition {
        Acquisition::new(self, Keys::flat(Want::Create, [name]))
    }

    /// A lock for one writer, or for any number of readers.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock<'_> {
        RwLock {
            locks: self,
            name: name.as_ref().to_owned(),
        }
    }

    /// One of `permits` permits. The store does not keep the number; it limits only the request that names it. So all
    /// callers of a semaphore must use the same number. 0 is an input error.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Acquisition {
        let limit = NonZeroU32::new(permits);
        let mut keys = Keys::flat(Want::Share { limit }, [name]);
        if limit.is_none() {
            keys.error = Some(InputError::ZeroLimit);
        }
        Acquisition::new(self, keys)
    }

    /// An exclusive lock on each of up to 1,000,000 ids, all or none: the book's document locks. The ids are collected
    /// now. Their order does not matter, nor do duplicates.
    pub fn documents<I>(&self, ids: I) -> Acquisition
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Acquisition::new(self, Keys::flat(Want::Upsert, ids))
    }

    /// As [`documents`](Self::documents), with ids from a stream. The stream is collected before anything is acquired.
    ///
    /// # Cancel safety
    ///
    /// Nothing has been acquired yet. The items read so far are gone from the stream.
    pub async fn documents_stream<S>(&self, ids: S) -> Acquisition
    where
        S: Stream,
        S::Item: AsRef<str>,
    {
        let mut ids = std::pin::pin!(ids);
        let mut keys = Keys::default();
        while let Some(id) = ids.next().await {
            if !keys.add_flat(Want::Upsert, id) {
                break;
            }
        }
        Acquisition::new(self, keys)
    }

    /// Paths to write and to read, all or none: the book's tree lock.
    pub fn tree(&self) -> Acquisition<Tree> {
        Acquisition::new(self, Keys::default())
    }
}

/// A lock to read or to write. [`Locks::rwlock`] creates it.
#[derive(Debug)]
#[must_use = "nothing is acquired until `read` or `write`, and `acquire`"]
pub struct RwLock<'a> {
    locks: &'a Locks,
    name: String,
}

impl RwLock<'_> {
    /// To read: any number of readers at once.
    ///
    /// Tasks of one process that read without an intent or an owner have one share in the store between them, where
    /// possible ([`acquire`](Acquisition::acquire)). A [semaphore](Locks::semaphore) of the same name counts them as
    /// one.
    pub fn read(self) -> Acquisition {
        Acquisition::new(
            self.locks,
            Keys::flat(Want::Share { limit: None }, [self.name]),
        )
    }

    /// To write: alone.
    pub fn write(self) -> Acquisition {
        self.locks.lock(self.name)
    }
}

impl Acquisition<Tree> {
    /// Adds a path to change, with everything below it.
    pub fn write(mut self, path: impl AsRef<str>) -> Self {
        self.keys.add_path(path.as_ref(), Claim::write);
        self
    }

    /// Adds a path to read, with everything below it.
    pub fn read(mut self, path: impl AsRef<str>) -> Self {
        self.keys.add_path(path.as_ref(), Claim::read);
        self
    }
}

impl<S> Acquisition<S> {
    pub(crate) fn new(locks: &Locks, keys: Keys) -> Self {
        Self {
            locks: locks.clone(),
            keys,
            wait: None,
            owner: None,
            intent: None,
            own_session: false,
            max_hold: locks.core.config.max_hold,
            observer: None,
            scheme: PhantomData,
        }
    }

    /// The longest time that [`acquire`](Self::acquire) waits; for ever by default. With zero it tries once.
    ///
    /// The call returns up to 100 ms later if a request is under way, or if it stands in the store's line: it leaves that first.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// The owner that acquires. Its own document and tree locks are no obstacle to it. Cannot be combined with an
    /// intent.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Describes the intended change, as JSON. The store keeps it until the guard is released. A process that finds the
    /// locks of a dead one receives it, and finishes or undoes the change. It is no place for secrets.
    ///
    /// # Errors
    ///
    /// The value cannot be written as JSON, or has more than 64 KiB.
    pub fn intent(self, value: &impl Serialize) -> Result<Self, IntentError> {
        Ok(self.intent_bytes(Intent::json(value)?))
    }

    /// As [`intent`](Self::intent), with any bytes.
    pub fn intent_bytes(mut self, intent: Intent) -> Self {
        self.intent = Some(intent);
        self
    }

    /// Gives the lock a session of its own, which costs two requests more. Only such a lock can be kept when its guard
    /// goes ([`Guard::keep_for`]). It is never handed on within the process.
    pub fn own_session(mut self) -> Self {
        self.own_session = true;
        self
    }

    /// The longest time that the guard is held, so that a program that hangs does not hold it for ever. At nine tenths
    /// of this time [`nearly_over`](Held::nearly_over) resolves. At its end the guard becomes invalid, and
    /// [`lost`](Held::lost) resolves with [`TooLong`](crate::LostReason::TooLong). The program has one more TTL to stop
    /// its work; then the store gets the lock back, if the program has not released it. An intent is left behind for
    /// the next holder to recover.
    ///
    /// If the runtime of the session hangs, nothing is renewed, and the lease ends first.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Calls the observer with the progress of the acquisition, on the caller's task or on one of its own. The observer
    /// must not block. If it panics, the granted locks are given back and the caller panics.
    pub fn observe(mut self, observer: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Tries once and waits for no holder. If dead processes left unfinished changes in the way, and the client has a
    /// recovery handler, these are recovered first. A recovery that takes longer than the
    /// [patience](crate::LocksBuilder::patience) goes on by itself, and the attempt is busy.
    ///
    /// # Errors
    ///
    /// Bad input; unfinished changes in the way that nobody recovered; a session lost during the attempt; a failure of
    /// the store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back all that the attempt wins.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn try_acquire(self) -> Result<Attempt, AcquireError> {
        match self.start(false).await {
            Ok(guard) => Ok(Attempt::Acquired(guard)),
            Err(AcquireError::Busy(busy)) => Ok(Attempt::Busy(busy)),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything is held; without [`wait`](Self::wait), for ever.
    ///
    /// Granted locks stay held while the call waits for the rest. All acquisitions take their keys in one global order,
    /// so they cannot deadlock each other. A program that acquires while it holds something must keep an order of its
    /// own.
    ///
    /// Tasks of one process that wait for a key get it in the order in which they asked: exclusive locks, shares and
    /// paths alike. Consecutive shares get it together. A share that comes after a waiting exclusive lock waits behind
    /// it (for a second, if another process keeps the exclusive lock out). So a task that holds a share may wait for
    /// itself if it asks for another share of the same key, or of a path above or below it, as with
    /// [`tokio::sync::RwLock`]. The same goes for a task that holds a path, and asks for another one below a path that
    /// somebody else of its process waits for. With the [owner](Self::owner) of the lock that it holds it does not queue.
    ///
    /// An exclusive lock or a permit of a semaphore passes from one task to the next without the store if the next
    /// waiter wants the same and neither has an intent or an owner, for at most 50 ms and 63 times (lock cohorting;
    /// Dice, Marathe, Shavit, 2012). Tasks hold a share without a limit together, within the same bounds; the last of
    /// them returns it to the store.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire). Also: the wait has ended; only the owner itself is in the way, so the
    /// wait could not end; a [shutdown](Locks::shutdown) ended the wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and gives back the granted locks. Its place in the queue of local waiters is
    /// lost. A future that is kept but not polled keeps its place, and those behind it wait.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        // A wait of no time is a try; else it would be over before any answer.
        let waits = self.wait != Some(Duration::ZERO);
        self.start(waits).await
    }

    /// Acquires, runs the work, stops it if the lock is lost, and releases. Returns the value of the work and the
    /// result of [`Guard::release`].
    ///
    /// # Errors
    ///
    /// Nothing was acquired; the lock was lost while the work ran; or the work failed. In the last two cases an intent
    /// is left behind.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work where it is, and the guard. An intent is left behind.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::Arc;
    /// # use lockcore::{Held, Locks, MemoryBackend, Released};
    /// # let locks = Locks::builder(MemoryBackend::new()).build()?;
    /// let work = |held: Arc<Held>| async move { Ok::<_, std::io::Error>(held.token()) };
    /// let (token, released) = locks.lock("reindex").run(work).await?;
    /// assert!(token.get() > 0);
    /// assert_eq!(released?, Released::Released, "nobody took the lock away meanwhile");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F, Fut, T, E>(
        self,
        work: F,
    ) -> Result<(T, Result<Released, Error>), RunError<E>>
    where
        F: FnOnce(Arc<Held>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let guard = self.acquire().await?;
        let held = guard.held();
        let result = {
            let work = work(guard.held());
            tokio::select! {
                biased;
                why = held.lost() => return Err(RunError::Lost(why)),
                result = work => result,
            }
        };
        match result {
            Ok(value) => Ok((value, guard.release().await)),
            Err(error) => {
                guard.after_failure().await;
                Err(RunError::Work(error))
            }
        }
    }

    /// Checks the input and starts the attempt.
    async fn start(self, waits: bool) -> Result<Guard, AcquireError> {
        let core = Arc::clone(&self.locks.core);
        let claims = &self.keys.claims;
        let want = claims.first().map(Claim::want);
        let asked = core.telemetry.asks(want, claims.len(), waits);
        let result = self.begin(waits).await;
        asked.ends(&result);
        result
    }

    async fn begin(self, waits: bool) -> Result<Guard, AcquireError> {
        let until = self.wait.filter(|_| waits).map(after);
        let core = Arc::clone(&self.locks.core);
        core.check_open()?;
        core.check_unsettled()?;
        if self.max_hold == Some(Duration::ZERO) {
            return Err(InputError::NoHold.into());
        }
        if let Some(owner) = &self.owner {
            if self.intent.is_some() {
                return Err(InputError::OwnerWithIntent.into());
            }
            if !owner.belongs_to(&core) {
                return Err(InputError::ForeignOwner.into());
            }
        }
        let claims = self.keys.prepare().await?;
        let max_hold = self.max_hold;
        let under_way = UnderWay::new(&core, waits)?;
        // A shutdown that began while the claims were sorted has not seen it.
        core.check_open()?;
        let plan = Arc::new(Plan {
            locks: self.locks,
            claims: claims.into(),
            owner: self.owner,
            intent: self.intent,
            own_session: self.own_session,
            wait: waits.then_some(until),
            observer: self.observer,
            seen: Seen::default(),
        });
        let mut here = Some(Box::pin(Arc::clone(&plan).run(under_way)));
        let plan = Caller(plan);
        let mut there = None;
        // A task of its own brings what was sent to its end, whatever the caller does. Who stands in line has sent nothing, and
        // where a store answers at once there is nothing to wait for.
        let mut answer = poll_fn(|cx| {
            if let Some(mut run) = here.take() {
                match run.as_mut().poll(cx) {
                    Poll::Ready(answer) => return Poll::Ready(answer),
                    Poll::Pending if plan.seen.is_asking() => there = Some(task::answers(run)),
                    Poll::Pending => here = Some(run),
                }
            }
            match &mut there {
                Some(there) => there.poll_unpin(cx).map(|answer| answer.ok().flatten()),
                None => Poll::Pending,
            }
        });
        let over = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            // A request may still be under way; what it wins is given back.
            () = core.is_shut_down() => return Err(InputError::ShutDown.into()),
            // The line is left meanwhile.
            () = over => timeout(LEAVES, answer).await.unwrap_or(None),
        };
        match answer {
            Some(Ok(answer)) => answer.map(|guard| guard.deliver(max_hold)),
            Some(Err(panic)) => resume_unwind(panic),
            // It ends without an answer only when its wait is over before any refusal, or with its runtime.
            None => Err(no_answer(&plan)),
        }
    }
}

/// The most time that leaving the line may take before the caller is told that its wait is over.
const LEAVES: Duration = Duration::from_millis(100);

/// The caller that waits for the answer. Dropping this tells the attempt that it has gone.
struct Caller(Arc<Plan>);

impl Deref for Caller {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.seen.leave();
    }
}

/// The answer to a caller whose wait has ended before the attempt has an answer.
fn no_answer(plan: &Plan) -> AcquireError {
    match plan.seen.busy() {
        Some(busy) => AcquireError::Busy(busy),
        None => AcquireError::Store(Error::new(
            ErrorKind::Indeterminate,
            plan.locks.core.info.name,
            Operation::Acquire,
            "the store did not answer before the wait was over; what it may still grant is given back",
        )),
    }
}

impl<S> fmt::Debug for Acquisition<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquisition")
            .field("wait", &self.wait)
            .field("intent", &self.intent)
            .finish_non_exhaustive()
    }
}

/// The claims as they were given, or the first error in them.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    claims: Vec<Claim>,
    bytes: usize,
    error: Option<InputError>,
}

impl Keys {
    pub(crate) fn flat<I>(want: Want, texts: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let mut keys = Self::default();
        for text in texts {
            if !keys.add_flat(want, text) {
                break;
            }
        }
        keys
    }

    /// Whether to go on.
    pub(crate) fn add_flat(&mut self, want: Want, text: impl AsRef<str>) -> bool {
        let text = text.as_ref();
        self.add(
            text,
            LockKey::flat(text)
                .map(|key| Claim::new(key, want).expect("a flat claim of a flat key")),
        )
    }

    fn add_path(&mut self, text: &str, claim: fn(LockPath) -> Claim) {
        self.add(text, LockPath::parse(text).map(claim));
    }

    fn add(&mut self, text: &str, claim: Result<Claim, KeyError>) -> bool {
        if self.error.is_some() {
            return false;
        }
        self.bytes += text.len();
        if self.claims.len() >= MAX_KEYS {
            self.error = Some(
                PrepareError::TooMany {
                    claims: self.claims.len() + 1,
                }
                .into(),
            );
        } else if self.bytes > MAX_KEYS_BYTES {
            self.error = Some(PrepareError::TooLarge { bytes: self.bytes }.into());
        } else {
            match claim {
                Ok(claim) => self.claims.push(claim),
                Err(source) => {
                    let text = text.chars().take(80).collect();
                    self.error = Some(InputError::Key { text, source });
                }
            }
        }
        self.error.is_none()
    }

    async fn prepare(self) -> Result<Vec<Claim>, AcquireError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        let claims = self.claims;
        let prepared = if claims.len() > SORTED_HERE {
            let sorting = tokio::task::spawn_blocking(move || prepare(claims));
            sorting.await.map_err(|_| AcquireError::Lost)?
        } else {
            prepare(claims)
        };
        Ok(prepared.map_err(InputError::from)?)
    }
}

/// Counts the attempts and waiters that are under way.
struct UnderWay {
    alive: Alive,
    waits: bool,
}

impl UnderWay {
    fn new(core: &Arc<Core>, waits: bool) -> Result<Self, InputError> {
        let this = Self {
            alive: Alive::new(core),
            waits,
        };
        let (limit, what) = match waits {
            true => (core.config.max_waiters, "acquisitions that may wait"),
            false => (core.config.max_attempts, "attempts"),
        };
        // If it is too many, dropping `this` counts it off again.
        if this.count().fetch_add(1, Ordering::AcqRel) >= limit {
            return Err(InputError::TooMany { what, limit });
        }
        Ok(this)
    }

    fn count(&self) -> &AtomicUsize {
        match self.waits {
            true => &self.alive.core().waiters,
            false => &self.alive.core().attempts,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::AcqRel);
    }
}

const _: fn() = || {
    fn sends<T: Send>(_: &T) {}
    fn all(acquisition: Acquisition<Tree>, until: Instant) {
        sends(&until);
        sends(&acquisition.acquire());
    }
    let _ = all;
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_up_to_their_bytes_and_no_further() {
        let long = "x".repeat(1_024);
        let keys = Keys::flat(Want::Upsert, std::iter::repeat_n(&long, 70_000));
        let bytes = MAX_KEYS_BYTES + 1_024;
        assert_eq!(keys.claims.len(), MAX_KEYS_BYTES / 1_024);
        assert!(matches!(
            keys.error,
            Some(InputError::Claims(PrepareError::TooLarge { bytes: found })) if found == bytes
        ));
    }
}
