//! [`World`] and [`Space`]: what a backend author writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{LockBackend, LockKey, SessionId};

/// Whatever went wrong in the author's own setup.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A kind of store, and how to make empty namespaces in it.
#[async_trait]
pub trait World: Send + Sync + 'static {
    /// The first part of every trial's name: `sqlite`, or `redis-wait`.
    fn name(&self) -> String;

    /// Whether the store's time follows tokio's clock in this process. Then every case runs with that clock paused,
    /// and takes no real time.
    fn paused(&self) -> bool;

    /// Whether other processes can reach its spaces by their [`Space::url`]. Cases that need them are left out where
    /// they cannot, and the suite prints which.
    fn processes(&self) -> bool;

    /// A new, empty namespace. Cases run at the same time, each in its own.
    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError>;

    /// The backend on a space of another process, by its [`Space::url`]. Called in a child process of the suite.
    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError>;
}

/// One fresh namespace. It may remove what it made when it is dropped.
#[async_trait]
pub trait Space: Send + Sync {
    /// The backend on this namespace, as another process would have it: with connections and caches of its own. Where
    /// there is only one process, the same object.
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError>;

    /// Lets at least that much of the store's time pass, and not much more: sleeps, unless it can move the store's clock.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// How much later than its TTL the store may still say that a session is not due: the resolution of its clock, the
    /// difference between the clocks of its nodes, the period in which it looks.
    fn allowance(&self) -> Duration;

    /// Writes a record on this key, which nobody holds, that the backend cannot understand: another writer's, or a
    /// newer version's.
    async fn plant(&self, key: &LockKey) -> Result<(), BoxError>;

    /// Makes the end of this session, which is dead or abandoned and was swept, lie by so much further back: by a write to
    /// the store, or by moving its clock, after which others may be due. Answers whether it did. Where it cannot, which is
    /// the default, nothing is known of when the store forgets a session, and the run prints that.
    async fn age(&self, _session: SessionId, _by: Duration) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Ends the store and starts it again, as it would be after a crash or an upgrade. Every backend that
    /// [`connect`](Self::connect) gave out was dropped before; new ones are made afterwards. `false` where the store
    /// cannot be restarted, or others use it too: the case that wants it is then left out, and the run prints that.
    async fn restart(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Removes the namespace with everything in it; the next [`connect`](Self::connect) makes one of the same name.
    /// Every backend was dropped before. `false` where it cannot be removed, as with [`restart`](Self::restart).
    async fn recreate(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// How another process reaches the namespace, if it can.
    fn url(&self) -> Option<String>;
}
