//! `Wakeups`: one watch for each process, which tells of every release and death of the namespace.
//!
//! It is opened without a revision to start at: one that starts at a past revision is served by the server's loop for
//! late watches, every 100 ms. Whoever waits looks again after the watch stands, so nothing has to be told from before.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use etcd_client::WatchStream;
use lockcore::{Changed, Claim, LockKey, Result, Wakeups};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::EtcdBackend;
use crate::record::Names;

#[async_trait]
impl Wakeups for EtcdBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        // First the watch, then the stream: what is told between the two is not missed.
        let watch = Watched::add(&self.watches.shared, claims);
        self.listening().await?;
        Ok(Box::pin(watch.changed()))
    }
}

impl EtcdBackend {
    /// Makes sure that the stream stands, on the connection that is used.
    async fn listening(&self) -> Result<()> {
        let stands = || {
            let number = self.watches.shared.number.load(Ordering::Acquire);
            number != 0 && number == self.link.number()
        };
        if stands() {
            return Ok(());
        }
        let mut task = self.watches.task.lock().await;
        if stands() {
            return Ok(());
        }
        let (stream, number) = self.link.watch().await?;
        let shared = Arc::clone(&self.watches.shared);
        shared.number.store(number, Ordering::Release);
        #[expect(
            clippy::disallowed_methods,
            reason = "the task belongs to the stream, and ends with it or with the backend"
        )]
        let hearing = tokio::spawn(hear(shared, stream, self.link.names.clone(), number));
        if let Some(former) = task.replace(hearing.abort_handle()) {
            former.abort();
        }
        Ok(())
    }
}

/// Hears of removals until the stream ends.
async fn hear(shared: Arc<Shared>, mut stream: WatchStream, names: Names, number: u64) {
    while let Ok(Some(told)) = stream.message().await {
        for event in told.events() {
            if let Some(removed) = event.kv() {
                shared.removed(&names, removed.key());
            }
        }
        // Nobody can be told any more, as where what was to be told is compacted.
        if told.canceled() {
            break;
        }
    }
    // Another stream may stand by now.
    let _ = shared
        .number
        .compare_exchange(number, 0, Ordering::AcqRel, Ordering::Acquire);
    shared.watching().wake_all();
}

/// The watches of this process, and the task that hears for them.
#[derive(Default)]
pub(crate) struct Watches {
    shared: Arc<Shared>,
    task: tokio::sync::Mutex<Option<AbortHandle>>,
}

impl Watches {
    /// Whether somebody of this process waits for one of these keys.
    pub(crate) fn stand_for(&self, claims: &[Claim]) -> bool {
        let watching = self.shared.watching();
        let waits = |claim: &Claim| watching.keys.contains_key(claim.key());
        !watching.keys.is_empty() && claims.iter().any(waits)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

#[derive(Default)]
struct Shared {
    /// The connection on which the stream stands; 0 if none does.
    number: AtomicU64,
    watching: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    next: u64,
    watches: HashMap<u64, Arc<State>>,
    /// Who watches a key.
    keys: BTreeMap<LockKey, Vec<u64>>,
}

/// What is known to one watch.
#[derive(Default)]
struct State {
    news: Notify,
    woken: AtomicBool,
}

impl Shared {
    /// Wakes those who may get their claim now that this key is gone.
    fn removed(&self, names: &Names, name: &[u8]) {
        let watching = self.watching();
        if watching.watches.is_empty() {
            return;
        }
        match (names.read_holder(name), names.read_session(name)) {
            (Some((key, ..)), _) => watching.wake(&key),
            // A session has died, or the intent that it has left is settled.
            (None, Some((_, "live" | "intent"))) => watching.wake_all(),
            (None, Some(_)) => {}
            (None, None) => watching.wake_all(),
        }
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    fn wake_all(&self) {
        self.watches.values().for_each(|state| state.wake());
    }

    /// Wakes who watches the key, a path above it or a path below it.
    fn wake(&self, key: &LockKey) {
        self.wake_those_of(key);
        if key.is_path() {
            for above in key.ancestor_keys() {
                self.wake_those_of(&above);
            }
            let behind = (std::ops::Bound::Excluded(key), std::ops::Bound::Unbounded);
            for (below, ids) in self.keys.range::<LockKey, _>(behind) {
                if !key.is_above(below) {
                    break;
                }
                self.wake_each(ids);
            }
        }
    }

    fn wake_those_of(&self, key: &LockKey) {
        if let Some(ids) = self.keys.get(key) {
            self.wake_each(ids);
        }
    }

    fn wake_each(&self, ids: &[u64]) {
        for state in ids.iter().filter_map(|id| self.watches.get(id)) {
            state.wake();
        }
    }
}

impl State {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

/// A watch that stands until it is dropped.
struct Watched {
    shared: Arc<Shared>,
    id: u64,
    keys: Vec<LockKey>,
    state: Arc<State>,
}

impl Watched {
    fn add(shared: &Arc<Shared>, claims: &[Claim]) -> Self {
        let keys: Vec<LockKey> = claims.iter().map(|claim| claim.key().clone()).collect();
        let state = Arc::new(State::default());
        let mut watching = shared.watching();
        let id = watching.next;
        watching.next += 1;
        for key in &keys {
            watching.keys.entry(key.clone()).or_default().push(id);
        }
        watching.watches.insert(id, Arc::clone(&state));
        drop(watching);
        Self {
            shared: Arc::clone(shared),
            id,
            keys,
            state,
        }
    }

    async fn changed(self) {
        while !self.state.woken.load(Ordering::Acquire) {
            self.state.news.notified().await;
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut watching = self.shared.watching();
        watching.watches.remove(&self.id);
        for key in &self.keys {
            if let Some(ids) = watching.keys.get_mut(key) {
                ids.retain(|id| *id != self.id);
                if ids.is_empty() {
                    watching.keys.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::Want;

    use super::*;

    #[test]
    fn of_a_watch_that_was_dropped_nothing_is_left() {
        let shared = Arc::<Shared>::default();
        let claims: Vec<Claim> = [("k", Want::Create), ("/a/b", Want::Write)]
            .into_iter()
            .filter_map(|(key, want)| Claim::new(LockKey::parse(key).ok()?, want))
            .collect();
        let watch = || Watched::add(&shared, &claims);
        let (stays, goes, another) = (watch(), watch(), watch());
        let count = |shared: &Shared| {
            let watching = shared.watching();
            let entries: Vec<usize> = watching.keys.values().map(Vec::len).collect();
            (watching.watches.len(), entries)
        };
        assert_eq!(count(&shared), (3, vec![3, 3]));
        drop(goes);
        // Also one that was never asked.
        drop(another.changed());
        assert_eq!(count(&shared), (1, vec![1, 1]));
        drop(stays);
        assert_eq!(count(&shared), (0, Vec::new()));
    }
}
