//! Finishing or undoing the change of a dead holder: [`Recover`] and [`Recovery`].

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::client::adopting::Adopting;
use crate::client::clock::{now, sleep_until, timer};
use crate::client::core::Core;
use crate::client::error::{AcquireError, RecoverError};
use crate::client::lost::LostReason;
use crate::client::order::{Beside, GiveUp, Order};
use crate::client::retry::until_answered;
use crate::client::session::Handle;
use crate::{
    Adopt, Adopted, Adoption, End, Error, ErrorKind, FencingToken, Incarnation, Intent, Life,
    NoteKind, Operation, Result, SessionId, SessionState, Settled,
};

/// A recovery handler: it finishes or undoes the change of a dead holder before its locks are handed on.
#[async_trait]
pub trait Recover: Send + Sync {
    /// Rolls the change that [`Recovery::intent`] describes forward or back. After `Ok` the change is settled and its
    /// locks are free. After an error the adoption is given up, and the acquisition that met the change fails as
    /// [`Abandoned`](crate::AcquireError::Abandoned).
    ///
    /// It runs to its end on a task of its own, even if the acquisition that met the change has ended. That acquisition
    /// holds none of its own keys meanwhile.
    ///
    /// It runs at least once for each change, perhaps more often, but never twice at a time. It must use
    /// [`Recovery::token`] for its writes, because writes of the dead holder may still be on their way. It is stopped
    /// if this process's session is lost, the store fails over, or an operator discards the change, some five seconds later. A
    /// panic counts as an error.
    ///
    /// # Errors
    ///
    /// Whatever kept it from finishing.
    async fn recover(&self, recovery: &Recovery) -> std::result::Result<(), RecoverError>;
}

/// A dead holder's change that this process has adopted. Dropping it gives the adoption up in the background.
#[must_use = "dropping it gives the adoption up"]
pub struct Recovery {
    core: Arc<Core>,
    handle: Handle,
    /// The incarnation of the store that was asked. Another one may have forgotten the adoption.
    incarnation: Incarnation,
    state: SessionState,
    adoption: Adoption,
    /// Kept until it is acknowledged that the adoption is settled or given up.
    adopting: Option<Adopting>,
    over: Arc<Over>,
}

/// While somebody waits for the loss of a recovery, its change is looked at so often.
const LOOKS: Duration = Duration::from_secs(5);

/// Whether an adoption is over: its change is settled, discarded or adopted by another one.
struct Over {
    why: watch::Sender<Option<LostReason>>,
    next_look: Mutex<Instant>,
}

impl Over {
    fn next_look(&self) -> MutexGuard<'_, Instant> {
        let next = self.next_look.lock();
        next.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to look, for one of those who wait.
    fn looks(&self, core: &Core) -> bool {
        let mut next = self.next_look();
        let looks = now() >= *next;
        if looks {
            // Not all at once, where many were adopted at once.
            *next = now() + LOOKS - core.chance(LOOKS / 5);
        }
        looks
    }

    async fn look(self: Arc<Self>, core: Arc<Core>, session: SessionId, adoption: u64) {
        let Ok(states) = core.backend.end(&[session], End::IfDue).await else {
            return;
        };
        let Some(state) = states.into_iter().next() else {
            return;
        };
        if state.life != Life::Abandoned || state.adoption != adoption {
            let discarded = state.notes.last(NoteKind::Discard).map(Box::new);
            let why = discarded.map_or(LostReason::Forgotten, LostReason::Evicted);
            self.why.send_replace(Some(why));
        }
    }
}

/// A requested adoption. If nobody learns its outcome, it is given up.
struct Asked<'a> {
    handle: &'a Handle,
    seen: u64,
    /// The incarnation that the request is meant for.
    incarnation: Incarnation,
    adopting: Option<Adopting>,
}

impl<'a> Asked<'a> {
    /// `None` if another task is recovering the session.
    fn begin(
        core: &Core,
        handle: &'a Handle,
        state: &SessionState,
        incarnation: Incarnation,
    ) -> Option<Self> {
        Some(Self {
            handle,
            seen: state.adoption,
            incarnation,
            adopting: Some(Adopting::begin(&core.adopting, state.session)?),
        })
    }

    /// The outcome is known.
    fn settled(&mut self) -> Option<Adopting> {
        self.adopting.take()
    }

    /// Does nothing once the outcome is known.
    fn order_give_up(&mut self, done: Option<oneshot::Sender<Result<()>>>) {
        if let Some(adopting) = self.adopting.take() {
            let give_up = GiveUp {
                adopting,
                seen: self.seen,
                within: self.incarnation,
            };
            self.handle.order(Order::GiveUp(give_up, done));
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.order_give_up(None);
    }
}

impl Recovery {
    /// The adopted session, as it was before the adoption.
    #[must_use]
    pub fn session(&self) -> &SessionState {
        &self.state
    }

    /// The change that its holder was about to make.
    #[must_use]
    pub fn intent(&self) -> &Intent {
        &self.adoption.left.intent
    }

    /// The token of the dead guard.
    #[must_use]
    pub fn old_token(&self) -> FencingToken {
        self.adoption.left.token
    }

    /// The token for the writes of the recovery, greater than any before.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.adoption.token.handed_on(0)
    }

    /// Whether the adoption is this process's as far as it knows; as [`Held::is_valid`](crate::Held::is_valid). That an
    /// operator has discarded the change is known some five seconds later, while somebody waits for [`lost`](Self::lost), as
    /// whoever runs a [handler](Recover) does.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.over.why.borrow().is_none() && self.is_of_a_valid_session()
    }

    fn is_of_a_valid_session(&self) -> bool {
        let session = &self.handle.session;
        session.is_valid() && session.numbers().incarnation() == self.incarnation
    }

    /// The time until the adoption becomes invalid if no further renewal is acknowledged.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.is_valid() {
            true => self.handle.session.remaining(),
            false => Duration::ZERO,
        }
    }

    /// Resolves when this process's session is lost, or when the store has failed over and may have forgotten the
    /// adoption. Then somebody else may adopt. Also when an operator has discarded the change, some five seconds later: then
    /// its locks are free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn lost(&self) -> LostReason {
        let session = &self.handle.session;
        tokio::select! {
            biased;
            why = session.lost(std::iter::empty()) => why,
            () = session.moved(self.incarnation) => LostReason::Forgotten,
            why = self.over() => why,
        }
    }

    /// Resolves when the change is settled, discarded or adopted by another one. The keeper looks, so that a look ends whoever
    /// waits for it.
    async fn over(&self) -> LostReason {
        let mut why = self.over.why.subscribe();
        loop {
            let next = *self.over.next_look();
            tokio::select! {
                biased;
                why = why.wait_for(Option::is_some) => {
                    return why.ok().and_then(|why| why.clone()).unwrap_or(LostReason::Forgotten);
                }
                () = sleep_until(next) => {
                    if self.over.looks(&self.core) {
                        let (over, core) = (Arc::clone(&self.over), Arc::clone(&self.core));
                        let look = over.look(core, self.state.session, self.adoption.number);
                        self.handle.order(Order::Run(Beside(Box::pin(look))));
                    }
                }
            }
        }
    }

    /// Declares the change finished or undone: its locks are free. `false` if the adoption was no longer this
    /// process's, if an operator has discarded the intent, or if the store has failed over: then the change may be
    /// settled or not.
    ///
    /// # Errors
    ///
    /// The store failed for longer than the client's patience. The adoption is given up if it still exists.
    ///
    /// # Cancel safety
    ///
    /// The change is settled or not; if not, the adoption is given up.
    pub async fn settle(mut self) -> Result<bool> {
        let (backend, session) = (Arc::clone(&self.core.backend), self.state.session);
        let (number, me, within) = (
            self.adoption.number,
            self.handle.session.id,
            self.incarnation,
        );
        let settle = || backend.settle(session, number, me, within);
        let settled = until_answered(&self.core, || true, settle).await?;
        if settled == Settled::Moved {
            self.give_up().await?;
            return Ok(false);
        }
        self.adopting = None;
        let outcome = if settled.is_settled() {
            "settled"
        } else {
            "not_settled"
        };
        self.core.telemetry.recovered(session, outcome);
        Ok(settled.is_settled())
    }

    /// Gives the adoption up, so that somebody else can adopt.
    ///
    /// # Errors
    ///
    /// The store rejected it, or failed until this process's session was no longer valid. While the session is valid,
    /// each renewal is followed by another attempt, until the store takes it.
    ///
    /// # Cancel safety
    ///
    /// The adoption is given up all the same.
    pub async fn give_up(mut self) -> Result<()> {
        let (done, given_up) = oneshot::channel();
        self.order_give_up(Some(done));
        // Without a keeper the session dies when it is due, and the adoption with it.
        given_up.await.unwrap_or(Ok(()))
    }

    /// Does nothing once the adoption has ended.
    fn order_give_up(&mut self, done: Option<oneshot::Sender<Result<()>>>) {
        if let Some(adopting) = self.adopting.take() {
            let session = self.state.session;
            self.core.telemetry.recovered(session, "given_up");
            let give_up = GiveUp {
                adopting,
                seen: self.adoption.number - 1,
                within: self.incarnation,
            };
            self.handle.order(Order::GiveUp(give_up, done));
        }
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.order_give_up(None);
    }
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery")
            .field("session", &self.state)
            .field("token", &self.token())
            .field("left", &self.adoption.left)
            .finish_non_exhaustive()
    }
}

/// Those of the sessions that are abandoned and have no living adopter, in this process or another. `me` is the session
/// that would adopt.
pub(crate) async fn adoptable(
    core: &Core,
    me: Option<SessionId>,
    sessions: &[SessionId],
) -> Result<Vec<SessionState>> {
    let states = core.backend.end(sessions, End::IfDue).await?;
    let mut states = without_adopter(core, me, states).await?;
    states.retain(|state| !Adopting::is_begun(&core.adopting, state.session));
    Ok(states)
}

async fn without_adopter(
    core: &Core,
    me: Option<SessionId>,
    mut states: Vec<SessionState>,
) -> Result<Vec<SessionState>> {
    states.retain(|state| state.life == Life::Abandoned);
    let adopters: Vec<SessionId> = states.iter().filter_map(|state| state.adopter).collect();
    if adopters.is_empty() {
        return Ok(states);
    }
    let adopters = core.backend.end(&adopters, End::IfDue).await?;
    let living = |id| {
        adopters
            .iter()
            .any(|adopter| adopter.session == id && adopter.life == Life::Living)
    };
    // Who asks knows whether it is at it. A store that has forgotten how that has ended says that it is.
    let another = |adopter: &SessionId| Some(*adopter) != me;
    states.retain(|state| !state.adopter.filter(another).is_some_and(living));
    Ok(states)
}

/// Adopts the session if possible, with the session of the handle, after checking its state: once, or, if it `waits`, until the
/// store answers; what is in doubt is always repeated. An adoption that was made while the store failed over is given up.
pub(crate) async fn adopt(
    core: &Arc<Core>,
    handle: &Handle,
    session: SessionId,
    waits: bool,
) -> std::result::Result<Option<Recovery>, AcquireError> {
    let me = &handle.session;
    // Before the look: what that says is true of this incarnation, or the request is refused.
    let incarnation = me.numbers().incarnation();
    let dead = [session];
    let look = || async { adoptable(core, Some(me.id), &dead).await }.boxed();
    let states = match waits {
        true => until_answered(core, || me.is_valid(), look).await?,
        false => look().await?,
    };
    let Some(state) = states.into_iter().next() else {
        return Ok(None);
    };
    let Some(mut asked) = Asked::begin(core, handle, &state, incarnation) else {
        return Ok(None);
    };
    let last_token = core.last_token();
    let (backend, seen) = (&core.backend, state.adoption);
    // What is in doubt is repeated also by who does not wait.
    let again = AtomicBool::new(waits);
    let take = || {
        let answer = async {
            let answer = backend
                .adopt(session, seen, me.id, Adopt::Take, incarnation)
                .await;
            if answer
                .as_ref()
                .is_err_and(|error| !error.is_certainly_without_effect())
            {
                again.store(true, Ordering::Relaxed);
            }
            answer
        };
        answer.boxed()
    };
    let goes_on = || me.is_valid() && again.load(Ordering::Relaxed);
    let adoption = match until_answered(core, goes_on, take).await {
        Ok(Adopted::Adopted(adoption)) => adoption,
        Ok(Adopted::NotAdopted) => {
            asked.settled(); // Somebody else was first.
            return Ok(None);
        }
        Ok(Adopted::Moved) => {
            // An earlier copy may have been executed before, and the other one may have that.
            let (done, given_up) = oneshot::channel();
            asked.order_give_up(Some(done));
            // It is given up all the same, when the store takes that.
            return match timeout_at(timer(core.keeper_answers()), given_up).await {
                Ok(given_up) => Ok(given_up.unwrap_or(Ok(())).map(|()| None)?),
                Err(_) => {
                    let what = "the store has failed over, and acknowledges nothing there";
                    let (kind, name) = (ErrorKind::Indeterminate, core.info.name);
                    Err(Error::new(kind, name, Operation::Adopt, what).into())
                }
            };
        }
        Err(error) => {
            if error.is_certainly_without_effect() {
                asked.settled();
            }
            return Err(error.into());
        }
    };
    let token = adoption.token;
    let recovery = Recovery {
        core: Arc::clone(core),
        handle: handle.clone(),
        incarnation,
        state,
        adoption,
        adopting: asked.settled(),
        over: Arc::new(Over {
            why: watch::Sender::new(None),
            next_look: Mutex::new(now() + LOOKS),
        }),
    };
    core.take_token(token, last_token)?;
    if !me.is_valid() {
        return Err(AcquireError::Lost);
    }
    Ok(recovery.is_valid().then_some(recovery))
}

/// Adopts the sessions one after the other, has the handler finish or undo each, and settles it. If the handler fails,
/// returns its error and the session it failed on.
pub(crate) async fn recover(
    core: &Arc<Core>,
    handle: &Handle,
    handler: &dyn crate::Recover,
    states: Vec<SessionState>,
    waits: bool,
) -> std::result::Result<std::result::Result<(), (Vec<SessionState>, RecoverError)>, AcquireError> {
    for state in states {
        if let Some(recovery) = adopt(core, handle, state.session, waits).await? {
            let recovers = AssertUnwindSafe(handler.recover(&recovery)).catch_unwind();
            let result = tokio::select! {
                biased;
                _ = recovery.lost() => None,
                result = recovers => {
                    Some(result.unwrap_or_else(|_| Err("the recovery handler panicked".into())))
                }
            };
            match result {
                None if !handle.session.is_valid() => return Err(AcquireError::Lost),
                // The store has failed over, or the change is discarded. Who wants the keys asks again.
                None => recovery.give_up().await?,
                Some(Ok(())) => {
                    recovery.settle().await?;
                }
                Some(Err(error)) => {
                    let state = recovery.session().clone();
                    recovery.give_up().await?;
                    return Ok(Err((vec![state], error)));
                }
            }
        }
    }
    Ok(Ok(()))
}
