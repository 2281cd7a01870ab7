//! [`OwnThread`]: a thread with a runtime of its own, where a client renews and talks to its store.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::{
    Acquire, Acquired, Adopt, Adopted, Changed, Claim, ClaimStore, End, Error, ErrorKind, Filter,
    Grant, Incarnation, Info, Inspect, Label, LockBackend, Note, Opened, Operation, OwnerId, Page,
    Record, Renewal, Renewed, Result, SessionId, SessionState, SessionStore, Settled, Stood, Sweep,
    Swept, Wakeups,
};

/// A thread with a Tokio runtime of its own, for a client whose program may block its own runtime.
///
/// Clients that were built with it ([`LocksBuilder::own_thread`](crate::LocksBuilder::own_thread)) renew and release from
/// there. The backend's connections have to be made there, too: connect it with [`run`](Self::run) or
/// [`block_on`](Self::block_on). Cloning is cheap. The thread ends when the last clone, the last client built with it, and
/// the last of their guards are gone and given back. A backend that was connected there is of no use after that.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use lockcore::{Locks, MemoryBackend, OwnThread};
///
/// let thread = OwnThread::start()?;
/// let backend = thread.run(async { MemoryBackend::new() }).await; // other stores connect here
/// let ttl = Duration::from_secs(1);
/// let locks = Locks::builder(backend).ttl(ttl).own_thread(&thread).build()?;
/// let guard = locks.lock("reindex").acquire().await?;
/// std::thread::sleep(2 * ttl); // this blocks the program's only runtime
/// assert!(guard.is_valid() && guard.confirm().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OwnThread {
    runtime: Handle,
    _needed: Arc<Needed>,
}

/// Dropping it ends the thread.
struct Needed {
    _until: oneshot::Sender<()>,
}

impl OwnThread {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread, or no runtime, to give ([`Unavailable`](ErrorKind::Unavailable)).
    pub fn start() -> Result<Self> {
        let failed = |error: std::io::Error| {
            let what = "no thread with a runtime can be started";
            Error::new(ErrorKind::Unavailable, "thread", Operation::Connect, what)
                .with_source(error)
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let (needed, until) = oneshot::channel::<()>();
        let (started, starts) = mpsc::channel();
        thread::Builder::new()
            .name("lockkeeper".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let _ = started.send(());
                    let _ = until.await;
                });
                // What blocks beside it (a name that is being resolved) keeps nobody waiting.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        let _ = starts.recv();
        Ok(Self {
            runtime: handle,
            _needed: Arc::new(Needed { _until: needed }),
        })
    }

    /// Runs a future on the thread, and waits for its output.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped with this one.
    ///
    /// # Panics
    ///
    /// Panics if the future does.
    pub async fn run<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let (mut done, output) = oneshot::channel();
        // Its handle is of no use: a future that panics drops the channel.
        drop(self.runtime.spawn(async move {
            tokio::select! {
                biased;
                () = done.closed() => {}
                output = future => drop(done.send(output)),
            }
        }));
        output.await.expect("the future has not panicked")
    }

    /// Waits for a future on the calling thread; the own one drives its timers and sockets, and runs what it spawns.
    ///
    /// # Panics
    ///
    /// Panics on a thread of an async runtime, which it would block.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Runs this on the calling thread, as if it was of the runtime.
    pub(crate) fn entered<T>(&self, run: impl FnOnce() -> T) -> T {
        let _on = self.runtime.enter();
        run()
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl fmt::Debug for OwnThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnThread").finish_non_exhaustive()
    }
}

/// A backend whose connections and tasks are on a thread, whoever asks it.
pub(crate) struct OnThread {
    backend: Arc<dyn LockBackend>,
    thread: OwnThread,
}

/// A future that is polled, and dropped, as if it ran on the thread.
struct Entered<'a, T> {
    thread: OwnThread,
    future: Option<BoxFuture<'a, T>>,
}

impl OnThread {
    pub(crate) fn around(
        backend: Arc<dyn LockBackend>,
        thread: &OwnThread,
    ) -> Arc<dyn LockBackend> {
        let thread = thread.clone();
        Arc::new(Self { backend, thread })
    }

    fn on<'a, T>(&self, future: BoxFuture<'a, T>) -> Entered<'a, T> {
        Entered {
            thread: self.thread.clone(),
            future: Some(future),
        }
    }

    fn changed(&self, changed: Changed) -> Changed {
        Box::pin(self.on(changed))
    }
}

impl<T> Future for Entered<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Self { thread, future } = &mut *self;
        let future = future.as_mut().expect("it is taken by the drop alone");
        thread.entered(|| future.as_mut().poll(cx))
    }
}

impl<T> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        let future = self.future.take();
        self.thread.entered(|| drop(future));
    }
}

#[async_trait]
impl SessionStore for OnThread {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.on(self.backend.open(session, label, ttl)).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.on(self.backend.renew(session, renewal)).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.on(self.backend.end(sessions, how)).await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let adopted = self.backend.adopt(session, seen, adopter, how, within);
        self.on(adopted).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let settled = self.backend.settle(session, adoption, adopter, within);
        self.on(settled).await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.on(self.backend.note(session, note)).await
    }
}

#[async_trait]
impl ClaimStore for OnThread {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.on(self.backend.acquire(request)).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.on(self.backend.release(grant, claims)).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.on(self.backend.confirm(grant, claims)).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.on(self.backend.sweep(which, limit)).await
    }
}

#[async_trait]
impl Wakeups for OnThread {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let changed = self.on(self.backend.watch(claims)).await?;
        Ok(self.changed(changed))
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let changed = self
            .on(self.backend.watch_turn(grant, owner, claim))
            .await?;
        Ok(changed.map(|changed| self.changed(changed)))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let changed = self.on(self.backend.watch_session(session)).await?;
        Ok(self.changed(changed))
    }
}

#[async_trait]
impl Inspect for OnThread {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.on(self.backend.records(filter, after, limit)).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.on(self.backend.sessions(after, limit)).await
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        self.on(self.backend.session_states(sessions)).await
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        self.on(self.backend.lease_left(sessions)).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.on(self.backend.evict(seen)).await
    }
}

impl LockBackend for OnThread {
    fn info(&self) -> Info {
        self.backend.info()
    }
}
