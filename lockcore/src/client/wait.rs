//! Waiting: local waiters in order, one of them looking at the store, woken by a watch, by this process's own
//! releases, and by a bounded poll.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::client::locks::Core;
use crate::{Busy, Changed, Claim, LockKey};

/// The fallback poll's first and longest pause.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

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
struct Place {
    core: Arc<Core>,
    key: LockKey,
    waiter: Arc<Waiter>,
}

impl Place {
    /// The first in the queue; `None` for whoever looks at the store itself.
    fn waits_behind(&self) -> Option<Arc<Waiter>> {
        let keys = self.core.queues.keys();
        let queue = keys.get(&self.key)?;
        let looks = queue
            .looking()
            .any(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        queue.waiters.front().filter(|_| !looks).map(Arc::clone)
    }

    /// Whoever is first has no answer yet, and may never have one: it makes room for the next one.
    fn overtake(&self, first: &Arc<Waiter>) {
        let mut keys = self.core.queues.keys();
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
        let mut keys = self.core.queues.keys();
        self.core.queues.waiting.fetch_sub(1, Ordering::AcqRel);
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

/// One acquisition waiting for one claim.
pub(crate) struct Waiting {
    claim: Claim,
    place: Place,
    refusal: Refusal,
    watch: Option<Changed>,
    /// The store was asked since the watch stands.
    looked: bool,
    polls: u32,
}

impl Waiting {
    /// Waits after a refusal. Only who holds nothing stands in line behind others: somebody in it might wait for what
    /// another one behind it holds.
    pub(crate) fn refused(core: &Arc<Core>, claim: &Claim, in_line: bool, busy: Busy) -> Self {
        let mut keys = core.queues.keys();
        let queue = keys.entry(claim.key().clone()).or_default();
        let waiting = Self::join(core, claim, in_line, queue);
        waiting.is_refused(busy);
        waiting
    }

    /// Stands in line without having asked, if others of this process wait for the key already or are asking for it.
    /// Whoever waits for ever lets those who come later stand in line while it asks, so that a crowd does not ask at
    /// once. Whoever does not is told who is in the way, and asks by itself where nobody knows.
    pub(crate) fn in_line(core: &Arc<Core>, claim: &Claim, for_ever: bool) -> Option<Self> {
        if !for_ever && core.queues.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut keys = core.queues.keys();
        let queue = match keys.entry(claim.key().clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(none) if for_ever => none.insert(Queue::default()),
            Entry::Vacant(_) => return None,
        };
        if !for_ever && lock(&queue.refusal).is_none() {
            return None;
        }
        Some(Self::join(core, claim, true, queue))
    }

    fn join(core: &Arc<Core>, claim: &Claim, in_line: bool, queue: &mut Queue) -> Self {
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
        core.queues.waiting.fetch_add(1, Ordering::AcqRel);
        let place = Place {
            core: Arc::clone(core),
            key: claim.key().clone(),
            waiter,
        };
        let refusal = Arc::clone(&queue.refusal);
        Self {
            claim: claim.clone(),
            place,
            refusal,
            watch: None,
            looked: false,
            polls: 0,
        }
    }

    /// Whoever asked was refused.
    pub(crate) fn is_refused(&self, busy: Busy) {
        let waiter = &self.place.waiter;
        waiter.asks_at_once.store(false, Ordering::Release);
        *lock(&self.refusal) = Some(busy);
    }

    /// Whether it has waited: it was refused, or others were there before.
    pub(crate) fn has_begun(&self) -> bool {
        !self.place.waiter.asks_at_once()
    }

    pub(crate) fn refusal(&self) -> Refusal {
        Arc::clone(&self.refusal)
    }

    /// Returns when it is worth asking the store (again); the watch stands then, so that a release after the question
    /// is not missed.
    pub(crate) async fn until_worth_asking(&mut self) {
        while let Some(first) = self.place.waits_behind() {
            let woken = self.place.waiter.wake.notified();
            if !first.asks_at_once() {
                woken.await;
            } else if timeout(POLL.0, woken).await.is_err() {
                self.place.overtake(&first);
            }
        }
        let core = Arc::clone(&self.place.core);
        if self.looked {
            self.polls += 1;
            let poll = core.backoff(self.polls, POLL.0, POLL.1);
            tokio::select! {
                biased;
                () = self.place.waiter.wake.notified() => self.polls = 0,
                () = changed(&mut self.watch) => self.polls = 0,
                () = tokio::time::sleep(poll) => {
                    // A watch that looks by itself also sees by itself when it cannot.
                    if self.watch.is_some() && core.info.poll.is_some() {
                        return;
                    }
                }
            }
        }
        // Without a watch the poll remains.
        self.watch = core
            .backend
            .watch(std::slice::from_ref(&self.claim))
            .await
            .ok();
        self.looked = true;
    }
}

async fn changed(watch: &mut Option<Changed>) {
    match watch {
        Some(changed) => changed.await,
        None => std::future::pending().await,
    }
}
