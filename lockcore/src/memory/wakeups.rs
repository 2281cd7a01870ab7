//! Who waits for which keys, and who is told.

use async_trait::async_trait;

use super::MemoryBackend;
use crate::backend::Watches;
use crate::{Changed, Claim, Result, Wakeups};

#[async_trait]
impl Wakeups for MemoryBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        Ok(Box::pin(Watches::add(&self.watches, claims).changed()))
    }
}
