//! Who waits for which keys, and who is told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::MemoryBackend;
use crate::{Changed, Claim, LockKey, Result, Wakeups};

/// Every watch that stands and was not told yet.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Watching>);

#[derive(Debug, Default)]
struct Watching {
    next: u64,
    watches: BTreeMap<u64, (Vec<LockKey>, Arc<Notify>)>,
}

impl Watchers {
    /// Tells those who may get their claim now that these keys were given back.
    pub(super) fn wake<'a>(&self, keys: impl Iterator<Item = &'a LockKey> + Clone) {
        self.wake_where(|watched| keys.clone().any(|key| key.meets(watched)));
    }

    /// Tells everybody: a session ended, or some of its numbers did.
    pub(super) fn wake_all(&self) {
        self.wake_where(|_| true);
    }

    fn wake_where(&self, freed: impl Fn(&LockKey) -> bool) {
        self.watching().watches.retain(|_, (keys, told)| {
            let stays = !keys.iter().any(&freed);
            if !stays {
                told.notify_one();
            }
            stays
        });
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.0
            .lock()
            .expect("nothing panics while it holds the watches")
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.watching().watches.len()
    }
}

/// A watch that stands until it is dropped.
struct Watch {
    watchers: Arc<Watchers>,
    id: u64,
    told: Arc<Notify>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watchers.watching().watches.remove(&self.id);
    }
}

#[async_trait]
impl Wakeups for MemoryBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let keys = claims.iter().map(|claim| claim.key().clone()).collect();
        let told = Arc::new(Notify::new());
        let id = {
            let mut watching = self.watchers.watching();
            let id = watching.next;
            watching.next += 1;
            watching.watches.insert(id, (keys, Arc::clone(&told)));
            id
        };
        let watch = Watch {
            watchers: Arc::clone(&self.watchers),
            id,
            told,
        };
        Ok(Box::pin(async move { watch.told.notified().await }))
    }
}
