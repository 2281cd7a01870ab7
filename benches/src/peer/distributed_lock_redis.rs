//! `distributed-lock-redis`: `SET NX PX`, and scripts that compare and delete, on the client `fred`.
//!
//! Its `acquire` does not wait: it tries once, whatever time it is given. So who waits asks again here, in one of two
//! ways: after a pause, as a program would, or at once, which gets the lock as soon as nothing else does and keeps the
//! server busy meanwhile.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::RedisLockProvider;

use lockkeeper_workloads::{Failure, Granted};

use super::Peer;

const PAUSE: Duration = Duration::from_millis(5);

struct Lock {
    provider: RedisLockProvider,
    pause: Option<Duration>,
}

pub(super) async fn peers(url: &str) -> [Peer; 2] {
    let peer = async |name, pause| {
        let provider = RedisLockProvider::new(url).await;
        let provider = provider.expect("the server answers");
        Peer::new(name, Arc::new(Lock { provider, pause }))
    };
    [
        peer("distributed-lock-redis, asked every 5 ms", Some(PAUSE)).await,
        peer("distributed-lock-redis, asked without a pause", None).await,
    ]
}

#[async_trait]
impl lockkeeper_workloads::Lock for Lock {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let lock = self.provider.create_lock(key);
        let handle = loop {
            let tried = lock.try_acquire().await.expect("the server answers");
            if let Some(handle) = tried {
                break handle;
            }
            if let Some(pause) = self.pause {
                tokio::time::sleep(pause).await;
            }
        };
        granted().over().await;
        handle.release().await.expect("the server answers");
        Ok(())
    }
}
