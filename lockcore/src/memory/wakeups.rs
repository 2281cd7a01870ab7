//! Waiters for keys, watchers of sessions, and their notification.

use async_trait::async_trait;

use super::MemoryBackend;
use crate::backend::Watches;
use crate::{Changed, Claim, Result, SessionId, Wakeups};

#[async_trait]
impl Wakeups for MemoryBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        Ok(Box::pin(Watches::add(&self.watches, claims).changed()))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let watch = Watches::add_session(&self.watches, session);
        Ok(Box::pin(watch.changed()))
    }
}
