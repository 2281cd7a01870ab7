//! [`Guard`] and [`Held`]: a held lock.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::chain::{Chain, Pass, Taken};
use crate::client::clock::{after, now, sleep_awake_until, sleep_until};
use crate::client::core::Core;
use crate::client::error::InputError;
use crate::client::keeper::release_each;
use crate::client::kept::{KeepError, Kept, check_ttl};
use crate::client::lost::LostReason;
use crate::client::order::{Beside, Keep, Left, Order, Released};
use crate::client::owner::Owner;
use crate::client::queue::Offer;
use crate::client::session::Handle;
use crate::client::telemetry::{self, Since};
use crate::{
    Claim, Error, ErrorKind, FencingToken, Grant, Note, Operation, OwnerId, Result, SessionId,
};

/// What can be asked of a held lock. A [`Guard`] derefs to it, and the work inside [`run`](crate::Acquisition::run)
/// shares it. A `Held` by itself keeps nothing held.
pub struct Held {
    pub(super) core: Arc<Core>,
    pub(super) chain: Arc<Chain>,
    /// How many other guards of this process had the grant before.
    pass: u8,
    /// The lock was given back, or a confirmation said that it is no longer held.
    gone: AtomicBool,
    /// The lock is on its way back to the store or to another task.
    left: AtomicBool,
    /// The owner for re-entry, if the lock has none of its own in the store.
    owner: OnceLock<OwnerId>,
    /// The longest time that it is held.
    limit: OnceLock<Limit>,
}

/// The longest time that a lock is held.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Nine tenths of the time have passed.
    nearly: Instant,
    end: Instant,
}

impl Held {
    /// The fencing token. It never changes: 64 times the greatest token of the lock's grants, plus one for each guard
    /// of this process that had them before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.chain.token(self.pass)
    }

    /// The session that holds the lock.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.chain.id()
    }

    /// The owner of the lock. With it, other acquisitions re-enter the document and tree locks in the same session, for
    /// as long as the guard lives. Once the lock is given back, the owner is one that holds nothing. A lock to [read](crate::RwLock::read) does not belong to its owner, because other
    /// tasks may share it; one that was acquired with an [owner](crate::Acquisition::owner) does.
    #[must_use]
    pub fn owner(&self) -> Owner {
        let session = &self.chain.session;
        let is_its_own = !self.chain.is_shared() && {
            // It stays with whoever re-enters it; once it is on its way to another task, nobody re-enters it.
            self.chain.keep();
            !self.left.load(Ordering::SeqCst)
        };
        let owner = match is_its_own {
            true => self.chain.taken.owner,
            false => *self.owner.get_or_init(|| session.session.owner()),
        };
        Owner::of_guard(&self.core, session, owner)
    }

    /// The held claims: one for each key, in path order.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.chain.taken.claims
    }

    /// The grants that hold the lock, each with its claims, so that a store can confirm them in its own way (inside a
    /// transaction of the program, for example). Once the lock is given back, the claims are under number 0, which holds
    /// nothing, so that no store confirms them. From now on the lock goes back to the store before another task of this
    /// process has it, because the transaction may outlive the guard.
    pub fn grants(&self) -> impl Iterator<Item = (Grant, &[Claim])> {
        self.chain.keep();
        // Who hands it on leaves, and then looks whether it is kept.
        let is_here = !self.gone.load(Ordering::Acquire) && !self.left.load(Ordering::SeqCst);
        self.all_grants().map(move |(grant, claims)| match is_here {
            true => (grant, claims),
            false => (Grant { n: 0, ..grant }, claims),
        })
    }

    /// The numbers of these grants in the [session](Self::session), as lists show them.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.chain.numbers()
    }

    fn all_grants(&self) -> impl Iterator<Item = (Grant, &[Claim])> {
        let (chain, session) = (&self.chain, self.session());
        let claims = |range: &Range<usize>| &chain.taken.claims[range.clone()];
        let grants = chain.taken.grants.iter();
        grants.map(move |(n, range)| (Grant { session, n: *n }, claims(range)))
    }

    /// Whether the lock is certainly still held. Checks, without asking the store, that the deadline lies ahead. Once
    /// it is `false` it stays `false`.
    ///
    /// A process that is paused between this call and its write cannot know. Only a resource that checks the
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

    /// The time until which the lock is valid if no further renewal is acknowledged; now, if it is no longer valid. It
    /// is counted from before the last acknowledged renewal was sent: the TTL less a margin of 1 %, at least 250 ms. It
    /// is never later than the end of [`max_hold`](crate::Acquisition::max_hold).
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

    /// Resolves when nine tenths of the [`max_hold`](crate::Acquisition::max_hold) have passed; never without one. A
    /// program that works in portions stops here, gives the lock back and acquires it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if there is a `max_hold`.
    pub async fn nearly_over(&self) {
        match self.limit.get() {
            Some(limit) => sleep_awake_until(limit.nearly).await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the lock is lost, at the deadline at the latest, even if the store hangs. Returns the reason, and
    /// who broke the lock if somebody did. If an operator breaks it, this resolves within a second where the store
    /// pushes wake-ups; elsewhere with the next renewal, within 10 s. A release does not resolve it,
    /// unless a session of the lock's own ends with it: of many documents, of one with an intent, of a leadership.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
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

    /// Resolves when an operator or another program has [asked](crate::Locks::ask) for the lock, with the reason and the
    /// author. The lock stays held and valid. A program that can stop here finishes what it is doing and gives the lock
    /// back. It is notified as of an eviction: within a second where the store pushes, elsewhere within 10 s. Once
    /// somebody has asked, the lock is not handed on within the process.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockcore::{Label, LockKey, Locks, MemoryBackend};
    ///
    /// let locks = Locks::builder(MemoryBackend::new()).build()?;
    /// let guard = locks.lock("reindex").acquire().await?;
    /// let key = LockKey::parse("reindex")?;
    /// assert_eq!(locks.ask(&key, Label::parse("maintenance at six")?).await?, 1);
    /// assert_eq!(guard.asked().await.reason.as_str(), "maintenance at six");
    /// assert!(guard.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn asked(&self) -> Note {
        self.is_asked(None).await
    }

    /// Resolves when somebody has asked again, with a note other than the last that the program has heard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn asked_again(&self, last: &Note) -> Note {
        self.is_asked(Some(last)).await
    }

    async fn is_asked(&self, last: Option<&Note>) -> Note {
        let session = &self.chain.session.session;
        session.is_asked(self.chain.numbers(), last).await
    }

    /// Asks the store whether the lock is still held: a guarded write, not a read. After `false` the lock is no longer
    /// [valid](Self::is_valid). For a lock that is large enough to have a session of its own, the session and the last of
    /// its grants are confirmed: a store that has lost something has lost that.
    ///
    /// # Errors
    ///
    /// The store failed: the lock may be held or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn confirm(&self) -> Result<bool> {
        if !self.is_valid() {
            self.is_gone().await;
            return Ok(false);
        }
        let held = match self.chain.taken.by_close {
            true => self.renew().await? && self.confirm_each(self.all_grants().last()).await?,
            false => self.confirm_each(self.all_grants()).await?,
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
        self.end();
        // The session's death is the likely reason, and its other guards should know, if that is to be had now.
        let _ = tokio::time::timeout(WHY, self.renew()).await;
    }

    async fn confirm_each<'a>(
        &self,
        grants: impl IntoIterator<Item = (Grant, &'a [Claim])>,
    ) -> Result<bool> {
        for (grant, claims) in grants {
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
        tokio::select! {
            biased;
            renewed = renewed => renewed.map_err(|_| keeper_gone(&self.core, Operation::Confirm)),
            () = sleep_until(self.core.keeper_answers()) => {
                let what = "no renewal was acknowledged in time: the lock may be held or not";
                let (kind, name) = (ErrorKind::Indeterminate, self.core.info.name);
                Err(Error::new(kind, name, Operation::Confirm, what))
            }
        }
    }
}

/// How long somebody who has his answer waits for the reason.
const WHY: Duration = Duration::from_secs(1);

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

/// The lock was no longer held. The likely reason is the session's death; the renewal finds out, for [`Held::lost`].
fn ask_why(handle: &Handle) {
    let (done, _) = oneshot::channel();
    handle.order(Order::Renew(done));
}

/// The keeper's task has ended with its runtime.
fn keeper_gone(core: &Core, operation: Operation) -> Error {
    let what = "the runtime in which the session was opened is gone: its locks end when it is due";
    Error::new(ErrorKind::Indeterminate, core.info.name, operation, what)
}

/// A held lock. Dropping it gives the lock back in the background; [`release`](Self::release) also tells what became of
/// it.
///
/// With an intent, **only `release` says that the change is finished**. Dropping the guard, also by a panic, closes its
/// session and leaves the intent for the next holder to recover.
///
/// Dropping never blocks, spawns or panics, on any thread, with a runtime or without.
#[must_use = "dropping a guard gives the lock back at once"]
pub struct Guard {
    held: Arc<Held>,
    /// Keeps the session open.
    handle: Handle,
    at_drop: AtDrop,
    since: Since,
    /// The task that enforces the longest hold ends when this is dropped.
    bound: Option<oneshot::Sender<()>>,
}

/// What dropping a guard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtDrop {
    /// The lock goes to others of this process, or back to the store.
    Release,
    /// The lock goes back to the store.
    Back,
    LeaveIntent,
    /// The release is on its way.
    Nothing,
}

impl Guard {
    pub(crate) fn new(core: &Arc<Core>, pass: Pass, intent: bool) -> Self {
        core.telemetry.guard(pass.number > 0);
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
            since: core.telemetry.since(),
            bound: None,
        }
    }

    /// Limits the hold to this time from now.
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

    /// The held lock, to share with the work done under it.
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Gives the lock back to the store, hands it on to the next task of this process that waits for the same, or
    /// leaves it to the tasks that share it. Returns what became of it. An intent is removed first; the locks are freed
    /// once its removal is acknowledged.
    ///
    /// # Errors
    ///
    /// The store failed for longer than the client's patience. The lock is released, or will be when its session is
    /// closed or due. With an intent there is no such limit: the answer comes when the store has acknowledged the removal,
    /// or at the end of the lease.
    ///
    /// # Cancel safety
    ///
    /// From its first poll on the lock is given back all the same, and an intent is removed; only the answer is lost. A
    /// future that was never polled drops the guard.
    pub async fn release(self) -> Result<Released> {
        if !telemetry::IS_ON {
            return self.released().await;
        }
        let (core, session) = (Arc::clone(&self.held.core), self.handle.session.id);
        let released = self.released().await;
        core.telemetry.released(session, &released);
        released
    }

    async fn released(mut self) -> Result<Released> {
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

    /// Gives the guard up and leaves the lock held for this time from now on, without a process: nobody renews it, and
    /// it ends by itself. The time is at least the store's shortest TTL, and at most 24 h. The lock has to have a
    /// [session of its own](crate::Acquisition::own_session), and no intent.
    ///
    /// The result is the [handle](Kept) by which any process can renew it or release it. A
    /// [shutdown](crate::Locks::shutdown) leaves it held.
    ///
    /// If the store loses its last writes in a failover, the lock may be free earlier.
    ///
    /// # Errors
    ///
    /// [`KeepError`]: the lock cannot be kept, and is given back; it was lost; or the store failed for longer than the
    /// client's patience, or until the end of the lease.
    ///
    /// # Cancel safety
    ///
    /// From its first poll on the lock is kept all the same; only the answer is lost. A future that was never polled drops
    /// the guard.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use lockcore::{KeptState, Locks, MemoryBackend};
    ///
    /// let locks = Locks::builder(MemoryBackend::new()).build()?;
    /// let guard = locks.lock("deploy").own_session().acquire().await?;
    /// let handle = guard.keep_for(Duration::from_secs(3_600)).await?.to_string();
    /// assert!(locks.lock("deploy").try_acquire().await?.acquired().is_none());
    /// assert_eq!(locks.release_kept(&handle.parse()?).await?, KeptState::Held);
    /// assert!(locks.lock("deploy").try_acquire().await?.acquired().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn keep_for(self, time: Duration) -> std::result::Result<Kept, KeepError> {
        let core = Arc::clone(&self.held.core);
        check_ttl(&core, time.max(core.info.min_ttl))?;
        if self.at_drop != AtDrop::Release || !self.held.chain.taken.own_session {
            return Err(InputError::NotKeepable.into());
        }
        if !self.held.is_valid() {
            return Err(KeepError::Lost);
        }
        let session = self.session();
        let (granted, next, incarnation) = {
            let numbers = self.handle.session.numbers();
            (numbers.granted(), numbers.next(), numbers.incarnation())
        };
        let (token, secret) = (self.token(), Kept::secret(core.random()));
        let left = self.keep_until(after(time), Kept::first(secret)).await;
        match left.map_err(|_| keeper_gone(&core, Operation::Renew))?? {
            Left::Kept => Ok(Kept {
                session,
                secret,
                granted,
                next,
                incarnation,
                token,
            }),
            Left::NotHeld => Err(KeepError::Lost),
            Left::Shared => Err(InputError::SharedSession.into()),
        }
    }

    /// The number under which a lock that nobody has a handle of is kept: no process renews it, as those who look at it see.
    pub(crate) fn kept_under(&self) -> u64 {
        Kept::first(Kept::secret(self.held.core.random()))
    }

    /// Leaves the lock, which can be kept, until then. The answer comes whether anybody waits for it or not.
    pub(crate) fn keep_until(
        mut self,
        until: Instant,
        seq: u64,
    ) -> oneshot::Receiver<Result<Left>> {
        let (done, left) = oneshot::channel();
        self.at_drop = AtDrop::Nothing;
        if self.held.leaves() {
            self.held.end();
            self.handle.order(Order::Keep(Keep {
                until,
                seq,
                release: self.held.chain.release(false, None),
                done,
            }));
        }
        left
    }

    /// Leaves the lock to other tasks of this process, which share it or wait for the same. The store is not told.
    /// Returns whether there are any; if not, the lock goes back to the store.
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

    /// Hands the lock on to the next waiter of this process that wants the same. Returns whether there is one.
    fn hand_on(&self, now: Instant) -> bool {
        let Held {
            core, chain, pass, ..
        } = &*self.held;
        if core.queues.is_idle() || !chain.goes_on(*pass, now) || !self.held.is_valid_at(now) {
            return false;
        }
        // Before the next one has it; and not, if it was given back just now because it was held for too long.
        let next = || {
            let is_first = self.held.leaves() && !chain.is_kept();
            self.held.end();
            is_first.then(|| Offer::after(&core.queues, chain, &self.handle, *pass))
        };
        core.queues.offer(&chain.taken.claims, next)
    }

    /// The common case, without the detour through the keeper. If it is cancelled or fails, dropping the guard hands
    /// the release to the keeper.
    async fn release_here(mut self) -> Result<Released> {
        let core = &self.held.core;
        let Taken { claims, grants, .. } = &self.held.chain.taken;
        let session = &self.handle.session;
        self.held.leaves(); // A release that is late would free whoever has it then.
        // Before the first byte: the next holder may be granted it before the answer is here.
        self.held.end();
        let released = release_each(core, session, claims, grants).await?;
        for (n, _) in grants {
            session.numbers().end(*n);
        }
        core.given_back(session.id, grants, claims);
        self.at_drop = AtDrop::Nothing;
        if released == Released::NotHeld {
            ask_why(&self.handle);
        }
        Ok(released)
    }

    /// After the work failed: leaves an intent behind; otherwise gives the lock back and waits for that.
    pub(crate) async fn after_failure(self) {
        if self.at_drop == AtDrop::Release {
            // What became of the lock matters less than why the work failed.
            drop(self.release().await);
        }
    }

    /// Gives the lock back, with its intent.
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
        self.end();
        handle.order(Order::Release(self.chain.release(with_intent, done)));
    }

    /// The program does not believe in it any more.
    fn end(&self) {
        let is_first = !self.gone.swap(true, Ordering::AcqRel);
        if is_first && self.limit.get().is_some_and(|limit| now() >= limit.end) {
            let telemetry = &self.core.telemetry;
            telemetry.lost(self.session(), None, &LostReason::TooLong);
        }
    }

    /// The lock goes back to the store or to another task: only the first call decides which.
    fn leaves(&self) -> bool {
        !self.left.swap(true, Ordering::SeqCst)
    }

    /// The same for one task of several. Returns whether no other task of this process has the lock, so that it goes
    /// back to the store.
    fn leaves_last(&self) -> bool {
        self.end();
        self.leaves() && self.chain.leave()
    }

    /// Ends the session and leaves its intent.
    fn order_abandon(&self, handle: &Handle) {
        // Others of the session, too, believe nothing any more before its close is sent.
        handle.session.die();
        self.end();
        handle.order(Order::Abandon);
    }
}

/// Enforces the longest hold of a guard.
struct Bound {
    held: Weak<Held>,
    end: Instant,
    leaves_intent: bool,
    gone: oneshot::Receiver<()>,
}

impl Bound {
    /// Gives the lock back one TTL after the end of its longest hold, of which the program was notified, unless the
    /// program has given it back.
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
        self.held.core.telemetry.guard_ends(self.since);
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

/// A guard on its way to its caller. If it does not arrive, the change never began, so the intent is removed as well.
#[derive(Debug)]
pub(crate) struct Undelivered(Option<Guard>);

impl Undelivered {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(Some(guard))
    }

    /// Delivers it to its caller, with the longest time it may be held.
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
