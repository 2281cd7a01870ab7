//! What dead sessions leave goes, also where every process is short.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::limits::TOMBSTONE_KEPT;
use crate::{End, Inspect, Label, Locks, MemoryBackend, Released, SessionId, SessionStore, Sweep};

const MINUTE: Duration = Duration::from_secs(60);

async fn sessions(store: &MemoryBackend) -> usize {
    let (mut all, mut after) = (0, None);
    loop {
        let page = store.sessions(after.as_deref(), 1_000).await.unwrap();
        all += page.items.len();
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

fn client(store: &Arc<MemoryBackend>, seed: u64) -> Locks {
    let builder = Locks::builder(Arc::clone(store) as Arc<_>);
    builder.seed(seed).build().unwrap()
}

/// A store with tombstones that are kept long enough.
async fn with_old_tombstones(sessions: u128) -> Arc<MemoryBackend> {
    let store = MemoryBackend::new();
    let label = Label::parse("").unwrap();
    for n in 1..=sessions {
        let id = SessionId::new(n);
        store.open(id, &label, MINUTE).await.unwrap();
        store.end(&[id], End::Close).await.unwrap();
    }
    sleep(2 * TOMBSTONE_KEPT).await;
    store
}

/// A store that sweeps a hundred records in a request, which takes it some time.
fn slow(store: &Arc<MemoryBackend>, time: Duration) -> Arc<Spy> {
    let spy = Spy::with_info(Arc::clone(store), |info| info.sweep_limit = 100);
    spy.decide(move |call| match call {
        Call::Sweep(..) => Fate::AnsweredAfter(time),
        _ => Fate::Answered,
    });
    spy
}

#[tokio::test(start_paused = true)]
async fn old_tombstones_go_where_every_process_is_short() {
    let store = with_old_tombstones(3_000).await;
    assert_eq!(sessions(&store).await, 3_000);
    // A run a minute, for two days.
    let (runs, kept) = (2 * 24 * 60, 24 * 60);
    let mut most = 0;
    for run in 0..runs {
        let locks = client(&store, run);
        let guard = locks.lock("cron").acquire().await.unwrap();
        drop(guard);
        assert!(locks.shutdown(MINUTE).await);
        drop(locks);
        sleep(MINUTE).await;
        if run >= runs / 4 {
            most = most.max(sessions(&store).await);
        }
    }
    // Those of a day, and those made between two sweeps.
    assert!(most <= kept + 10 * 32, "{most} after the first hours");
}

/// Each change has a session of its own.
#[tokio::test(start_paused = true)]
async fn a_service_with_many_intents_leaves_those_of_a_day() {
    let store = MemoryBackend::new();
    let locks = client(&store, 1);
    let between = Duration::from_secs(30);
    let a_day = 24 * 60 * 2;
    for n in 0..3 * a_day {
        let acquisition = locks.lock("g").intent(&n).unwrap();
        let guard = acquisition.acquire().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        sleep(between).await;
    }
    let left = sessions(&store).await;
    assert!((a_day - 10..=a_day + 10 * 32).contains(&left), "{left}");
    assert!(locks.shutdown(MINUTE).await);
}

/// Each sweep may look at all sessions of the namespace.
#[tokio::test(start_paused = true)]
async fn many_sessions_of_a_client_sweep_once_a_minute() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().seed(1).build().unwrap();
    let minutes = 10;
    for n in 0..minutes * 240 {
        let acquisition = locks.lock("g").intent(&n).unwrap();
        let guard = acquisition.acquire().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        sleep(MINUTE / 240).await;
    }
    let sweeps = spy.count(|call| matches!(call, Call::Sweep(Sweep::All, _)));
    assert!((minutes / 2..=minutes + 1).contains(&sweeps), "{sweeps}");
    assert!(locks.shutdown(MINUTE).await);
}

/// Each change has a session of its own, which ends long before the sweep that it has begun.
#[tokio::test(start_paused = true)]
async fn a_sweep_outlasts_the_session_that_began_it() {
    let (store, changes) = (with_old_tombstones(3_000).await, 1_200);
    let spy = slow(&store, Duration::from_secs(1));
    let locks = spy.builder().seed(1).build().unwrap();
    for n in 0..changes {
        let acquisition = locks.lock("g").intent(&n).unwrap();
        let guard = acquisition.acquire().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        sleep(MINUTE / 600).await;
    }
    let left = sessions(&store).await;
    assert!(left <= changes, "{left}: none of the old ones");
    assert!(locks.shutdown(MINUTE).await);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_goes_on_until_nothing_is_left_or_its_client_is_gone() {
    for goes in [false, true] {
        let store = with_old_tombstones(3_000).await;
        let spy = slow(&store, Duration::ZERO);
        let locks = spy.locks();
        let guard = locks.lock("g").acquire().await.unwrap();
        while spy.count(|call| matches!(call, Call::Sweep(..))) == 0 {
            sleep(Duration::from_secs(1)).await;
        }
        if goes {
            drop((guard, locks));
            sleep(Duration::from_secs(10)).await;
            assert_eq!(Arc::strong_count(&spy), 1, "the client is gone");
            let left = sessions(&store).await;
            sleep(MINUTE).await;
            assert_eq!(sessions(&store).await, left);
            assert!(left > 2_000, "{left}");
        } else {
            sleep(MINUTE).await;
            assert_eq!(sessions(&store).await, 1, "the holder's");
            assert!(guard.is_valid());
            drop(guard);
            assert!(locks.shutdown(Duration::from_millis(1)).await);
        }
    }
}

/// Ten changes a second, each with a session of its own.
#[tokio::test(start_paused = true)]
#[ignore = "a million changes: `cargo xtask soak --only day`"]
async fn a_day_of_ten_intents_a_second_leaves_those_of_a_day() {
    const BETWEEN: Duration = Duration::from_millis(100);
    const HOUR: usize = 36_000;
    let (day, hours) = (24 * HOUR, 30);
    let store = MemoryBackend::new();
    let locks = client(&store, 1);
    let mut most = 0;
    for n in 0..hours * HOUR {
        let acquisition = locks.lock("g").intent(&n).unwrap();
        let guard = acquisition.acquire().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        sleep(BETWEEN).await;
        if n % HOUR == 0 {
            let left = sessions(&store).await;
            println!("after {} hours: {left} sessions", n / HOUR);
            most = most.max(left);
        }
    }
    assert!((day..=day + HOUR).contains(&most), "{most}");
    assert!(locks.shutdown(MINUTE).await);
}
