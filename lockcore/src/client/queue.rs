//! Those of one process who wait for a key, in order.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::{Busy, Claim, LockKey};

/// For each key, those of this process who wait for it or ask for it first. Of those who stand in line only the first
/// looks at the store; whoever may hold something that the first one needs stands before the line, and looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    keys: Mutex<BTreeMap<LockKey, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    refusal: Refusal,
}

/// The last refusal of somebody who looked, for all who wait in the queue; `None` while the first of all is asking.
pub(crate) type Refusal = Arc<Mutex<Option<Busy>>>;

#[derive(Debug)]
struct Waiter {
    wake: Notify,
    in_line: bool,
    /// It was the first of all, and asks without having waited.
    asks_at_once: AtomicBool,
}

impl Waiter {
    fn asks_at_once(&self) -> bool {
        self.asks_at_once.load(Ordering::Acquire)
    }
}

pub(crate) fn lock(refusal: &Refusal) -> MutexGuard<'_, Option<Busy>> {
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
}

impl Queues {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<LockKey, Queue>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This process has released the claims: who waits for one of them, for a path above or for a path below, looks
    /// again.
    pub(crate) fn hint(&self, claims: &[Claim]) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let keys = self.keys();
        for key in claims.iter().map(Claim::key) {
            keys.get(key).into_iter().for_each(Queue::wake);
            if key.is_path() {
                key.ancestor_keys()
                    .filter_map(|above| keys.get(&above))
                    .for_each(Queue::wake);
                let behind = keys.range((Bound::Excluded(key), Bound::Unbounded));
                behind
                    .take_while(|(below, _)| key.is_above(below))
                    .for_each(|(_, queue)| queue.wake());
            }
        }
    }
}

/// A place in the queue of a key. Dropping it leaves the queue, and lets the next one look.
pub(crate) struct Place {
    queues: Arc<Queues>,
    key: LockKey,
    waiter: Arc<Waiter>,
    refusal: Refusal,
}

impl Place {
    /// Joins the queue of a key: in line, or before it.
    pub(crate) fn take(queues: &Arc<Queues>, key: &LockKey, in_line: bool) -> Self {
        let mut keys = queues.keys();
        let queue = keys.entry(key.clone()).or_default();
        Self::join(queues, key, in_line, queue)
    }

    /// Joins the line of a key for which others wait already. Whoever waits for ever begins one where nobody does; whoever
    /// does not joins only where somebody knows who is in the way.
    pub(crate) fn in_line(queues: &Arc<Queues>, key: &LockKey, for_ever: bool) -> Option<Self> {
        if !for_ever && queues.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut keys = queues.keys();
        let queue = match keys.entry(key.clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(none) if for_ever => none.insert(Queue::default()),
            Entry::Vacant(_) => return None,
        };
        if !for_ever && lock(&queue.refusal).is_none() {
            return None;
        }
        Some(Self::join(queues, key, true, queue))
    }

    fn join(queues: &Arc<Queues>, key: &LockKey, in_line: bool, queue: &mut Queue) -> Self {
        let waiter = Arc::new(Waiter {
            wake: Notify::new(),
            in_line,
            asks_at_once: AtomicBool::new(queue.waiters.is_empty()),
        });
        if in_line {
            queue.waiters.push_back(Arc::clone(&waiter));
        } else {
            queue.waiters.push_front(Arc::clone(&waiter));
        }
        queues.waiting.fetch_add(1, Ordering::AcqRel);
        Self {
            queues: Arc::clone(queues),
            key: key.clone(),
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

    pub(crate) fn refusal(&self) -> Refusal {
        Arc::clone(&self.refusal)
    }

    /// Resolves when somebody has given back what may have been in the way.
    pub(crate) async fn woken(&self) {
        self.waiter.wake.notified().await;
    }

    /// Returns when it is among those who look at the store. Whoever asks without having waited is overtaken when it has no
    /// answer for that long.
    pub(crate) async fn until_it_looks(&self, patience: Duration) {
        while let Some(first) = self.waits_behind() {
            let woken = self.waiter.wake.notified();
            if !first.asks_at_once() {
                woken.await;
            } else if timeout(patience, woken).await.is_err() {
                self.overtake(&first);
            }
        }
    }

    /// The first in the queue; `None` for whoever looks at the store itself.
    fn waits_behind(&self) -> Option<Arc<Waiter>> {
        let keys = self.queues.keys();
        let queue = keys.get(&self.key)?;
        let looks = queue
            .looking()
            .any(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        queue.waiters.front().filter(|_| !looks).map(Arc::clone)
    }

    /// Whoever is first has no answer yet, and may never have one: it makes room for the next one.
    fn overtake(&self, first: &Arc<Waiter>) {
        let mut keys = self.queues.keys();
        if let Some(queue) = keys.get_mut(&self.key)
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
        if let Some(queue) = keys.get_mut(&self.key) {
            queue
                .waiters
                .retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            // Whoever is first now may have become so just now; one look too many does no harm.
            queue.wake();
            if queue.waiters.is_empty() {
                keys.remove(&self.key);
            }
        }
    }
}
