//! A program that lives and hangs holds nothing for ever.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::client::clock::tests::suspend;
use crate::client::tests::spy::{Call, Spy};
use crate::{
    AcquireError, Attempt, InputError, Locks, LostReason, MemoryBackend, Released, RunError,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(600);

fn locks(spy: &Arc<Spy>) -> Locks {
    spy.builder().ttl(TTL).max_hold(LONGEST).build().unwrap()
}

async fn is_free(locks: &Locks) -> bool {
    let free = locks.lock("g").try_acquire().await;
    matches!(free.unwrap(), Attempt::Acquired(_))
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_warned_then_told_and_a_ttl_later_given_back() {
    for with_intent in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let (locks, other) = (locks(&spy), spy.locks());
        let mut acquisition = locks.lock("g");
        if with_intent {
            acquisition = acquisition.intent(&"change").unwrap();
        }
        let guard = acquisition.acquire().await.unwrap();
        let since = Instant::now();
        guard.nearly_over().await;
        let (warned, tenth) = (since.elapsed(), LONGEST / 10);
        assert!(
            warned >= 9 * tenth && warned < 9 * tenth + SECOND,
            "{warned:?}"
        );
        assert!(guard.is_valid() && guard.remaining() <= TTL);
        assert_eq!(guard.lost().await, LostReason::TooLong);
        let told = since.elapsed();
        assert!(told >= LONGEST && told < LONGEST + SECOND, "{told:?}");
        assert!(!guard.is_valid() && guard.remaining() == Duration::ZERO);
        assert!(!guard.confirm().await.unwrap());
        // The program has time to stop.
        sleep(TTL - 2 * SECOND).await;
        assert!(!is_free(&other).await, "with an intent: {with_intent}");
        sleep(3 * SECOND).await;
        match with_intent {
            false => assert!(is_free(&other).await),
            true => {
                let asked = other.lock("g").try_acquire().await;
                assert!(
                    matches!(asked, Err(AcquireError::Abandoned(_))),
                    "{asked:?}"
                );
            }
        }
        // Whoever comes back late learns it.
        assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_in_time_is_not_looked_after_any_more() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = locks(&spy);
    let first = locks.lock("g").acquire().await.unwrap();
    let held = first.held();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    drop(locks.lock("h").acquire().await.unwrap());
    let releases = || spy.count(|call| matches!(call, Call::Release(_)));
    sleep(SECOND).await;
    let before = releases();
    sleep(LONGEST + 2 * TTL).await;
    assert_eq!(releases(), before, "nobody releases them once more");
    assert!(!held.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_says_otherwise_and_no_time_is_refused() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = locks(&spy);
    let guard = locks
        .lock("g")
        .max_hold(2 * LONGEST)
        .acquire()
        .await
        .unwrap();
    sleep(LONGEST + SECOND).await;
    assert!(guard.is_valid());
    let refused = locks.lock("h").max_hold(Duration::ZERO).acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Input(InputError::NoHold))),
        "{refused:?}"
    );
    let refused = spy.builder().max_hold(Duration::ZERO).build();
    assert!(matches!(refused, Err(InputError::NoHold)));
    // Years are no instant any more.
    let for_ever = locks
        .lock("i")
        .max_hold(Duration::MAX)
        .acquire()
        .await
        .unwrap();
    assert!(for_ever.is_valid());
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_too_long_is_stopped() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (locks(&spy), spy.locks());
    let ended = locks
        .lock("g")
        .run(|_| async {
            sleep(2 * LONGEST).await;
            Ok::<_, std::io::Error>(())
        })
        .await;
    assert!(
        matches!(ended, Err(RunError::Lost(LostReason::TooLong))),
        "{ended:?}"
    );
    sleep(SECOND).await;
    assert!(
        is_free(&other).await,
        "the work has ended, so it is given back"
    );
}

#[tokio::test(start_paused = true)]
async fn its_end_is_told_within_a_second_of_waking() {
    let spy = Spy::new(MemoryBackend::new());
    // The lease goes on for longer.
    let locks = spy.builder().ttl(2 * LONGEST).max_hold(LONGEST).build();
    let guard = locks.unwrap().lock("g").acquire().await.unwrap();
    let lost = tokio::join!(timeout(2 * SECOND, guard.lost()), async {
        sleep(SECOND).await;
        suspend(LONGEST);
    });
    assert_eq!(lost.0, Ok(LostReason::TooLong));
}

/// The program's runtime hangs; the session is on another one, which renews it.
#[test]
fn a_runtime_that_hangs_holds_nothing_for_ever() {
    let runtime = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let (keeps, hangs) = (runtime().unwrap(), runtime().unwrap());
    let backend = MemoryBackend::new();
    let locks = Locks::builder(backend.clone()).ttl(SECOND).build().unwrap();
    let other = Locks::builder(backend).ttl(SECOND).build().unwrap();
    // The session is opened here.
    keeps.block_on(async { drop(locks.lock("h").acquire().await.unwrap()) });
    let (hang, until) = std::sync::mpsc::channel::<()>();
    let asked = locks.clone();
    let guard = hangs.block_on(async move {
        let guard = asked.lock("g").max_hold(SECOND).acquire().await.unwrap();
        crate::client::task::spawn(async move {
            // On the only thread.
            let _ = until.recv();
        });
        guard
    });
    keeps.block_on(async {
        let free = other.lock("g").wait(20 * SECOND).acquire().await;
        drop(free.expect("it is given back by whoever keeps the session"));
        assert!(!guard.is_valid());
    });
    drop(hang);
}
