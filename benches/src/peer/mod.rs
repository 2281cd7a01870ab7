//! Other libraries' locks on the same server, each through the client that it brings along.
//!
//! A library has a file of its own here.

mod apart;
mod distributed_lock_redis;
#[cfg(feature = "etcd")]
mod etcd;
mod rslock;
mod sqlx;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::Store;
use crate::turns::{Lock, Turn, take_by_tasks};

/// One key, locked by a library.
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

    /// So many tasks of one process take turns for a while: the turns of each, and how long it was.
    pub(crate) async fn turns(
        &mut self,
        tasks: usize,
        time: Duration,
    ) -> (Vec<Vec<Turn>>, Duration) {
        match &mut self.way {
            Way::Here(lock) => {
                let start = Instant::now();
                let turns = take_by_tasks(lock, tasks, time).await;
                (turns, start.elapsed())
            }
            Way::Apart(process) => process.turns(tasks, time),
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
