//! `sqlx`'s `PgAdvisoryLock`, on a pool that does not ping: nothing is written, and the lock is the connection's.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::PgPool;
use sqlx::postgres::{PgAdvisoryLock, PgPoolOptions};

use super::Peer;

/// Who waits has a connection of its own.
const CONNECTIONS: u32 = 16;

struct Lock {
    pool: PgPool,
    lock: PgAdvisoryLock,
}

pub(super) async fn peer(url: &str) -> Peer {
    let options = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false);
    let pool = options.connect(url).await.expect("the server answers");
    let lock = PgAdvisoryLock::new("bench");
    Peer::new("sqlx's PgAdvisoryLock", Arc::new(Lock { pool, lock }))
}

#[async_trait]
impl crate::turns::Lock for Lock {
    async fn turn(&self, granted: &mut (dyn FnMut() + Send)) {
        let connection = self.pool.acquire().await.expect("one is free");
        let guard = self.lock.acquire(connection).await;
        let guard = guard.expect("the server answers");
        granted();
        let released = guard.release_now().await;
        drop(released.expect("the server answers"));
    }
}
