//! `rslock`: `SET NX PX`, and a script that compares and deletes. Who waits looks again after a random pause of at most
//! 200 ms, as it is set by default.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rslock::LockManager;

use lockkeeper_workloads::{Failure, Granted};

use super::Peer;

const TTL: Duration = Duration::from_secs(30);

struct Lock(LockManager);

pub(super) fn peer(url: &str) -> Peer {
    Peer::new("rslock", Arc::new(Lock(LockManager::new(vec![url]))))
}

#[async_trait]
impl lockkeeper_workloads::Lock for Lock {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let lock = self.0.acquire_no_guard(key, TTL).await;
        let lock = lock.expect("the server answers");
        granted().over().await;
        self.0.unlock(&lock).await;
        Ok(())
    }
}
