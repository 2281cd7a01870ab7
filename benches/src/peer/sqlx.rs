//! `sqlx`'s `PgAdvisoryLock`, on a pool that does not ping: nothing is written, and the lock is the connection's.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::PgPool;
use sqlx::postgres::{PgAdvisoryLock, PgPoolOptions};

use lockkeeper_workloads::{Failure, Granted};

use super::Peer;

/// Who waits has a connection of its own.
const CONNECTIONS: u32 = 16;

struct Lock(PgPool);

pub(super) async fn peer(url: &str) -> Peer {
    let options = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false);
    let pool = options.connect(url).await.expect("the server answers");
    Peer::new("sqlx's PgAdvisoryLock", Arc::new(Lock(pool)))
}

#[async_trait]
impl lockkeeper_workloads::Lock for Lock {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let connection = self.0.acquire().await.expect("one is free");
        let lock = PgAdvisoryLock::new(key);
        let guard = lock.acquire(connection).await;
        let guard = guard.expect("the server answers");
        granted().over().await;
        let released = guard.release_now().await;
        drop(released.expect("the server answers"));
        Ok(())
    }
}
