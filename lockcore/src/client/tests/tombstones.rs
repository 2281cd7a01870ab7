//! What dead sessions leave goes, also where every process is short.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::tests::spy::{Call, Spy};
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

#[tokio::test(start_paused = true)]
async fn old_tombstones_go_where_every_process_is_short() {
    let store = MemoryBackend::new();
    let label = Label::parse("").unwrap();
    for n in 1..=3_000 {
        let id = SessionId::new(n);
        store.open(id, &label, MINUTE).await.unwrap();
        store.end(&[id], End::Close).await.unwrap();
    }
    assert_eq!(sessions(&store).await, 3_000);
    sleep(2 * TOMBSTONE_KEPT).await;
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
