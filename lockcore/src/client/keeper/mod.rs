//! The keeper: the one task of a session, and the only writer of its record.
//!
//! It renews, registers and removes the intent, releases what guards give back, and closes the session when nobody has
//! a handle to it any more. Dropping a guard is a message to the keeper, so `Drop` never blocks, spawns or panics.

mod ends;
mod giving_up;
mod releases;
mod renewals;

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::ends::left_in_doubt;
use self::renewals::{InFlight, answered, goes_on};
use crate::client::clock::{self, now};
use crate::client::core::{Alive, Core, Late};
use crate::client::doubts::Doubts;
use crate::client::news::News;
use crate::client::order::{GiveUp, Keep, Order, Release, Released};
use crate::client::session::{Handle, Session};
use crate::client::sweeping::{sweep_all, sweep_own};
use crate::client::{deadline::Deadline, task};
use crate::{Incarnation, IntentChange, LostReason, Note, Result, SessionId};

pub(crate) use self::ends::whole_milliseconds;
pub(crate) use self::releases::release_each;

/// How often a session that had requests in doubt sweeps its own records.
const OWN_SWEEP: Duration = Duration::from_secs(5 * 60);
/// How often a session sweeps a part of the namespace.
const NAMESPACE_SWEEP: Duration = Duration::from_secs(10 * 60);
/// One of this many sessions sweeps a part of the namespace when it begins; otherwise nobody would if all processes are
/// short.
const ONE_SWEEPS_OF: u32 = 32;

/// The result of something that the keeper had under way.
enum Done {
    Released(Release, Result<Released>),
    /// The same, and the session is closed.
    Closed(Release, Result<Released>),
    /// The session is closed and its intent left; or it could not be closed.
    Abandoned(Result<()>),
    /// The adoption may be this process's: the store did not take the give-up.
    Adopted(GiveUp),
    /// The same: the store is of another incarnation. The one who waits for it is notified later.
    Moved(GiveUp, Option<GivenUp>),
    /// The session is dead. The note tells why, if an operator has revoked it.
    Fell(Option<Note>),
    /// A request in doubt was released once more; whether that was acknowledged.
    Doubted(u64, bool),
    /// A result that changes nothing here.
    Other,
}

/// Notified when an adoption has been given up.
type GivenUp = oneshot::Sender<Result<()>>;

pub(crate) struct Keeper {
    core: Arc<Core>,
    session: Arc<Session>,
    orders: mpsc::UnboundedReceiver<Order>,
    seq: u64,
    /// The number of the last acknowledged renewal.
    acknowledged: u64,
    renewal: Option<InFlight>,
    /// The store said that it is of this incarnation, which is not the session's.
    moving: Option<Incarnation>,
    /// When the last renewal was sent, and when the next one is due.
    renewed: Instant,
    next: Instant,
    /// When the last renewal was answered, or failed.
    answered: Instant,
    /// How many renewals in a row were not acknowledged.
    failures: u32,
    /// The change of the intent that is not acknowledged yet, and the number of changes so far.
    intent: IntentChange,
    intent_version: u64,
    /// From the first byte of a registration until the acknowledgement of its removal.
    may_have_intent: bool,
    put: Option<oneshot::Sender<bool>>,
    /// Released when the removal of the intent is acknowledged.
    after_intent: Vec<Release>,
    confirms: Vec<oneshot::Sender<bool>>,
    doubts: Doubts,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    backlog: VecDeque<Release>,
    /// The numbers that are being released.
    going: BTreeSet<u64>,
    /// Adoptions to give up once more after the next renewal.
    adopted: Vec<(GiveUp, Option<GivenUp>)>,
    /// The session was to be closed at once, and could not be.
    unclosed: bool,
    /// The session is to be left.
    keep: Option<Keep>,
    /// Records that are not live may be left.
    unswept: bool,
    next_own_sweep: Instant,
    next_namespace_sweep: Instant,
    /// Why its locks are lost was told, or is not to be: the program has left its change itself.
    told_why: bool,
    /// Learns between renewals, too, what others do to the session.
    news: News,
    _alive: Alive,
}

/// Starts the keeper of a session that was opened by a request sent at `sent`.
pub(crate) fn keep(
    core: &Arc<Core>,
    id: SessionId,
    sent: Instant,
    incarnation: Incarnation,
) -> Handle {
    let deadline = Deadline::new(sent, sent + core.config.validity());
    let session = Arc::new(Session::new(id, deadline, incarnation));
    let (orders, receiver) = mpsc::unbounded_channel();
    let keeper = Keeper {
        core: Arc::clone(core),
        session: Arc::clone(&session),
        orders: receiver,
        seq: 0,
        acknowledged: 0,
        renewal: None,
        moving: None,
        renewed: sent,
        answered: sent,
        next: sent + core.config.renewal_interval(),
        failures: 0,
        intent: IntentChange::Keep,
        intent_version: 0,
        may_have_intent: false,
        put: None,
        after_intent: Vec::new(),
        confirms: Vec::new(),
        doubts: Doubts::new(core),
        work: FuturesUnordered::new(),
        backlog: VecDeque::new(),
        going: BTreeSet::new(),
        adopted: Vec::new(),
        unclosed: false,
        keep: None,
        unswept: false,
        next_own_sweep: sent + OWN_SWEEP,
        next_namespace_sweep: sent + NAMESPACE_SWEEP / 2 + core.chance(NAMESPACE_SWEEP),
        told_why: false,
        news: News::new(core, id),
        _alive: Alive::new(core),
    };
    core.sessions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(id);
    core.telemetry.session(id);
    task::spawn_on(core.config.thread.as_ref(), keeper.run());
    Handle { session, orders }
}

impl Keeper {
    async fn run(mut self) {
        if self.core.is_one_of(ONE_SWEEPS_OF) {
            sweep_all(&self.core);
        }
        let mut handles = true;
        let mut timer_at = self.next;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(clock::look(timer_at)));
        while handles || self.has_work() {
            let now = now();
            if self.session.deadline.is_ahead(now) {
                self.renew_if_it_is_time(now);
            } else {
                self.lost();
                if !handles && !self.has_work() {
                    break; // What was left to do is void, and nothing would wake this task any more.
                }
            }
            let deadline = self.session.deadline.get();
            // While a renewal hangs, only its answer and the deadline matter.
            let wake = deadline.map(|deadline| match self.renewal {
                Some(_) => deadline,
                None => deadline.min(self.next),
            });
            if let Some(wake) = wake
                && wake != timer_at
            {
                timer_at = wake;
                timer.as_mut().reset(clock::look(wake));
            }
            let waits = Instant::now();
            tokio::select! {
                biased;
                answer = answered(&mut self.renewal) => self.renewed(answer),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done),
                () = self.news.arrive() => self.next = clock::now(),
                order = self.orders.recv(), if handles => match order {
                    Some(order) => self.order(order),
                    None => handles = false,
                },
                () = &mut timer, if wake.is_some() => timer_at = now,
            }
            if let Some(wake) = wake {
                self.tell_if_late(wake, waits.max(timer.deadline()));
            }
            if let Some(keep) = self.keep.take()
                && self.is_left(keep).await
            {
                return;
            }
        }
        self.news.end();
        let renewal = self.renewal.take();
        tokio::select! {
            biased;
            () = self.close() => {}
            () = goes_on(renewal) => {}
        }
    }

    /// Tells the program if this task had something to do at `due`, and ran much later. The machine's sleep does not
    /// count: it is no delay of the timer.
    fn tell_if_late(&self, due: Instant, timer: Instant) {
        let by = now().saturating_duration_since(due);
        let by = by.min(Instant::now().saturating_duration_since(timer));
        if let Some(tell) = &self.core.config.late
            && by > self.core.config.renewal_interval() / 2
        {
            let session = self.session.id;
            // A panic of the program's own code does not end the renewals.
            let told = AssertUnwindSafe(|| tell(Late { by, session }));
            drop(std::panic::catch_unwind(told));
        }
    }

    fn has_work(&self) -> bool {
        !self.work.is_empty()
            || !self.backlog.is_empty()
            || !self.after_intent.is_empty()
            || self.put.is_some()
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Release(release) if self.may_have_intent && release.with_intent => {
                // Whoever has it registered has gone.
                self.put = None;
                self.set_intent(IntentChange::Drop);
                self.after_intent.push(release);
            }
            Order::Release(release) => self.release(release),
            Order::Put(_, done) if self.session.has_evicted() => {
                // An intent has its locks: one of them was taken away when the last was granted.
                let _ = done.send(false);
            }
            Order::Put(registered, done) => {
                self.may_have_intent = true;
                self.set_intent(IntentChange::Put(registered));
                self.put = Some(done);
            }
            Order::Abandon => self.abandon(),
            Order::Run(beside) => task::spawn_on(self.core.config.thread.as_ref(), beside.0),
            Order::Fall => self.fall(),
            Order::Renew(done) => {
                self.confirms.push(done);
                self.next = now();
            }
            Order::Keep(keep) => self.keep = Some(keep),
            Order::GiveUp(give_up, done) => self.give_up(give_up, done),
        }
    }

    /// Tells once why the locks of the session are lost, if it had any.
    fn tell_why(&mut self) {
        if self.told_why || self.session.numbers().are_all_of(&self.going) {
            return;
        }
        if let Some(why) = self.session.why() {
            self.told_why = true;
            self.core.telemetry.lost(self.session.id, None, &why);
        }
    }

    /// The session is no longer valid. Those who wait for a living one are notified.
    fn lost(&mut self) {
        self.news.end();
        self.tell_why();
        self.session.tell();
        if let Some(put) = self.put.take() {
            let _ = put.send(false);
        }
        for confirm in self.confirms.drain(..) {
            let _ = confirm.send(false);
        }
        // Nobody renews it any more.
        self.doubts.clear();
        self.adopted.clear();
        // Nothing is released: the intent may be registered, and it always has its locks. Where no renewal got through, the
        // store has not said that they are lost.
        let is_said = self.session.why() != Some(LostReason::Deadline);
        for release in std::mem::take(&mut self.after_intent) {
            let known = match is_said {
                true => Ok(Released::NotHeld),
                false => Err(left_in_doubt(&self.core)),
            };
            release.answer(known);
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Released(release, answer) => {
                self.retire(&release);
                if answer.is_err() || release.in_doubt {
                    self.doubt(&release);
                }
                self.given_back(&release);
                release.answer(answer);
            }
            Done::Closed(release, answer) => {
                self.unclosed |= answer.is_err();
                self.retire(&release);
                self.given_back(&release);
                release.answer(answer);
            }
            Done::Abandoned(closed) => {
                self.unclosed |= closed.is_err();
                self.session.die();
            }
            Done::Adopted(what) => self.adopted.push((what, None)),
            Done::Moved(what, done) => {
                self.adopted.push((what, done));
                self.next = now();
            }
            Done::Fell(revoked) => self.session.fell(revoked),
            Done::Doubted(n, acknowledged) => {
                self.doubts.was_sent(n, acknowledged);
                if acknowledged {
                    self.release_doubts();
                }
            }
            Done::Other => {}
        }
        if let Some(release) = self.backlog.pop_front() {
            self.start(release);
        }
    }

    fn sweep_if_it_is_time(&mut self, now: Instant) {
        if self.unswept && now >= self.next_own_sweep {
            self.unswept = false;
            self.next_own_sweep = now + OWN_SWEEP;
            sweep_own(&self.core, self.session.id);
        }
        if now >= self.next_namespace_sweep {
            self.next_namespace_sweep = now + NAMESPACE_SWEEP;
            sweep_all(&self.core);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.session.leave();
        let session = self.session.id;
        self.core.telemetry.session_ends(session);
        self.core.queues.forget(|chain| chain.id() == session);
        self.core
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.session.id);
    }
}
