//! `Wakeups`: one watch for each process, which tells of every release and death of the namespace.
//!
//! It is opened without a revision to start at: one that starts at a past revision is served by the server's loop for
//! late watches, every 100 ms. Whoever waits looks again after the watch stands, so nothing has to be told from before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use etcd_client::WatchStream;
use lockcore::backend::{self, Changed, Together, Wakeups};
use lockcore::{Claim, Result};
use tokio::task::AbortHandle;

use crate::EtcdBackend;
use crate::link::SharedLink;
use crate::record::Names;

#[async_trait]
impl Wakeups for EtcdBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        // First the watch, then the stream: what is told between the two is not missed.
        let watch = backend::Watches::add(&self.watches.shared.all, claims);
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
        while !stands() {
            let begin = || {
                let link = Arc::clone(&self.link);
                let (shared, task) = (
                    Arc::clone(&self.watches.shared),
                    Arc::clone(&self.watches.task),
                );
                async move {
                    let hearing = listen(shared, link).await?;
                    if let Some(former) = lock(&task).replace(hearing) {
                        former.abort();
                    }
                    Ok(())
                }
            };
            let within = self.link.config.timeout;
            if let Some(made) = self.watches.making.make(within, begin).await {
                return made;
            }
        }
        Ok(())
    }
}

async fn listen(shared: Arc<Shared>, link: SharedLink) -> Result<AbortHandle> {
    let (stream, number) = link.watch().await?;
    shared.number.store(number, Ordering::Release);
    #[expect(
        clippy::disallowed_methods,
        reason = "the task belongs to the stream, and ends with it or with the backend"
    )]
    let hearing = tokio::spawn(hear(shared, stream, link.names.clone(), number));
    Ok(hearing.abort_handle())
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
    shared.all.wake_all();
}

/// The watches of this process, and the task that hears for them.
#[derive(Default)]
pub(crate) struct Watches {
    shared: Arc<Shared>,
    task: Arc<Mutex<Option<AbortHandle>>>,
    making: Together<Result<()>>,
}

impl Watches {
    /// Whether somebody of this process waits for one of these keys.
    pub(crate) fn stand_for(&self, claims: &[Claim]) -> bool {
        self.shared.all.stand_for(claims)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Shared {
    /// The connection on which the stream stands; 0 if none does.
    number: AtomicU64,
    all: Arc<backend::Watches>,
}

impl Shared {
    /// Wakes those who may get their claim now that this key is gone.
    fn removed(&self, names: &Names, name: &[u8]) {
        if self.all.is_empty() {
            return;
        }
        match (names.read_holder(name), names.read_session(name)) {
            (Some((key, ..)), _) => self.all.wake(&key),
            // A session has died, or the intent that it has left is settled.
            (None, Some((_, "live" | "intent"))) => self.all.wake_all(),
            (None, Some(_)) => {}
            (None, None) => self.all.wake_all(),
        }
    }
}
