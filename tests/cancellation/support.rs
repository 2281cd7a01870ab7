//! A future that ends at one of its await points, the stores, and the sweep that ends a case at every one.

use std::any::Any;
use std::future::Future;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use lockkeeper::{
    AcquireError, LockBackend, Locks, MemoryBackend, Recover, RecoverError, Recovery, Released,
};
use tokio::sync::Notify;

/// So long that nothing is freed by expiry.
pub(crate) const TTL: Duration = Duration::from_secs(3_600);
/// A request's own time-out is 5 s on SQLite, and there is none in memory.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// When a future ends, and how.
#[derive(Debug, Clone)]
pub(crate) struct At {
    /// After so many polls.
    polls: usize,
    how: How,
    /// It has come to its end, and somebody else has to end it.
    reached: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Its caller drops it.
    Dropped,
    /// Its caller panics.
    Panic,
    /// Its caller's task is aborted.
    Aborted,
    /// Its caller drops it, and its runtime ends at once, with all tasks. The session's goes on.
    WithItsRuntime,
    /// Its runtime ends first, with all tasks; then it is dropped, where there is no runtime.
    AfterItsRuntime,
}

impl How {
    /// Whether it is polled at every turn of its runtime, so that it ends at every await point of the tasks that work for
    /// it. Else only when it is woken.
    fn goes_by_turns(self) -> bool {
        !matches!(self, How::Dropped | How::Panic)
    }

    /// After how many polls it ends next. Of turns there are thousands while a store works.
    pub(crate) fn next(self, polls: usize) -> usize {
        match self.goes_by_turns() {
            true => polls + 1 + polls / 8,
            false => polls + 1,
        }
    }

    fn most(self) -> usize {
        if self.goes_by_turns() {
            100_000_000
        } else {
            200
        }
    }
}

impl At {
    pub(crate) fn new(polls: usize, how: How) -> Self {
        let reached = Arc::default();
        Self {
            polls,
            how,
            reached,
        }
    }
}

/// Polls a future so many times and then ends it. `None` if it was dropped.
pub(crate) struct Dropped<F> {
    future: Option<Pin<Box<F>>>,
    at: At,
    is_over: bool,
}

pub(crate) fn dropped<F: Future>(future: F, at: At) -> Dropped<F> {
    Dropped {
        future: Some(Box::pin(future)),
        at,
        is_over: false,
    }
}

impl<F: Future> Future for Dropped<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over {
            return Poll::Pending;
        }
        if let Some(future) = &mut self.future
            && let Poll::Ready(answer) = future.as_mut().poll(context)
        {
            return Poll::Ready(Some(answer));
        }
        if self.at.polls > 1 {
            self.at.polls -= 1;
            if self.at.how.goes_by_turns() {
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        match self.at.how {
            How::Dropped | How::WithItsRuntime => {
                self.future = None;
                Poll::Ready(None)
            }
            How::Panic => resume_unwind(Box::new("on purpose")),
            How::Aborted | How::AfterItsRuntime => {
                self.is_over = true;
                self.at.reached.notify_one();
                Poll::Pending
            }
        }
    }
}

/// A store, and a second way to it.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) name: &'static str,
    backend: Arc<dyn LockBackend>,
    other: Arc<dyn LockBackend>,
    _folder: Option<Arc<tempfile::TempDir>>,
}

impl Store {
    pub(crate) async fn all() -> Vec<Store> {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let memory = |name, backend: Arc<MemoryBackend>| Store {
            name,
            backend: backend.clone(),
            other: backend,
            _folder: None,
        };
        vec![
            memory("memory, atomic", MemoryBackend::new()),
            memory(
                "memory, one key a step",
                MemoryBackend::new().with_keys_per_batch(1),
            ),
            memory("memory, records", MemoryBackend::records()),
            memory(
                "memory, records, three keys a step",
                MemoryBackend::records().with_keys_per_batch(3),
            ),
            Store {
                name: "SQLite",
                backend: lockkeeper::backend(&url).await.unwrap(),
                other: lockkeeper::backend(&url).await.unwrap(),
                _folder: Some(folder),
            },
        ]
    }

    /// A client that recovers what it meets.
    pub(crate) fn locks(&self, ttl: Duration) -> Locks {
        recovering(&self.backend, ttl, Arc::default())
    }

    /// Everything that the cases lock can be had by somebody else, each thing within that time; abandoned work is undone
    /// first, and counted.
    pub(crate) async fn is_free(&self, case: &str, within: Duration) -> usize {
        let recovered = Arc::default();
        let other = recovering(&self.other, TTL, Arc::clone(&recovered));
        let context = format!("{}: {case}", self.name);
        let free = |error: AcquireError| panic!("{context}: {error}");
        let global = other.lock("g").wait(within).acquire().await;
        let documents = other.documents(forty()).wait(within).acquire().await;
        let share = other.semaphore("s", 1).wait(within).acquire().await;
        let tree = other.tree().write("/t").wait(within).acquire().await;
        for guard in [global, documents, share, tree] {
            let released = guard.unwrap_or_else(free).release().await;
            assert_eq!(released.unwrap(), Released::Released, "{context}");
        }
        assert!(other.shutdown(SOON).await, "{context}: no task is left");
        recovered.load(Ordering::Relaxed)
    }
}

impl Store {
    /// Everything is free within that time, of a case that has left so many intents, and nothing is renewed for ever.
    pub(crate) async fn has_nothing_left(
        &self,
        locks: &Locks,
        case: &str,
        (intents, within): (RangeInclusive<usize>, Duration),
    ) {
        let (name, recovered) = (self.name, self.is_free(case, within).await);
        assert!(
            intents.contains(&recovered),
            "{name}: {case} left {recovered} intents, not {intents:?}"
        );
        assert!(
            locks.shutdown(SOON).await,
            "{name}: {case}: something is left"
        );
    }
}

pub(crate) fn forty() -> Vec<String> {
    (0..40).map(|n| format!("d{n:02}")).collect()
}

fn recovering(backend: &Arc<dyn LockBackend>, ttl: Duration, count: Arc<AtomicUsize>) -> Locks {
    let builder = Locks::builder(Arc::clone(backend)).ttl(ttl);
    builder.recovery(Undo(count)).build().unwrap()
}

/// Counts the changes that it has undone.
struct Undo(Arc<AtomicUsize>);

#[lockkeeper::async_trait]
impl Recover for Undo {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        tokio::task::yield_now().await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// How many intents may be left by a case, which was ended or has come to its own end.
pub(crate) type Left = fn(bool) -> RangeInclusive<usize>;

pub(crate) fn none(_: bool) -> RangeInclusive<usize> {
    0..=0
}

pub(crate) fn one(_: bool) -> RangeInclusive<usize> {
    1..=1
}

/// One that was ended may have left one.
pub(crate) fn one_if_ended(completed: bool) -> RangeInclusive<usize> {
    if completed { 0..=0 } else { 0..=1 }
}

/// Runs one case with every number of polls until it completes, each time in a fresh client; its caller drops it, panics,
/// or is aborted. Afterwards everything must be free, no task left, and as many intents as the case says.
pub(crate) async fn sweep<F, Fut>(case: &str, left: Left, run: F)
where
    F: Fn(Locks, At) -> Fut,
    Fut: Future<Output = bool> + Send + 'static,
{
    for how in [How::Dropped, How::Panic, How::Aborted] {
        sweep_by(case, how, left, async |locks, at| match how {
            How::Aborted => aborted(run(locks, at.clone()), &at).await,
            _ => panicked(case, AssertUnwindSafe(run(locks, at)).catch_unwind().await),
        })
        .await;
    }
}

/// Whether it has completed before it panicked on purpose.
fn panicked(case: &str, ended: Result<bool, Box<dyn Any + Send>>) -> bool {
    ended.unwrap_or_else(|panic| {
        assert!(panic.downcast_ref() == Some(&"on purpose"), "{case} panics");
        false
    })
}

/// Whether it has completed before its task was aborted.
#[expect(
    clippy::disallowed_methods,
    reason = "the task is a program's, which is aborted"
)]
async fn aborted(run: impl Future<Output = bool> + Send + 'static, at: &At) -> bool {
    let mut task = tokio::spawn(run);
    let ended = tokio::select! {
        biased;
        completed = &mut task => Some(completed),
        () = at.reached.notified() => None,
    };
    if let Some(completed) = ended {
        return completed.unwrap_or_else(|error| resume_unwind(error.into_panic()));
    }
    task.abort();
    let ended = task.await;
    let is_cancelled = ended.as_ref().is_err_and(|error| error.is_cancelled());
    assert!(is_cancelled, "it was aborted: {ended:?}");
    false
}

/// As [`sweep`], on a runtime that ends. The client's session is opened before, on one that lives on: the test's, which
/// needs more than one thread.
pub(crate) async fn sweep_runtimes<F, Fut>(case: &str, left: Left, run: F)
where
    F: Fn(Locks, At) -> Fut + Sync,
    Fut: Future<Output = bool>,
{
    for how in [How::WithItsRuntime, How::AfterItsRuntime] {
        sweep_by(case, how, left, async |locks, at| {
            with_its_runtime(&run, locks, at).await
        })
        .await;
    }
}

/// Runs a case on a runtime of its own, which ends when the case does. Says whether it has completed.
pub(crate) async fn with_its_runtime<F, Fut>(run: F, locks: Locks, at: At) -> bool
where
    F: Fn(Locks, At) -> Fut + Sync,
    Fut: Future<Output = bool>,
{
    drop(locks.lock("first").acquire().await.unwrap());
    let ends = || {
        // At each turn one task is polled.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .event_interval(1)
            .enable_all()
            .build()
            .unwrap();
        let reached = Arc::clone(&at.reached);
        let mut run = Box::pin(run(locks, at));
        let completed = runtime.block_on(async {
            tokio::select! {
                biased;
                completed = &mut run => completed,
                () = reached.notified() => false,
            }
        });
        drop(runtime);
        drop(run);
        completed
    };
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| match scope.spawn(ends).join() {
            Ok(completed) => completed,
            Err(panic) => resume_unwind(panic),
        })
    })
}

async fn sweep_by(case: &str, how: How, left: Left, run: impl AsyncFn(Locks, At) -> bool) {
    for store in Store::all().await {
        let (mut polls, mut ends) = (1, 1);
        loop {
            assert!(polls < how.most(), "{}: {case} never completes", store.name);
            let locks = store.locks(TTL);
            let completed = run(locks.clone(), At::new(polls, how)).await;
            // The client lives on, so that closing its session frees nothing.
            let context = format!("{case}, ended after poll {polls}: {how:?}");
            let within = (left(completed), SOON);
            store.has_nothing_left(&locks, &context, within).await;
            if completed {
                println!("{}: {case}: ended {ends} times: {how:?}", store.name);
                break;
            }
            (polls, ends) = (how.next(polls), ends + 1);
        }
    }
}
