//! `tokio::sync::Mutex`: what a program takes within one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lockkeeper_workloads::{Failure, Granted};

use super::Peer;

#[derive(Default)]
struct Lock(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

pub(super) fn peer() -> Peer {
    Peer::new("tokio::sync::Mutex", Arc::new(Lock::default()))
}

#[async_trait]
impl lockkeeper_workloads::Lock for Lock {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let mutex = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key.to_owned()).or_default())
        };
        let held = mutex.lock().await;
        granted().over().await;
        drop(held);
        Ok(())
    }
}
