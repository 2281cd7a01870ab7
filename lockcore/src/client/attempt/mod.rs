//! One acquisition: the caller runs it while it queues; from the first byte sent it runs on a task of its own.

mod taking;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::taking::Taking;
use crate::client::chain::Pass;
use crate::client::clock::{now, sleep_until};
use crate::client::core::Core;
use crate::client::error::AcquireError;
use crate::client::guard::{Guard, Undelivered};
use crate::client::line::Patience;
use crate::client::locks::Locks;
use crate::client::owner::Owner;
use crate::client::pool;
use crate::client::queue::{InTheWay, is_known};
use crate::client::retry::may_pass;
use crate::client::session::Handle;
use crate::prepare::batch_len;
use crate::{Busy, Claim, Info, Intent, OwnerId};

/// An acquisition of more batches than this has a session of its own, so that one write gives up or releases it.
const BATCHES_IN_SHARED_SESSION: usize = 10;

/// A report to an [observer](crate::Acquisition::observe).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// This many claims are granted, counted after duplicates were merged.
    Granted {
        /// Claims granted so far.
        claims: usize,
        /// All claims of the acquisition.
        of: usize,
    },
    /// The acquisition waits because of this refusal. Reported after each request to the store.
    Waiting(&'a Busy),
}

pub(crate) type Observer = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

/// The result, if the caller still waits for it. A panic of the caller's own code is passed on to it.
pub(crate) type Answer = Option<thread::Result<Result<Undelivered, AcquireError>>>;

/// State that the caller and the acquisition share while it is under way.
#[derive(Default)]
pub(crate) struct Seen {
    /// The latest refusal, until something is granted.
    last: Mutex<Option<Last>>,
    /// Since when the store owes an answer.
    asked: Mutex<Option<Instant>>,
    /// A request is under way, or something was granted.
    asks: AtomicBool,
    /// The caller has stopped waiting.
    is_left: AtomicBool,
    left: Notify,
}

enum Last {
    Refused(Busy),
    Waiting(InTheWay),
}

impl Seen {
    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest refusal, unless the store has been silent for too long since.
    pub(crate) fn busy(&self) -> Option<Busy> {
        let asked = *self.asked();
        if !is_known(asked) {
            return None;
        }
        match &*self.last() {
            None => None,
            Some(Last::Refused(busy)) => Some(busy.clone()),
            Some(Last::Waiting(way)) => way.busy(),
        }
    }

    /// Whether something must be brought to its end even if the caller leaves.
    pub(crate) fn is_asking(&self) -> bool {
        self.asks.load(Ordering::Acquire)
    }

    /// The caller leaves.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.left.notify_waiters();
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Resolves when the caller has left.
    async fn left(&self) {
        loop {
            let left = self.left.notified();
            if self.is_left() {
                return;
            }
            left.await;
        }
    }
}

/// Exists while the store owes an answer to the attempt.
struct Unanswered<'a>(&'a Seen);

impl<'a> Unanswered<'a> {
    fn new(seen: &'a Seen) -> Self {
        *seen.asked() = Some(now());
        Self(seen)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        *self.0.asked() = None;
    }
}

pub(crate) struct Plan {
    pub(crate) locks: Locks,
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) owner: Option<Owner>,
    pub(crate) intent: Option<Intent>,
    /// The grant is the only one of its session, so that it can be kept.
    pub(crate) own_session: bool,
    /// `None`: a single try. `Some(None)`: wait for ever.
    pub(crate) wait: Option<Option<Instant>>,
    pub(crate) observer: Option<Observer>,
    pub(crate) seen: Seen,
}

/// Why an attempt holds nothing.
enum Stop {
    /// The session was dead before anything was granted. Another session may succeed.
    NotBegun,
    Failed(AcquireError),
    /// Nobody waits for the answer.
    Cancelled,
}

impl From<AcquireError> for Stop {
    fn from(error: AcquireError) -> Self {
        Stop::Failed(error)
    }
}

impl From<crate::Error> for Stop {
    fn from(error: crate::Error) -> Self {
        Stop::Failed(error.into())
    }
}

/// Asks until the store answers, for at most the client's patience; only once if the caller does not wait.
async fn bears<T, Answer: Future<Output = Result<T, AcquireError>>>(
    core: &Core,
    waits: bool,
    ask: impl Fn() -> Answer,
) -> Result<T, AcquireError> {
    let patience = core.patience();
    let mut failures = 0;
    loop {
        match ask().await {
            Err(AcquireError::Store(error)) if waits && may_pass(&error) => {
                failures += 1;
                if !core.asking.again(core, failures, patience).await {
                    return Err(error.into());
                }
            }
            answer => return answer,
        }
    }
}

impl Plan {
    /// The shared session, if it suffices and is open.
    fn at_hand(&self, many: bool) -> Option<(Handle, OwnerId)> {
        let shared = !many && !self.is_alone();
        let handle = shared.then(|| self.locks.pool.usable())??;
        own(Ok(handle)).ok()
    }

    /// The session of the acquisition, and its owner there. A waiting acquisition bears with an unavailable store.
    async fn session(&self, many: bool) -> Result<(Handle, OwnerId), Stop> {
        tokio::select! {
            biased;
            () = self.seen.left() => Err(Stop::Cancelled),
            // The caller has its own answer.
            () = self.is_over() => Err(Stop::Cancelled),
            session = self.opened(many) => Ok(session?),
        }
    }

    async fn opened(&self, many: bool) -> Result<(Handle, OwnerId), AcquireError> {
        let core = &self.locks.core;
        let open = || async {
            match &self.owner {
                Some(owner) => owner.bind().await,
                None if many || self.intent.is_some() || self.own_session => {
                    own(pool::alone(core).await)
                }
                None => own(self.locks.pool.shared(core).await),
            }
        };
        bears(core, self.wait.is_some(), open).await
    }

    /// Resolves when the caller's wait has ended.
    async fn is_over(&self) {
        match self.wait.flatten() {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Runs to the end; `_counted` is held until then.
    pub(crate) async fn run<Counted>(self: Arc<Self>, _counted: Counted) -> Answer {
        let result = pin!(self.result());
        AssertUnwindSafe(result).catch_unwind().await.transpose()
    }

    /// The result; `None` if nobody waits for it.
    async fn result(&self) -> Option<Result<Undelivered, AcquireError>> {
        let mut first = true;
        loop {
            return match self.once().await {
                // A session that an operator has revoked, say, is replaced once.
                Err(Stop::NotBegun) if first && self.owner.is_none() => {
                    first = false;
                    continue;
                }
                Err(Stop::NotBegun) => Some(Err(AcquireError::Lost)),
                Err(Stop::Failed(error)) => Some(Err(error)),
                Err(Stop::Cancelled) => None,
                Ok(guard) => Some(Ok(Undelivered::new(guard))),
            };
        }
    }

    /// Whether no other task of the process may share the grant.
    fn is_alone(&self) -> bool {
        self.owner.is_some() || self.intent.is_some() || self.own_session
    }

    /// A share that this process already has, unless an earlier waiter of the process waits for its end.
    fn joined(&self) -> Option<Guard> {
        match &*self.claims {
            [claim] if !self.is_alone() => {
                let pass = self.locks.core.queues.join(claim)?;
                Some(self.handed_on(pass))
            }
            _ => None,
        }
    }

    /// The guard of a grant that another task of this process has, or had.
    fn handed_on(&self, pass: Pass) -> Guard {
        let guard = Guard::new(&self.locks.core, pass, false);
        let of = self.claims.len();
        self.observe(&Progress::Granted { claims: of, of });
        guard
    }

    fn observe(&self, progress: &Progress<'_>) {
        if let Some(observer) = &self.observer {
            observer(progress.clone());
        }
    }

    async fn once(&self) -> Result<Guard, Stop> {
        let core = &self.locks.core;
        let many = many_batches(&self.claims, &core.info);
        let (handle, owner) = match self.at_hand(many) {
            Some(session) => session,
            None => Box::pin(self.session(many)).await?,
        };
        if let Some(guard) = self.joined() {
            return Ok(guard);
        }
        let mut taking = Taking {
            plan: self,
            core,
            owner,
            by_close: many && self.owner.is_none(),
            grants: Vec::new(),
            token: None,
            in_doubt: false,
            unknown: None,
            kept: None,
            patience: Patience::default(),
            handle,
        };
        let taken = taking.take().await;
        if taken.is_err() {
            taking.undo().await;
        }
        taken
    }
}

/// A session with a new owner.
fn own(handle: crate::Result<Handle>) -> Result<(Handle, OwnerId), AcquireError> {
    let handle = handle?;
    let owner = handle.session.owner();
    Ok((handle, owner))
}

/// Whether the claims need more than ten batches.
fn many_batches(claims: &[Claim], info: &Info) -> bool {
    let mut at = 0;
    for _ in 0..BATCHES_IN_SHARED_SESSION {
        at += batch_len(&claims[at..], info);
        if at == claims.len() {
            return false;
        }
    }
    true
}
