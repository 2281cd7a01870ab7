//! The attempt itself: batch after batch, until all of them are granted, or nothing is held.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Last, Plan, Progress, Stop, Unanswered, bears};
use crate::client::batch::{Asker, BatchOutcome, Kept, of_all};
use crate::client::chain::{Chain, Pass, Taken};
use crate::client::clock::{now, sleep_until, timer};
use crate::client::core::{Alive, Core};
use crate::client::error::{Abandoned, AcquireError};
use crate::client::guard::Guard;
use crate::client::line::Patience;
use crate::client::order::{Order, Release, Released};
use crate::client::queue::{Offer, Place};
use crate::client::recovery;
use crate::client::retry::may_pass;
use crate::client::session::Handle;
use crate::client::task;
use crate::client::wait::Waiting;
use crate::prepare::batch_len;
use crate::store::Past;
use crate::{
    Busy, Claim, Error, ErrorKind, FencingToken, Grant, Holder, Life, Mode, Operation, OwnerId,
    Registered, SessionState,
};

/// An acquisition under way in one session. However it ends, unused grants are given back.
pub(super) struct Taking<'a> {
    pub(super) plan: &'a Plan,
    pub(super) core: &'a Arc<Core>,
    pub(super) handle: Handle,
    pub(super) owner: OwnerId,
    pub(super) by_close: bool,
    /// The batches granted so far.
    pub(super) grants: Vec<(u64, Range<usize>)>,
    /// The greatest of their tokens.
    pub(super) token: Option<FencingToken>,
    pub(super) in_doubt: bool,
    /// The error of a request that was not answered before the store failed over. It is given back.
    pub(super) unknown: Option<Error>,
    /// What stands in the store's line.
    pub(super) kept: Kept,
    /// For how long those who came before have kept it waiting.
    pub(super) patience: Patience,
}

impl Taking<'_> {
    /// Takes every claim, one batch after the other, and registers the intent.
    pub(super) async fn take(&mut self) -> Result<Guard, Stop> {
        let claims = &self.plan.claims;
        let mut at = 0;
        let mut next_len = None;
        let mut asked_again = false;
        let mut waiting = self.queue_first(&claims[0]);
        // It is its turn, and what stands before the refused claim is free.
        let mut goes_on = false;
        let token = loop {
            if !std::mem::take(&mut goes_on)
                && let Some(waits) = waiting.as_mut().filter(|waiting| waiting.has_begun())
            {
                let in_line = self.kept.as_ref().map(|kept| (kept.grant(), self.owner));
                let offered = pin!(waits.until_offered_or_worth_asking(self.core, in_line));
                if let Some(offer) = self.stoppable(offered).await? {
                    if let Some(guard) = self.accepted(offer) {
                        return Ok(guard);
                    }
                    continue;
                }
            }
            // What stands in line is asked for again by itself.
            let in_line = self.kept.as_ref().map(|_| 1);
            let len = next_len
                .take()
                .or(in_line)
                .unwrap_or_else(|| batch_len(&claims[at..], &self.core.info));
            let answer = {
                let asked = pin!(self.ask(at..at + len));
                let asked = pin!(asks(place(&waiting), asked));
                unless_offered(place(&waiting), asked).await
            };
            let Some(outcome) = answer else {
                continue; // What was asked for is given back.
            };
            match outcome {
                BatchOutcome::Granted { n, token, in_doubt } => {
                    self.grants.push((n, at..at + len));
                    self.in_doubt |= in_doubt;
                    self.token = self.token.max(Some(token));
                    self.forgets(&claims[at..at + len]);
                    at += len;
                    self.plan.observe(&Progress::Granted {
                        claims: at,
                        of: claims.len(),
                    });
                    if at == claims.len() {
                        break self.token.unwrap_or(token);
                    }
                    waiting = None;
                }
                BatchOutcome::Void => {
                    self.handle.session.falls();
                    self.handle.order(Order::Fall);
                    return Err(self.lost(waiting.as_ref()));
                }
                BatchOutcome::Moved(unknown) => {
                    self.unknown = self.unknown.take().or(unknown);
                    // The next renewal finds out whether the session has moved, or is lost.
                    let _unanswered = Unanswered::new(&self.plan.seen);
                    let (done, renewed) = oneshot::channel();
                    self.handle.order(Order::Renew(done));
                    let until = timer(self.core.keeper_answers());
                    let answers = Box::pin(timeout_at(until, renewed));
                    let found = Box::pin(unless_offered(place(&waiting), answers));
                    let stopped = self.stoppable(found).await;
                    if !self.handle.is_usable() {
                        return Err(self.lost(waiting.as_ref()));
                    }
                    if let Some(Err(_)) = stopped? {
                        let what = "the store has failed over, and acknowledges no renewal there";
                        let (kind, name) = (ErrorKind::Unavailable, self.core.info.name);
                        return Err(self.failed(Error::new(kind, name, Operation::Acquire, what)));
                    }
                    next_len = Some(len);
                }
                BatchOutcome::Failed(error) => return Err(self.failed(error)),
                BatchOutcome::Busy(busy) => {
                    let first = position(&claims[at..at + len], &busy);
                    let left = Box::pin(self.left(&busy));
                    let Some(left) = unless_offered(place(&waiting), left).await else {
                        continue;
                    };
                    let left = left?;
                    if !left.is_empty() {
                        // Whoever recovers may take its time: nobody else's keys are held meanwhile. A place in line is kept.
                        if !self.grants.is_empty() && self.is_given_back().await {
                            (at, waiting) = (0, None);
                        }
                        if len > 1 {
                            // It may be another key for which it was refused, and those behind it get what is free.
                            waiting = None;
                        }
                        let recovered = Box::pin(self.recovered(&busy, left));
                        if let Some(Err(stop)) = unless_offered(place(&waiting), recovered).await {
                            return Err(stop);
                        }
                        // Who has left that is not in the way any more.
                        *self.plan.seen.last() = None;
                        self.sees(waiting.as_ref());
                        continue;
                    }
                    if self.plan.wait.is_none() {
                        let split = !self.core.info.atomic && first > 0;
                        if !split || asked_again {
                            return Err(AcquireError::Busy(busy).into());
                        }
                        // Two requests can split a set of keys between them; one of them gets it after a pause.
                        asked_again = true;
                        next_len = Some(len);
                        tokio::time::sleep(self.core.chance(Duration::from_millis(20))).await;
                    } else if first > 0 {
                        self.sees_refusal(busy);
                        (next_len, goes_on) = (Some(first), true);
                    } else if len > 1 {
                        // It stands in the line of the first one.
                        self.sees_refusal(busy);
                        (next_len, goes_on) = (Some(1), true);
                    } else {
                        if self.would_wait_for_itself(&busy) {
                            return Err(AcquireError::WouldDeadlock(busy).into());
                        }
                        self.plan.observe(&Progress::Waiting(&busy));
                        self.core.telemetry.waits(&busy);
                        if !self.grants.is_empty() && self.patience.is_crowded_out() {
                            // They may wait for what it holds, and it cannot pass them: it comes after them.
                            self.patience = Patience::default();
                            if self.is_given_back().await {
                                (at, waiting) = (0, None);
                                self.check()?;
                                continue;
                            }
                        }
                        // Until it is granted, the refused claim is the same.
                        let now_waiting = match waiting.take() {
                            Some(waiting) => {
                                waiting.is_refused(busy);
                                waiting
                            }
                            None => {
                                let in_line = self.grants.is_empty() && self.plan.owner.is_none();
                                let wants = self.wants().filter(|_| in_line);
                                let claim = &claims[at];
                                let enters = self.plan.owner.is_some() && claim.want().reenters();
                                let owner = enters.then_some(self.owner);
                                Waiting::refused(self.core, claim, in_line, wants, owner, busy)
                            }
                        };
                        waiting = Some(now_waiting);
                        self.sees(waiting.as_ref());
                        next_len = Some(1);
                    }
                }
            }
            self.check()?;
        };
        self.register(token).await?;
        // Handed out only if the deadline is still ahead after the last answer, and nothing was taken away meanwhile.
        let answered = now();
        if !self.stands_at(answered) {
            return Err(AcquireError::Lost.into());
        }
        let chain = self.chain(token, answered);
        // Before the next one polls.
        self.core.queues.hold(&chain, &self.handle, place(&waiting));
        drop(waiting);
        Ok(Guard::new(
            self.core,
            Pass {
                chain,
                handle: self.handle.clone(),
                number: 0,
            },
            self.plan.intent.is_some(),
        ))
    }

    /// The granted claims, which belong to the guard from now on.
    fn chain(&mut self, token: FencingToken, now: Instant) -> Arc<Chain> {
        let taken = Taken {
            owner: self.owner,
            token,
            claims: Arc::clone(&self.plan.claims),
            grants: std::mem::take(&mut self.grants),
            by_close: self.by_close,
            alone: self.plan.is_alone(),
            own_session: self.plan.own_session && self.plan.owner.is_none(),
            in_doubt: self.in_doubt,
            label: self.core.config.label.clone(),
        };
        Arc::new(Chain::new(&self.handle, taken, now, self.core.info.poll))
    }

    /// All claims, if another task of this process may hand them on.
    fn wants(&self) -> Option<&Arc<[Claim]>> {
        let may = !self.plan.is_alone() && !self.by_close;
        may.then_some(&self.plan.claims)
    }

    /// The offer of another task of this process, if it is still good.
    fn accepted(&self, offer: Offer) -> Option<Guard> {
        offer.accept().map(|pass| self.plan.handed_on(pass))
    }

    fn failed(&mut self, error: Error) -> Stop {
        of_all(self.unknown.take(), error).into()
    }

    /// The session is lost. If nothing was granted yet, or may have been, another session may be used.
    fn lost(&self, waiting: Option<&Waiting>) -> Stop {
        let has_begun = waiting.is_some_and(Waiting::has_begun);
        if !self.grants.is_empty() || has_begun || self.unknown.is_some() {
            AcquireError::Lost.into()
        } else {
            Stop::NotBegun
        }
    }

    /// Somebody who cannot hold the key already stands in line with the local waiters.
    fn queue_first(&self, claim: &Claim) -> Option<Waiting> {
        let in_line = self.plan.wait.is_some() && self.plan.owner.is_none();
        let waiting = if in_line {
            let for_ever = self.plan.wait == Some(None);
            let begins = self.plan.claims.len() == 1;
            Waiting::in_line(self.core, claim, for_ever, begins, self.wants())
        } else {
            None
        };
        self.sees(waiting.as_ref());
        waiting
    }

    /// Lets the caller see who is in the way, if its wait may end.
    fn sees(&self, waiting: Option<&Waiting>) {
        if let Some(waiting) = waiting.filter(|_| self.plan.wait != Some(None)) {
            *self.plan.seen.last() = Some(Last::Waiting(waiting.in_the_way()));
        }
    }

    /// The same, of who is not waited for yet.
    fn sees_refusal(&self, busy: Busy) {
        if self.plan.wait != Some(None) {
            *self.plan.seen.last() = Some(Last::Refused(busy));
        }
    }

    /// These are granted: who was in their way is not any more. Who is in the way of another one still is.
    fn forgets(&self, granted: &[Claim]) {
        let mut last = self.plan.seen.last();
        let of_another = matches!(
            &*last,
            Some(Last::Refused(busy)) if granted.iter().all(|it| it.key() != busy.first().claim.key())
        );
        if !of_another {
            *last = None;
        }
    }

    async fn ask(&mut self, range: Range<usize>) -> BatchOutcome {
        let kept = self.kept.take();
        let past = self.patience.past();
        let (outcome, kept) = self.ask_once(range, kept, past).await;
        self.kept = kept;
        if let BatchOutcome::Busy(busy) = &outcome {
            self.patience.refused(busy);
        }
        outcome
    }

    async fn ask_once(
        &self,
        range: Range<usize>,
        kept: Kept,
        past: Vec<Past>,
    ) -> (BatchOutcome, Kept) {
        let joined = !self.grants.is_empty() || range.end < self.plan.claims.len();
        let asker = Asker {
            core: self.core,
            handle: &self.handle,
            owner: self.owner,
            claims: &self.plan.claims,
            waits: self.plan.wait.is_some(),
        };
        let ends = || Box::pin(self.stoppable(std::future::pending::<()>()));
        let _unanswered = Unanswered::new(&self.plan.seen);
        let asks = &self.plan.seen.asks;
        asks.store(true, Ordering::Release);
        let (outcome, kept) = asker.ask(range, joined, kept, past, ends).await;
        // What was granted is not given back while its intent is being registered. What stands in line is.
        let holds = !self.grants.is_empty() || matches!(outcome, BatchOutcome::Granted { .. });
        asks.store(holds || kept.is_some(), Ordering::Release);
        (outcome, kept)
    }

    /// Registers the intent, if there is one. All claims are granted by then.
    async fn register(&self, token: FencingToken) -> Result<(), Stop> {
        let Some(intent) = self.plan.intent.clone() else {
            return Ok(());
        };
        let token = token.handed_on(0);
        let registered = Registered { token, intent };
        let (done, put) = oneshot::channel();
        self.handle.order(Order::Put(registered, done));
        tokio::select! {
            biased;
            put = put => match put {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => Err(AcquireError::Lost.into()),
            },
            () = sleep_until(self.core.keeper_answers()) => {
                let what = "no renewal with the intent was acknowledged: the locks are given back";
                let (kind, name) = (ErrorKind::Indeterminate, self.core.info.name);
                Err(Error::new(kind, name, Operation::Renew, what).into())
            }
        }
    }

    /// Whether all that was granted is still held.
    fn stands(&self) -> bool {
        self.stands_at(now())
    }

    fn stands_at(&self, now: Instant) -> bool {
        let session = &self.handle.session;
        session.is_valid_at(now) && session.evicted(self.numbers()).is_none()
    }

    fn numbers(&self) -> impl Iterator<Item = u64> + Clone {
        self.grants.iter().map(|(n, _)| *n)
    }

    /// Whether the caller's wait has ended.
    fn is_over(&self) -> bool {
        self.plan.wait.flatten().is_some_and(|until| now() >= until)
    }

    fn check(&self) -> Result<(), Stop> {
        if self.plan.seen.is_left() {
            return Err(Stop::Cancelled);
        }
        if !self.handle.is_kept() || !self.stands() {
            return Err(AcquireError::Lost.into());
        }
        if self.is_over() {
            Err(self.wait_over())
        } else {
            Ok(())
        }
    }

    fn wait_over(&self) -> Stop {
        match self.plan.seen.busy() {
            Some(busy) => {
                // It stays known when its place in the queue is gone: leaving the store's line may take long.
                *self.plan.seen.last() = Some(Last::Refused(busy.clone()));
                AcquireError::Busy(busy).into()
            }
            // The caller has its own answer for a wait that ended before any refusal.
            None => Stop::Cancelled,
        }
    }

    /// Waits, unless there is a reason to stop.
    async fn stoppable<T>(&self, wait: impl Future<Output = T> + Unpin) -> Result<T, Stop> {
        tokio::select! {
            biased;
            () = self.plan.seen.left() => Err(Stop::Cancelled),
            _ = self.handle.session.lost(self.numbers()) => Err(AcquireError::Lost.into()),
            () = self.plan.is_over() => Err(self.wait_over()),
            done = wait => Ok(done),
        }
    }

    /// The dead sessions in the way whose changes have to be finished or undone, and that nobody is recovering.
    async fn left(&self, busy: &Busy) -> Result<Vec<SessionState>, Stop> {
        let refused = busy.refused().iter();
        let mut left: Vec<_> = refused.flat_map(|refused| &refused.holders).collect();
        left.retain(|holder| holder.life == Life::Abandoned);
        let grants = left.iter().filter_map(|holder| holder.grant);
        let mut sessions: Vec<_> = grants.map(|grant| grant.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let _unanswered = Unanswered::new(&self.plan.seen);
        match recovery::adoptable(self.core, self.plan.locks.pool.current(), &sessions).await {
            // It is asked again when the wait goes on.
            Err(error) if self.plan.wait.is_some() && may_pass(&error) => Ok(Vec::new()),
            adoptable => Ok(adoptable?),
        }
    }

    /// Has the handler finish or undo the changes of dead sessions. It runs to its end even if the attempt ends.
    async fn recovered(&self, busy: &Busy, left: Vec<SessionState>) -> Result<(), Stop> {
        let refuse = |sessions, recovery| {
            Stop::Failed(AcquireError::Abandoned(Abandoned {
                sessions,
                busy: busy.clone(),
                recovery,
            }))
        };
        let Some(handler) = &self.plan.locks.recovery else {
            return Err(refuse(left, None));
        };
        let (handler, locks) = (Arc::clone(handler), self.plan.locks.clone());
        let waits = self.plan.wait.is_some();
        let alive = Alive::new(self.core);
        let result = task::answers(async move {
            let _counted = alive;
            let core = &locks.core;
            let open = || async { Ok(locks.pool.shared(core).await?) };
            let session = bears(core, waits, open).await?;
            recovery::recover(core, &session, &*handler, left, waits).await
        });
        *self.plan.seen.last() = Some(Last::Refused(busy.clone()));
        let mut recovered = Err(AcquireError::Lost);
        let mut is_slow = false;
        let ends = async {
            tokio::select! {
                result = result => if let Ok(result) = result {
                    recovered = result;
                },
                // Who does not wait for others waits no longer for what this process does for them.
                () = sleep_until(self.core.patience()), if self.plan.wait.is_none() => is_slow = true,
            }
        };
        self.stoppable(pin!(ends)).await?;
        if is_slow {
            return Err(self.wait_over());
        }
        let failed = |(left, error)| refuse(left, Some(error));
        recovered?.map_err(failed)
    }

    /// Gives back the granted locks. Waits until that is acknowledged, or certain to happen by itself.
    pub(super) async fn undo(mut self) {
        if let Some(kept) = self.kept.take() {
            kept.leave().await;
        }
        let (done, released) = oneshot::channel();
        if self.give_back(Some(done)) {
            // A release of unknown outcome is the keeper's, as is the removal of an intent; here only the wait for it ends.
            tokio::select! {
                biased;
                _ = released => {}
                () = sleep_until(self.core.keeper_answers()) => {}
            }
        }
    }

    /// Gives back the granted locks so that the attempt can begin again. Returns whether there were any.
    async fn is_given_back(&mut self) -> bool {
        let plan: &Plan = self.plan;
        let _unanswered = Unanswered::new(&plan.seen);
        if let Some(kept) = self.kept.take() {
            kept.leave().await;
        }
        // Its session goes on.
        let by_close = std::mem::take(&mut self.by_close);
        let (done, released) = oneshot::channel();
        let any = self.give_back(Some(done));
        self.by_close = by_close;
        if any {
            drop(released.await);
            (self.token, self.in_doubt) = (None, false);
        }
        any
    }

    /// Returns whether there was anything to give back.
    fn give_back(&mut self, done: Option<oneshot::Sender<crate::Result<Released>>>) -> bool {
        let grants = std::mem::take(&mut self.grants);
        if grants.is_empty() {
            return false;
        }
        self.handle.order(Order::Release(Release {
            claims: Arc::clone(&self.plan.claims),
            grants,
            in_doubt: self.in_doubt,
            with_intent: self.plan.intent.is_some(),
            by_close: self.by_close,
            done,
        }));
        true
    }
}

impl Taking<'_> {
    /// Whether the owner itself holds what the first refused claim waits for: an exclusive claim waits for each holder, a
    /// share for one of them. Who waits goes in its turn, and what is being given back is soon gone.
    fn would_wait_for_itself(&self, busy: &Busy) -> bool {
        let (first, session) = (busy.first(), &self.handle.session);
        let is_held =
            |grant: Grant| grant.session != session.id || session.numbers().is_granted(grant.n);
        let is_own =
            |holder: &Holder| holder.owner == Some(self.owner) && holder.grant.is_some_and(is_held);
        let mut holders = first.holders.iter().filter(|it| it.waiting.is_none());
        match first.claim.want().mode() {
            Mode::X => holders.any(is_own),
            _ => {
                let mut holders = holders.peekable();
                !first.more && holders.peek().is_some() && holders.all(is_own)
            }
        }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// The place of a waiter in the queue.
fn place(waiting: &Option<Waiting>) -> Option<&Place> {
    waiting.as_ref().map(Waiting::place)
}

/// The store's answer to a waiter.
async fn asks<T>(place: Option<&Place>, asked: impl Future<Output = T> + Unpin) -> T {
    match place {
        Some(place) => place.asks(asked).await,
        None => asked.await,
    }
}

/// The output of `something`, unless another task of this process offers the waiter a lock meanwhile: the offer is
/// taken at once.
async fn unless_offered<T>(
    place: Option<&Place>,
    something: impl Future<Output = T> + Unpin,
) -> Option<T> {
    let Some(place) = place else {
        return Some(something.await);
    };
    tokio::select! {
        biased;
        came = something => Some(came),
        () = place.is_offered() => None,
    }
}

/// The index of the first refused claim in the batch.
fn position(claims: &[Claim], busy: &Busy) -> usize {
    let key = busy.first().claim.key();
    claims
        .iter()
        .position(|claim| claim.key() == key)
        .unwrap_or(0)
}
