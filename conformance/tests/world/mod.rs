//! The reference backend as a world of the suite.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Adoption, ClaimStore, Incarnation, SessionStore,
};
use lockcore::{FencingToken, LockBackend, LockKey, MemoryBackend, SessionId, async_trait};
use lockcore_conformance::{BoxError, Decorated, Decorator, Space, World};

/// What puts something in front of a backend.
pub(crate) type Wrap = dyn Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync;

/// What makes an empty one.
pub(crate) type Make = dyn Fn() -> Arc<MemoryBackend> + Send + Sync;

/// The reference backend, perhaps behind something else.
pub(crate) struct Memory {
    pub(crate) name: String,
    pub(crate) make: Arc<Make>,
    pub(crate) wrap: Arc<Wrap>,
}

struct MemorySpace {
    make: Arc<Make>,
    wrap: Arc<Wrap>,
    now: Mutex<Now>,
}

/// The namespace as it is now.
struct Now {
    memory: Arc<MemoryBackend>,
    /// How often it was made anew.
    generation: u64,
    wrapped: Arc<dyn LockBackend>,
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
        Ok(Arc::new(MemorySpace {
            make: Arc::clone(&self.make),
            wrap: Arc::clone(&self.wrap),
            now: Mutex::new(Now::new((self.make)(), 0, &*self.wrap)),
        }))
    }

    async fn reopen(&self, _url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Err("another process has its own memory".into())
    }
}

#[async_trait]
impl Space for MemorySpace {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(Arc::clone(&self.now().wrapped))
    }

    /// The memory stays: what stands before it begins anew.
    async fn restart(&self) -> Result<bool, BoxError> {
        let mut now = self.now();
        *now = Now::new(Arc::clone(&now.memory), now.generation, &*self.wrap);
        Ok(true)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        let mut now = self.now();
        *now = Now::new((self.make)(), now.generation + 1, &*self.wrap);
        Ok(true)
    }

    async fn pass(&self, time: Duration) {
        self.now().memory.advance(time);
    }

    fn allowance(&self) -> Duration {
        Duration::ZERO
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        self.now().memory.plant(key);
        Ok(())
    }

    async fn age(&self, _session: SessionId, by: Duration) -> Result<bool, BoxError> {
        self.now().memory.advance(by);
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        None
    }
}

impl MemorySpace {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn new(memory: Arc<MemoryBackend>, generation: u64, wrap: &Wrap) -> Self {
        let store = Arc::new(Decorated(Later(Arc::clone(&memory), generation)));
        Self {
            memory,
            generation,
            wrapped: wrap(store),
        }
    }
}

/// A namespace that was made anew: its tokens go on above those of the former ones, as a store takes them from the time
/// at which it is made.
struct Later(Arc<MemoryBackend>, u64);

impl Later {
    fn token(&self, token: FencingToken) -> FencingToken {
        FencingToken::new(token.get() + (self.1 << GENERATION)).expect("of few generations")
    }
}

/// The bit of a token from which on it counts generations.
pub(crate) const GENERATION: u32 = 52;

#[async_trait]
impl Decorator for Later {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> lockcore::Result<Acquired> {
        match self.0.acquire(request).await? {
            Acquired::Acquired(token) => Ok(Acquired::Acquired(self.token(token))),
            answer => Ok(answer),
        }
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> lockcore::Result<Adopted> {
        Ok(
            match self.0.adopt(session, seen, adopter, how, within).await? {
                Adopted::Adopted(adoption) => Adopted::Adopted(Adoption {
                    token: self.token(adoption.token),
                    ..adoption
                }),
                other => other,
            },
        )
    }
}
