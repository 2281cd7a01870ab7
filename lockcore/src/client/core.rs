//! What a whole client shares: the store, the options, the randomness, and the counters.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::breaker::{Breaker, Chance};
use crate::client::clock;
use crate::client::error::InputError;
use crate::client::queue::Queues;
use crate::client::sweeps::Sweeps;
use crate::client::telemetry::Telemetry;
use crate::client::thread::{OnThread, OwnThread};
use crate::limits::{MAX_RENEWAL_INTERVAL, MAX_STORE_TOKEN, MIN_MARGIN};
use crate::{
    Claim, Error, ErrorKind, FencingToken, Info, Label, LockBackend, Operation, Result, SessionId,
};

/// For so long the keeper is waited for at least: it has to send a renewal.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// The options, for every part of a client.
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) label: Label,
    pub(crate) max_attempts: usize,
    pub(crate) max_waiters: usize,
    pub(crate) max_unsettled: usize,
    pub(crate) patience: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) thread: Option<OwnThread>,
    pub(crate) late: Option<Arc<dyn Fn(Late) + Send + Sync>>,
}

/// A session's renewal came late, because this process or its runtime was busy or stopped. See
/// [`LocksBuilder::when_late`](crate::LocksBuilder::when_late).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// How late.
    pub by: Duration,
    /// The session.
    pub session: SessionId,
}

impl Config {
    /// The time from the sending of a renewal to the deadline that its answer gives: the TTL less the margin, which
    /// covers a client's clock that runs up to 1 % slow.
    pub(crate) fn validity(&self) -> Duration {
        self.ttl - (self.ttl / 100).max(MIN_MARGIN)
    }

    /// The time between two renewals. It is limited because renewals also deliver notes.
    pub(crate) fn renewal_interval(&self) -> Duration {
        (self.ttl / 3).min(MAX_RENEWAL_INTERVAL)
    }
}

/// The state that attempts and keepers share. It has no handle to a session, so that keepers can hold it.
pub(crate) struct Core {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) info: Info,
    pub(crate) config: Config,
    pub(crate) queues: Arc<Queues>,
    pub(crate) telemetry: Telemetry,
    /// The breaker for opening sessions and acquiring, and the one for releasing, ending and settling.
    pub(crate) asking: Breaker,
    pub(crate) giving: Breaker,
    /// Sessions of this client.
    pub(crate) sessions: Mutex<HashSet<SessionId>>,
    /// Abandoned sessions that this client adopts, has adopted, or gives up.
    pub(crate) adopting: Arc<Mutex<HashSet<SessionId>>>,
    rng: Mutex<StdRng>,
    pub(crate) sweeps: Arc<Sweeps>,
    /// The greatest acknowledged token.
    greatest: AtomicU64,
    pub(crate) attempts: AtomicUsize,
    pub(crate) waiters: AtomicUsize,
    unsettled: AtomicUsize,
    alive: AtomicUsize,
    none_alive: Notify,
    shut_down: AtomicBool,
    shuts_down: Notify,
}

impl Core {
    pub(crate) fn new(backend: Arc<dyn LockBackend>, config: Config, seed: Option<u64>) -> Self {
        let backend = match &config.thread {
            Some(thread) => OnThread::around(backend, thread),
            None => backend,
        };
        let info = backend.info();
        Self {
            telemetry: Telemetry::new(info.name),
            backend,
            info,
            config,
            queues: Arc::default(),
            asking: Breaker::new(),
            giving: Breaker::new(),
            sessions: Mutex::default(),
            adopting: Arc::default(),
            rng: Mutex::new(seed.map_or_else(rand::make_rng, StdRng::seed_from_u64)),
            sweeps: Arc::default(),
            greatest: AtomicU64::new(0),
            attempts: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            none_alive: Notify::new(),
            shut_down: AtomicBool::new(false),
            shuts_down: Notify::new(),
        }
    }

    /// Accepts nothing new from now on, and notifies waiters.
    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.shuts_down.notify_waiters();
    }

    /// Resolves when nothing new is accepted any more.
    pub(crate) async fn is_shut_down(&self) {
        loop {
            let shuts_down = self.shuts_down.notified();
            if self.shut_down.load(Ordering::Acquire) {
                return;
            }
            shuts_down.await;
        }
    }

    /// Resolves when nothing is [`Alive`].
    pub(crate) async fn none_alive(&self) {
        loop {
            let none_alive = self.none_alive.notified();
            if self.alive.load(Ordering::Acquire) == 0 {
                return;
            }
            none_alive.await;
        }
    }

    pub(crate) fn check_open(&self) -> std::result::Result<(), InputError> {
        if self.shut_down.load(Ordering::Acquire) {
            Err(InputError::ShutDown)
        } else {
            Ok(())
        }
    }

    /// Counts the remembered requests of unknown outcome.
    pub(crate) fn unsettled(&self, more: usize, fewer: usize) {
        self.unsettled.fetch_add(more, Ordering::Relaxed);
        let before = self.unsettled.fetch_sub(fewer, Ordering::Relaxed);
        self.telemetry.in_doubt(before.saturating_sub(fewer));
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

    /// True with a probability of one in `many`.
    pub(crate) fn is_one_of(&self, many: u32) -> bool {
        self.rng().random_range(0..many) == 0
    }

    /// A random part of a duration.
    pub(crate) fn chance(&self, of: Duration) -> Duration {
        of.mul_f64(self.rng().random())
    }

    /// The pause after so many failures: exponential, with full jitter.
    pub(crate) fn backoff(&self, failures: u32, first: Duration, longest: Duration) -> Duration {
        Chance::backoff(self, failures, first, longest)
    }

    /// The last token: the greatest one acknowledged so far.
    pub(crate) fn last_token(&self) -> u64 {
        self.greatest.load(Ordering::Acquire)
    }

    /// Takes the store's token of a request that was first sent when the last token was `last_token`. Fails if no guard can
    /// have such a token, or if it did not rise: a store that was set back gives out smaller ones again.
    pub(crate) fn take_token(&self, token: FencingToken, last_token: u64) -> Result<()> {
        let what = if token.get() > MAX_STORE_TOKEN {
            format!(
                "token {token} is greater than {MAX_STORE_TOKEN}, the greatest that a store may give out: correct its clock or \
                 the counter of its tokens, or use another namespace"
            )
        } else if token.get() <= last_token {
            format!(
                "token {token} is not greater than {last_token}, which was granted before: the store was set back (restored from \
                 a backup?); initialise the namespace again before you go on"
            )
        } else {
            self.greatest.fetch_max(token.get(), Ordering::AcqRel);
            return Ok(());
        };
        let (name, operation) = (self.info.name, Operation::Acquire);
        Err(Error::new(ErrorKind::Corrupt, name, operation, what))
    }

    /// Grants of this client were released: its own waiters ask again at once, and its next attempt lets others poll
    /// first.
    pub(crate) fn given_back(
        &self,
        session: SessionId,
        grants: &[(u64, Range<usize>)],
        claims: &[Claim],
    ) {
        self.queues.given_back(claims, |chain| {
            chain.id() == session && chain.taken.grants.as_slice() == grants
        });
    }

    /// Until when the client bears with a failing store.
    pub(crate) fn patience(&self) -> Instant {
        clock::after(self.config.patience)
    }

    /// Until when the keeper is waited for: the patience is for requests that are sent again, and it has to send the first one.
    pub(crate) fn keeper_answers(&self) -> Instant {
        clock::after(self.config.patience.max(FIRST_ANSWER))
    }
}

impl Chance for Core {
    fn chance(&self, of: Duration) -> Duration {
        self.chance(of)
    }
}

/// Something that `shutdown` waits for.
pub(crate) struct Alive(Arc<Core>);

impl Alive {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        core.alive.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(core))
    }

    pub(crate) fn core(&self) -> &Core {
        &self.0
    }

    /// It is not waited for any more, and does not keep the client.
    pub(crate) fn downgrade(self) -> Weak<Core> {
        Arc::downgrade(&self.0)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if self.0.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_alive.notify_waiters();
        }
    }
}
