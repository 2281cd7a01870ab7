//! Waiting: local waiters in order, one of them looking at the store, woken by a watch, by this process's own
//! releases, and by a bounded poll.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::locks::Core;
use crate::{Changed, Claim, LockKey};

/// The fallback poll's first and longest pause.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// For each key, those of this process who wait for it. Of those who stand in line only the first looks at the store;
/// whoever may hold something that the first one needs stands before the line, and looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    keys: Mutex<BTreeMap<LockKey, Queue>>,
}

type Queue = VecDeque<Arc<Waiter>>;

#[derive(Debug)]
struct Waiter {
    wake: Notify,
    in_line: bool,
}

/// Those who look at the store.
fn looking(queue: &Queue) -> impl Iterator<Item = &Arc<Waiter>> {
    let before_the_line = queue.iter().take_while(|waiter| !waiter.in_line).count();
    queue.iter().take(before_the_line.max(1))
}

fn wake(queue: &Queue) {
    looking(queue).for_each(|waiter| waiter.wake.notify_one());
}

impl Queues {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<LockKey, Queue>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody of this process waits for the key.
    pub(crate) fn is_waited_for(&self, key: &LockKey) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.keys().contains_key(key)
    }

    /// This process has released the claims: who waits for one of them, for a path above or for a path below, looks
    /// again.
    pub(crate) fn hint(&self, claims: &[Claim]) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let keys = self.keys();
        for key in claims.iter().map(Claim::key) {
            keys.get(key).into_iter().for_each(wake);
            if key.is_path() {
                key.ancestor_keys()
                    .filter_map(|above| keys.get(&above))
                    .for_each(wake);
                let behind = keys.range((Bound::Excluded(key), Bound::Unbounded));
                behind
                    .take_while(|(below, _)| key.is_above(below))
                    .for_each(|(_, queue)| wake(queue));
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
    fn take(core: &Arc<Core>, key: &LockKey, in_line: bool) -> Self {
        let waiter = Arc::new(Waiter {
            wake: Notify::new(),
            in_line,
        });
        let mut keys = core.queues.keys();
        let queue = keys.entry(key.clone()).or_default();
        if in_line {
            queue.push_back(Arc::clone(&waiter));
        } else {
            queue.push_front(Arc::clone(&waiter));
        }
        core.queues.waiting.fetch_add(1, Ordering::AcqRel);
        drop(keys);
        Self {
            core: Arc::clone(core),
            key: key.clone(),
            waiter,
        }
    }

    fn looks(&self) -> bool {
        let keys = self.core.queues.keys();
        keys.get(&self.key)
            .is_some_and(|queue| looking(queue).any(|waiter| Arc::ptr_eq(waiter, &self.waiter)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut keys = self.core.queues.keys();
        self.core.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Some(queue) = keys.get_mut(&self.key) {
            queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
            // Whoever is first now may have become so just now; one look too many does no harm.
            wake(queue);
            if queue.is_empty() {
                keys.remove(&self.key);
            }
        }
    }
}

/// One acquisition waiting for one claim.
pub(crate) struct Waiting {
    claim: Claim,
    place: Place,
    watch: Option<Changed>,
    /// The store was asked since the watch stands.
    looked: bool,
    polls: u32,
}

impl Waiting {
    /// Only who holds nothing stands in line: somebody in it might wait for what another one behind it holds.
    pub(crate) fn new(core: &Arc<Core>, claim: &Claim, in_line: bool) -> Self {
        let place = Place::take(core, claim.key(), in_line);
        Self {
            claim: claim.clone(),
            place,
            watch: None,
            looked: false,
            polls: 0,
        }
    }

    pub(crate) fn is_for(&self, claim: &Claim) -> bool {
        self.claim == *claim
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
                () = tokio::time::sleep(poll) => {}
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
