//! Other libraries' locks on the same server, each through the client that it brings along.
//!
//! A library has a file of its own here.

mod distributed_lock_redis;
mod rslock;
mod sqlx;

use std::sync::Arc;

use crate::store::Store;
use crate::turns::Lock;

/// One key, locked by another library.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) lock: Arc<dyn Lock>,
}

/// Those that lock on this store.
pub(crate) async fn of(store: &Store) -> Vec<Peer> {
    // Their options are not ours.
    let url = store.url().split('?').next().unwrap_or_default();
    match store.scheme() {
        "postgres" | "postgresql" => vec![sqlx::peer(url).await],
        "redis" => vec![rslock::peer(url), distributed_lock_redis::peer(url).await],
        _ => Vec::new(),
    }
}
