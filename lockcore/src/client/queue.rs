//! Those of one process who wait for a key, in order.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::client::chain::{CLAIMS, Chain, Pass};
use crate::client::session::Handle;
use crate::{Busy, Claim, LockKey, SessionId};

/// For each key, those of this process who wait for it or ask for it first. Of those who stand in line only the first
/// looks at the store; whoever may hold something that the first one needs stands before the line, and looks for itself.
#[derive(Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    refusal: Refusal,
    /// Who of this process holds the key exclusively, as far as is known.
    held: Option<Arc<Chain>>,
}

/// The last refusal of somebody who looked, for all who wait in the queue; `None` while the first of all is asking.
type Refusal = Arc<Mutex<Option<Busy>>>;

struct Waiter {
    wake: Notify,
    in_line: bool,
    /// All that it wants, if it takes that over from another one of this process.
    wants: Option<Arc<[Claim]>>,
    offer: Mutex<Option<Offer>>,
    offered: Notify,
    /// It was the first of all, and asks without having waited.
    asks_at_once: AtomicBool,
}

impl Waiter {
    fn asks_at_once(&self) -> bool {
        self.asks_at_once.load(Ordering::Acquire)
    }

    fn offer(&self) -> Option<Offer> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Offer>> {
        self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(refusal: &Refusal) -> MutexGuard<'_, Option<Busy>> {
    refusal.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Those who look at the store: whoever stands before the line, and the first in it if nobody does.
    fn looking(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let before_the_line = self
            .waiters
            .iter()
            .take_while(|waiter| !waiter.in_line)
            .count();
        self.waiters.iter().take(before_the_line.max(1))
    }

    fn wake(&self) {
        self.looking().for_each(|waiter| waiter.wake.notify_one());
    }

    /// Who of this process certainly holds the key.
    fn holder(&self) -> Option<&Arc<Chain>> {
        self.held.as_ref().filter(|chain| chain.stands())
    }

    fn is_needed(&self) -> bool {
        self.held.is_some() || !self.waiters.is_empty()
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

    /// Somebody of this process holds the claims exclusively: nobody else of it asks for them meanwhile.
    pub(crate) fn hold(&self, chain: &Arc<Chain>) {
        if !chain.is_known {
            return;
        }
        let mut keys = self.keys();
        for claim in chain.claims.iter() {
            keys.entry(claim.key().clone()).or_default().held = Some(Arc::clone(chain));
        }
    }

    /// This process has released claims that `is` the holder of: who waits for one of them, for a path above or for a path
    /// below, looks again.
    pub(crate) fn given_back(&self, claims: &[Claim], is: impl Fn(&Chain) -> bool) {
        let mut keys = self.keys();
        let known = if claims.len() <= CLAIMS { claims } else { &[] };
        for key in known.iter().map(Claim::key) {
            if let Entry::Occupied(mut queue) = keys.entry(key.clone()) {
                let held = &mut queue.get_mut().held;
                drop(held.take_if(|chain| is(chain)));
                if !queue.get().is_needed() {
                    queue.remove();
                }
            }
        }
        if self.waiting.load(Ordering::Acquire) > 0 {
            hint(&keys, claims);
        }
    }

    /// The store does not have it any more.
    pub(crate) fn ended(&self, chain: &Chain) {
        self.given_back(&chain.claims, |held| std::ptr::eq(held, chain));
    }

    /// Nothing of the session is held any more.
    pub(crate) fn forget(&self, session: SessionId) {
        self.keys().retain(|_, queue| {
            if queue.held.take_if(|held| held.id() == session).is_some() {
                queue.wake();
            }
            queue.is_needed()
        });
    }

    /// Offers what somebody of this process gives back to the first who waits for it, if that wants the same, and nobody
    /// else would be overtaken. Whether there is one.
    pub(crate) fn offer(&self, claims: &[Claim], offer: impl FnOnce() -> Option<Offer>) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        let keys = self.keys();
        let lines = claims.iter().filter_map(|claim| keys.get(claim.key()));
        let mut lines = lines.filter(|queue| !queue.waiters.is_empty());
        let Some(next) = lines.next().and_then(|queue| queue.waiters.front()) else {
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
        next.asks_at_once.store(false, Ordering::Release);
        next.offered.notify_one();
        true
    }
}

type Keys = BTreeMap<LockKey, Queue>;

/// Who waits for one of the claims, for a path above or for a path below, looks again.
fn hint(keys: &Keys, claims: &[Claim]) {
    for key in claims.iter().map(Claim::key) {
        keys.get(key).into_iter().for_each(Queue::wake);
        related(keys, key).for_each(Queue::wake);
    }
}

/// The queues of the paths above and below one.
fn related<'a>(keys: &'a Keys, key: &'a LockKey) -> impl Iterator<Item = &'a Queue> {
    let is_path = key.is_path();
    let above = is_path.then(|| key.ancestor_keys()).into_iter().flatten();
    let above = above.filter_map(|above| keys.get(&above));
    let below = is_path.then(|| {
        let behind = keys.range((Bound::Excluded(key), Bound::Unbounded));
        behind.take_while(|(below, _)| key.is_above(below))
    });
    above.chain(below.into_iter().flatten().map(|(_, queue)| queue))
}

/// Whether somebody waits for a path above or below one of the claims.
fn waits_beside(keys: &Keys, claims: &[Claim]) -> bool {
    let paths = claims.iter().map(Claim::key).filter(|key| key.is_path());
    let mut beside = paths.flat_map(|key| related(keys, key));
    beside.any(|queue| !queue.waiters.is_empty())
}

/// A grant on its way to the next one. Whatever ends this before, it goes to another one, or back to the store.
pub(crate) struct Offer {
    queues: Arc<Queues>,
    pass: Option<Pass>,
}

impl Offer {
    /// To the one after this.
    pub(crate) fn after(
        queues: &Arc<Queues>,
        chain: &Arc<Chain>,
        handle: &Handle,
        pass: u8,
        in_doubt: bool,
    ) -> Self {
        chain.hand_on();
        let pass = Pass {
            chain: Arc::clone(chain),
            handle: handle.clone(),
            number: pass + 1,
            in_doubt,
        };
        Self {
            queues: Arc::clone(queues),
            pass: Some(pass),
        }
    }

    /// It is the taker's, unless it does not stand any more.
    pub(crate) fn accept(mut self) -> Option<Pass> {
        let stands = |pass: &Pass| pass.handle.is_usable() && pass.chain.stands();
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
            in_doubt,
        }) = self.pass.take()
        else {
            return;
        };
        // Nobody has had it: the number is free for another one.
        let number = number - 1;
        let goes_on = chain.goes_on(number) && {
            let next = || {
                Some(Offer::after(
                    &self.queues,
                    &chain,
                    &handle,
                    number,
                    in_doubt,
                ))
            };
            self.queues.offer(&chain.claims, next)
        };
        if !goes_on {
            handle.order(chain.release(false, in_doubt, None));
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

/// What somebody in the queue may do.
enum Turn {
    /// Wait for whoever is first, who looks at the store or asks it.
    Behind(Arc<Waiter>),
    /// Wait for this process's own holder, if nobody is before.
    Held(Arc<Chain>),
    /// Look at the store.
    Looks,
}

/// A place in the queue of a key. Dropping it leaves the queue, and lets the next one look.
pub(crate) struct Place {
    queues: Arc<Queues>,
    claim: Claim,
    waiter: Arc<Waiter>,
    refusal: Refusal,
}

impl Place {
    /// Joins the queue of a key: in line, or before it.
    pub(crate) fn take(
        queues: &Arc<Queues>,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
    ) -> Self {
        let mut keys = queues.keys();
        let queue = keys.entry(claim.key().clone()).or_default();
        Self::join(queues, claim, in_line, wants, queue)
    }

    /// Joins the line of a key for which others wait already, or which this process holds. Whoever waits for ever begins
    /// one where nobody does; whoever does not joins only where somebody knows who is in the way.
    pub(crate) fn in_line(
        queues: &Arc<Queues>,
        claim: &Claim,
        for_ever: bool,
        wants: Option<&Arc<[Claim]>>,
    ) -> Option<Self> {
        let mut keys = queues.keys();
        let queue = match keys.entry(claim.key().clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(none) if for_ever => none.insert(Queue::default()),
            Entry::Vacant(_) => return None,
        };
        if !for_ever && queue.holder().is_none() && lock(&queue.refusal).is_none() {
            return None;
        }
        Some(Self::join(queues, claim, true, wants, queue))
    }

    fn join(
        queues: &Arc<Queues>,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
        queue: &mut Queue,
    ) -> Self {
        let asks_at_once = queue.waiters.is_empty() && queue.holder().is_none();
        let waiter = Arc::new(Waiter {
            wake: Notify::new(),
            in_line,
            wants: wants.cloned(),
            offer: Mutex::default(),
            offered: Notify::new(),
            asks_at_once: AtomicBool::new(asks_at_once),
        });
        if in_line {
            queue.waiters.push_back(Arc::clone(&waiter));
        } else {
            queue.waiters.push_front(Arc::clone(&waiter));
        }
        queues.waiting.fetch_add(1, Ordering::AcqRel);
        Self {
            queues: Arc::clone(queues),
            claim: claim.clone(),
            waiter,
            refusal: Arc::clone(&queue.refusal),
        }
    }

    /// Whoever asked was refused.
    pub(crate) fn is_refused(&self, busy: Busy) {
        self.waiter.asks_at_once.store(false, Ordering::Release);
        *lock(&self.refusal) = Some(busy);
    }

    /// Whether it has waited: it was refused, or others were there before.
    pub(crate) fn has_begun(&self) -> bool {
        !self.waiter.asks_at_once()
    }

    /// Who is in the way, as far as is known.
    pub(crate) fn in_the_way(&self) -> InTheWay {
        InTheWay {
            queues: Arc::clone(&self.queues),
            claim: self.claim.clone(),
            refusal: Arc::clone(&self.refusal),
        }
    }

    /// Resolves when somebody has given back what may have been in the way.
    pub(crate) async fn woken(&self) {
        self.waiter.wake.notified().await;
    }

    /// Returns when somebody of this process has offered it something, which stays where it is.
    pub(crate) async fn is_offered(&self) {
        while self.waiter.slot().is_none() {
            self.waiter.offered.notified().await;
        }
    }

    pub(crate) fn offer(&self) -> Option<Offer> {
        self.waiter.offer()
    }

    /// Returns when it is among those who look at the store, and nobody of this process is known to hold the key. Whoever
    /// asks without having waited is overtaken when it has no answer for that long.
    pub(crate) async fn until_it_looks(&self, patience: Duration) {
        loop {
            let woken = self.woken();
            match self.turn() {
                Turn::Looks => return,
                Turn::Behind(first) if !first.asks_at_once() => woken.await,
                Turn::Behind(first) => {
                    if timeout(patience, woken).await.is_err() {
                        self.overtake(&first);
                    }
                }
                Turn::Held(chain) => tokio::select! {
                    biased;
                    () = woken => {}
                    () = chain.lost() => self.queues.ended(&chain),
                },
            }
        }
    }

    fn turn(&self) -> Turn {
        let keys = self.queues.keys();
        let Some(queue) = keys.get(self.claim.key()) else {
            return Turn::Looks;
        };
        let looks = queue
            .looking()
            .any(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        match (queue.waiters.front(), queue.holder()) {
            (Some(first), _) if !looks => Turn::Behind(Arc::clone(first)),
            (_, Some(chain)) => Turn::Held(Arc::clone(chain)),
            _ => Turn::Looks,
        }
    }

    /// Whoever is first has no answer yet, and may never have one: it makes room for the next one.
    fn overtake(&self, first: &Arc<Waiter>) {
        let mut keys = self.queues.keys();
        if let Some(queue) = keys.get_mut(self.claim.key())
            && let Some(now) = queue.waiters.front()
            && Arc::ptr_eq(now, first)
            && first.asks_at_once()
        {
            queue.waiters.rotate_left(1);
            queue.wake();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut keys = self.queues.keys();
        self.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Some(queue) = keys.get_mut(self.claim.key()) {
            queue
                .waiters
                .retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            // Whoever is first now may have become so just now; one look too many does no harm.
            queue.wake();
            if !queue.is_needed() {
                keys.remove(self.claim.key());
            }
        }
        drop(keys);
        // Nothing is offered to it any more: what was goes to the next one.
        drop(self.waiter.offer());
    }
}

/// Who is in the way of somebody who waits for a key, as far as is known.
#[derive(Clone)]
pub(crate) struct InTheWay {
    queues: Arc<Queues>,
    claim: Claim,
    refusal: Refusal,
}

impl InTheWay {
    pub(crate) fn busy(&self) -> Option<Busy> {
        let held = {
            let keys = self.queues.keys();
            let queue = keys.get(self.claim.key());
            queue.and_then(Queue::holder).cloned()
        };
        match held {
            Some(chain) => Some(chain.busy(&self.claim)),
            None => lock(&self.refusal).clone(),
        }
    }
}
