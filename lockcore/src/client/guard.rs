//! [`Guard`] and [`Held`]: what a program has while it holds.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::clock::{after, now, sleep_awake_until};
use crate::client::core::Core;
use crate::client::keeper::release_each;
use crate::client::lost::LostReason;
use crate::client::order::{Beside, Order, Release, Released};
use crate::client::owner::Owner;
use crate::client::session::{Handle, WeakHandle};
use crate::{Claim, Error, ErrorKind, FencingToken, Grant, Operation, OwnerId, Result, SessionId};

/// Everything that can be asked of something held: by its [`Guard`], which it derefs from, and by whoever shares it
/// inside [`run`](crate::Acquisition::run). It keeps nothing held by itself.
pub struct Held {
    core: Arc<Core>,
    session: WeakHandle,
    owner: OwnerId,
    token: FencingToken,
    claims: Arc<[Claim]>,
    grants: Vec<(u64, Range<usize>)>,
    by_close: bool,
    /// Given back, or a confirmation said that it is not held any more.
    gone: AtomicBool,
    /// How long it may be held.
    limit: OnceLock<Limit>,
}

/// How long something may be held.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Nine tenths of the time are over.
    nearly: Instant,
    end: Instant,
}

impl Held {
    /// The fencing token: the greatest of its grants', fixed when it was handed out.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The session that holds it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.session.id
    }

    /// Its owner, to re-enter its document and tree locks in the same session, as long as the guard lives.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::of_guard(&self.core, &self.session, self.owner)
    }

    /// What is held: one claim for each key, in path order.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The grants that hold it, each with its claims: for a store that can confirm them in its own way, such as inside a
    /// transaction of the program's.
    pub fn grants(&self) -> impl Iterator<Item = (Grant, &[Claim])> {
        let session = self.session();
        self.grants
            .iter()
            .map(move |(n, range)| (Grant { session, n: *n }, &self.claims[range.clone()]))
    }

    /// Whether it is certainly still held, without asking the store: the deadline is ahead. From the moment it says
    /// `false` it does so for good.
    ///
    /// A process that is paused after this and before its write cannot know; only a resource that checks the
    /// [token](Self::token) is safe from that.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let session = &self.session.session;
        !self.gone.load(Ordering::Acquire)
            && session.is_valid()
            && session.evicted(self.numbers()).is_none()
            && self.limit.get().is_none_or(|limit| now() < limit.end)
    }

    fn numbers(&self) -> impl Iterator<Item = u64> + Clone {
        self.grants.iter().map(|(n, _)| *n)
    }

    /// Until when it is valid if no further renewal is acknowledged; now, if it is not valid any more. Counted from
    /// before the last acknowledged renewal was sent: the TTL less a margin of 1 %, at least 250 ms. It is not later than
    /// the end of [`max_hold`](crate::Acquisition::max_hold).
    #[must_use]
    pub fn deadline(&self) -> std::time::Instant {
        (tokio::time::Instant::now() + self.remaining()).into_std()
    }

    /// The time until the [deadline](Self::deadline).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        let remaining = self.session.session.remaining();
        match self.limit.get() {
            Some(limit) => remaining.min(limit.end.saturating_duration_since(now())),
            None => remaining,
        }
    }

    /// Resolves when nine tenths of its [`max_hold`](crate::Acquisition::max_hold) are over; never without one. A program
    /// that works in portions ends here, gives it back and asks again.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn nearly_over(&self) {
        match self.limit.get() {
            Some(limit) => sleep_awake_until(limit.nearly).await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when it is lost, at the deadline at the latest, even if the store hangs; and says why, and who broke it if
    /// somebody did. What an operator breaks is heard of within a second where the store pushes wake-ups, and else with the
    /// next renewal, within 10 s. It does not resolve by a release.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn lost(&self) -> LostReason {
        let lost = self.session.session.lost(self.numbers());
        let Some(limit) = self.limit.get() else {
            return lost.await;
        };
        tokio::select! {
            biased;
            why = lost => why,
            () = sleep_awake_until(limit.end) => LostReason::TooLong,
        }
    }

    /// Asks the store whether it is still held: a guarded write, not a read. After `false` it is not
    /// [valid](Self::is_valid) any more. Something large enough to have a session of its own is confirmed by its
    /// session alone.
    ///
    /// # Errors
    ///
    /// The store failed: it may be held or not.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn confirm(&self) -> Result<bool> {
        let held = self.is_valid()
            && if self.by_close {
                self.renew().await?
            } else {
                self.confirm_each().await?
            };
        if !held {
            self.gone.store(true, Ordering::Release);
            // The session's death is the likely reason, and its other guards should know.
            let _ = self.renew().await;
        }
        Ok(held && self.is_valid())
    }

    async fn confirm_each(&self) -> Result<bool> {
        for (grant, claims) in self.grants() {
            if !self.core.backend.confirm(grant, claims).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn renew(&self) -> Result<bool> {
        let Some(handle) = self.session.upgrade() else {
            return Ok(false);
        };
        let (done, renewed) = oneshot::channel();
        handle.order(Order::Renew(done));
        renewed
            .await
            .map_err(|_| keeper_gone(&self.core, Operation::Confirm))
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("claims", &self.claims.len())
            .field("valid", &self.is_valid())
            .finish()
    }
}

/// It was not held any more: the session's death is the likely reason, and [`Held::lost`] tells it.
fn ask_why(handle: &Handle) {
    let (done, _) = oneshot::channel();
    handle.order(Order::Renew(done));
}

/// The keeper's task is gone, with its runtime.
fn keeper_gone(core: &Core, operation: Operation) -> Error {
    let what = "the runtime in which the session was opened is gone: its locks end when it is due";
    Error::new(ErrorKind::Indeterminate, core.info.name, operation, what)
}

/// Something held. Dropping it gives it back in the background; [`release`](Self::release) says what became of it.
///
/// With an intent, **only `release` says that the change is finished**: a guard that is dropped, by a panic too,
/// closes its session and leaves the intent for whoever comes next.
///
/// Dropping never blocks, spawns or panics, on any thread, with a runtime or without.
#[must_use = "dropping a guard gives the lock back at once"]
pub struct Guard {
    held: Arc<Held>,
    /// Keeps the session.
    handle: Handle,
    in_doubt: bool,
    at_drop: AtDrop,
    /// Whoever looks after its longest hold stops when this goes.
    bound: Option<oneshot::Sender<()>>,
}

/// What dropping a guard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtDrop {
    Release,
    LeaveIntent,
    /// Its release is on its way.
    Nothing,
}

impl Guard {
    #[expect(clippy::too_many_arguments, reason = "one caller, which has all of it")]
    pub(crate) fn new(
        core: &Arc<Core>,
        handle: Handle,
        owner: OwnerId,
        token: FencingToken,
        claims: Arc<[Claim]>,
        grants: Vec<(u64, Range<usize>)>,
        in_doubt: bool,
        by_close: bool,
        intent: bool,
    ) -> Self {
        let session = handle.downgrade();
        let gone = AtomicBool::new(false);
        let held = Held {
            core: Arc::clone(core),
            session,
            owner,
            token,
            claims,
            grants,
            by_close,
            gone,
            limit: OnceLock::new(),
        };
        let at_drop = if intent {
            AtDrop::LeaveIntent
        } else {
            AtDrop::Release
        };
        Self {
            held: Arc::new(held),
            handle,
            in_doubt,
            at_drop,
            bound: None,
        }
    }

    /// From now on it is held for so long at most.
    fn bind(&mut self, longest: Duration) {
        let limit = Limit {
            nearly: after(longest / 10 * 9),
            end: after(longest),
        };
        let (guard, gone) = oneshot::channel();
        if self.held.limit.set(limit).is_ok() {
            self.bound = Some(guard);
            let bound = Bound {
                held: Arc::downgrade(&self.held),
                end: limit.end,
                leaves_intent: self.at_drop == AtDrop::LeaveIntent,
                in_doubt: self.in_doubt,
                gone,
            };
            self.handle.order(Order::Run(Beside(Box::pin(bound.run()))));
        }
    }

    /// What is held, to be shared with the work that is done meanwhile.
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Gives it back, and says what became of it. An intent is removed first, and the locks go when that is
    /// acknowledged.
    ///
    /// # Errors
    ///
    /// The store failed for longer than the client's patience: it is released, or will be when the session is closed
    /// or due.
    ///
    /// # Cancel safety
    ///
    /// It is given back all the same; only the answer is lost. An intent is removed all the same.
    pub async fn release(self) -> Result<Released> {
        let was_held = self.held.is_valid();
        if !was_held && self.at_drop == AtDrop::LeaveIntent {
            return Ok(Released::NotHeld); // Dropping it leaves the intent, which has its locks.
        }
        if was_held && self.at_drop == AtDrop::Release && !self.held.by_close && !self.in_doubt {
            return self.release_here().await;
        }
        let (done, released) = oneshot::channel();
        let (held, handle) = (self.held(), self.handle.clone());
        self.give_back(Some(done));
        let gone = |_| keeper_gone(&held.core, Operation::Release);
        let released = released.await.map_err(gone)?;
        if matches!(released, Ok(Released::NotHeld)) {
            ask_why(&handle);
        }
        // What was told to be lost stays so, even if nobody has taken it.
        if was_held {
            released
        } else {
            Ok(Released::NotHeld)
        }
    }

    /// The common case, without the way to the keeper and back. If it is cancelled or fails, dropping the guard hands
    /// it to the keeper after all.
    async fn release_here(mut self) -> Result<Released> {
        let Held {
            core,
            claims,
            grants,
            ..
        } = &*self.held;
        let session = &self.handle.session;
        let released = release_each(core, session, claims, grants).await?;
        for (n, _) in grants {
            session.numbers().end(*n);
        }
        core.given_back(claims);
        self.held.gone.store(true, Ordering::Release);
        self.at_drop = AtDrop::Nothing;
        if released == Released::NotHeld {
            ask_why(&self.handle);
        }
        Ok(released)
    }

    /// The work failed: an intent is left behind, anything else is given back, which is waited for.
    pub(crate) async fn after_failure(self) {
        if self.at_drop == AtDrop::Release {
            // What became of the lock matters less than why the work failed.
            drop(self.release().await);
        }
    }

    /// Gives it back with its intent.
    fn give_back(mut self, done: Option<oneshot::Sender<Result<Released>>>) {
        self.order_release(done);
        self.at_drop = AtDrop::Nothing;
    }

    fn order_release(&self, done: Option<oneshot::Sender<Result<Released>>>) {
        let with_intent = self.at_drop == AtDrop::LeaveIntent;
        self.held
            .order_release(&self.handle, with_intent, self.in_doubt, done);
    }
}

impl Held {
    fn order_release(
        &self,
        handle: &Handle,
        with_intent: bool,
        in_doubt: bool,
        done: Option<oneshot::Sender<Result<Released>>>,
    ) {
        self.gone.store(true, Ordering::Release);
        handle.order(Order::Release(Release {
            claims: Arc::clone(&self.claims),
            grants: self.grants.clone(),
            with_intent,
            in_doubt,
            by_close: self.by_close,
            done,
        }));
    }

    /// Ends the session, and leaves its intent.
    fn order_abandon(&self, handle: &Handle) {
        // Others of the session, too, believe nothing any more before its close is sent.
        handle.session.die();
        self.gone.store(true, Ordering::Release);
        handle.order(Order::Abandon);
    }
}

/// Looks after a guard with a longest hold.
struct Bound {
    held: Weak<Held>,
    end: Instant,
    leaves_intent: bool,
    in_doubt: bool,
    gone: oneshot::Receiver<()>,
}

impl Bound {
    /// Gives it back a TTL after its end, which its program was told of, unless that has given it back.
    async fn run(self) {
        let Some(ttl) = self.held.upgrade().map(|held| held.core.config.ttl) else {
            return;
        };
        tokio::select! {
            biased;
            _ = self.gone => return,
            () = sleep_awake_until(self.end.checked_add(ttl).unwrap_or(self.end)) => {}
        }
        let Some(held) = self.held.upgrade() else {
            return;
        };
        let Some(handle) = held.session.upgrade() else {
            return;
        };
        match self.leaves_intent {
            true => held.order_abandon(&handle),
            false => held.order_release(&handle, false, self.in_doubt, None),
        }
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        match self.at_drop {
            AtDrop::Release => self.order_release(None),
            AtDrop::LeaveIntent => self.held.order_abandon(&self.handle),
            AtDrop::Nothing => {}
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("held", &self.held)
            .field("at_drop", &self.at_drop)
            .finish_non_exhaustive()
    }
}

/// A guard on its way to its caller. If it does not arrive its change never began, so its intent goes as well.
#[derive(Debug)]
pub(crate) struct Undelivered(Option<Guard>);

impl Undelivered {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(Some(guard))
    }

    /// To its caller, who may hold it for so long.
    pub(crate) fn deliver(mut self, max_hold: Option<Duration>) -> Guard {
        let mut guard = self.0.take().expect("delivered once");
        if let Some(longest) = max_hold {
            guard.bind(longest);
        }
        guard
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.give_back(None);
        }
    }
}
