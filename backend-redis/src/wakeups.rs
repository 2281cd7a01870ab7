//! `Wakeups`: one subscription for each process, which tells of every release and death of the namespace.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{Changed, Claim, LockKey, Result, Wakeups};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::RedisBackend;

#[async_trait]
impl Wakeups for RedisBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        // First the watch, then the subscription: what is told between the two is not missed.
        let watch = Watches::add(&self.watches, claims);
        self.subscribed().await?;
        Ok(Box::pin(watch.changed()))
    }
}

impl RedisBackend {
    /// Makes sure that the subscription stands.
    async fn subscribed(&self) -> Result<()> {
        if self.watches.standing().load(Ordering::Acquire) {
            return Ok(());
        }
        let mut subscription = self.subscription.lock().await;
        if self.watches.standing().load(Ordering::Acquire) {
            return Ok(());
        }
        let stands = Arc::new(AtomicBool::new(true));
        let told = {
            let (watches, stands) = (Arc::clone(&self.watches), Arc::clone(&stands));
            move |push: PushInfo| {
                watches.told(&push, &stands);
                Ok::<(), std::convert::Infallible>(())
            }
        };
        *subscription = Some(self.link.subscribe(told).await?);
        *self.watches.standing() = stands;
        Ok(())
    }
}

/// The connection of the subscription; dropping it ends that.
pub(crate) type Subscription = tokio::sync::Mutex<Option<MultiplexedConnection>>;

/// The watches of this process.
#[derive(Default)]
pub(crate) struct Watches {
    /// Whether the last subscription stands.
    stands: Mutex<Arc<AtomicBool>>,
    watching: Mutex<Watching>,
}

#[derive(Default)]
struct Watching {
    next: u64,
    watches: HashMap<u64, Watched>,
    /// Who watches a key.
    keys: BTreeMap<LockKey, Vec<u64>>,
}

struct Watched {
    keys: Vec<LockKey>,
    state: Arc<State>,
}

/// What is known to one watch.
#[derive(Default)]
struct State {
    news: Notify,
    woken: AtomicBool,
    /// When somebody in the way is due.
    due: Mutex<Option<Instant>>,
}

impl State {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.news.notify_one();
    }

    fn due(&self) -> Option<Instant> {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watches {
    fn add(watches: &Arc<Self>, claims: &[Claim]) -> Watch {
        let keys: Vec<LockKey> = claims.iter().map(|claim| claim.key().clone()).collect();
        let state = Arc::new(State::default());
        let mut watching = watches.watching();
        let id = watching.next;
        watching.next += 1;
        for key in &keys {
            watching.keys.entry(key.clone()).or_default().push(id);
        }
        let watched = Watched {
            keys,
            state: Arc::clone(&state),
        };
        watching.watches.insert(id, watched);
        Watch {
            watches: Arc::clone(watches),
            id,
            state,
        }
    }

    /// Somebody in the way of the key is due then: whoever watches it looks again.
    pub(crate) fn due(&self, key: &LockKey, within: Duration) {
        let due = Instant::now() + within;
        let watching = self.watching();
        for id in watching.keys.get(key).into_iter().flatten() {
            let Some(watched) = watching.watches.get(id) else {
                continue;
            };
            *watched
                .state
                .due
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(due);
            watched.state.news.notify_one();
        }
    }

    fn told(&self, push: &PushInfo, stands: &AtomicBool) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(what)]) => self.freed(what),
            (PushKind::SSubscribe, _) => {}
            // The connection is gone, or the namespace is at another node.
            _ => {
                stands.store(false, Ordering::Release);
                self.watching().wake_all();
            }
        }
    }

    /// Wakes those who may get their claim now that these keys were given back; `*` is any.
    fn freed(&self, what: &[u8]) {
        let watching = self.watching();
        // Who connects says nothing, to see whether he may.
        if watching.watches.is_empty() || what.is_empty() {
            return;
        }
        let keys = std::str::from_utf8(what).unwrap_or("*");
        for key in keys.split('\n') {
            match LockKey::parse(key) {
                Ok(key) if keys != "*" => watching.wake(&key),
                _ => watching.wake_all(),
            }
        }
    }

    fn standing(&self) -> MutexGuard<'_, Arc<AtomicBool>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    fn wake_all(&self) {
        self.watches
            .values()
            .for_each(|watched| watched.state.wake());
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
        for watched in ids.iter().filter_map(|id| self.watches.get(id)) {
            watched.state.wake();
        }
    }
}

/// A watch that stands until it is dropped.
struct Watch {
    watches: Arc<Watches>,
    id: u64,
    state: Arc<State>,
}

impl Watch {
    async fn changed(self) {
        while !self.state.woken.load(Ordering::Acquire) {
            match self.state.due() {
                None => self.state.news.notified().await,
                Some(due) => tokio::select! {
                    () = self.state.news.notified() => {}
                    () = tokio::time::sleep_until(due) => return,
                },
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watching = self.watches.watching();
        let Some(watched) = watching.watches.remove(&self.id) else {
            return;
        };
        for key in watched.keys {
            if let Some(ids) = watching.keys.get_mut(&key) {
                ids.retain(|id| *id != self.id);
                if ids.is_empty() {
                    watching.keys.remove(&key);
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
        let watches = Arc::<Watches>::default();
        let claims: Vec<Claim> = [("k", Want::Create), ("/a/b", Want::Write)]
            .into_iter()
            .filter_map(|(key, want)| Claim::new(LockKey::parse(key).ok()?, want))
            .collect();
        let watch = || Watches::add(&watches, &claims);
        let (stays, goes, another) = (watch(), watch(), watch());
        let count = |watches: &Watches| {
            let watching = watches.watching();
            let entries: Vec<usize> = watching.keys.values().map(Vec::len).collect();
            (watching.watches.len(), entries)
        };
        assert_eq!(count(&watches), (3, vec![3, 3]));
        drop(goes);
        // Also one that was never asked.
        drop(another.changed());
        assert_eq!(count(&watches), (1, vec![1, 1]));
        drop(stays);
        assert_eq!(count(&watches), (0, Vec::new()));
    }
}
