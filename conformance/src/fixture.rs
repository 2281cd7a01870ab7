//! [`Fixture`] and [`Space`]: the fixture that the author of a backend writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{LockBackend, LockKey, SessionId};

/// An error in the fixture.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A kind of store, and how to create empty namespaces in it.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The first part of every trial's name: `sqlite`, or `redis-wait`.
    fn name(&self) -> String;

    /// Whether the store's time follows tokio's clock in this process. If so, every case runs with that clock paused,
    /// and takes no real time.
    fn paused(&self) -> bool;

    /// Whether other processes can reach its spaces by their [`Space::url`]. If not, the cases that need them are left
    /// out, and the suite prints which.
    fn processes(&self) -> bool;

    /// Creates a new, empty namespace. Cases run concurrently, each in a namespace of its own.
    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError>;

    /// The backend on a space of another process, by its [`Space::url`]. Called in a child process of the suite.
    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError>;
}

/// A fresh namespace. It may remove what it created when it is dropped.
#[async_trait]
pub trait Space: Send + Sync {
    /// The backend on this namespace, as another process would have it: with connections and caches of its own. With
    /// only one process, the same object.
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError>;

    /// Lets at least this much of the store's time pass, and not much more. Sleeps, unless it can move the store's
    /// clock.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// How much later than its TTL the store may still say that a session is not due: the resolution of its clock, the
    /// difference between the clocks of its nodes, its polling interval.
    fn allowance(&self) -> Duration;

    /// Writes a record on this key, which nobody holds, that the backend cannot understand, such as that of another
    /// writer or of a newer version.
    async fn plant(&self, key: &LockKey) -> Result<(), BoxError>;

    /// Moves the end of this session into the past by this time. The session is dead or abandoned, and was swept. The
    /// fixture writes to the store, or moves its clock; then other sessions may be due. Returns whether it did. If it
    /// cannot, which is the default, nobody knows when the store forgets a session, and the run prints that.
    async fn age(&self, _session: SessionId, _by: Duration) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Ends the store and starts it again, as after a crash or an upgrade. Every backend that
    /// [`connect`](Self::connect) gave out was dropped before; new ones are created afterwards. `false` if the store
    /// cannot be restarted, or if others use it too: then the case that needs it is left out, and the run prints that.
    async fn restart(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Removes the namespace with everything in it; the next [`connect`](Self::connect) creates one of the same name.
    /// Every backend was dropped before. `false` if the namespace cannot be removed, as with
    /// [`restart`](Self::restart).
    async fn recreate(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// The URL by which another process reaches the namespace, if it can.
    fn url(&self) -> Option<String>;
}
