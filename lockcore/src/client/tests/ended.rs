//! Acquisitions whose task does not run to its end: nothing of them is left while their session lives.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::client::task;
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{AcquireError, Attempt, Guard, Locks, MemoryBackend, Recover, RecoverError, Recovery};

const KEYS: [&str; 3] = ["d1", "d2", "d3"];

async fn hold(locks: &Locks, ids: &[&str]) -> Guard {
    locks.documents(ids).acquire().await.unwrap()
}

/// Whether the keys are free a moment later, long before the session could end.
async fn are_free(locks: &Locks, ids: &[&str]) -> bool {
    let since = Instant::now();
    loop {
        sleep(Duration::from_millis(10)).await;
        match locks.documents(ids).try_acquire().await.unwrap() {
            Attempt::Acquired(_) => return true,
            Attempt::Busy(_) if since.elapsed() > Duration::from_secs(5) => return false,
            Attempt::Busy(_) => {}
        }
    }
}

/// A batch for each key.
fn stores() -> [Arc<MemoryBackend>; 2] {
    let forms = [MemoryBackend::new, MemoryBackend::records];
    forms.map(|form| form().with_keys_per_batch(1))
}

#[tokio::test]
async fn an_observer_that_panics_leaves_nothing_and_its_caller_panics() {
    for store in stores() {
        let spy = Spy::new(store);
        let (locks, other) = (spy.locks(), spy.locks());
        let kept = hold(&locks, &["kept"]).await;
        for last in 1..=KEYS.len() {
            let calls = AtomicUsize::new(0);
            let acquisition = locks.documents(KEYS).observe(move |_| {
                let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
                assert!(call < last, "the observer's own");
            });
            let ended = AssertUnwindSafe(acquisition.acquire()).catch_unwind().await;
            let panic = ended.unwrap_err();
            let said: Option<&String> = panic.downcast_ref();
            let said = said.map(String::as_str).or(panic.downcast_ref().copied());
            assert_eq!(said, Some("the observer's own"));
            assert!(are_free(&other, &KEYS).await, "after call {last}");
        }
        assert!(kept.is_valid());
    }
}

struct Panics;

#[async_trait]
impl Recover for Panics {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        panic!("the handler's own");
    }
}

#[tokio::test]
async fn a_handler_that_panics_has_failed_and_holds_nothing() {
    for store in stores() {
        let spy = Spy::new(store);
        let (locks, other) = (spy.builder().recovery(Panics).build().unwrap(), spy.locks());
        let kept = hold(&locks, &["kept"]).await;
        let left = other.documents(["d2"]).intent(&"change").unwrap();
        let left = left.acquire().await.unwrap();
        let session = left.session();
        drop(left);
        sleep(Duration::from_millis(50)).await;
        match locks.documents(KEYS).acquire().await {
            Err(AcquireError::Abandoned(abandoned)) => {
                let error = abandoned.recovery.expect("why the handler failed");
                assert_eq!(error.to_string(), "the recovery handler panicked");
            }
            other => panic!("{other:?}"),
        }
        assert!(are_free(&other, &["d1"]).await && are_free(&other, &["d3"]).await);
        // Nor is it the adopter any more.
        let recovery = other.adopt(session).await.unwrap();
        assert!(recovery.expect("it is abandoned").settle().await.unwrap());
        assert!(kept.is_valid());
    }
}

/// The session lives on another runtime than the acquisition, whose runtime ends at each of its requests: before it is
/// executed, and before it is answered.
#[test]
fn a_runtime_that_ends_leaves_nothing() {
    let stays = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let stays = stays.unwrap();
    for store in stores() {
        let spy = Spy::new(store);
        let (locks, other) = (spy.locks(), spy.locks());
        let kept = stays.block_on(hold(&locks, &["kept"]));
        for (last, executed) in (1..=KEYS.len()).flat_map(|last| [(last, false), (last, true)]) {
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&asked);
            spy.decide(move |call| {
                let asks = matches!(call, Call::Acquire(_));
                let before = counted.fetch_add(usize::from(asks), Ordering::Relaxed);
                match asks && before + 1 == last {
                    true if executed => Fate::AnsweredAfter(Duration::from_secs(3_600)),
                    true => Fate::Hangs,
                    false => Fate::Answered,
                }
            });
            let ends = Builder::new_current_thread().enable_all().build().unwrap();
            let acquires = locks.clone();
            ends.block_on(async move {
                let acquires = acquires.documents(KEYS).acquire();
                task::spawn(async move { drop(acquires.await) });
                while asked.load(Ordering::Relaxed) < last {
                    sleep(Duration::from_millis(1)).await;
                }
                // Before this turn comes again it is executed, if it is to be.
                sleep(Duration::from_millis(5)).await;
            });
            spy.answer_all();
            drop(ends);
            let free = stays.block_on(are_free(&other, &KEYS));
            assert!(free, "request {last}, executed: {executed}");
        }
        assert!(kept.is_valid());
    }
}
