//! etcd's own lock service, through `etcd-client`. A lock belongs to a lease, and who waits for one needs another lease
//! than who has it: leases are kept for the next, or granted for each lock and revoked with it.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use etcd_client::{Client, LockOptions};

use lockkeeper_workloads::{Failure, Granted};

use super::Peer;
use crate::baseline::etcd::{TTL, client};

struct Lock {
    client: Client,
    /// Those that nobody uses just now; `None` where each lock has one of its own.
    kept: Option<Mutex<Vec<i64>>>,
}

pub(super) async fn peers(url: &str) -> Vec<Peer> {
    let client = client(url).await;
    let lock = |kept| {
        Arc::new(Lock {
            client: client.clone(),
            kept,
        })
    };
    vec![
        Peer::new("etcd's Lock, on kept leases", lock(Some(Mutex::default()))),
        Peer::new("etcd's Lock, each on a lease of its own", lock(None)),
    ]
}

impl Lock {
    fn kept(&self) -> Option<i64> {
        let kept = self.kept.as_ref()?;
        kept.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

#[async_trait]
impl lockkeeper_workloads::Lock for Lock {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let lease = match self.kept() {
            Some(lease) => lease,
            None => {
                let lease = client.lease_grant(TTL, None).await;
                lease.expect("the server answers").id()
            }
        };
        let options = LockOptions::new().with_lease(lease);
        let lock = client.lock(key, Some(options)).await;
        let lock = lock.expect("the server answers");
        granted().over().await;
        let released = client.unlock(lock.key()).await;
        released.expect("the server answers");
        match &self.kept {
            Some(kept) => kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(lease),
            None => {
                let revoked = client.lease_revoke(lease).await;
                revoked.expect("the server answers");
            }
        }
        Ok(())
    }
}
