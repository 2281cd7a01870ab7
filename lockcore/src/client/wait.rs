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

/// For each key, those of this process who wait for it, in order. Only the first of each looks at the store.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: AtomicUsize,
    keys: Mutex<BTreeMap<LockKey, VecDeque<Arc<Notify>>>>,
}

impl Queues {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<LockKey, VecDeque<Arc<Notify>>>> {
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
        let wake = |queue: &VecDeque<Arc<Notify>>| {
            if let Some(first) = queue.front() {
                first.notify_one();
            }
        };
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
    wake: Arc<Notify>,
}

impl Place {
    fn take(core: &Arc<Core>, key: &LockKey) -> Self {
        let wake = Arc::new(Notify::new());
        let mut keys = core.queues.keys();
        keys.entry(key.clone())
            .or_default()
            .push_back(Arc::clone(&wake));
        core.queues.waiting.fetch_add(1, Ordering::AcqRel);
        drop(keys);
        Self {
            core: Arc::clone(core),
            key: key.clone(),
            wake,
        }
    }

    fn is_first(&self) -> bool {
        let keys = self.core.queues.keys();
        keys.get(&self.key)
            .and_then(VecDeque::front)
            .is_some_and(|first| Arc::ptr_eq(first, &self.wake))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut keys = self.core.queues.keys();
        self.core.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Some(queue) = keys.get_mut(&self.key) {
            queue.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
            match queue.front() {
                // Whoever is first now may have become so just now; one look too many does no harm.
                Some(first) => first.notify_one(),
                None => drop(keys.remove(&self.key)),
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
    pub(crate) fn new(core: &Arc<Core>, claim: &Claim) -> Self {
        let place = Place::take(core, claim.key());
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
        while !self.place.is_first() {
            self.place.wake.notified().await;
        }
        let core = Arc::clone(&self.place.core);
        if self.looked {
            self.polls += 1;
            let poll = core.backoff(self.polls, POLL.0, POLL.1);
            tokio::select! {
                biased;
                () = self.place.wake.notified() => self.polls = 0,
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
