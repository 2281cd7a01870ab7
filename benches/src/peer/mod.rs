//! Other libraries' locks on the same server, each through the client that it brings along.
//!
//! A library has a file of its own here.

mod apart;
mod distributed_lock_redis;
#[cfg(feature = "etcd")]
mod etcd;
mod rslock;
mod sqlx;
mod tokio;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_workloads::turns::take_by_tasks;
use lockkeeper_workloads::{Hold, Lock, Turn};

use crate::store::Store;

/// The locks of a library, or what is measured like them.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    way: Way,
}

enum Way {
    /// In this process.
    Here(Arc<dyn Lock>),
    Apart(apart::Process),
}

impl Peer {
    pub(crate) fn new(name: &'static str, lock: Arc<dyn Lock>) -> Self {
        let way = Way::Here(lock);
        Self { name, way }
    }

    /// A task of one process takes turns at each of the keys for a while: the turns of each, and how long it was.
    pub(crate) async fn turns(
        &mut self,
        keys: &[String],
        hold: Hold,
        time: Duration,
    ) -> (Vec<Vec<Turn>>, Duration) {
        match &mut self.way {
            Way::Here(lock) => {
                let start = Instant::now();
                let turns = take_by_tasks(lock, keys, hold, Duration::ZERO, time).await;
                (turns.expect("the store answers"), start.elapsed())
            }
            Way::Apart(process) => process.turns(keys, hold, time),
        }
    }
}

/// Those that lock on this store.
pub(crate) async fn of(store: &Store) -> Vec<Peer> {
    // Their options are not ours.
    let url = store.url().split('?').next().unwrap_or_default();
    match store.scheme() {
        #[cfg(feature = "etcd")]
        "etcd" => etcd::peers(url).await,
        "memory" => vec![tokio::peer()],
        "postgres" | "postgresql" => {
            let mut peers = vec![sqlx::peer(url).await];
            peers.extend(apart::peer("distributed-lock-postgres", url));
            peers
        }
        "redis" => {
            let mut peers = vec![rslock::peer(url)];
            peers.extend(distributed_lock_redis::peers(url).await);
            peers
        }
        _ => Vec::new(),
    }
}
