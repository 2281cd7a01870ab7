//! Every public async function, dropped after its first, second, … last poll, also by a panic of its caller, and with the
//! runtime that it runs on while that of its session lives; guards dropped where nothing can be awaited. Nothing stays
//! held, nothing panics, nothing blocks.
//!
//! The sessions' TTL is an hour, so that nothing here is freed by expiry.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use lockkeeper::{
    AcquireError, Acquisition, Attempt, Guard, LockBackend, Locks, MemoryBackend, Recover,
    RecoverError, Recovery, Released, Tree,
};

const TTL: Duration = Duration::from_secs(3_600);
/// A request's own time-out is 5 s on SQLite, and there is none in memory.
const SOON: Duration = Duration::from_secs(5);

/// When a future ends, and how.
#[derive(Debug, Clone, Copy)]
struct At {
    polls: usize,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Its caller drops it.
    Dropped,
    /// Its caller panics.
    Panic,
    /// Its caller's runtime ends at once, with all tasks. The session's goes on.
    Runtime,
}

/// Polls a future so many times and then ends it. `None` if it was dropped.
struct Dropped<F> {
    future: Option<Pin<Box<F>>>,
    at: At,
}

impl<F: Future> Future for Dropped<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self
            .future
            .as_mut()
            .map(|future| future.as_mut().poll(context));
        match answer {
            Some(Poll::Ready(answer)) => return Poll::Ready(Some(answer)),
            Some(Poll::Pending) if self.at.polls > 1 => {
                self.at.polls -= 1;
                return Poll::Pending;
            }
            _ if self.at.how == How::Panic => resume_unwind(Box::new("on purpose")),
            _ => {}
        }
        self.future = None;
        Poll::Ready(None)
    }
}

fn dropped<F: Future>(future: F, at: At) -> Dropped<F> {
    Dropped {
        future: Some(Box::pin(future)),
        at,
    }
}

/// A store, and a second way to it.
#[derive(Clone)]
struct Store {
    name: &'static str,
    backend: Arc<dyn LockBackend>,
    other: Arc<dyn LockBackend>,
    _folder: Option<Arc<tempfile::TempDir>>,
}

impl Store {
    async fn all() -> Vec<Store> {
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
                MemoryBackend::new().with_keys_per_step(1),
            ),
            memory("memory, records", MemoryBackend::records()),
            memory(
                "memory, records, three keys a step",
                MemoryBackend::records().with_keys_per_step(3),
            ),
            Store {
                name: "SQLite",
                backend: lockkeeper::backend(&url).await.unwrap(),
                other: lockkeeper::backend(&url).await.unwrap(),
                _folder: Some(folder),
            },
        ]
    }

    fn locks(&self) -> Locks {
        Locks::builder(self.backend.clone())
            .ttl(TTL)
            .build()
            .unwrap()
    }

    /// Everything that the cases lock can be had at once by somebody else; abandoned work is undone first.
    async fn is_free(&self, case: &str) -> usize {
        let recovered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let other = Locks::builder(self.other.clone())
            .ttl(TTL)
            .recovery(Undo(recovered.clone()))
            .build()
            .unwrap();
        let context = format!("{}: {case}", self.name);
        let free = |error: AcquireError| panic!("{context}: {error}");
        let global = other
            .global("g")
            .wait(SOON)
            .acquire()
            .await
            .unwrap_or_else(free);
        let ids: Vec<String> = (0..40).map(|n| format!("d{n:02}")).collect();
        let documents = other
            .documents(&ids)
            .wait(SOON)
            .acquire()
            .await
            .unwrap_or_else(free);
        let share = other
            .share("s")
            .limit(1)
            .wait(SOON)
            .acquire()
            .await
            .unwrap_or_else(free);
        let tree = other
            .tree()
            .write("/t")
            .wait(SOON)
            .acquire()
            .await
            .unwrap_or_else(free);
        for guard in [global, documents, share, tree] {
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
        assert!(other.shutdown(SOON).await, "{context}: no task is left");
        recovered.load(std::sync::atomic::Ordering::Relaxed)
    }
}

struct Undo(Arc<std::sync::atomic::AtomicUsize>);

#[lockkeeper::async_trait]
impl Recover for Undo {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}

/// Runs one case with every number of polls until it completes, each time in a fresh client. Afterwards everything
/// must be free, and as many intents left as the case says for a dropped run.
async fn sweep<F, Fut>(case: &str, left: impl Fn(bool) -> std::ops::RangeInclusive<usize>, run: F)
where
    F: Fn(Locks, At) -> Fut,
    Fut: Future<Output = bool>,
{
    for how in [How::Dropped, How::Panic] {
        let ends = async |locks, at| AssertUnwindSafe(run(locks, at)).catch_unwind().await;
        sweep_by(case, how, &left, async |locks, at| {
            ends(locks, at).await.unwrap_or_else(|panic| {
                assert!(panic.downcast_ref() == Some(&"on purpose"), "{case} panics");
                false
            })
        })
        .await;
    }
}

/// As [`sweep`], for what needs no session of its own: the session is opened first, on a runtime that lives on.
async fn sweep_runtimes<F, Fut>(case: &str, run: F)
where
    F: Fn(Locks, At) -> Fut + Sync,
    Fut: Future<Output = bool>,
{
    sweep_by(case, How::Runtime, none, async |locks, at| {
        drop(locks.global("first").acquire().await.unwrap());
        let ends = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(run(locks, at))
        };
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| match scope.spawn(ends).join() {
                Ok(completed) => completed,
                Err(panic) => resume_unwind(panic),
            })
        })
    })
    .await;
}

async fn sweep_by(
    case: &str,
    how: How,
    left: impl Fn(bool) -> std::ops::RangeInclusive<usize>,
    run: impl AsyncFn(Locks, At) -> bool,
) {
    for store in Store::all().await {
        for polls in 1.. {
            assert!(polls < 200, "{}: {case} never completes", store.name);
            let locks = store.locks();
            let completed = run(locks.clone(), At { polls, how }).await;
            // The client lives on, so that closing its session frees nothing.
            let recovered = store
                .is_free(&format!("{case}, ended after poll {polls}: {how:?}"))
                .await;
            assert!(
                left(completed).contains(&recovered),
                "{}: {case} after {polls} polls (completed: {completed}, {how:?}) left {recovered} intents",
                store.name
            );
            if completed {
                println!(
                    "{}: {case}: ended after each of {polls} polls: {how:?}",
                    store.name
                );
                break;
            }
        }
    }
}

fn none(_: bool) -> std::ops::RangeInclusive<usize> {
    0..=0
}

/// Drops whatever an acquisition won.
async fn acquired<S>(acquisition: Acquisition<S>, polls: At) -> bool {
    dropped(acquisition.acquire(), polls)
        .await
        .is_some_and(|guard| {
            drop(guard.unwrap());
            true
        })
}

fn forty() -> Vec<String> {
    (0..40).map(|n| format!("d{n:02}")).collect()
}

fn two_paths(locks: &Locks) -> Acquisition<Tree> {
    locks.tree().write("/t/a/b").read("/t/c")
}

#[tokio::test]
async fn acquire_of_every_scheme() {
    sweep("global", none, |locks, polls| async move {
        acquired(locks.global("g"), polls).await
    })
    .await;
    sweep("documents", none, |locks, polls| async move {
        acquired(locks.documents(forty()), polls).await
    })
    .await;
    sweep("share", none, |locks, polls| async move {
        acquired(locks.share("s").limit(1), polls).await
    })
    .await;
    sweep("tree", none, |locks, polls| async move {
        acquired(two_paths(&locks), polls).await
    })
    .await;
    sweep("owner", none, |locks, polls| async move {
        let owner = locks.owner();
        let outer = locks
            .documents(["d00"])
            .owner(&owner)
            .acquire()
            .await
            .unwrap();
        let done = acquired(locks.documents(forty()).owner(&owner), polls).await;
        drop(outer);
        done
    })
    .await;
}

#[tokio::test]
async fn try_acquire() {
    sweep("try_acquire", none, |locks, polls| async move {
        let answer = dropped(locks.documents(forty()).try_acquire(), polls).await;
        answer.is_some_and(|answer| matches!(answer.unwrap(), Attempt::Acquired(_)))
    })
    .await;
    sweep(
        "try_acquire that is refused at its last key",
        none,
        |locks, polls| async move {
            let in_the_way = locks.documents(["d39"]).acquire().await.unwrap();
            let answer = dropped(locks.documents(forty()).try_acquire(), polls).await;
            assert_eq!(in_the_way.release().await.unwrap(), Released::Released);
            answer.is_some_and(|answer| matches!(answer.unwrap(), Attempt::Busy(_)))
        },
    )
    .await;
}

#[tokio::test]
async fn documents_from_a_stream() {
    sweep("documents_stream", none, |locks, polls| async move {
        let ids = futures_util::stream::iter(forty());
        let acquire = async { locks.documents_stream(ids).await.acquire().await };
        dropped(acquire, polls).await.is_some_and(|guard| {
            drop(guard.unwrap());
            true
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runtime_that_ends_while_that_of_the_session_lives() {
    sweep_runtimes("global", |locks, at| async move {
        acquired(locks.global("g"), at).await
    })
    .await;
    sweep_runtimes("documents", |locks, at| async move {
        acquired(locks.documents(&forty()[..9]), at).await
    })
    .await;
    sweep_runtimes("share", |locks, at| async move {
        acquired(locks.share("s").limit(1), at).await
    })
    .await;
    sweep_runtimes("tree", |locks, at| async move {
        acquired(two_paths(&locks), at).await
    })
    .await;
    sweep_runtimes("release", |locks, at| async move {
        released(two_paths(&locks).acquire().await.unwrap(), at).await
    })
    .await;
    sweep_runtimes("confirm", |locks, at| async move {
        let guard = locks.global("g").acquire().await.unwrap();
        let confirmed = dropped(guard.confirm(), at).await;
        confirmed.is_some_and(|held| held.unwrap())
    })
    .await;
    sweep_runtimes("run", |locks, at| async move {
        let work = |_| async {
            tokio::task::yield_now().await;
            Ok::<_, std::io::Error>(())
        };
        let ran = dropped(locks.global("g").run(work), at).await;
        ran.is_some_and(|done| done.is_ok_and(|(_, released)| released.is_ok()))
    })
    .await;
}

/// Dropped while it waits, on each of the polls until it is granted.
#[tokio::test]
async fn acquire_that_waits() {
    sweep("waiting", none, |locks, polls| async move {
        let in_the_way = locks.documents(["d20"]).acquire().await.unwrap();
        let mut waiting = pin!(dropped(
            locks.documents(forty()).wait(SOON).acquire(),
            polls
        ));
        let early = tokio::time::timeout(Duration::from_millis(20), &mut waiting).await;
        assert_eq!(in_the_way.release().await.unwrap(), Released::Released);
        let answer = match early {
            Ok(answer) => answer,
            Err(_) => waiting.await,
        };
        answer.is_some_and(|guard| {
            drop(guard.unwrap());
            true
        })
    })
    .await;
}

/// An acquisition that is dropped before its guard was there leaves no intent: its change never began.
#[tokio::test]
async fn acquire_with_an_intent() {
    let left = |completed: bool| if completed { 1..=1 } else { 0..=0 };
    sweep("intent", left, |locks, polls| async move {
        acquired(locks.tree().write("/t/a").intent(&"change").unwrap(), polls).await
    })
    .await;
}

#[tokio::test]
async fn run() {
    sweep("run", none, |locks, polls| async move {
        let work = |_| async {
            tokio::task::yield_now().await;
            Ok::<_, std::io::Error>(())
        };
        dropped(locks.global("g").run(work), polls)
            .await
            .is_some_and(|done| done.is_ok_and(|(_, released)| released.is_ok()))
    })
    .await;
    // Dropped before the work began it leaves no intent; afterwards one, unless its release was on the way.
    let left = |completed: bool| if completed { 0..=0 } else { 0..=1 };
    sweep("run with an intent", left, |locks, polls| async move {
        let work = |_| async {
            tokio::task::yield_now().await;
            Ok::<_, std::io::Error>(())
        };
        let run = locks
            .tree()
            .write("/t")
            .intent(&"change")
            .unwrap()
            .run(work);
        let done = dropped(run, polls).await;
        done.is_some_and(|done| done.is_ok_and(|(_, released)| released.is_ok()))
    })
    .await;
}

async fn released(guard: Guard, polls: At) -> bool {
    dropped(guard.release(), polls)
        .await
        .is_some_and(|released| released.is_ok())
}

/// Whoever asks for a release and goes away has released all the same, and the change was finished.
#[tokio::test]
async fn release() {
    sweep("release", none, |locks, polls| async move {
        released(locks.global("g").acquire().await.unwrap(), polls).await
    })
    .await;
    sweep("release of many", none, |locks, polls| async move {
        released(locks.documents(forty()).acquire().await.unwrap(), polls).await
    })
    .await;
    sweep("release with an intent", none, |locks, polls| async move {
        released(
            two_paths(&locks)
                .intent(&"change")
                .unwrap()
                .acquire()
                .await
                .unwrap(),
            polls,
        )
        .await
    })
    .await;
}

#[tokio::test]
async fn confirm_and_lost() {
    for many in [false, true] {
        sweep("confirm", none, |locks, polls| async move {
            let ids = if many { forty() } else { vec!["d00".into()] };
            let guard = locks.documents(ids).acquire().await.unwrap();
            let confirmed = dropped(guard.confirm(), polls).await;
            assert!(guard.is_valid());
            confirmed.is_some_and(|held| held.unwrap())
        })
        .await;
    }
    sweep("lost", none, |locks, _| async move {
        let guard = locks.global("g").acquire().await.unwrap();
        let at = At {
            polls: 1,
            how: How::Dropped,
        };
        assert!(dropped(guard.lost(), at).await.is_none(), "it is not lost");
        guard.is_valid()
    })
    .await;
}

/// Leaves an intent behind, and says whose.
async fn leave(locks: &Locks) -> lockkeeper::SessionId {
    let guard = locks
        .tree()
        .write("/t/a")
        .intent(&"change")
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let session = guard.session();
    drop(guard);
    // It is abandoned when its session is closed, which dropping the guard asks for.
    loop {
        if locks
            .abandoned()
            .await
            .unwrap()
            .iter()
            .any(|state| state.session == session)
        {
            return session;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn recovery() {
    sweep(
        "abandoned",
        |_| 1..=1,
        |locks, polls| async move {
            leave(&locks).await;
            dropped(locks.abandoned(), polls)
                .await
                .is_some_and(|left| left.unwrap().len() == 1)
        },
    )
    .await;
    sweep(
        "adopt",
        |_| 1..=1,
        |locks, polls| async move {
            let session = leave(&locks).await;
            dropped(locks.adopt(session), polls)
                .await
                .is_some_and(|recovery| recovery.unwrap().is_some())
        },
    )
    .await;
    // A settle that is dropped may have been done.
    let left = |completed: bool| if completed { 0..=0 } else { 0..=1 };
    sweep("settle", left, |locks, polls| async move {
        let session = leave(&locks).await;
        let recovery = locks.adopt(session).await.unwrap().unwrap();
        dropped(recovery.settle(), polls)
            .await
            .is_some_and(|settled| settled.unwrap())
    })
    .await;
    sweep(
        "give_up",
        |_| 1..=1,
        |locks, polls| async move {
            let session = leave(&locks).await;
            let recovery = locks.adopt(session).await.unwrap().unwrap();
            dropped(recovery.give_up(), polls)
                .await
                .is_some_and(|given_up| given_up.is_ok())
        },
    )
    .await;
}

#[tokio::test]
async fn owner_and_shutdown() {
    sweep("shutdown", none, |locks, polls| async move {
        let guard = locks.global("g").acquire().await.unwrap();
        drop(guard);
        dropped(locks.shutdown(SOON), polls)
            .await
            .is_some_and(|all| all)
    })
    .await;
}

#[tokio::test]
async fn connect() {
    for polls in 1..200 {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let at = At {
            polls,
            how: How::Dropped,
        };
        let done = dropped(lockkeeper::connect(&url), at).await.is_some();
        let guard = lockkeeper::connect(&url)
            .await
            .unwrap()
            .global("g")
            .acquire()
            .await
            .unwrap();
        assert!(guard.is_valid());
        if done {
            return;
        }
    }
    panic!("connect never completes");
}

/// A guard outlives its runtime: dropping it does nothing bad, and what it held is freed when its session is due.
#[test]
fn guards_and_attempts_dropped_with_their_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let ttl = Duration::from_secs(1);
    let first = runtime();
    let (guard, locks) = first.block_on(async {
        let locks = Locks::builder(lockkeeper::backend(&url).await.unwrap())
            .ttl(ttl)
            .build()
            .unwrap();
        let guard = locks.global("g").acquire().await.unwrap();
        // Under way when the runtime goes.
        let waiting = locks.global("g").acquire();
        assert!(waiting.now_or_never().is_none());
        (guard, locks)
    });
    drop(first);
    drop(guard);
    runtime().block_on(async {
        // The same client opens another session, as the keeper of the first is gone.
        let again = locks.global("g").wait(3 * ttl).acquire().await.unwrap();
        assert!(again.is_valid());
        assert_eq!(again.release().await.unwrap(), Released::Released);
    });
}

#[tokio::test]
async fn guards_dropped_where_nothing_can_be_awaited() {
    for store in Store::all().await {
        let locks = store.locks();
        let guard = locks.global("g").acquire().await.unwrap();
        std::thread::spawn(move || drop(guard)).join().unwrap();
        store.is_free("a thread without a runtime").await;

        let guard = locks.global("g").acquire().await.unwrap();
        let panicked = std::thread::spawn(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        store.is_free("a panic").await;

        struct Nested(Option<Guard>, Option<Guard>);
        impl Drop for Nested {
            fn drop(&mut self) {
                let _guard = self.1.take();
                drop(self.0.take());
            }
        }
        let nested = Nested(
            Some(locks.global("g").acquire().await.unwrap()),
            Some(locks.documents(forty()).acquire().await.unwrap()),
        );
        let panicked = std::thread::spawn(move || {
            let _nested = nested;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        store.is_free("two guards in a drop during a panic").await;

        let guard = locks
            .tree()
            .write("/t")
            .intent(&"change")
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let panicked = std::thread::spawn(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.join().is_err());
        assert_eq!(
            store.is_free("a panic with an intent").await,
            1,
            "{}: the intent is left",
            store.name
        );
    }
}
