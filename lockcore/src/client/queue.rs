//! The queue of one process's waiters for a key.

use std::cell::OnceCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::client::chain::{CLAIMS, Chain, Pass};
use crate::client::clock::now;
use crate::client::order::Order;
use crate::client::session::Handle;
use crate::{Busy, Claim, LockKey, Mode, OwnerId, SessionId, Want};

/// For so long after something was asked the last refusal still says who is in the way.
const KNOWN: Duration = Duration::from_secs(1);

/// Whether that is so where the store owes an answer since then.
pub(crate) fn is_known(asked: Option<Instant>) -> bool {
    asked.is_none_or(|since| now() < since + KNOWN)
}

/// For each key, the tasks of this process that wait for it, or ask for it first.
///
/// A task in line has its turn in order. It does not ask the store before earlier tasks that exclude it, nor while this
/// process itself is known to hold what excludes it. Shares ask side by side, up to their number of places; after a
/// refusal only the first one asks, for all. A task that may hold something that the first one needs stands before the
/// line, and asks by itself.
#[derive(Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    arrivals: AtomicU64,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    /// The last refusal of a task that asked, for all who wait in the queue.
    refusal: Option<Box<Busy>>,
    refused_at: Option<Instant>,
    /// Nobody of this process has been granted the key since.
    is_refused: bool,
    /// The tasks of this process that hold the key, as far as known.
    holders: Vec<Arc<Chain>>,
}

/// How many hold a key, once that is counted.
type Holding = OnceCell<usize>;

struct Waiter {
    /// Rises in each line.
    arrival: AtomicU64,
    claim: Claim,
    wake: Notify,
    in_line: bool,
    /// All that it wants, if it accepts that from another task of this process.
    wants: Option<Arc<[Claim]>>,
    /// Whose locks it may enter again.
    owner: Option<OwnerId>,
    offer: Mutex<Option<Offer>>,
    offered: Notify,
    /// Its turn came at once, and it asks without having waited.
    asks_at_once: AtomicBool,
    /// Since when, if it asks.
    asks: Mutex<Option<Instant>>,
    /// Since it asked last, a task of this process that does not stand in line has got what excludes it.
    is_overtaken: AtomicBool,
}

impl Waiter {
    fn want(&self) -> Want {
        self.claim.want()
    }

    /// The number of places for all who want the same, if it is limited.
    fn limit(&self) -> Option<usize> {
        match self.want() {
            Want::Share { limit } => {
                limit.map(|limit| usize::try_from(limit.get()).unwrap_or(usize::MAX))
            }
            _ => None,
        }
    }

    /// Whether it wants only a share without a limit, which another task of this process may have already.
    fn joins(&self) -> bool {
        self.wants.is_some() && self.want() == Want::Share { limit: None }
    }

    /// Whether nothing is on its way to it.
    fn has_none(&self) -> bool {
        !self.is_asking() && self.slot().is_none()
    }

    fn excludes(&self, other: &Self) -> bool {
        self.is_exclusive() || other.is_exclusive()
    }

    fn is_exclusive(&self) -> bool {
        self.want().mode() == Mode::X
    }

    /// Whether the other waiter excludes this one, stands in line and came earlier.
    fn is_behind(&self, other: &Self) -> bool {
        let earlier = other.arrival() < self.arrival() && !other.asks_at_once();
        other.in_line && earlier && other.excludes(self)
    }

    fn asks_at_once(&self) -> bool {
        self.asks_at_once.load(Ordering::Acquire)
    }

    fn arrival(&self) -> u64 {
        self.arrival.load(Ordering::Relaxed)
    }

    fn is_asking(&self) -> bool {
        self.asks().is_some()
    }

    fn asks(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_overtaken(&self) -> bool {
        self.is_overtaken.load(Ordering::Acquire)
    }

    /// Its slot contains something.
    fn is_offered(&self) {
        self.asks_at_once.store(false, Ordering::Release);
        self.offered.notify_one();
    }

    fn offer(&self) -> Option<Offer> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Offer>> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// How many stand before the line.
    fn before_the_line(&self) -> usize {
        let waiters = self.waiters.iter();
        waiters.take_while(|waiter| !waiter.in_line).count()
    }

    /// The waiters that may ask the store, as far as this line decides: those before the line; if there are none, those
    /// whose turn it is.
    fn polling(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let before = self.before_the_line();
        let line = self.waiters.iter().enumerate();
        let holding = OnceCell::new();
        line.take_while(move |(at, waiter)| {
            !waiter.in_line || before == 0 && self.comes_in_turn(*at, waiter, &holding)
        })
        .map(|(_, waiter)| waiter)
    }

    /// Whether a waiter in line may ask, if all before it may.
    fn comes_in_turn(&self, at: usize, waiter: &Waiter, holding: &Holding) -> bool {
        let Some(last) = at.checked_sub(1).map(|before| &self.waiters[before]) else {
            return true;
        };
        let has_room = match waiter.limit() {
            Some(places) => self.holding(holding) + at < places,
            // One asks for all who want the same.
            None => !waiter.joins() || !self.waiters.iter().take(at).any(|it| it.joins()),
        };
        has_room && !waiter.excludes(last) && !self.is_refused
    }

    /// Those in line who want only a share, have none yet, and wait for nobody else.
    fn sharing(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let before = self.waiters.iter().take_while(|it| !it.is_exclusive());
        before.filter(|waiter| waiter.in_line && waiter.joins() && waiter.has_none())
    }

    /// Wakes the waiters that may ask the store now, as far as this line decides.
    fn wake(&self) {
        let holding = OnceCell::new();
        let polling = self.polling();
        let polling = polling.filter(|waiter| self.in_the_way_of(waiter, &holding).is_none());
        polling.for_each(|waiter| waiter.wake.notify_one());
    }

    /// How many tasks of this process hold the key, as far as anybody has seen; counted once in a pass.
    fn holding(&self, known: &Holding) -> usize {
        let stood = || self.holders.iter().filter(|chain| chain.stood()).count();
        *known.get_or_init(stood)
    }

    /// The task of this process that holds the key, as far as anybody has seen.
    fn holder(&self) -> Option<&Arc<Chain>> {
        self.holders.iter().find(|chain| chain.stood())
    }

    /// The task of this process that holds what excludes the claim, as far as anybody has seen. What its own owner holds is
    /// for the store to judge.
    fn in_the_way_of(&self, waiter: &Waiter, holding: &Holding) -> Option<&Arc<Chain>> {
        let is_full = waiter
            .limit()
            .is_some_and(|places| self.holding(holding) >= places);
        let excludes =
            |chain: &&Arc<Chain>| chain.is_exclusive() || waiter.is_exclusive() || is_full;
        let is_own = |chain: &Arc<Chain>| waiter.owner == Some(chain.taken.owner);
        self.holders
            .iter()
            .find(|chain| chain.stood() && !is_own(chain))
            .filter(excludes)
            // It polls for what it may hold itself.
            .filter(|chain| waiter.in_line || chain.is_exclusive())
    }

    fn is_needed(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty()
    }
}

impl Queues {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    /// A task of this process holds the claims. Tasks that it excludes do not ask for them meanwhile. A share belongs
    /// also to the others who wait for the same behind the `asker`.
    pub(crate) fn hold(
        self: &Arc<Self>,
        chain: &Arc<Chain>,
        handle: &Handle,
        asker: Option<&Place>,
    ) {
        if !chain.is_known {
            return;
        }
        let mut keys = self.keys();
        for claim in chain.taken.claims.iter() {
            let queue = keys.entry(claim.key().clone()).or_default();
            queue.holders.push(Arc::clone(chain));
            // Whoever refused it has gone.
            (queue.refusal, queue.is_refused) = (None, false);
            if chain.is_shared() {
                let is_asker = |waiter: &Arc<Waiter>| {
                    asker.is_some_and(|asker| Arc::ptr_eq(&asker.waiter, waiter))
                };
                let others = queue.sharing().filter(|waiter| !is_asker(waiter));
                for (waiter, number) in others.map_while(|waiter| Some((waiter, chain.join()?))) {
                    *waiter.slot() = Some(Offer::of(self, chain, handle, number));
                    waiter.is_offered();
                }
            }
        }
        if !self.is_idle() {
            let stood = asker.filter(|asker| asker.waiter.in_line);
            overtakes(&keys, chain, stood.map(|asker| asker.waiter.claim.key()));
        }
    }

    /// A share that a task of this process has, unless an earlier waiter waits for its end.
    pub(crate) fn join(&self, claim: &Claim) -> Option<Pass> {
        if claim.want() != (Want::Share { limit: None }) {
            return None;
        }
        let keys = self.keys();
        let queue = keys.get(claim.key())?;
        if queue.waiters.iter().any(|waiter| waiter.is_exclusive()) {
            return None;
        }
        queue.holders.iter().find_map(|chain| {
            let handle = chain.session.upgrade().filter(Handle::is_kept)?;
            let number = chain.join()?;
            Some(Pass {
                chain: Arc::clone(chain),
                handle,
                number,
            })
        })
    }

    /// This process has released claims whose holder `is` identifies. Those who wait for one of them, or for a path
    /// above or below, ask again.
    pub(crate) fn given_back(&self, claims: &[Claim], is: impl Fn(&Chain) -> bool) {
        let mut keys = self.keys();
        let known = if claims.len() <= CLAIMS { claims } else { &[] };
        for key in known.iter().map(Claim::key) {
            if let Entry::Occupied(mut queue) = keys.entry(key.clone()) {
                let holders = &mut queue.get_mut().holders;
                if let Some(at) = holders.iter().position(|chain| is(chain)) {
                    holders.swap_remove(at);
                }
                if !queue.get().is_needed() {
                    queue.remove();
                }
            }
        }
        if !self.is_idle() {
            hint(&keys, claims);
        }
    }

    /// The store no longer has it.
    pub(crate) fn ended(&self, chain: &Chain) {
        self.given_back(&chain.taken.claims, |held| std::ptr::eq(held, chain));
    }

    /// The holders that `is` identifies are no longer held.
    pub(crate) fn forget(&self, is: impl Fn(&Chain) -> bool) {
        let mut keys = self.keys();
        let mut gone = Vec::new();
        keys.retain(|_, queue| {
            gone.extend(queue.holders.extract_if(.., |chain| is(chain)));
            queue.is_needed()
        });
        gone.iter()
            .for_each(|chain| hint(&keys, &chain.taken.claims));
    }

    /// Takes back what tasks of this process have been offered of a session, and not taken in time: they are not polled.
    pub(crate) fn take_back(&self, session: SessionId) {
        if self.is_idle() {
            return;
        }
        let is_late = |offer: &mut Offer| offer.is_late(session);
        let keys = self.keys();
        let waiters = keys.values().flat_map(|queue| &queue.waiters);
        let late = waiters.filter_map(|waiter| waiter.slot().take_if(is_late));
        let late: Vec<Offer> = late.collect();
        // Dropping them offers them to others.
        drop(keys);
        drop(late);
    }

    /// Whether nobody waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Offers what a task of this process gives back to the first waiter for it, if that wants the same and nobody else
    /// would be overtaken. Returns whether there is one.
    pub(crate) fn offer(&self, claims: &[Claim], offer: impl FnOnce() -> Option<Offer>) -> bool {
        let keys = self.keys();
        let lines = claims.iter().filter_map(|claim| keys.get(claim.key()));
        let mut lines = lines.filter(|queue| !queue.waiters.is_empty());
        // Of those who want a place, some are about to have another one.
        let is_next = |waiter: &&Arc<Waiter>| waiter.limit().is_none() || waiter.has_none();
        let Some(next) = lines
            .next()
            .and_then(|queue| queue.waiters.iter().find(is_next))
        else {
            return false;
        };
        let same = next.in_line && next.wants.as_deref() == Some(claims);
        let mut slot = next.slot();
        if !same || slot.is_some() || lines.next().is_some() || waits_beside(&keys, claims) {
            return false;
        }
        *slot = offer();
        if slot.is_none() {
            return false;
        }
        next.is_offered();
        true
    }
}

type Keys = BTreeMap<LockKey, Queue>;

/// Those who wait for one of the claims, or for a path above or below, ask again.
fn hint(keys: &Keys, claims: &[Claim]) {
    for key in claims.iter().map(Claim::key) {
        keys.get(key).into_iter().for_each(Queue::wake);
        related(keys, key).for_each(Queue::wake);
    }
}

/// The queues of the paths above and below one.
fn related<'a>(keys: &'a Keys, key: &'a LockKey) -> impl Iterator<Item = &'a Queue> {
    // Mostly there are none.
    let is_path = key.is_path() && keys.len() > usize::from(keys.contains_key(key));
    let above = is_path.then(|| key.ancestor_keys()).into_iter().flatten();
    let above = above.filter_map(|above| keys.get(&above));
    let below = is_path.then(|| {
        let behind = keys.range((Bound::Excluded(key), Bound::Unbounded));
        behind.take_while(|(below, _)| key.is_above(below))
    });
    above.chain(below.into_iter().flatten().map(|(_, queue)| queue))
}

/// Somebody who does not stand in line has got what those in line wait for. The store has to know of them: a place in its line
/// keeps out whoever comes later. Who has `stood` in line for one key has overtaken nobody there.
fn overtakes(keys: &Keys, chain: &Chain, stood: Option<&LockKey>) {
    let meets =
        |key: &LockKey, other: &LockKey| key == other || key.is_above(other) || other.is_above(key);
    for key in chain.taken.claims.iter().map(Claim::key) {
        if stood.is_some_and(|stood| meets(stood, key)) {
            continue;
        }
        for queue in keys.get(key).into_iter().chain(related(keys, key)) {
            let holding = OnceCell::new();
            let excluded = queue.waiters.iter().filter(|waiter| {
                let is_full = waiter
                    .limit()
                    .is_some_and(|places| queue.holding(&holding) >= places);
                waiter.in_line && (waiter.is_exclusive() || chain.is_exclusive() || is_full)
            });
            for waiter in excluded {
                if !waiter.is_overtaken.swap(true, Ordering::AcqRel) {
                    waiter.wake.notify_one();
                }
            }
        }
    }
}

/// The task of this process that holds a key, or a path above or below, as far as anybody has seen.
fn holder<'a>(keys: &'a Keys, key: &'a LockKey) -> Option<&'a Arc<Chain>> {
    let mut queues = keys.get(key).into_iter().chain(related(keys, key));
    queues.find_map(Queue::holder)
}

/// Whether somebody waits for a path above or below one of the claims.
fn waits_beside(keys: &Keys, claims: &[Claim]) -> bool {
    let paths = claims.iter().map(Claim::key).filter(|key| key.is_path());
    let mut beside = paths.flat_map(|key| related(keys, key));
    beside.any(|queue| !queue.waiters.is_empty())
}

/// A grant on its way to the next task. If it does not arrive, it goes to another one, or back to the store.
pub(crate) struct Offer {
    queues: Arc<Queues>,
    pass: Option<Pass>,
}

impl Offer {
    /// To the task after this one.
    pub(crate) fn after(
        queues: &Arc<Queues>,
        chain: &Arc<Chain>,
        handle: &Handle,
        pass: u8,
    ) -> Self {
        chain.hand_on();
        Self::of(queues, chain, handle, pass + 1)
    }

    fn of(queues: &Arc<Queues>, chain: &Arc<Chain>, handle: &Handle, number: u8) -> Self {
        let pass = Pass {
            chain: Arc::clone(chain),
            handle: handle.clone(),
            number,
        };
        Self {
            queues: Arc::clone(queues),
            pass: Some(pass),
        }
    }

    /// Whether it is of that session and could have been taken long ago.
    fn is_late(&self, session: SessionId) -> bool {
        let chain = self.pass.as_ref().map(|pass| &pass.chain);
        chain.is_some_and(|chain| chain.id() == session && chain.is_old(now()))
    }

    /// The taker has it, unless it is no longer held.
    pub(crate) fn accept(mut self) -> Option<Pass> {
        let stands = |pass: &Pass| pass.handle.is_kept() && pass.chain.stands();
        self.pass
            .as_ref()
            .is_some_and(stands)
            .then(|| self.pass.take())?
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let Some(Pass {
            chain,
            handle,
            number,
        }) = self.pass.take()
        else {
            return;
        };
        // Nobody has had it: the number is free for another one.
        let number = number - 1;
        let goes_on = chain.goes_on(number, now()) && {
            let next = || Some(Offer::after(&self.queues, &chain, &handle, number));
            self.queues.offer(&chain.taken.claims, next)
        };
        if !goes_on && chain.leave() {
            handle.order(Order::Release(chain.release(false, None)));
        }
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pass = self.pass.as_ref();
        f.debug_tuple("Offer")
            .field(&pass.map(|pass| (pass.chain.id(), pass.number)))
            .finish()
    }
}

/// What a waiter in the queue may do.
enum Turn {
    /// Wait for earlier waiters, of whom this is the first.
    Behind(Arc<Waiter>),
    /// Wait for this process's own holder, if nobody comes before.
    Held(Arc<Chain>),
    /// Ask the store.
    Polls,
}

/// A place in the queue of a key. Dropping it leaves the queue and lets the next one ask.
pub(crate) struct Place {
    queues: Arc<Queues>,
    waiter: Arc<Waiter>,
}

impl Place {
    /// Joins the queue of a key: in line, or before it. An `owner` may enter its own locks again.
    pub(crate) fn take(
        queues: &Arc<Queues>,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
        owner: Option<OwnerId>,
    ) -> Self {
        let mut keys = queues.keys();
        Self::join(queues, &mut keys, claim, in_line, wants, owner)
    }

    /// Joins the line of a key for which others wait already, or of which this process holds what excludes the claim. A
    /// waiter that `begins` a line does so if nobody waits. A waiter that does not wait for ever joins only if somebody
    /// knows who is in the way.
    pub(crate) fn in_line(
        queues: &Arc<Queues>,
        claim: &Claim,
        for_ever: bool,
        begins: bool,
        wants: Option<&Arc<[Claim]>>,
    ) -> Option<Self> {
        let mut keys = queues.keys();
        let queue = || keys.get(claim.key());
        let is_refused = || queue().is_some_and(|queue| queue.refusal.is_some());
        let is_known = || is_refused() || holder(&keys, claim.key()).is_some();
        let is_line = || queue().is_some_and(Queue::is_needed);
        let joins = (for_ever || is_known()) && (begins || is_line());
        joins.then(|| Self::join(queues, &mut keys, claim, true, wants, None))
    }

    fn join(
        queues: &Arc<Queues>,
        keys: &mut Keys,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
        owner: Option<OwnerId>,
    ) -> Self {
        let waiter = Arc::new(Waiter {
            arrival: AtomicU64::new(queues.arrives()),
            claim: claim.clone(),
            wake: Notify::new(),
            in_line,
            wants: wants.cloned(),
            owner,
            offer: Mutex::default(),
            offered: Notify::new(),
            asks_at_once: AtomicBool::new(false),
            asks: Mutex::default(),
            is_overtaken: AtomicBool::new(false),
        });
        let queue = keys.entry(claim.key().clone()).or_default();
        if in_line {
            queue.waiters.push_back(Arc::clone(&waiter));
        } else {
            queue.waiters.push_front(Arc::clone(&waiter));
        }
        queues.waiting.fetch_add(1, Ordering::AcqRel);
        let asks_at_once = matches!(turn(keys, &waiter), Turn::Polls);
        waiter.asks_at_once.store(asks_at_once, Ordering::Release);
        Self {
            queues: Arc::clone(queues),
            waiter,
        }
    }

    /// The claim that is waited for.
    pub(crate) fn claim(&self) -> &Claim {
        &self.waiter.claim
    }

    /// The waiter asked and was refused.
    pub(crate) fn is_refused(&self, busy: Busy) {
        self.waiter.asks_at_once.store(false, Ordering::Release);
        // It is there as long as somebody waits.
        if let Some(queue) = self.queues.keys().get_mut(self.waiter.claim.key()) {
            queue.refusal = Some(Box::new(busy));
            queue.refused_at = Some(now());
            queue.is_refused = true;
        }
    }

    /// Whether more waiters were in the way than the last refusal names, as far as it tells.
    pub(crate) fn is_behind_many(&self) -> bool {
        let keys = self.queues.keys();
        let queue = keys.get(self.waiter.claim.key());
        let refusal = queue.and_then(|queue| queue.refusal.as_ref());
        refusal.is_some_and(|busy| {
            let first = busy.first();
            first.more && first.holders.iter().any(|it| it.waiting.is_some())
        })
    }

    /// Whether it has waited: it was refused, or others came first.
    pub(crate) fn has_begun(&self) -> bool {
        !self.waiter.asks_at_once()
    }

    /// Who is in the way, as far as known.
    pub(crate) fn in_the_way(&self) -> InTheWay {
        let mut way = InTheWay {
            queues: Arc::clone(&self.queues),
            waiter: Arc::clone(&self.waiter),
            before: None,
        };
        way.before = way.busy().map(Box::new);
        way
    }

    /// Resolves when somebody has given back what may have been in the way.
    pub(crate) async fn woken(&self) {
        self.waiter.wake.notified().await;
    }

    /// Returns when a task of this process has offered it something, which stays in its slot.
    pub(crate) async fn is_offered(&self) {
        while self.waiter.slot().is_none() {
            self.waiter.offered.notified().await;
        }
    }

    pub(crate) fn offer(&self) -> Option<Offer> {
        self.waiter.offer()
    }

    /// Asks the store for what it wants.
    pub(crate) async fn asks<T>(&self, something: impl Future<Output = T> + Unpin) -> T {
        let asking = Asking::new(&self.waiter);
        let came = something.await;
        drop(asking);
        came
    }

    /// Returns when its turn has come and no task of this process is known to hold what excludes it. A task that asks
    /// without having waited is overtaken when it has no answer for `patience`. An exclusive waiter is overtaken by a
    /// share that has waited for `longest`, while another process keeps the exclusive one out; and those who do not stand
    /// in line by the first one in line, when it has waited for so long. A waiter that one of these has overtaken asks
    /// at once: for a place in the store's line. A waiter that is `in_line` in the store waits for its turn there, and not for
    /// its turn here.
    pub(crate) async fn until_it_polls(
        &self,
        (patience, longest): (Duration, Duration),
        in_line: bool,
    ) {
        loop {
            let woken = self.woken();
            let turn = turn(&self.queues.keys(), &self.waiter);
            match turn {
                Turn::Polls => return,
                _ if in_line => return,
                Turn::Behind(first) if !first.asks_at_once() => {
                    let goes = || {
                        let keys = self.queues.keys();
                        passes(&keys, &self.waiter)
                            || (!first.in_line && comes_first(&keys, &self.waiter))
                    };
                    if timeout(longest, woken).await.is_err() && goes() {
                        return;
                    }
                }
                Turn::Behind(first) => {
                    if timeout(patience, woken).await.is_err() {
                        self.queues.overtake(&first);
                    }
                }
                Turn::Held(_) if self.waiter.is_overtaken() => return,
                // It is woken when that ends; where nobody is left who would do so, it sees by itself that it does not stand.
                Turn::Held(chain) if chain.stands() => drop(timeout(longest, woken).await),
                Turn::Held(_) => {}
            }
        }
    }
}

fn turn(keys: &Keys, waiter: &Arc<Waiter>) -> Turn {
    let key = waiter.claim.key();
    let Some(queue) = keys.get(key) else {
        return Turn::Polls;
    };
    let mut polling = queue.polling();
    if let Some(first) = queue.waiters.front()
        && !polling.any(|it| Arc::ptr_eq(it, waiter))
    {
        return Turn::Behind(Arc::clone(first));
    }
    if waiter.in_line && key.is_path() {
        let mut beside = related(keys, key).flat_map(|queue| &queue.waiters);
        if let Some(other) = beside.find(|other| waiter.is_behind(other)) {
            return Turn::Behind(Arc::clone(other));
        }
        let mut beside = related(keys, key);
        if let Some(chain) = beside.find_map(|queue| queue.in_the_way_of(waiter, &OnceCell::new()))
        {
            return Turn::Held(Arc::clone(chain));
        }
    }
    match queue.in_the_way_of(waiter, &OnceCell::new()) {
        Some(chain) => Turn::Held(Arc::clone(chain)),
        None => Turn::Polls,
    }
}

/// Whether only those keep it waiting that do not stand in line, and keep each other coming: once it has asked, it has a
/// place in the store's line.
fn comes_first(keys: &Keys, waiter: &Arc<Waiter>) -> bool {
    let queue = keys.get(waiter.claim.key());
    let mut waiters = queue.into_iter().flat_map(|queue| &queue.waiters);
    let first = waiters.find(|it| it.in_line);
    first.is_some_and(|first| Arc::ptr_eq(first, waiter))
}

/// Whether another process keeps out everybody who excludes it and came earlier: those who share with that process
/// would wait for as long.
fn passes(keys: &Keys, waiter: &Waiter) -> bool {
    let key = waiter.claim.key();
    let mut lines = keys.get(key).into_iter().chain(related(keys, key));
    let is_before = |other: &Arc<Waiter>| waiter.is_behind(other);
    let waits = |queue: &Queue| queue.waiters.iter().any(is_before) && !queue.is_refused;
    !waiter.is_exclusive() && !lines.any(waits)
}

impl Queues {
    fn arrives(&self) -> u64 {
        self.arrivals.fetch_add(1, Ordering::Relaxed)
    }

    /// A waiter without an answer may never get one. It makes room for the next one.
    fn overtake(&self, other: &Arc<Waiter>) {
        let mut keys = self.keys();
        if let Some(queue) = keys.get_mut(other.claim.key())
            && other.asks_at_once()
            && let Some(at) = queue.waiters.iter().position(|it| Arc::ptr_eq(it, other))
            && let Some(other) = queue.waiters.remove(at)
        {
            other.arrival.store(self.arrives(), Ordering::Relaxed);
            queue.waiters.push_back(other);
            queue.wake();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut keys = self.queues.keys();
        self.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        let key = self.waiter.claim.key();
        if let Some(queue) = keys.get_mut(key) {
            queue
                .waiters
                .retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            // Whoever is first now may have become so just now; one look too many does no harm.
            queue.wake();
            if !queue.is_needed() {
                keys.remove(key);
            }
        }
        related(&keys, key).for_each(Queue::wake);
        drop(keys);
        // Nothing is offered to it any more: what was goes to the next one.
        drop(self.waiter.offer());
    }
}

/// Exists while the waiter asks the store.
struct Asking<'a>(&'a Waiter);

impl<'a> Asking<'a> {
    fn new(waiter: &'a Waiter) -> Self {
        *waiter.asks() = Some(now());
        waiter.is_overtaken.store(false, Ordering::Release);
        Self(waiter)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *self.0.asks() = None;
    }
}

/// Who is in the way of a waiter for a key, as far as known.
#[derive(Clone)]
pub(crate) struct InTheWay {
    queues: Arc<Queues>,
    waiter: Arc<Waiter>,
    /// Who was when this was made. That one may have gone, and whoever comes before the waiter may have no answer yet.
    before: Option<Box<Busy>>,
}

impl InTheWay {
    pub(crate) fn busy(&self) -> Option<Busy> {
        let claim = &self.waiter.claim;
        let keys = self.queues.keys();
        let refusal = || keys.get(claim.key())?.refusal.as_deref().cloned();
        match turn(&keys, &self.waiter) {
            Turn::Held(chain) => Some(chain.busy(claim)),
            Turn::Behind(first) => match holder(&keys, claim.key()) {
                Some(chain) => Some(chain.busy(claim)),
                // The first one asks for all, unless others have been answered since.
                None => {
                    let refused_at = keys.get(claim.key()).and_then(|queue| queue.refused_at);
                    let asks = first.asks().filter(|asks| refused_at < Some(*asks));
                    let known = || refusal().or_else(|| self.before.as_deref().cloned());
                    is_known(asks).then(known).flatten()
                }
            },
            Turn::Polls => refusal(),
        }
    }
}
