//! The keeper: the one task of a session, and the only writer of its record.
//!
//! It renews, registers and removes the intent, releases what guards give back, and closes the session when nobody has
//! a handle to it any more. Dropping a guard is a message to the keeper, so `Drop` never blocks, spawns or panics.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client::clock::{self, now, sleep_until};
use crate::client::core::{Alive, Core, Late};
use crate::client::doubts::Doubts;
use crate::client::lost::LostReason;
use crate::client::news::News;
use crate::client::order::{GiveUp, Keep, Left, Order, Release, Released};
use crate::client::retry::{may_pass, until_answered};
use crate::client::session::{Handle, Session};
use crate::client::{deadline::Deadline, task, telemetry};
use crate::{
    Adopt, Adopted, Claim, End, Error, ErrorKind, Grant, Incarnation, IntentChange, Life, Note,
    NoteKind, Notes, Operation, Ranges, Renewal, Renewed, Result, SessionId, SessionState, Stood,
    Sweep,
};

/// How often a session that had requests in doubt sweeps its own records.
const OWN_SWEEP: Duration = Duration::from_secs(5 * 60);
/// How often a session sweeps a part of the namespace.
const NAMESPACE_SWEEP: Duration = Duration::from_secs(10 * 60);
/// One of this many sessions sweeps a part of the namespace when it begins; otherwise nobody would if all processes are
/// short.
const ONE_SWEEPS_OF: u32 = 32;
/// How often all sessions of a client together do that at most: each sweep may read all sessions of the namespace.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60);
/// The most requests of a sweep.
const SWEEP_REQUESTS: usize = 4;
/// Time between two renewals that are sent for requests in doubt.
const BETWEEN_RENEWALS: Duration = Duration::from_millis(200);
/// How long the store is asked why a session is dead.
const WHY: Duration = Duration::from_secs(1);
/// The most concurrent releases; further ones wait their turn.
const RELEASES_AT_ONCE: usize = 256;

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

struct InFlight {
    answer: BoxFuture<'static, Result<Renewed>>,
    sent: Instant,
    /// The version of the intent's change that it carries.
    intent: u64,
    /// The incarnation to which it moves the session, with these grants.
    moves: Option<(Incarnation, Ranges)>,
    confirms: Vec<oneshot::Sender<bool>>,
}

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
    /// How many numbers are being released.
    going: usize,
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
        going: 0,
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
        if self.core.is_one_of(ONE_SWEEPS_OF) && self.core.sweeps_after(BETWEEN_SWEEPS) {
            self.sweep(Sweep::All);
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
                () = self.news.arrive() => self.next = now,
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

    /// Leaves the session, which nobody in this process relies on from then on: its lease may become shorter. Nothing of
    /// it is closed, and nobody renews it any more. If it has other grants, it goes on without what was to be kept:
    /// `false`.
    async fn is_left(&mut self, keep: Keep) -> bool {
        let deadline = self.session.deadline.get();
        let answer = match deadline {
            Some(deadline) => {
                let core = Arc::clone(&self.core);
                // After that nobody is kept waiting for a store that fails.
                let limit = deadline.min(core.patience());
                tokio::select! {
                    biased;
                    kept = self.kept(&keep, deadline) => kept,
                    () = sleep_until(limit) => Err(no_lease(&core)),
                }
            }
            None => Ok(Left::NotHeld),
        };
        let is_left = !matches!(answer, Ok(Left::Shared));
        if is_left {
            self.news.end();
            self.session.die();
        } else {
            self.release(keep.release);
        }
        let _ = keep.done.send(answer);
        is_left
    }

    async fn kept(&mut self, keep: &Keep, deadline: Instant) -> Result<Left> {
        // What an earlier attempt of the same acquisition has left is given back first.
        while self.session.numbers().live() > keep.release.grants.len() && self.has_work() {
            if let Some(done) = self.work.next().await {
                self.done(done);
            }
        }
        if self.session.numbers().live() > keep.release.grants.len() {
            return Ok(Left::Shared);
        }
        self.session.deadline.pass();
        self.session.tell();
        if let Some(renewal) = self.renewal.take()
            && renewal.answer.await.is_ok_and(|answer| answer.is_living())
        {
            self.acknowledged = self.seq;
        }
        self.seq = self.seq.max(keep.seq - 1);
        let mut failures = 0;
        loop {
            // What is lost stays so, even if the store still has the lease.
            match now() < deadline {
                true => {}
                false if failures == 0 => return Ok(Left::NotHeld),
                false => return Err(no_lease(&self.core)),
            }
            match self.renewed_once_more(keep).await {
                Ok(renewed) if renewed.is_living() => {
                    if let Renewed::Noted(notes) = &renewed {
                        self.read(notes);
                    }
                    let kept = keep.release.grants.iter().map(|(n, _)| *n);
                    if self.session.evicted(kept).is_none() {
                        return Ok(Left::Kept);
                    }
                    close_in_time(&self.core, &self.session, deadline).await;
                    return Ok(Left::NotHeld);
                }
                Ok(Renewed::Moved(incarnation)) => self.moving = Some(incarnation),
                Ok(Renewed::Dead | Renewed::Forgotten) => return Ok(Left::NotHeld),
                // An earlier copy may have been executed; its answer does not come any more.
                Ok(_) | Err(_) => {
                    failures += 1;
                    sleep_until(now() + pause(&self.core, failures)).await;
                }
            }
        }
    }

    /// Sends one last renewal, with a TTL of what is left.
    async fn renewed_once_more(&mut self, keep: &Keep) -> Result<Renewed> {
        self.seq += 1;
        let (retired, incarnation, granted) = {
            let numbers = self.session.numbers();
            match self.moving {
                Some(incarnation) => (numbers.retired(), incarnation, numbers.granted()),
                None => (numbers.retired(), numbers.incarnation(), Ranges::EMPTY),
            }
        };
        let left = keep.until.saturating_duration_since(now());
        let ttl = whole_milliseconds(left.max(self.core.info.min_ttl));
        let acknowledged = self.acknowledged;
        let renewal = Renewal::new(self.seq, retired, IntentChange::Keep)
            .after(acknowledged)
            .within(incarnation, granted)
            .lasting(ttl);
        self.core.backend.renew(self.session.id, &renewal).await
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

    fn give_up(&mut self, what: GiveUp, done: Option<GivenUp>) {
        let (core, me) = (Arc::clone(&self.core), Arc::clone(&self.session));
        self.work.push(Box::pin(give_up(core, me, what, done)));
    }

    fn set_intent(&mut self, change: IntentChange) {
        self.intent = change;
        self.intent_version += 1;
        self.next = now();
    }

    /// Renewals are sent every third of the TTL, at least every 10 s, and at once when somebody waits for one, or the
    /// store says that there is news.
    fn renew_if_it_is_time(&mut self, now: Instant) {
        if self.renewal.is_some() || now < self.next {
            return;
        }
        self.core.queues.take_back(self.session.id);
        self.seq += 1;
        let (retired, incarnation, granted) = {
            let numbers = self.session.numbers();
            let (incarnation, granted) = match self.moving {
                Some(incarnation) => (incarnation, numbers.granted()),
                None => (numbers.incarnation(), Ranges::EMPTY),
            };
            (numbers.retired(), incarnation, granted)
        };
        let moves = self.moving.map(|_| (incarnation, granted.clone()));
        let renewal = Renewal::new(self.seq, retired, self.intent.clone())
            .after(self.acknowledged)
            .within(incarnation, granted);
        let (backend, id) = (Arc::clone(&self.core.backend), self.session.id);
        let sent = now;
        let late = now.saturating_duration_since(self.next);
        self.core.telemetry.renews(id, late, self.core.config.ttl);
        self.renewal = Some(InFlight {
            answer: Box::pin(async move { backend.renew(id, &renewal).await }),
            sent,
            intent: self.intent_version,
            moves,
            confirms: std::mem::take(&mut self.confirms),
        });
        self.renewed = sent;
        self.next = sent + self.core.config.renewal_interval();
        self.news.renewing();
        self.sweep_if_it_is_time(sent);
    }

    fn renewed(&mut self, (renewal, answer): (InFlight, Result<Renewed>)) {
        let before = self.session.deadline.get();
        if answer.as_ref().is_ok_and(Renewed::is_living) {
            self.acknowledged = self.seq;
            // Who is told to give something up does not believe in it longer.
            if let Ok(Renewed::Noted(notes)) = &answer {
                self.read(notes);
            }
            if let Some((incarnation, granted)) = &renewal.moves {
                if !self.session.numbers().moves(*incarnation, granted) {
                    // By the incarnation before, meanwhile: whether this one has it, too, is not known.
                    self.next = now();
                    self.confirms.extend(renewal.confirms);
                    return;
                }
                self.moving = None;
                self.session.tell();
            }
        }
        match answer {
            // An answer after the deadline extends nothing, and the loop goes on as lost.
            Ok(Renewed::Living | Renewed::Noted(_))
                if self
                    .session
                    .deadline
                    .extend(now(), renewal.sent + self.core.config.validity()) =>
            {
                self.failures = 0;
                self.tell_renewed(before, renewal.sent);
                self.release_doubts();
                for (what, done) in std::mem::take(&mut self.adopted) {
                    self.give_up(what, done);
                }
                for confirm in renewal.confirms {
                    let _ = confirm.send(true);
                }
                if renewal.intent == self.intent_version {
                    self.intent_acknowledged();
                }
                return;
            }
            Ok(Renewed::Living | Renewed::Noted(_)) => {}
            Ok(Renewed::Dead) => self.fall(),
            Ok(Renewed::Forgotten) if self.gave_back(&renewal) => self.next = now(),
            Ok(Renewed::Forgotten) => self.session.forget(),
            // Whether the intent is there is not known.
            Ok(Renewed::Moved(_)) if self.intent_version > 0 => self.session.forget(),
            Ok(Renewed::Moved(incarnation)) if self.moving.is_none() => {
                self.moving = Some(incarnation);
                self.next = now();
            }
            // An answer to a renewal that a later one overtook acknowledges nothing; nor does an error, nor that of a store
            // which moves on.
            Ok(Renewed::Overtaken | Renewed::Moved(_)) | Err(_) => {
                if let Ok(Renewed::Moved(incarnation)) = answer {
                    self.moving = Some(incarnation);
                }
                self.failures += 1;
                self.next = now() + pause(&self.core, self.failures);
                let (id, error) = (self.session.id, answer.as_ref().err());
                self.core.telemetry.not_renewed(id, self.failures, error);
            }
        }
        self.confirms.extend(renewal.confirms);
    }

    /// Tells how much of the lease was left when the renewal was acknowledged.
    fn tell_renewed(&self, deadline: Option<Instant>, sent: Instant) {
        if !telemetry::IS_ON {
            return;
        }
        let (now, ttl) = (now(), self.core.config.ttl);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let took = now.saturating_duration_since(sent);
        let (id, left) = (self.session.id, left.unwrap_or_default());
        self.core.telemetry.renewed(id, took, left, ttl);
    }

    /// Tells once why the locks of the session are lost, if it had any.
    fn tell_why(&mut self) {
        if self.told_why || self.session.numbers().live() <= self.going {
            return;
        }
        if let Some(why) = self.session.why() {
            self.told_why = true;
            self.core.telemetry.lost(self.session.id, None, &why);
        }
    }

    /// Whether the release of a grant that the renewal named has begun: it may have been executed before.
    fn gave_back(&self, renewal: &InFlight) -> bool {
        let numbers = self.session.numbers();
        let named = renewal.moves.as_ref().map(|(_, granted)| granted);
        named.is_some_and(|named| numbers.gave_back(named))
    }

    /// Reads the notes of operators. An evicted grant goes with its number; a grant with an intent goes with its
    /// session, which leaves the intent behind.
    fn read(&mut self, notes: &Notes) {
        let asks = notes.iter().filter(|note| note.kind == NoteKind::Ask);
        self.session
            .ask(asks.filter_map(|note| Some((note.grant?, note))));
        for note in notes.iter() {
            let (NoteKind::Evict, Some(n)) = (note.kind, note.grant) else {
                continue;
            };
            let why = LostReason::Evicted(note.clone().into());
            if self.session.evict(n, note) {
                self.core.telemetry.lost(self.session.id, Some(n), &why);
                self.core.queues.forget(|chain| !chain.stands());
                self.unswept = true;
                self.next = now();
                if self.may_have_intent {
                    self.session.die();
                    self.abandon();
                }
            }
        }
    }

    /// The store said that the session is dead. Its record tells why, if an operator has revoked it.
    fn fall(&mut self) {
        self.session.falls();
        let (core, id) = (Arc::clone(&self.core), self.session.id);
        self.work.push(Box::pin(async move {
            let ended = core.backend.end(std::slice::from_ref(&id), End::IfDue);
            let ended = tokio::time::timeout(WHY, ended).await;
            let state = ended
                .ok()
                .and_then(Result::ok)
                .and_then(|mut states| states.pop());
            Done::Fell(state.and_then(|state| state.notes.last(NoteKind::Revoke)))
        }));
    }

    /// Closes the session at once and leaves its intent.
    fn abandon(&mut self) {
        self.told_why = true;
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        self.work.push(Box::pin(async move {
            Done::Abandoned(close(&core, &session).await)
        }));
    }

    fn intent_acknowledged(&mut self) {
        match std::mem::replace(&mut self.intent, IntentChange::Keep) {
            IntentChange::Keep => {}
            IntentChange::Put(_) => {
                if let Some(put) = self.put.take() {
                    let _ = put.send(true);
                }
            }
            IntentChange::Drop => {
                self.may_have_intent = false;
                for release in std::mem::take(&mut self.after_intent) {
                    self.release(release);
                }
            }
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
        // Nothing is released: the intent may be registered, and it always has its locks.
        for release in std::mem::take(&mut self.after_intent) {
            release.answer(Ok(Released::NotHeld));
        }
    }

    fn release(&mut self, release: Release) {
        self.going += release.grants.len();
        if self.work.len() >= RELEASES_AT_ONCE {
            self.backlog.push_back(release);
        } else {
            self.start(release);
        }
    }

    fn start(&mut self, release: Release) {
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        if release.by_close && session.numbers().live() == self.going {
            self.unswept = true;
            self.work.push(Box::pin(async move {
                // A close does not say whether the session lived: one of its grants does.
                let (n, range) = &release.grants[0];
                session.numbers().let_go(*n);
                let grant = Grant {
                    session: session.id,
                    n: *n,
                };
                let stood = core.backend.release(grant, &release.claims[range.clone()]);
                let released = match stood.await {
                    Ok(stood) => released(&core, &session, stood, true).await,
                    Err(_) => Released::Unknown,
                };
                session.die();
                let closed = close(&core, &session).await;
                Done::Closed(release, closed.map(|()| released))
            }));
        } else {
            self.work.push(Box::pin(async move {
                let released =
                    release_each(&core, &session, &release.claims, &release.grants).await;
                Done::Released(release, released)
            }));
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

    fn given_back(&self, release: &Release) {
        self.core
            .given_back(self.session.id, &release.grants, &release.claims);
    }

    /// Retires the numbers, which were not retired before: a renewal that said so would make the release find nothing
    /// live.
    fn retire(&mut self, release: &Release) {
        self.going -= release.grants.len();
        let mut numbers = self.session.numbers();
        for (n, _) in &release.grants {
            numbers.end(*n);
        }
    }

    /// A copy of a request may arrive late. The next renewal, which is requested now, retires its number; then it is
    /// released once more.
    fn doubt(&mut self, release: &Release) {
        let now = now();
        self.unswept = true;
        if self.failures == 0 {
            // Not for each of many.
            let soon = self.renewed + BETWEEN_RENEWALS;
            self.next = self.next.min(soon.max(now));
        }
        self.doubts
            .add(&release.claims, &release.grants, now, self.seq);
    }

    /// A renewal is acknowledged, or such a release.
    fn release_doubts(&mut self) {
        let most = RELEASES_AT_ONCE.saturating_sub(self.work.len());
        for (claims, n, range) in self.doubts.are_over(self.acknowledged, now(), most) {
            let backend = Arc::clone(&self.core.backend);
            let session = self.session.id;
            self.work.push(Box::pin(async move {
                // The next one goes out after the next renewal.
                let released = backend.release(Grant { session, n }, &claims[range]).await;
                Done::Doubted(n, released.is_ok())
            }));
        }
    }

    fn sweep_if_it_is_time(&mut self, now: Instant) {
        let own = self.unswept && now >= self.next_own_sweep;
        if !own && now < self.next_namespace_sweep {
            return;
        }
        let which = if own {
            self.unswept = false;
            self.next_own_sweep = now + OWN_SWEEP;
            Sweep::Session(self.session.id)
        } else {
            self.next_namespace_sweep = now + NAMESPACE_SWEEP;
            if !self.core.sweeps_after(BETWEEN_SWEEPS) {
                return;
            }
            Sweep::All
        };
        self.sweep(which);
    }

    /// Removes what is no longer live. A failure does not matter: there is a next time.
    fn sweep(&mut self, which: Sweep) {
        let backend = Arc::clone(&self.core.backend);
        let limit = self.core.info.sweep_limit;
        self.work.push(Box::pin(async move {
            for _ in 0..SWEEP_REQUESTS {
                let swept = backend.sweep(which, limit).await;
                if !swept.is_ok_and(|swept| swept.more) {
                    break;
                }
            }
            Done::Other
        }));
    }

    /// Nobody has a handle any more.
    async fn close(&mut self) {
        if !self.session.is_dead() && self.intent == IntentChange::Drop {
            // The session was lost before the removal was acknowledged. It may still live in the store: a change that
            // is finished, or that never began, is not handed on if that can be helped.
            let (core, id) = (&self.core, self.session.id);
            let retired = self.session.numbers().retired();
            // Whatever the store remembers of the session.
            let renewal = Renewal::new(self.seq + 1, retired, IntentChange::Drop);
            let _ = until_answered(core, || true, || core.backend.renew(id, &renewal)).await;
        }
        if self.unclosed || !self.session.is_dead() {
            let due = self.renewed + self.core.config.ttl;
            close_in_time(&self.core, &self.session, due).await;
            self.session.die();
        }
        // Nothing counts any more, so a failure leaves only what the next sweep removes.
        let limit = self.core.backend.info().sweep_limit;
        while self.unswept {
            let swept = self
                .core
                .backend
                .sweep(Sweep::Session(self.session.id), limit)
                .await;
            self.unswept = swept.is_ok_and(|swept| swept.more);
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

/// The answer to the renewal under way; never resolves without one.
async fn answered(renewal: &mut Option<InFlight>) -> (InFlight, Result<Renewed>) {
    match renewal {
        None => std::future::pending().await,
        Some(in_flight) => {
            let answer = (&mut in_flight.answer).await;
            let in_flight = renewal.take().expect("it was there a moment ago");
            (in_flight, answer)
        }
    }
}

/// The renewal that is under way when the session closes changes nothing any more. It is not left in the way of the
/// close: it may have its turn, or a connection, before. Never resolves.
async fn goes_on(renewal: Option<InFlight>) {
    if let Some(renewal) = renewal {
        let _ = renewal.answer.await;
    }
    std::future::pending().await
}

/// Sends the release of every grant, the last first, until each is acknowledged. Returns whether all of them were held.
pub(crate) async fn release_each(
    core: &Core,
    session: &Session,
    claims: &[Claim],
    grants: &[(u64, Range<usize>)],
) -> Result<Released> {
    let mut all = Released::Released;
    for (n, range) in grants.iter().rev() {
        session.numbers().let_go(*n);
        let grant = Grant {
            session: session.id,
            n: *n,
        };
        let mut copies = 0;
        let send = || {
            copies += 1;
            core.backend.release(grant, &claims[range.clone()])
        };
        let stood = until_answered(core, || !session.is_dead(), send).await?;
        all = all.and(released(core, session, stood, copies == 1).await);
    }
    Ok(all)
}

/// The meaning of the answer to the last copy of one grant's release. If the grant is absent and the session dead, it
/// was lost with the session; otherwise another copy may have released it.
async fn released(core: &Core, session: &Session, stood: Stood, once: bool) -> Released {
    match Released::of(stood, once && !core.info.repeats) {
        Released::Unknown => {
            let states = core.backend.end(&[session.id], End::IfDue).await;
            let is_dead = |states: Vec<SessionState>| {
                let lives = |state: &SessionState| state.life == Life::Living;
                !states.iter().any(lives)
            };
            match states.is_ok_and(is_dead) {
                true => Released::NotHeld,
                false => Released::Unknown,
            }
        }
        known => known,
    }
}

/// Closes the session as its owner. A registered intent stays.
async fn close(core: &Core, session: &Session) -> Result<()> {
    let ids = std::slice::from_ref(&session.id);
    until_answered(core, || true, || core.backend.end(ids, End::Close)).await?;
    Ok(())
}

/// Closes the session, or waits until it is due.
async fn close_in_time(core: &Core, session: &Session, due: Instant) {
    let mut failures = 0;
    while close(core, session).await.is_err() && now() < due {
        failures += 1;
        sleep_until(due.min(now() + pause(core, failures))).await;
    }
}

/// No answer came before the end of the lease.
fn no_lease(core: &Core) -> Error {
    let what = "no renewal was acknowledged before the end of the lease: the lock ends with it, or is kept";
    Error::new(
        ErrorKind::Indeterminate,
        core.info.name,
        Operation::Renew,
        what,
    )
}

/// A TTL in milliseconds, as stores take it, and no shorter.
pub(crate) fn whole_milliseconds(ttl: Duration) -> Duration {
    let millisecond = Duration::from_millis(1);
    let whole = Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    match whole < ttl {
        true => whole + millisecond,
        false => whole,
    }
}

/// The pause before a renewal or a close is sent again after so many failures.
fn pause(core: &Core, failures: u32) -> Duration {
    let longest = (core.config.ttl / 10).min(Duration::from_secs(2));
    core.backoff(failures, Duration::from_millis(50), longest)
}

/// Uses up the number of an adoption of unknown outcome, acknowledged. While the session lives nobody else can adopt,
/// so this is tried for as long: at once while the error may pass, else after each renewal.
async fn give_up(core: Arc<Core>, me: Arc<Session>, what: GiveUp, done: Option<GivenUp>) -> Done {
    let answer = loop {
        let send = || Box::pin(give_up_once(&core, &me, &what)) as BoxFuture<'_, _>;
        match until_answered(&core, || me.is_valid(), send).await {
            Ok(Adopted::Moved) => return Done::Moved(what, done),
            Ok(_) => break Ok(()),
            Err(error) if !may_pass(&error) || !me.is_valid() => break Err(error),
            Err(_) => {}
        }
    };
    let stands = answer.is_err() && me.is_valid();
    if let Some(done) = done {
        let _ = done.send(answer);
    }
    match stands {
        true => Done::Adopted(what),
        false => Done::Other,
    }
}

/// Gives up in the incarnation that was asked for the adoption. If the session has moved, no request for that
/// incarnation is executed any more; but the new one may have the adoption.
async fn give_up_once(core: &Core, me: &Session, what: &GiveUp) -> Result<Adopted> {
    let (backend, session) = (&core.backend, what.adopting.session);
    let (mut seen, mut within) = (what.seen, what.within);
    let here = me.numbers().incarnation();
    if within.is_known() && within != here {
        let states = backend.end(&[session], End::IfDue).await?;
        let ours =
            |state: &&SessionState| state.life == Life::Abandoned && state.adopter == Some(me.id);
        let Some(state) = states.iter().find(ours) else {
            return Ok(Adopted::NotAdopted);
        };
        (seen, within) = (state.adoption.saturating_sub(1), here);
    }
    let given_up = backend.adopt(session, seen, me.id, Adopt::GiveUp, within);
    given_up.await
}
