//! `Wakeups`: files tell nobody anything, so whoever waits looks.

use std::time::Duration;

use async_trait::async_trait;
use lockcore::{Changed, Claim, Operation, Result, Wakeups};

use crate::FilesBackend;

pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

#[async_trait]
impl Wakeups for FilesBackend {
    /// Anything that is given back anywhere resolves the watch: a hint may be wrong, and this one is simple.
    async fn watch(&self, _claims: &[Claim]) -> Result<Changed> {
        let files = self.clone();
        let freed = move || {
            let files = files.clone();
            async move {
                let look = files.look(Operation::Watch, |state| state.sessions.freed);
                look.await
            }
        };
        // From here on every change is seen.
        let before = freed().await?;
        Ok(Box::pin(async move {
            // A state that cannot be read ends the watch, too: the client looks for itself, and will see the error.
            while freed().await.is_ok_and(|now| now == before) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }))
    }
}
