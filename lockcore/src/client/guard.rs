//! [`Guard`] and [`Held`]: what a program has while it holds.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::chain::{Chain, Pass, Taken};
use crate::client::clock::{after, now, sleep_awake_until};
use crate::client::core::Core;
use crate::client::keeper::release_each;
use crate::client::lost::LostReason;
use crate::client::order::{Beside, Order, Released};
use crate::client::owner::Owner;
use crate::client::queue::Offer;
use crate::client::session::Handle;
use crate::{Claim, Error, ErrorKind, FencingToken, Grant, Operation, OwnerId, Result, SessionId};

/// Everything that can be asked of something held: by its [`Guard`], which it derefs from, and by whoever shares it
/// inside [`run`](crate::Acquisition::run). It keeps nothing held by itself.
pub struct Held {
    core: Arc<Core>,
    chain: Arc<Chain>,
    /// How many others of this process have had the grant before.
    pass: u8,
    /// Given back, or a confirmation said that it is not held any more.
    gone: AtomicBool,
    /// It is on its way back to the store, or to another one.
    left: AtomicBool,
    /// To re-enter, where it has none of its own in the store.
    owner: OnceLock<OwnerId>,
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
    /// The fencing token, fixed when it was handed out: 64 times the greatest of its grants', and one more for each other guard
    /// of this process that had them before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.chain.token(self.pass)
    }

    /// The session that holds it.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.chain.id()
    }

    /// Its owner, to re-enter its document and tree locks in the same session, as long as the guard lives. A lock to
    /// [read](crate::RwLock::read) is not the owner's, for other tasks may have it, too; one that was acquired with an
    /// [owner](crate::Acquisition::owner) is.
    #[must_use]
    pub fn owner(&self) -> Owner {
        let session = &self.chain.session;
        let owner = if self.chain.is_shared() {
            *self.owner.get_or_init(|| session.session.owner())
        } else {
            // It stays with whoever re-enters it.
            self.chain.keep();
            self.chain.taken.owner
        };
        Owner::of_guard(&self.core, session, owner)
    }

    /// What is held: one claim for each key, in path order.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.chain.taken.claims
    }

    /// The grants that hold it, each with its claims: for a store that can confirm them in its own way, such as inside a
    /// transaction of the program's. None, when it is given back.
    pub fn grants(&self) -> impl Iterator<Item = (Grant, &[Claim])> {
        let is_here = !self.gone.load(Ordering::Acquire);
        self.all_grants().filter(move |_| is_here)
    }

    fn all_grants(&self) -> impl Iterator<Item = (Grant, &[Claim])> {
        let (chain, session) = (&self.chain, self.session());
        let claims = |range: &Range<usize>| &chain.taken.claims[range.clone()];
        let grants = chain.taken.grants.iter();
        grants.map(move |(n, range)| (Grant { session, n: *n }, claims(range)))
    }

    /// Whether it is certainly still held, without asking the store: the deadline is ahead. From the moment it says
    /// `false` it does so for good.
    ///
    /// A process that is paused after this and before its write cannot know; only a resource that checks the
    /// [token](Self::token) is safe from that.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.is_valid_at(now())
    }

    fn is_valid_at(&self, now: Instant) -> bool {
        !self.gone.load(Ordering::Acquire)
            && self.chain.stands_at(now)
            && self.limit.get().is_none_or(|limit| now < limit.end)
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
        let remaining = self.chain.session.session.remaining();
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
        let lost = self.chain.lost();
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
        if !self.is_valid() {
            self.is_gone().await;
            return Ok(false);
        }
        let held = match self.chain.taken.by_close {
            true => self.renew().await?,
            false => self.confirm_each().await?,
        };
        if !held {
            // True for whoever has it by now, or as well.
            let _tells = self.chain.falls();
            self.core.queues.ended(&self.chain);
            self.is_gone().await;
        }
        Ok(held && self.is_valid())
    }

    async fn is_gone(&self) {
        self.gone.store(true, Ordering::Release);
        // The session's death is the likely reason, and its other guards should know.
        let _ = self.renew().await;
    }

    async fn confirm_each(&self) -> Result<bool> {
        for (grant, claims) in self.all_grants() {
            if !self.core.backend.confirm(grant, claims).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn renew(&self) -> Result<bool> {
        let Some(handle) = self.chain.session.upgrade() else {
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
            .field("owner", &self.chain.taken.owner)
            .field("token", &self.token())
            .field("claims", &self.chain.taken.claims.len())
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
    at_drop: AtDrop,
    /// Whoever looks after its longest hold stops when this goes.
    bound: Option<oneshot::Sender<()>>,
}

/// What dropping a guard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtDrop {
    /// It goes to others of this process, or back to the store.
    Release,
    /// It goes back to the store.
    Back,
    LeaveIntent,
    /// Its release is on its way.
    Nothing,
}

impl Guard {
    pub(crate) fn new(core: &Arc<Core>, pass: Pass, intent: bool) -> Self {
        let held = Held {
            core: Arc::clone(core),
            chain: pass.chain,
            pass: pass.number,
            gone: AtomicBool::new(false),
            left: AtomicBool::new(false),
            owner: OnceLock::new(),
            limit: OnceLock::new(),
        };
        let at_drop = if intent {
            AtDrop::LeaveIntent
        } else {
            AtDrop::Release
        };
        Self {
            held: Arc::new(held),
            handle: pass.handle,
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

    /// Gives it back, hands it on to the next task of this process that waits for the same, or leaves it to those who have the
    /// same share; and says what became of it.
    /// An intent is removed first, and the locks go when that is acknowledged.
    ///
    /// # Errors
    ///
    /// The store failed for longer than the client's patience: it is released, or will be when the session is closed
    /// or due.
    ///
    /// # Cancel safety
    ///
    /// It is given back all the same; only the answer is lost. An intent is removed all the same.
    pub async fn release(mut self) -> Result<Released> {
        let now = now();
        let was_held = self.held.is_valid_at(now);
        if !was_held && self.at_drop == AtDrop::LeaveIntent {
            return Ok(Released::NotHeld); // Dropping it leaves the intent, which has its locks.
        }
        if self.at_drop == AtDrop::Release {
            let Taken {
                by_close, in_doubt, ..
            } = self.held.chain.taken;
            if self.goes_to_others(now) {
                return Ok(match was_held {
                    true => Released::HandedOn,
                    false => Released::NotHeld,
                });
            }
            if was_held && !by_close && !in_doubt {
                return self.release_here().await;
            }
        }
        let (done, released) = oneshot::channel();
        let (core, handle) = (Arc::clone(&self.held.core), self.handle.clone());
        self.give_back(Some(done));
        let gone = |_| keeper_gone(&core, Operation::Release);
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

    /// Leaves it to others of this process, who have it as well or wait for the same: the store hears nothing of that. Whether
    /// there are any; if not, it goes back to the store.
    fn goes_to_others(&mut self, now: Instant) -> bool {
        let others_have_it = match self.held.chain.is_shared() {
            true => !self.held.leaves_last(),
            false => self.hand_on(now),
        };
        self.at_drop = match others_have_it {
            true => AtDrop::Nothing,
            false => AtDrop::Back,
        };
        others_have_it
    }

    /// Hands it on to the next of this process who waits for the same. Whether there is one.
    fn hand_on(&self, now: Instant) -> bool {
        let Held {
            core, chain, pass, ..
        } = &*self.held;
        if core.queues.is_idle() || !chain.goes_on(*pass, now) || !self.held.is_valid_at(now) {
            return false;
        }
        // Before the next one has it; and not, if it was given back just now because it was held for too long.
        let next = || {
            let is_first = self.held.leaves();
            self.held.gone.store(true, Ordering::Release);
            is_first.then(|| Offer::after(&core.queues, chain, &self.handle, *pass))
        };
        core.queues.offer(&chain.taken.claims, next)
    }

    /// The common case, without the way to the keeper and back. If it is cancelled or fails, dropping the guard hands
    /// it to the keeper after all.
    async fn release_here(mut self) -> Result<Released> {
        let core = &self.held.core;
        let Taken { claims, grants, .. } = &self.held.chain.taken;
        let session = &self.handle.session;
        self.held.leaves(); // A release that is late would free whoever has it then.
        let released = release_each(core, session, claims, grants).await?;
        for (n, _) in grants {
            session.numbers().end(*n);
        }
        core.given_back(session.id, grants, claims);
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
        self.held.order_release(&self.handle, with_intent, done);
    }
}

impl Held {
    fn order_release(
        &self,
        handle: &Handle,
        with_intent: bool,
        done: Option<oneshot::Sender<Result<Released>>>,
    ) {
        self.gone.store(true, Ordering::Release);
        handle.order(self.chain.release(with_intent, done));
    }

    /// It goes back to the store, or to another one: only whoever says so first decides which.
    fn leaves(&self) -> bool {
        !self.left.swap(true, Ordering::AcqRel)
    }

    /// The same; whether nobody else of this process has it, so that it goes back to the store.
    fn leaves_last(&self) -> bool {
        self.gone.store(true, Ordering::Release);
        self.leaves() && self.chain.leave()
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
        let Some(handle) = held.chain.session.upgrade() else {
            return;
        };
        match self.leaves_intent {
            true => held.order_abandon(&handle),
            false if held.leaves_last() => held.order_release(&handle, false, None),
            false => {} // It was given back or handed on just now, or others have it.
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
        if self.at_drop == AtDrop::Release {
            self.goes_to_others(now());
        }
        match self.at_drop {
            AtDrop::Release | AtDrop::Back => self.order_release(None),
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
        if let Some(guard) = self.0.take()
            && guard.at_drop == AtDrop::LeaveIntent
        {
            guard.give_back(None);
        }
    }
}
