//! A program that blocks its only runtime, which in paused time is a jump of the clock.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{advance, sleep};

use crate::{Late, Locks, LocksBuilder, LostReason, MemoryBackend, OwnThread, Released};

const TTL: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);

fn on_memory() -> LocksBuilder {
    Locks::builder(MemoryBackend::new()).ttl(TTL)
}

/// What is told of late renewals, and the option that notes it.
fn noted(builder: LocksBuilder) -> (LocksBuilder, Arc<Mutex<Vec<Late>>>) {
    let all = Arc::<Mutex<Vec<Late>>>::default();
    let told = Arc::clone(&all);
    let noting = move |late| told.lock().unwrap().push(late);
    (builder.when_late(noting), all)
}

#[tokio::test(start_paused = true)]
async fn a_blocked_runtime_loses_its_locks_and_is_told_how_late_it_was() {
    for ttl in [TTL, 30 * TTL, 3_600 * TTL] {
        let (builder, told) = noted(on_memory().ttl(ttl));
        let locks = builder.build().unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        sleep(MOMENT).await;
        let longest = (ttl / 3).min(10 * TTL);
        advance(longest * 3 / 2 - 2 * MOMENT).await;
        sleep(2 * longest).await;
        assert_eq!(
            *told.lock().unwrap(),
            [],
            "half of the interval is not late"
        );
        assert!(guard.is_valid());
        advance(2 * ttl).await;
        sleep(MOMENT).await;
        let told = std::mem::take(&mut *told.lock().unwrap());
        let [late] = told[..] else {
            panic!("once: {told:?}");
        };
        assert_eq!(late.session, guard.session());
        assert!(
            late.by >= 2 * ttl - longest && late.by <= 2 * ttl,
            "{late:?}"
        );
        assert_eq!(guard.lost().await, LostReason::Deadline);
        assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_who_is_told_ends_no_renewals() {
    let builder = on_memory().when_late(|late| panic!("on purpose: {late:?}"));
    let locks = builder.build().unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    sleep(MOMENT).await;
    advance(TTL * 6 / 10).await;
    sleep(5 * TTL).await;
    assert!(guard.is_valid() && guard.confirm().await.unwrap());
}

// In real time from here: another thread has a clock of its own.

#[tokio::test]
async fn a_thread_of_its_own_keeps_the_locks_of_a_blocked_runtime() {
    let own = OwnThread::start().unwrap();
    let blocks = async |builder: LocksBuilder| {
        let (builder, told) = noted(builder);
        let locks = builder.build().unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        let alone = locks.lock("b").own_session().acquire().await.unwrap();
        sleep(TTL / 10).await;
        thread::sleep(2 * TTL);
        let valid = [guard.is_valid(), alone.is_valid()];
        let released = [
            guard.release().await.unwrap(),
            alone.release().await.unwrap(),
        ];
        let told = told.lock().unwrap().len();
        (valid, released, told)
    };
    assert_eq!(
        blocks(on_memory().own_thread(&own)).await,
        ([true; 2], [Released::Released; 2], 0)
    );
    let (valid, released, _) = blocks(on_memory()).await;
    assert_eq!((valid, released), ([false; 2], [Released::NotHeld; 2]));
}

#[tokio::test]
async fn what_is_spawned_in_a_request_is_on_the_thread() {
    let own = OwnThread::start().unwrap();
    let name = || thread::current().name().map(str::to_owned);
    let there = own.run(async move { name() }).await;
    assert_eq!(there.as_deref(), Some("lockkeeper"));
    let id = || Handle::current().id();
    assert_ne!(id(), own.runtime().id());
    assert_eq!(own.entered(id), own.runtime().id());
}

#[tokio::test]
async fn the_thread_ends_with_what_needs_it() {
    let own = OwnThread::start().unwrap();
    let runs = own.runtime().spawn(std::future::pending::<()>());
    let locks = on_memory().own_thread(&own).build().unwrap();
    drop(own);
    let guard = locks.lock("a").acquire().await.unwrap();
    drop(locks);
    sleep(TTL / 5).await;
    assert!(!runs.is_finished() && guard.confirm().await.unwrap());
    drop(guard);
    // The runtime is gone with its thread, and what ran there is cancelled.
    assert!(runs.await.unwrap_err().is_cancelled());
}

#[tokio::test]
#[should_panic(expected = "the future has not panicked")]
async fn a_panic_is_passed_on() {
    let own = OwnThread::start().unwrap();
    own.run(async { panic!("on purpose") }).await
}
