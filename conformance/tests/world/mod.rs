//! The reference backend as a world of the suite.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockcore::{LockBackend, LockKey, MemoryBackend, SessionId, async_trait};
use lockcore_conformance::{BoxError, Space, World};

/// What puts something in front of a backend.
pub(crate) type Wrap = dyn Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync;

/// The reference backend, perhaps behind something else.
pub(crate) struct Memory {
    pub(crate) name: String,
    pub(crate) make: Box<dyn Fn() -> Arc<MemoryBackend> + Send + Sync>,
    pub(crate) wrap: Arc<Wrap>,
}

struct MemorySpace {
    memory: Arc<MemoryBackend>,
    wrap: Arc<Wrap>,
    wrapped: Mutex<Arc<dyn LockBackend>>,
}

#[async_trait]
impl World for Memory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn paused(&self) -> bool {
        true
    }

    fn processes(&self) -> bool {
        false
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        let memory = (self.make)();
        let wrapped = Mutex::new((self.wrap)(Arc::clone(&memory) as _));
        let wrap = Arc::clone(&self.wrap);
        Ok(Arc::new(MemorySpace {
            memory,
            wrap,
            wrapped,
        }))
    }

    async fn reopen(&self, _url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Err("another process has its own memory".into())
    }
}

#[async_trait]
impl Space for MemorySpace {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(Arc::clone(&self.wrapped()))
    }

    /// The memory stays: what stands before it begins anew.
    async fn restart(&self) -> Result<bool, BoxError> {
        *self.wrapped() = (self.wrap)(Arc::clone(&self.memory) as _);
        Ok(true)
    }

    async fn pass(&self, time: Duration) {
        self.memory.advance(time);
    }

    fn allowance(&self) -> Duration {
        Duration::ZERO
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        self.memory.plant(key);
        Ok(())
    }

    async fn age(&self, _session: SessionId, by: Duration) -> Result<bool, BoxError> {
        self.memory.advance(by);
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        None
    }
}

impl MemorySpace {
    fn wrapped(&self) -> MutexGuard<'_, Arc<dyn LockBackend>> {
        self.wrapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
