//! Waiting: local waiters in order, one of them looking at the store, woken by a watch, by this process's own
//! releases, and by a bounded poll.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::locks::Core;
use crate::{Busy, Changed, Claim, LockKey};

/// The fallback poll's first and longest pause.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// For each key, those of this process who wait for it. Of those who stand in line only the first looks at the store;
/// whoever may hold something that the first one needs stands before the line, and looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    keys: Mutex<BTreeMap<LockKey, Queue>>,
}

#[derive(Debug)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    refusal: Refusal,
}

/// The last refusal of somebody who looked, for all who wait in the queue.
pub(crate) type Refusal = Arc<Mutex<Busy>>;

#[derive(Debug)]
struct Waiter {
    wake: Notify,
    in_line: bool,
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
    fn looks(&self) -> bool {
        let keys = self.core.queues.keys();
        let queue = keys.get(&self.key);
        queue.is_some_and(|queue| {
            queue
                .looking()
                .any(|waiter| Arc::ptr_eq(waiter, &self.waiter))
        })
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
        let queue = keys.entry(claim.key().clone()).or_insert_with(|| Queue {
            waiters: VecDeque::new(),
            refusal: Arc::new(Mutex::new(busy)),
        });
        Self::join(core, claim, in_line, queue)
    }

    /// Waits in line without having asked, if others of this process wait for the key already.
    pub(crate) fn in_line(core: &Arc<Core>, claim: &Claim) -> Option<Self> {
        if core.queues.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut keys = core.queues.keys();
        keys.get_mut(claim.key())
            .map(|queue| Self::join(core, claim, true, queue))
    }

    fn join(core: &Arc<Core>, claim: &Claim, in_line: bool, queue: &mut Queue) -> Self {
        let waiter = Arc::new(Waiter {
            wake: Notify::new(),
            in_line,
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

    /// Somebody who looks was refused again.
    pub(crate) fn refused_again(&self, busy: Busy) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = busy;
    }

    pub(crate) fn refusal(&self) -> Refusal {
        Arc::clone(&self.refusal)
    }

    /// Returns when it is worth asking the store (again); the watch stands then, so that a release after the question
    /// is not missed.
    pub(crate) async fn until_worth_asking(&mut self) {
        while !self.place.looks() {
            self.place.waiter.wake.notified().await;
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
