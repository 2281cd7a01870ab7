//! [`Locks`]: the client of one namespace.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::acquisition::{Acquisition, Documents, Global, Keys, Shared, Tree};
use crate::client::config::{Config, LocksBuilder};
use crate::client::contention::Contention;
use crate::client::error::{AcquireError, InputError};
use crate::client::owner::Owner;
use crate::client::pool::Pool;
use crate::client::recovery::{Recovery, adopt};
use crate::client::wait::Queues;
use crate::client::{clock, task};
use crate::{
    Claim, End, FencingToken, Info, Life, LockBackend, Result, SessionId, SessionState, Want,
};

/// The locks of one namespace, as one process has them. Cloning is cheap; all clones are one client with one shared
/// session.
///
/// Acquisitions run on Tokio tasks of their own: a caller that goes away loses nothing but the answer, and what its
/// acquisition wins is given back. When the last clone and the last guard are gone the session is closed.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockcore::{Attempt, Locks, MemoryBackend};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let guard = locks.global("reindex").acquire().await?;
/// match locks.global("reindex").try_acquire().await? {
///     Attempt::Acquired(_) => unreachable!("one holder at a time"),
///     Attempt::Busy(busy) => assert_eq!(busy.first().claim.key().as_str(), "reindex"),
/// }
/// let first = guard.token();
/// guard.release().await?;
/// assert!(locks.global("reindex").acquire().await?.token() > first);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) core: Arc<Core>,
    pub(crate) pool: Arc<Pool>,
}

/// What attempts and keepers share; it has no handle to a session, so that keepers can hold it.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) info: Info,
    pub(crate) config: Config,
    pub(crate) queues: Queues,
    pub(crate) contention: Contention,
    /// Sessions of this client.
    pub(crate) sessions: Mutex<HashSet<SessionId>>,
    /// Abandoned sessions that this client adopts, has adopted, or gives up.
    pub(crate) adopting: Arc<Mutex<HashSet<SessionId>>>,
    rng: Mutex<StdRng>,
    /// The greatest token acknowledged.
    greatest: AtomicU64,
    pub(crate) attempts: AtomicUsize,
    pub(crate) waiters: AtomicUsize,
    unsettled: AtomicUsize,
    alive: AtomicUsize,
    none_alive: Notify,
    shut_down: AtomicBool,
}

impl Locks {
    pub(crate) fn new(
        backend: Arc<dyn LockBackend>,
        info: Info,
        config: Config,
        seed: Option<u64>,
    ) -> Self {
        let rng = seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let core = Core {
            backend,
            contention: Contention::new(info.poll),
            info,
            config,
            queues: Queues::default(),
            sessions: Mutex::default(),
            adopting: Arc::default(),
            rng: Mutex::new(rng),
            greatest: AtomicU64::new(0),
            attempts: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            none_alive: Notify::new(),
            shut_down: AtomicBool::new(false),
        };
        Self {
            core: Arc::new(core),
            pool: Arc::default(),
        }
    }

    /// Locks on a backend; see [`LocksBuilder`] for the options.
    pub fn builder(backend: Arc<dyn LockBackend>) -> LocksBuilder {
        LocksBuilder::new(backend)
    }

    /// What the store is like.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// The store itself, for inspection and for operators.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.core.backend
    }

    /// One exclusive lock: the book's global lock.
    pub fn global(&self, name: impl AsRef<str>) -> Acquisition<Global> {
        Acquisition::new(self, Keys::flat(Want::Create, [name]))
    }

    /// An exclusive lock on each of up to 1,000,000 ids, all or none: the book's document locks. The ids are collected
    /// now; order and duplicates do not matter.
    pub fn documents<I>(&self, ids: I) -> Acquisition<Documents>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Acquisition::new(self, Keys::flat(Want::Upsert, ids))
    }

    /// As [`documents`](Self::documents), with ids from a stream, which is collected before anything is acquired.
    ///
    /// # Cancel safety
    ///
    /// Nothing was acquired yet; what was read from the stream is gone.
    pub async fn documents_stream<S>(&self, ids: S) -> Acquisition<Documents>
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

    /// One of any number of shares of a lock, or of as many as the [limit](Acquisition::limit) says.
    pub fn share(&self, name: impl AsRef<str>) -> Acquisition<Shared> {
        Acquisition::new(self, Keys::flat(Want::Share { limit: None }, [name]))
    }

    /// Paths to write and to read, all or none: the book's tree lock.
    pub fn tree(&self) -> Acquisition<Tree> {
        Acquisition::new(self, Keys::default())
    }

    /// An owner that can be given to several acquisitions, which then re-enter each other's document and tree locks.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::unbound(self)
    }

    /// Every abandoned session of the namespace: dead, with a change that somebody has to finish or undo. Those whose
    /// death nobody has noticed yet are not among them.
    ///
    /// # Errors
    ///
    /// The store failed.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn abandoned(&self) -> Result<Vec<SessionState>> {
        let mut abandoned = Vec::new();
        let mut after = None;
        loop {
            let page = self.core.backend.sessions(after.as_deref(), 1_000).await?;
            abandoned.extend(
                page.items
                    .into_iter()
                    .filter(|state| state.life == Life::Abandoned),
            );
            after = page.next;
            if after.is_none() {
                return Ok(abandoned);
            }
        }
    }

    /// Adopts an abandoned session: its change is now this process's to finish or undo. `None` if it is not abandoned
    /// (any more), or a living session has adopted it.
    ///
    /// # Errors
    ///
    /// The store failed, or the client was shut down, or its session was lost meanwhile.
    ///
    /// # Cancel safety
    ///
    /// An adoption that succeeds although nobody waits for it is given up again.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn adopt(
        &self,
        session: SessionId,
    ) -> std::result::Result<Option<Recovery>, AcquireError> {
        self.core.check_open()?;
        let (locks, alive) = (self.clone(), Alive::new(&self.core));
        let (answer, answered) = tokio::sync::oneshot::channel();
        task::spawn(async move {
            let _alive = alive;
            let result = async {
                let handle = locks.pool.shared(&locks.core).await?;
                let states = locks.core.backend.end(&[session], End::IfDue).await?;
                adopt(&locks.core, &handle, states)
                    .await
                    .map(|adopted| adopted.into_iter().next())
            };
            // A recovery that nobody waits for is dropped here, and so given up.
            drop(answer.send(result.await));
        });
        answered.await.unwrap_or(Err(AcquireError::Lost))
    }

    /// Takes no more acquisitions, waits for at most `limit` until every guard is gone and every release is
    /// acknowledged, and closes the sessions. Whether all of that was done in time; if not, it goes on.
    ///
    /// # Cancel safety
    ///
    /// The client stays shut down; releases go on.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        self.core.shut_down.store(true, Ordering::Release);
        self.pool.let_go();
        let all_gone = async {
            loop {
                let none_alive = self.core.none_alive.notified();
                if self.core.alive.load(Ordering::Acquire) == 0 {
                    return;
                }
                none_alive.await;
            }
        };
        tokio::time::timeout(limit, all_gone).await.is_ok()
    }
}

impl Core {
    pub(crate) fn check_open(&self) -> std::result::Result<(), InputError> {
        if self.shut_down.load(Ordering::Acquire) {
            Err(InputError::ShutDown)
        } else {
            Ok(())
        }
    }

    /// Counts requests of unknown outcome that are remembered.
    pub(crate) fn unsettled(&self, more: usize, fewer: usize) {
        self.unsettled.fetch_add(more, Ordering::Relaxed);
        self.unsettled.fetch_sub(fewer, Ordering::Relaxed);
    }

    pub(crate) fn check_unsettled(&self) -> std::result::Result<(), InputError> {
        let limit = self.config.max_unsettled;
        if self.unsettled.load(Ordering::Relaxed) >= limit {
            return Err(InputError::TooMany {
                what: "requests of unknown outcome",
                limit,
            });
        }
        Ok(())
    }

    fn rng(&self) -> std::sync::MutexGuard<'_, StdRng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random 128-bit number.
    pub(crate) fn random(&self) -> u128 {
        self.rng().random()
    }

    /// A random part of a duration.
    pub(crate) fn chance(&self, of: Duration) -> Duration {
        of.mul_f64(self.rng().random())
    }

    /// The pause after so many failures: exponential, with full jitter.
    pub(crate) fn backoff(&self, failures: u32, first: Duration, longest: Duration) -> Duration {
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.chance(doubled.min(longest))
    }

    /// The greatest token acknowledged so far.
    pub(crate) fn floor(&self) -> u64 {
        self.greatest.load(Ordering::Acquire)
    }

    /// Whether a token of a request, sent first when the floor was this, rose; a store that was set back gives out
    /// smaller ones again.
    pub(crate) fn rose(&self, token: FencingToken, floor: u64) -> bool {
        self.greatest.fetch_max(token.get(), Ordering::AcqRel);
        token.get() > floor
    }

    /// Whether the session is one of this client's.
    pub(crate) fn is_ours(&self, session: SessionId) -> bool {
        self.sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&session)
    }

    /// Claims of this client were released: its own waiters look again at once, and its next attempt lets others look.
    pub(crate) fn given_back(&self, claims: &[Claim]) {
        self.contention.released(claims);
        self.queues.hint(claims);
    }

    /// Until when a failing store is borne with.
    pub(crate) fn patience(&self) -> Instant {
        clock::after(self.config.patience)
    }
}

/// Something that `shutdown` waits for.
pub(crate) struct Alive(Arc<Core>);

impl Alive {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        core.alive.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(core))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.0.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_alive.notify_waiters();
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("backend", &self.core.info.name)
            .field("label", &self.core.config.label)
            .field("ttl", &self.core.config.ttl)
            .finish_non_exhaustive()
    }
}
