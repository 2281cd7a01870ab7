//! Requests whose outcome is unknown.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use crate::client::tests::attempts::{asks, hold, ms, opens, releases, secs};
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{AcquireError, Attempt, ErrorKind, FencingToken, MemoryBackend};

#[tokio::test(start_paused = true)]
async fn a_guard_whose_request_was_in_doubt_is_released_more_than_once() {
    // The first of the batches, or the last, was asked for twice.
    for lost in [1, 2] {
        let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
        let mut asked = 0;
        spy.decide(move |call| {
            asked += usize::from(asks(call));
            match asks(call) && asked == lost {
                true => Fate::AnswerLost,
                false => Fate::Answered,
            }
        });
        let locks = spy.locks();
        let kept = hold(&locks, &["d1", "d2"]).await;
        assert_eq!(spy.count(asks), 3);
        let other = hold(&locks, &["other"]).await;
        drop(kept);
        sleep(secs(5)).await;
        assert_eq!(spy.count(releases), 4, "at once and beside a renewal");
        assert!(other.is_valid());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_in_doubt_is_sent_again_while_somebody_waits_for_it() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    spy.decide(|call| match asks(call) {
        true => Fate::Fails(ErrorKind::Indeterminate),
        false => Fate::Answered,
    });
    // The caller goes away, or its wait is over: nothing is sent a while later.
    for cancelled in [true, false] {
        let since = spy.count(asks);
        if cancelled {
            let gone = timeout(secs(3), locks.documents(["d"]).acquire()).await;
            assert!(gone.is_err(), "{gone:?}");
        } else {
            let late = locks.documents(["d"]).wait(secs(3)).acquire().await;
            assert!(matches!(late, Err(AcquireError::Store(_))), "{late:?}");
        }
        sleep(secs(1)).await;
        let asked = spy.count(asks);
        assert!(
            asked > since + 3 && asked < since + 30,
            "{asked} after {since}"
        );
        sleep(secs(5)).await;
        assert_eq!(spy.count(asks), asked, "cancelled: {cancelled}");
    }
    assert!(before.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_try_in_doubt_is_sent_again_and_an_unavailable_store_is_told_at_once() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    let mut fates = vec![
        Fate::Answered,
        Fate::Fails(ErrorKind::Unavailable),
        Fate::AnswerLost,
    ];
    spy.decide(move |call| match asks(call) {
        true => fates.pop().unwrap_or(Fate::Answered),
        false => Fate::Answered,
    });
    match locks.documents(["d"]).try_acquire().await.unwrap() {
        Attempt::Acquired(guard) => drop(guard),
        Attempt::Busy(busy) => panic!("nobody is in the way: {busy:?}"),
    }
    assert_eq!(spy.count(asks), 4);
    spy.decide(|call| match asks(call) {
        true => Fate::Fails(ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    let failed = locks.documents(["d"]).try_acquire().await;
    assert!(matches!(failed, Err(AcquireError::Store(_))), "{failed:?}");
    assert_eq!(spy.count(asks), 5);
    // What certainly never succeeds is not sent again, however long somebody waits.
    spy.decide(|call| match asks(call) {
        true => Fate::Fails(ErrorKind::Limit),
        false => Fate::Answered,
    });
    let failed = locks.documents(["d"]).acquire().await;
    assert!(matches!(failed, Err(AcquireError::Store(_))), "{failed:?}");
    assert_eq!(spy.count(asks), 6);
    assert!(before.is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_open_of_unknown_outcome_is_followed_by_one_of_another_id() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    spy.decide(|call| match opens(call) {
        true => Fate::Fails(ErrorKind::Indeterminate),
        false => Fate::Answered,
    });
    let failed = locks.documents(["d"]).acquire().await;
    assert!(matches!(failed, Err(AcquireError::Store(_))), "{failed:?}");
    assert!(spy.elapsed() >= secs(10) && spy.elapsed() < secs(12));
    let sent = spy.sent(opens);
    assert!(sent.len() > 15 && sent.len() < 50, "{}", sent.len());
    let mut ids: Vec<String> = sent.iter().map(|(_, call)| format!("{call:?}")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), sent.len());
    // One that certainly had no effect is told at once.
    spy.decide(|call| match opens(call) {
        true => Fate::Fails(ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    assert!(locks.documents(["d"]).try_acquire().await.is_err());
    assert_eq!(spy.count(opens), sent.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_unknown_of_one_copy_is_unknown_of_all() {
    for waits in [false, true] {
        // A batch that is given back first is known to have no effect.
        for (store, ids, told) in [
            (MemoryBackend::new(), &["d"][..], ErrorKind::Indeterminate),
            (MemoryBackend::records(), &["d"], ErrorKind::Indeterminate),
            (
                MemoryBackend::records(),
                &["d1", "d2"],
                ErrorKind::Unavailable,
            ),
        ] {
            let spy = Spy::new(store);
            let locks = spy.locks();
            let before = hold(&locks, &["before"]).await;
            let mut lost = false;
            spy.decide(move |call| match asks(call) {
                true if !std::mem::replace(&mut lost, true) => Fate::AnswerLost,
                true => Fate::Fails(ErrorKind::Unavailable),
                false => Fate::Answered,
            });
            let documents = locks.documents(ids);
            let failed = match waits {
                true => documents.wait(secs(3)).acquire().await.map(drop),
                false => documents.try_acquire().await.map(drop),
            };
            match failed {
                Err(AcquireError::Store(error)) => assert_eq!(error.kind(), told, "{ids:?}"),
                other => panic!("{other:?}"),
            }
            assert!(before.is_valid());
        }
    }
}

/// Somebody who stands in line is granted by a late copy, which the next one repeats, what is smaller than a token that
/// another task got meanwhile.
#[tokio::test(start_paused = true)]
async fn the_token_of_a_copy_without_an_answer_may_be_older_than_those_of_others() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let held = hold(&other, &["d"]).await;
    let before = held.token();
    let mut asked = 0;
    spy.decide(move |call| match call.keys() {
        Some(keys) if keys == ["d"] => {
            asked += 1;
            match asked {
                1 => Fate::Fails(ErrorKind::Indeterminate),
                2 => Fate::Answered,
                // As the store counts, without what is handed on.
                _ => Fate::Token(FencingToken::new(before.get() / 64).unwrap()),
            }
        }
        _ => Fate::Answered,
    });
    let waits = async { locks.documents(["d"]).wait(secs(60)).acquire().await };
    let others = async {
        sleep(secs(1)).await;
        let greater = hold(&locks, &["e"]).await.token();
        drop(held);
        greater
    };
    let (granted, greater) = tokio::join!(waits, others);
    assert!(granted.unwrap().token() < greater);
}

/// The grants that were asked for and released, in order; a release may be sent again.
fn grants(spy: &Spy) -> Vec<(&'static str, u64)> {
    let named = |(_, call)| match call {
        Call::Acquire(request) => Some(("asked", request.grant.n)),
        Call::Release(grant) => Some(("released", grant.n)),
        _ => None,
    };
    let mut grants: Vec<_> = spy.sent(|_| true).into_iter().filter_map(named).collect();
    grants.dedup_by(|next, grant| next == grant && next.0 == "released");
    grants
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_several_records_of_unknown_outcome_is_given_back_before_it_is_asked_for_again()
{
    let again = [("asked", 1), ("asked", 1)];
    let anew = [("asked", 1), ("released", 1), ("asked", 2)];
    for (store, [one, two, path]) in [
        (MemoryBackend::new(), [&again[..], &again, &again]),
        (MemoryBackend::records(), [&again, &anew, &anew]),
    ] {
        for (what, sent) in [("one", one), ("two", two), ("path", path)] {
            let spy = Spy::new(Arc::clone(&store));
            let mut lost = false;
            spy.decide(
                move |call| match asks(call) && !std::mem::replace(&mut lost, true) {
                    true => Fate::AnswerLost,
                    false => Fate::Answered,
                },
            );
            let locks = spy.locks();
            let guard = match what {
                "one" => hold(&locks, &["d1"]).await,
                "two" => hold(&locks, &["d1", "d2"]).await,
                _ => locks.tree().write("/a/b").acquire().await.unwrap(),
            };
            assert_eq!(grants(&spy), sent, "{what} on {store:?}");
            assert!(guard.confirm().await.unwrap(), "{what} on {store:?}");
            assert_eq!(guard.release().await.unwrap(), crate::Released::Released);
        }
    }
}

/// The first request has written one record and met somebody in another one when its answer is given up; what it does next,
/// it does when the second request has been granted. With the same number the guard would lose its record.
#[tokio::test(start_paused = true)]
async fn what_a_request_takes_back_late_is_not_the_next_ones() {
    let mut met = 0;
    for polls in 1..=6 {
        let spy = Spy::new(MemoryBackend::records());
        let (locks, other) = (spy.locks(), spy.locks());
        let taken = hold(&other, &["b"]).await;
        let mut kept = false;
        spy.decide(
            move |call| match asks(call) && !std::mem::replace(&mut kept, true) {
                true => Fate::Kept(polls),
                false => Fate::Answered,
            },
        );
        let guard = locks.documents(["a", "b"]).acquire();
        let frees = async {
            sleep(ms(1)).await;
            drop(taken);
        };
        let (guard, ()) = tokio::join!(guard, frees);
        let guard = guard.unwrap();
        met += usize::from(spy.has_kept());
        spy.deliver().await;
        assert!(guard.confirm().await.unwrap(), "after {polls}");
        let late = other.documents(["a"]).try_acquire().await.unwrap();
        assert!(matches!(late, Attempt::Busy(_)), "after {polls}: {late:?}");
    }
    assert!(met > 1, "late");
}
