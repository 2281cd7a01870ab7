//! The session that acquisitions share: one opening at a time, its outcome for all who wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::client::task;
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{AcquireError, ErrorKind, Inspect, Life, MemoryBackend};

const SECOND: Duration = Duration::from_secs(1);
/// That of a client that was not told another one.
const PATIENCE: Duration = Duration::from_secs(10);

fn opens(call: &Call) -> bool {
    matches!(call, Call::Open(_))
}

fn if_it_opens(fate: Fate) -> impl FnMut(&Call) -> Fate + Send + 'static {
    move |call| if opens(call) { fate } else { Fate::Answered }
}

#[tokio::test(start_paused = true)]
async fn who_tries_a_store_that_is_away_waits_for_one_patience() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(if_it_opens(Fate::Fails(ErrorKind::Indeterminate)));
    let locks = spy.locks();
    let owner = locks.owner();
    let tries = (0..20).map(|n| {
        let acquisition = locks.documents([format!("d{n}")]);
        match n % 2 {
            0 => acquisition.try_acquire(),
            _ => acquisition.owner(&owner).try_acquire(),
        }
    });
    for ended in join_all(tries).await {
        let kind = match ended {
            Err(AcquireError::Store(error)) => error.kind(),
            other => panic!("{other:?}"),
        };
        assert_eq!(kind, ErrorKind::Indeterminate);
    }
    assert!(spy.elapsed() < PATIENCE + 2 * SECOND, "{:?}", spy.elapsed());
    assert!(spy.count(opens) < 50, "{} requests", spy.count(opens));
    spy.answer_all();
    // The owner is bound to no session yet.
    let again = locks.documents(["d"]).owner(&owner).acquire();
    assert!(timeout(SECOND, again).await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn whoever_has_gone_keeps_no_place_while_the_session_is_opened() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(if_it_opens(Fate::Hangs));
    let locks = spy.locks();
    let counts = || {
        let [attempts, waiters] = [&locks.core.attempts, &locks.core.waiters];
        [attempts, waiters].map(|count| count.load(Ordering::Relaxed))
    };
    // One whose wait is over, one that is dropped, and one with a session of its own.
    let own = locks.documents(["own"]).intent(&"change").unwrap();
    let (waits, tries, own) = tokio::join!(
        locks.documents(["d"]).wait(SECOND).acquire(),
        timeout(SECOND, locks.documents(["e"]).try_acquire()),
        own.wait(SECOND).acquire(),
    );
    assert!(waits.is_err() && tries.is_err() && own.is_err());
    sleep(SECOND / 10).await;
    assert_eq!(counts(), [0, 0]);
    assert!(spy.elapsed() < 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_opened_for_nobody_is_closed() {
    for intent in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        spy.decide(if_it_opens(Fate::AnsweredAfter(SECOND)));
        let locks = spy.locks();
        let acquisition = locks.documents(["d"]);
        let acquisition = match intent {
            true => acquisition.intent(&"change").unwrap(),
            false => acquisition,
        };
        let gone = timeout(SECOND / 10, acquisition.acquire()).await;
        assert!(gone.is_err());
        let begun = Instant::now();
        assert!(locks.shutdown(10 * SECOND).await);
        assert!(begun.elapsed() >= SECOND / 2, "it was waited for");
        let sessions = spy.sessions(None, 10).await.unwrap();
        let lives = |life| life == Life::Living;
        assert!(!sessions.items.iter().any(|state| lives(state.life)));
        assert_eq!(spy.count(opens), 1);
    }
}

/// As of a runtime that ends while another one lives.
#[test]
fn an_opening_whose_runtime_ends_is_begun_again_by_whoever_waits() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (ends, stays) = (runtime(), runtime());
    let spy = Spy::new(MemoryBackend::new());
    let mut first = true;
    spy.decide(
        move |call| match opens(call) && std::mem::take(&mut first) {
            true => Fate::Hangs,
            false => Fate::Answered,
        },
    );
    let locks = spy.locks();
    let asks = locks.clone();
    let sent = Arc::clone(&spy);
    ends.block_on(async move {
        task::spawn(async move { drop(asks.documents(["d"]).acquire().await) });
        while sent.count(opens) == 0 {
            tokio::task::yield_now().await;
        }
    });
    stays.block_on(async {
        let acquisition = locks.documents(["e"]).acquire();
        let ended = async {
            sleep(SECOND / 20).await;
            ends.shutdown_background();
        };
        let (guard, ()) = tokio::join!(timeout(30 * SECOND, acquisition), ended);
        assert!(guard.unwrap().unwrap().is_valid());
    });
    assert_eq!(spy.count(opens), 2);
}

/// Each answer comes when the session is over already.
#[tokio::test(start_paused = true)]
async fn a_store_that_opens_too_late_is_not_asked_for_ever() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(if_it_opens(Fate::AnsweredAfter(SECOND)));
    let locks = spy.builder().ttl(SECOND).build().unwrap();
    let tried = timeout(30 * SECOND, locks.documents(["d"]).try_acquire()).await;
    let error = tried.expect("it ends by itself").unwrap_err();
    assert!(error.to_string().contains("choose a longer TTL"), "{error}");
    assert!(spy.count(opens) < 12, "{}", spy.count(opens));
}
