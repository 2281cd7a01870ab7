//! What an acquisition sends, request by request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, End, ErrorKind, FencingToken, Guard, Life, Locks, MemoryBackend,
    Released, SessionStore,
};

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(super) fn opens(call: &Call) -> bool {
    matches!(call, Call::Open(_))
}

pub(super) fn asks(call: &Call) -> bool {
    matches!(call, Call::Acquire(_))
}

pub(super) fn releases(call: &Call) -> bool {
    matches!(call, Call::Release(_))
}

pub(super) async fn hold(locks: &Locks, ids: &[&str]) -> Guard {
    locks.documents(ids).acquire().await.unwrap()
}

async fn revoke(spy: &Spy, guard: &Guard) {
    let ended = spy.end(&[guard.session()], End::Revoke).await.unwrap();
    assert_eq!(ended[0].life, Life::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_found_dead_before_anything_was_granted_is_replaced_once() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    revoke(&spy, &before).await;
    let after = hold(&locks, &["after"]).await;
    assert_ne!(after.session(), before.session());
    assert_eq!(spy.count(opens), 2);
    // An owner belongs to its session.
    let owner = locks.owner();
    drop(
        locks
            .documents(["d"])
            .owner(&owner)
            .acquire()
            .await
            .unwrap(),
    );
    revoke(&spy, &after).await;
    let late = locks.documents(["d"]).owner(&owner).acquire().await;
    assert!(matches!(late, Err(AcquireError::Lost)), "{late:?}");
    assert_eq!(spy.count(opens), 2);
}

#[tokio::test(start_paused = true)]
async fn a_second_session_that_is_found_dead_is_not_replaced() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match asks(call) {
        true => Fate::Void,
        false => Fate::Answered,
    });
    let late = spy.locks().documents(["d"]).acquire().await;
    assert!(matches!(late, Err(AcquireError::Lost)), "{late:?}");
    assert_eq!((spy.count(opens), spy.count(asks)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_found_dead_between_two_batches_is_the_end() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let mut asked = 0;
    spy.decide(move |call| {
        asked += usize::from(asks(call));
        match asks(call) && asked == 2 {
            true => Fate::Void,
            false => Fate::Answered,
        }
    });
    let locks = spy.locks();
    let late = locks.documents(["d1", "d2"]).acquire().await;
    assert!(matches!(late, Err(AcquireError::Lost)), "{late:?}");
    assert_eq!((spy.count(opens), spy.count(asks)), (1, 2));
    assert_ne!(hold(&locks, &["d1", "d2"]).await.token().get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_found_dead_after_a_wait_is_the_end() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let mine = hold(&locks, &["mine"]).await;
    let taken = hold(&other, &["taken"]).await;
    let ends = async {
        sleep(ms(1)).await;
        revoke(&spy, &mine).await;
        drop(taken);
    };
    let (late, ()) = tokio::join!(locks.documents(["taken"]).acquire(), ends);
    assert!(matches!(late, Err(AcquireError::Lost)), "{late:?}");
    assert_eq!(spy.count(opens), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_says_whether_its_guard_has_other_batches() {
    for (keys, joined) in [(1, vec![true; 3]), (2, vec![true; 2]), (3, vec![false])] {
        let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(keys));
        drop(hold(&spy.locks(), &["d1", "d2", "d3"]).await);
        let sent = spy.sent(asks).into_iter().map(|(_, call)| match call {
            Call::Acquire(request) => request.joined,
            _ => unreachable!("those that acquire"),
        });
        assert_eq!(sent.collect::<Vec<_>>(), joined, "{keys} keys a batch");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_asks_again_where_two_may_have_split_the_keys_between_them() {
    let both = || vec!["d1".to_owned(), "d2".to_owned()];
    for (atomic, taken, freed, requests) in [
        (false, "d2", false, 2),
        (false, "d2", true, 2),
        (false, "d1", false, 1),
        (true, "d2", false, 1),
    ] {
        let store = match atomic {
            true => MemoryBackend::new(),
            false => MemoryBackend::records(),
        };
        let other = Spy::new(Arc::clone(&store)).locks();
        let guard = Mutex::new(Some(hold(&other, &[taken]).await));
        let spy = Spy::new(store);
        let locks = spy.locks();
        let tries = locks.documents(["d1", "d2"]).try_acquire();
        let frees = async {
            if freed {
                // It pauses before it asks again.
                sleep(ms(1)).await;
                drop(guard.lock().unwrap_or_else(PoisonError::into_inner).take());
            }
        };
        let (attempt, ()) = tokio::join!(tries, frees);
        let acquired = matches!(attempt.unwrap(), Attempt::Acquired(_));
        assert_eq!(acquired, freed, "atomic: {atomic}, {taken} is taken");
        assert_eq!(
            spy.asked(),
            vec![both(); requests],
            "atomic: {atomic}, {taken}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_after_the_deadline_is_not_handed_out() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match call {
        Call::Acquire(_) => Fate::AnsweredAfter(secs(29) + ms(700)),
        Call::Renew(..) => Fate::Hangs,
        _ => Fate::Answered,
    });
    let late = spy.locks().documents(["d"]).acquire().await;
    assert!(matches!(late, Err(AcquireError::Lost)), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn whose_caller_has_gone_takes_no_further_batch() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    spy.decide(|call| match asks(call) {
        true => Fate::AnsweredAfter(secs(1)),
        false => Fate::Answered,
    });
    let locks = spy.locks();
    let gone = timeout(ms(1_500), locks.documents(["d1", "d2", "d3"]).acquire()).await;
    assert!(gone.is_err(), "{gone:?}");
    sleep(secs(10)).await;
    assert_eq!(spy.count(asks), 2);
    assert_eq!(spy.count(releases), 2);
    // Nor does one whose wait is over.
    let wait = locks.documents(["d1", "d2", "d3"]).wait(ms(1_500));
    assert!(wait.acquire().await.is_err());
    sleep(secs(10)).await;
    assert_eq!(spy.count(asks), 4);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_went_back_is_an_error_and_its_lock_is_given_back() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    let of_the_store = before.token().get() / 64;
    for went_back in [of_the_store, of_the_store - 1] {
        let token = FencingToken::new(went_back).unwrap();
        spy.decide(move |call| match asks(call) {
            true => Fate::Token(token),
            false => Fate::Answered,
        });
        let late = locks.documents(["d"]).acquire().await;
        match late {
            Err(AcquireError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            late => panic!("{late:?}"),
        }
    }
    spy.answer_all();
    let other = spy.locks();
    drop(hold(&other, &["d"]).await);
    assert!(before.is_valid());
}

/// 64 times as much would not fit.
#[tokio::test(start_paused = true)]
async fn a_token_that_no_guard_can_have_is_an_error_and_its_lock_is_given_back() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    for too_large in [1 << 57, u64::MAX >> 1] {
        let token = FencingToken::new(too_large).unwrap();
        spy.decide(move |call| match asks(call) {
            true => Fate::Token(token),
            false => Fate::Answered,
        });
        let released = spy.count(releases);
        match locks.documents(["d"]).acquire().await {
            Err(AcquireError::Store(error)) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(error.to_string().contains("another namespace"), "{error}");
            }
            granted => panic!("{granted:?}"),
        }
        sleep(secs(1)).await;
        assert!(spy.count(releases) > released);
        spy.answer_all();
        // What is granted after it is not measured by it.
        for locks in [locks.clone(), spy.locks()] {
            let guard = hold(&locks, &["d"]).await;
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
    }
    assert!(before.is_valid());
    let greatest = FencingToken::new((1 << 57) - 1).unwrap();
    spy.decide(move |call| match asks(call) {
        true => Fate::Token(greatest),
        false => Fate::Answered,
    });
    let guard = hold(&locks, &["d"]).await;
    assert!(guard.is_valid());
    assert_eq!(guard.token().get(), 64 * ((1 << 57) - 1));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_opened_too_late_is_not_used() {
    for (time, sessions) in [(ms(29_699), 1), (ms(29_700), 2)] {
        let spy = Spy::new(MemoryBackend::new());
        let mut first = true;
        spy.decide(
            move |call| match opens(call) && std::mem::take(&mut first) {
                true => Fate::AnsweredAfter(time),
                false => Fate::Answered,
            },
        );
        let guard = hold(&spy.locks(), &["d"]).await;
        assert!(guard.is_valid());
        assert_eq!(spy.count(opens), sessions);
    }
}
