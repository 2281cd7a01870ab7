//! The keeper: the one task of a session, and the only writer of its record.
//!
//! It renews, registers and removes the intent, releases what guards give back, and closes the session when nobody
//! has a handle to it any more. Dropping a guard is a message to it, so that `Drop` never blocks, spawns or panics.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client::clock::{self, now};
use crate::client::doubts::Doubts;
use crate::client::guard::Released;
use crate::client::locks::{Alive, Core};
use crate::client::recovery::Adopting;
use crate::client::retry::{may_pass, until_answered};
use crate::client::session::{Handle, Session};
use crate::client::sim::{Rule, broken, spent};
use crate::client::{deadline::Deadline, task};
use crate::{
    Adopt, Claim, End, Grant, IntentChange, Ranges, Registered, Renewal, Renewed, Result,
    SessionId, Sweep,
};

/// How often a session that had requests in doubt sweeps its own records.
const OWN_SWEEP: Duration = Duration::from_secs(5 * 60);
/// How often a session sweeps some of the namespace.
const NAMESPACE_SWEEP: Duration = Duration::from_secs(10 * 60);
/// Time between two renewals that are sent for what is in doubt.
const BETWEEN_RENEWALS: Duration = Duration::from_millis(200);
/// Releases under way at once; more wait their turn.
const RELEASES_AT_ONCE: usize = 256;

/// What the keeper is asked for.
#[derive(Debug)]
pub(crate) enum Order {
    /// These grants are over. If they are what the intent is about, it goes first; the claims follow when that is
    /// acknowledged.
    Release(Release),
    /// Register the intent. `true` when a living session has it.
    Put(Registered, oneshot::Sender<bool>),
    /// Close the session at once, and leave its intent.
    Abandon,
    /// Renew at once. `true` when the session lived then.
    Renew(oneshot::Sender<bool>),
    /// The adoption `seen + 1` of the session must not be ours.
    GiveUp {
        adopting: Adopting,
        seen: u64,
        done: Option<oneshot::Sender<Result<()>>>,
    },
}

/// Grants to give back.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) grants: Vec<(u64, Range<usize>)>,
    /// The grants are what the session's intent is about, and the change is finished or never began. Others of the
    /// session leave the intent alone.
    pub(crate) with_intent: bool,
    /// A copy of one of the acquiring requests may still be under way.
    pub(crate) in_doubt: bool,
    /// The grants are all that the session has, and many: it is closed instead, with one write.
    pub(crate) by_close: bool,
    pub(crate) done: Option<oneshot::Sender<Result<Released>>>,
}

impl Release {
    fn answer(self, answer: Result<Released>) {
        if let Some(done) = self.done {
            // Who asked may not be interested any more.
            let _ = done.send(answer);
        }
    }
}

/// What came of something that the keeper had under way.
enum Done {
    Released(Release, Result<()>),
    /// The session was closed, and was valid until then.
    Closed(Release, bool, Result<()>),
    Abandoned,
    /// What was in doubt was released once more, and acknowledged.
    Doubted(u64, bool),
    /// Something whose outcome changes nothing here.
    Other,
}

struct InFlight {
    answer: BoxFuture<'static, Result<Renewed>>,
    sent: Instant,
    /// Which version of the intent's change it carries.
    intent: u64,
    confirms: Vec<oneshot::Sender<bool>>,
}

pub(crate) struct Keeper {
    core: Arc<Core>,
    session: Arc<Session>,
    orders: mpsc::UnboundedReceiver<Order>,
    seq: u64,
    renewal: Option<InFlight>,
    /// When the last renewal was sent, and when the next one is.
    renewed: Instant,
    next: Instant,
    /// How many renewals in a row were not acknowledged.
    failures: u32,
    /// The intent's change that is not acknowledged yet, and how many changes there were.
    intent: IntentChange,
    intent_version: u64,
    /// From the first byte of a registration until the acknowledgement of its removal.
    may_have_intent: bool,
    put: Option<oneshot::Sender<bool>>,
    /// What is released when the removal of the intent is acknowledged.
    after_intent: Vec<Release>,
    confirms: Vec<oneshot::Sender<bool>>,
    doubts: Doubts,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    backlog: VecDeque<Release>,
    /// Records may be left that do not count.
    unswept: bool,
    next_own_sweep: Instant,
    next_namespace_sweep: Instant,
    _alive: Alive,
}

/// Starts the keeper of a session that was opened by a request sent at `sent`.
pub(crate) fn keep(core: &Arc<Core>, id: SessionId, sent: Instant) -> Handle {
    let session = Arc::new(Session::new(
        id,
        Deadline::new(sent, sent + core.config.validity()),
    ));
    let (orders, receiver) = mpsc::unbounded_channel();
    let keeper = Keeper {
        core: Arc::clone(core),
        session: Arc::clone(&session),
        orders: receiver,
        seq: 0,
        renewal: None,
        renewed: sent,
        next: sent + core.config.ttl / 3,
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
        unswept: false,
        next_own_sweep: sent + OWN_SWEEP,
        next_namespace_sweep: sent + NAMESPACE_SWEEP / 2 + core.chance(NAMESPACE_SWEEP),
        _alive: Alive::new(core),
    };
    core.sessions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(id);
    task::spawn(keeper.run());
    Handle { session, orders }
}

impl Keeper {
    async fn run(mut self) {
        let mut handles = true;
        let mut timer_at = self.next;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(clock::timer(timer_at)));
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
                timer.as_mut().reset(clock::timer(wake));
            }
            tokio::select! {
                biased;
                answer = answered(&mut self.renewal) => self.renewed(answer),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done),
                order = self.orders.recv(), if handles => match order {
                    Some(order) => self.order(order),
                    None => handles = false,
                },
                () = &mut timer, if wake.is_some() => timer_at = now,
            }
        }
        self.close().await;
    }

    fn has_work(&self) -> bool {
        !self.work.is_empty()
            || !self.backlog.is_empty()
            || !self.after_intent.is_empty()
            || self.put.is_some()
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Release(release)
                if self.may_have_intent
                    && (release.with_intent || broken(Rule::OthersLeaveIntent)) =>
            {
                self.set_intent(IntentChange::Drop);
                if broken(Rule::IntentFirstOut) {
                    self.release(release);
                } else {
                    self.after_intent.push(release);
                }
            }
            Order::Release(release) => self.release(release),
            Order::Put(registered, done) => {
                self.may_have_intent = true;
                self.set_intent(IntentChange::Put(registered));
                self.put = Some(done);
            }
            Order::Abandon => {
                let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
                self.work.push(Box::pin(async move {
                    // If it fails the session dies when it is due: nobody renews it any more.
                    let _ = close(&core, &session).await;
                    Done::Abandoned
                }));
            }
            Order::Renew(done) => {
                self.confirms.push(done);
                self.next = now();
            }
            Order::GiveUp {
                adopting,
                seen,
                done,
            } => {
                if broken(Rule::GiveUpAdoption) {
                    return; // Whoever waits is told that the keeper is gone.
                }
                self.work.push(Box::pin(give_up(
                    Arc::clone(&self.core),
                    Arc::clone(&self.session),
                    adopting,
                    seen,
                    done,
                )));
            }
        }
    }

    fn set_intent(&mut self, change: IntentChange) {
        self.intent = change;
        self.intent_version += 1;
        self.next = now();
    }

    /// Renewals go out every third of the TTL, and at once when somebody waits for one.
    fn renew_if_it_is_time(&mut self, now: Instant) {
        if self.renewal.is_some() || now < self.next {
            return;
        }
        self.seq += 1;
        let renewal = Renewal {
            seq: self.seq,
            over: match broken(Rule::RenewalsCarryOver) {
                true => Ranges::EMPTY,
                false => self.session.numbers().over(),
            },
            intent: self.intent.clone(),
        };
        let (backend, id) = (Arc::clone(&self.core.backend), self.session.id);
        let sent = now;
        self.renewal = Some(InFlight {
            answer: Box::pin(async move { backend.renew(id, &renewal).await }),
            sent,
            intent: self.intent_version,
            confirms: std::mem::take(&mut self.confirms),
        });
        self.renewed = sent;
        self.next = sent + self.core.config.ttl / 3;
        self.sweep_if_it_is_time(sent);
    }

    fn renewed(&mut self, (mut renewal, answer): (InFlight, Result<Renewed>)) {
        if broken(Rule::DeadlineFromSend) {
            renewal.sent = now();
        }
        match answer {
            // An answer after the deadline extends nothing, and the loop goes on as lost.
            Ok(Renewed::Living)
                if self
                    .session
                    .deadline
                    .extend(now(), renewal.sent + self.core.config.validity()) =>
            {
                self.failures = 0;
                self.release_doubts();
                for confirm in renewal.confirms {
                    let _ = confirm.send(true);
                }
                if renewal.intent == self.intent_version || broken(Rule::AnswerOfWhatWasSent) {
                    self.intent_acknowledged();
                }
                return;
            }
            Ok(Renewed::Living) => {}
            Ok(Renewed::Dead) => self.session.die(),
            // An answer to a renewal that a later one overtook acknowledges nothing; nor does an error.
            Ok(Renewed::Overtaken) | Err(_) => {
                self.failures += 1;
                let longest = (self.core.config.ttl / 10).min(Duration::from_secs(2));
                self.next = now()
                    + self
                        .core
                        .backoff(self.failures, Duration::from_millis(50), longest);
            }
        }
        self.confirms.extend(renewal.confirms);
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

    /// The session is not valid any more. Whoever waits for a living one is told.
    fn lost(&mut self) {
        if let Some(put) = self.put.take() {
            let _ = put.send(false);
        }
        for confirm in self.confirms.drain(..) {
            let _ = confirm.send(false);
        }
        // Nobody renews it any more.
        self.doubts.clear();
        // Nothing is released: the intent may be registered, and it always has its locks.
        for release in std::mem::take(&mut self.after_intent) {
            if broken(Rule::LostReleasesNothing) {
                self.release(release);
            } else {
                release.answer(Ok(Released::NotHeld));
            }
        }
    }

    fn release(&mut self, release: Release) {
        {
            let mut numbers = self.session.numbers();
            for (n, _) in &release.grants {
                numbers.end(*n);
            }
        }
        for (n, _) in &release.grants {
            spent(Rule::GrantOverAfterRelease, &self.session, *n);
        }
        if release.in_doubt {
            self.doubt(&release);
        }
        if self.work.len() >= RELEASES_AT_ONCE {
            self.backlog.push_back(release);
        } else {
            self.start(release);
        }
    }

    fn start(&mut self, release: Release) {
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        if release.by_close && session.numbers().none_live() {
            self.unswept = true;
            let deadline = session.deadline.get();
            if !broken(Rule::CloseAfterLastBelief) {
                session.die();
            }
            self.work.push(Box::pin(async move {
                let closed = close(&core, &session).await;
                let valid = deadline.is_some_and(|deadline| now() < deadline);
                Done::Closed(release, valid, closed)
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
                if answer.is_err() && !release.in_doubt {
                    self.doubt(&release);
                }
                self.core.given_back(&release.claims);
                let valid = self.session.is_valid();
                let answer = if valid {
                    answer.map(|()| Released::Released)
                } else {
                    Ok(Released::NotHeld)
                };
                release.answer(answer);
            }
            Done::Closed(release, valid, answer) => {
                self.session.die();
                self.core.given_back(&release.claims);
                release.answer(if valid {
                    answer.map(|()| Released::Released)
                } else {
                    Ok(Released::NotHeld)
                });
            }
            Done::Abandoned => self.session.die(),
            Done::Doubted(n, acknowledged) => self.doubts.was_sent(n, acknowledged),
            Done::Other => {}
        }
        if let Some(release) = self.backlog.pop_front() {
            self.start(release);
        }
    }

    /// A copy of a request may come late: its number is over at the next renewal, which is asked for, and then it is
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

    /// The last renewal is acknowledged.
    fn release_doubts(&mut self) {
        let most = RELEASES_AT_ONCE.saturating_sub(self.work.len());
        for (claims, n, range) in self.doubts.are_over(self.seq, now(), most) {
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
            Sweep::All
        };
        let backend = Arc::clone(&self.core.backend);
        let limit = backend.info().sweep_limit;
        self.work.push(Box::pin(async move {
            // Tidying: what is left does not count, and there is a next time.
            let _ = backend.sweep(which, limit).await;
            Done::Other
        }));
    }

    /// Nobody has a handle any more.
    async fn close(&mut self) {
        if !self.session.is_dead() && self.intent == IntentChange::Drop {
            // The session was lost before the removal was acknowledged. It may still live in the store: a change that
            // is finished, or that never began, is not handed on if that can be helped.
            let (core, id) = (&self.core, self.session.id);
            let over = self.session.numbers().over();
            let renewal = Renewal {
                seq: self.seq + 1,
                over,
                intent: IntentChange::Drop,
            };
            let _ = until_answered(core, || true, || core.backend.renew(id, &renewal)).await;
        }
        if !self.session.is_dead() {
            // If it fails the session dies when it is due.
            let _ = close(&self.core, &self.session).await;
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
        self.core
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.session.id);
    }
}

/// The answer to the renewal under way; never, without one.
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

/// Sends the release of every grant, the last first, until each is acknowledged.
pub(crate) async fn release_each(
    core: &Core,
    session: &Session,
    claims: &[Claim],
    grants: &[(u64, Range<usize>)],
) -> Result<()> {
    for (n, range) in grants.iter().rev() {
        let grant = Grant {
            session: session.id,
            n: *n,
        };
        let send = || core.backend.release(grant, &claims[range.clone()]);
        until_answered(core, || !session.is_dead(), send).await?;
    }
    Ok(())
}

/// Ends the session by its owner; an intent that is registered stays.
async fn close(core: &Core, session: &Session) -> Result<()> {
    let ids = std::slice::from_ref(&session.id);
    until_answered(core, || true, || core.backend.end(ids, End::Close)).await?;
    Ok(())
}

/// Uses the number of an adoption of unknown outcome up, acknowledged. While the session lives nobody else can adopt,
/// so it is tried as long.
async fn give_up(
    core: Arc<Core>,
    me: Arc<Session>,
    adopting: Adopting,
    seen: u64,
    done: Option<oneshot::Sender<Result<()>>>,
) -> Done {
    let answer = loop {
        let send = || {
            core.backend
                .adopt(adopting.session, seen, me.id, Adopt::GiveUp)
        };
        match until_answered(&core, || me.is_valid(), send).await {
            Ok(_) => break Ok(()),
            Err(error) if !may_pass(&error) || !me.is_valid() => break Err(error),
            Err(_) => {}
        }
    };
    drop(adopting);
    if let Some(done) = done {
        let _ = done.send(answer);
    }
    Done::Other
}
