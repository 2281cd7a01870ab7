//! What a guard says, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    ClaimStore, End, ErrorKind, Grant, Guard, Life, LockBackend, Locks, LostReason, MemoryBackend,
    Released, SessionStore,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn hold(locks: &Locks, ids: &[&str]) -> Guard {
    locks.documents(ids).acquire().await.unwrap()
}

/// The store loses what the guard holds, and its session lives.
async fn evict(spy: &Spy, guard: &Guard) {
    let session = guard.session();
    let grant = Grant { session, n: 1 };
    spy.release(grant, guard.claims()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_the_store_does_not_confirm_was_not_held_when_it_is_released() {
    for intent in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let acquisition = match intent {
            true => locks.documents(["d"]).intent(&"change").unwrap(),
            false => locks.documents(["d"]),
        };
        let guard = acquisition.acquire().await.unwrap();
        evict(&spy, &guard).await;
        assert!(!guard.confirm().await.unwrap());
        assert!(!guard.is_valid());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
        sleep(secs(1)).await;
        let abandoned = locks.abandoned().await.unwrap().len();
        assert_eq!(abandoned, usize::from(intent), "its intent is left behind");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_confirmed_after_the_deadline_is_not_held() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), &["d"]).await;
    spy.decide(|call| match call {
        Call::Confirm(_) => Fate::AnsweredAfter(secs(30)),
        Call::Renew(..) => Fate::Hangs,
        _ => Fate::Answered,
    });
    assert!(!guard.confirm().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_guard_with_a_session_of_its_own_is_confirmed_by_its_session_and_its_last_grant() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let ids: Vec<String> = (0..11).map(|n| format!("d{n:02}")).collect();
    let guard = spy.locks().documents(&ids).acquire().await.unwrap();
    assert!(guard.confirm().await.unwrap());
    let renewed = |call: &Call| matches!(call, Call::Renew(..));
    assert_eq!(spy.count(renewed), 1);
    assert_eq!(spy.count(|call| matches!(call, Call::Confirm(_))), 1);
    let ended = spy.end(&[guard.session()], End::Revoke).await.unwrap();
    assert_eq!(ended[0].life, Life::Dead);
    assert!(guard.is_valid(), "it has not heard of it");
    assert!(!guard.confirm().await.unwrap());
    assert_eq!(guard.lost().await, LostReason::Dead);
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

#[test]
fn a_guard_whose_runtime_is_gone_is_lost_at_its_deadline() {
    let store = MemoryBackend::new();
    let locks = Locks::builder(Arc::clone(&store) as Arc<dyn LockBackend>)
        .build()
        .unwrap();
    let first = runtime();
    let guard = first.block_on(hold(&locks, &["d"]));
    drop(first);
    runtime().block_on(async {
        assert!(guard.is_valid());
        assert!(guard.confirm().await.is_ok(), "the store still has it");
        assert_eq!(guard.lost().await, LostReason::Deadline);
        assert!(guard.release().await.is_err(), "nobody carries it out");
    });
}

#[test]
fn what_was_in_doubt_is_forgotten_with_the_runtime_of_its_session() {
    let (first, second) = (runtime(), runtime());
    let locks = first.block_on(async {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().max_unsettled(1).build().unwrap();
        spy.decide(|call| match call {
            Call::Release(_) => Fate::Fails(ErrorKind::Corrupt),
            _ => Fate::Answered,
        });
        let guard = hold(&locks, &["d"]).await;
        assert!(guard.release().await.is_err());
        sleep(Duration::from_millis(10)).await;
        assert!(locks.documents(["next"]).acquire().await.is_err());
        locks
    });
    drop(first);
    drop(second.block_on(hold(&locks, &["next"])));
}

/// By a renewal, which the store does not answer.
#[tokio::test(start_paused = true)]
async fn a_confirmation_of_a_large_lock_ends_while_the_store_fails() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
    let keys: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    let guard = locks.documents(&keys).acquire().await.unwrap();
    let bound = locks.lock("bound").max_hold(secs(60)).acquire();
    let bound = bound.await.unwrap();
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let told = timeout(secs(12), guard.confirm()).await.expect("in time");
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(guard.is_valid());
    sleep(secs(60)).await;
    assert!(!bound.is_valid());
    let told = timeout(secs(2), bound.confirm()).await.expect("at once");
    assert!(!told.unwrap());
    spy.answer_all();
    sleep(secs(60)).await;
    assert!(guard.confirm().await.unwrap());
}
