//! `distributed-lock-redis`: `SET NX PX`, and scripts that compare and delete, on the client `fred`.
//!
//! Its `acquire` does not wait: it tries once, whatever time it is given. Who waits asks again at once, here: nothing
//! that a program could do gets the lock sooner.

use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::RedisLockProvider;

use super::Peer;

struct Lock(RedisLockProvider);

pub(super) async fn peer(url: &str) -> Peer {
    let provider = RedisLockProvider::new(url).await;
    let lock = Lock(provider.expect("the server answers"));
    Peer::new("distributed-lock-redis", Arc::new(lock))
}

#[async_trait]
impl crate::turns::Lock for Lock {
    async fn turn(&self, granted: &mut (dyn FnMut() + Send)) {
        let lock = self.0.create_lock("bench");
        let handle = loop {
            let tried = lock.try_acquire().await.expect("the server answers");
            if let Some(handle) = tried {
                break handle;
            }
        };
        granted();
        handle.release().await.expect("the server answers");
    }
}
