//! Who waits: when it asks, in which order, and how it ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::client::clock::now;
use crate::client::tests::attempts::{asks, hold, ms, opens, secs};
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{AcquireError, Attempt, ErrorKind, Locks, MemoryBackend};

#[tokio::test(start_paused = true)]
async fn what_stands_before_a_refused_key_is_taken_in_one_request() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let taken = hold(&other, &["d3"]).await;
    let wait = locks.documents(["d1", "d2", "d3", "d4"]).wait(ms(30));
    let late = wait.acquire().await;
    assert!(matches!(late, Err(AcquireError::Busy(_))), "{late:?}");
    drop(taken);
    let asked: Vec<String> = spy.asked().iter().map(|keys| keys.join(" ")).collect();
    assert_eq!(asked[..4], ["d3", "d1 d2 d3 d4", "d1 d2", "d3 d4"]);
    assert!(asked[4..].iter().all(|keys| keys == "d3"), "{asked:?}");
}

/// What stands before the refused key is asked for next, and may be granted.
#[tokio::test(start_paused = true)]
async fn who_is_refused_one_of_several_keys_is_told_so_whenever_its_wait_ends() {
    for held in ["a", "b"] {
        for wait in [10, 50, 70, 100, 130] {
            let spy = Spy::new(MemoryBackend::new());
            let (locks, other) = (spy.locks(), spy.locks());
            let _guard = hold(&other, &[held]).await;
            drop(hold(&locks, &["opens"]).await);
            spy.decide(|call| match call {
                Call::Acquire(_) => Fate::AnsweredAfter(ms(30)),
                _ => Fate::Answered,
            });
            let late = locks.documents(["a", "b"]).wait(ms(wait)).acquire().await;
            let Err(AcquireError::Busy(busy)) = late else {
                panic!("{held}, {wait}: {late:?}");
            };
            assert_eq!(busy.first().claim.key().as_str(), held, "{wait}");
        }
    }
}

/// Whoever was in the way has gone, and the next one has no answer yet.
#[tokio::test(start_paused = true)]
async fn who_stops_waiting_while_another_one_asks_is_told_who_was_in_the_way() {
    for (held, waited_for) in [("/a", "/a"), ("/a", "/a/b")] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let write = |path: &str| locks.tree().write(path);
        let guard = write(held).acquire().await.unwrap();
        spy.decide(|call| match call {
            Call::Acquire(_) => Fate::AnsweredAfter(ms(200)),
            _ => Fate::Answered,
        });
        let first = async { write(waited_for).acquire().await.unwrap() };
        let second = async {
            sleep(ms(10)).await;
            write(waited_for).wait(ms(300)).acquire().await
        };
        let release = async {
            sleep(ms(200)).await;
            let _ = guard.release().await.unwrap();
        };
        let (_first, late, ()) = tokio::join!(first, second, release);
        assert!(matches!(late, Err(AcquireError::Busy(_))), "{late:?}");
    }
}

/// Nobody knows whether somebody is in the way of who asks itself and has no answer.
#[tokio::test(start_paused = true)]
async fn who_asks_in_its_turn_and_has_no_answer_is_not_told_of_who_has_gone() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let waits = locks.documents(["d"]).wait(ms(300)).acquire();
    let release = async {
        sleep(ms(100)).await;
        spy.decide(|call| match call {
            Call::Acquire(_) => Fate::Hangs,
            _ => Fate::Answered,
        });
        let _ = guard.release().await.unwrap();
    };
    let (late, ()) = tokio::join!(waits, release);
    assert!(matches!(late, Err(AcquireError::Store(_))), "{late:?}");
}

/// A refusal says it for as long as a store may take for an answer; then nobody knows whether that one is still there.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_told_once_the_store_has_been_silent_for_long() {
    for (silent, is_known) in [(ms(500), true), (ms(2_500), false)] {
        let spy = Spy::new(MemoryBackend::new());
        let (locks, other) = (spy.locks(), spy.locks());
        let guard = hold(&other, &["d"]).await;
        let waits = locks.documents(["d"]).wait(secs(2) + silent).acquire();
        let release = async {
            sleep(secs(2)).await;
            spy.decide(|call| match call {
                Call::Acquire(_) => Fate::Hangs,
                _ => Fate::Answered,
            });
            let _ = guard.release().await.unwrap();
        };
        let (late, ()) = tokio::join!(waits, release);
        match late {
            Err(AcquireError::Busy(_)) => assert!(is_known),
            Err(AcquireError::Store(_)) => assert!(!is_known),
            other => panic!("{other:?}"),
        }
    }
}

/// What was refused was granted since, or is asked for by another task.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_told_for_what_the_store_is_silent_about() {
    for way in ["intent", "task", "key"] {
        let spy = Spy::new(MemoryBackend::new());
        let (locks, other) = (spy.locks(), spy.locks());
        let guard = hold(&other, &["d"]).await;
        let begun = spy.elapsed();
        let keys: &[&str] = if way == "key" { &["d", "e"] } else { &["d"] };
        let waits = locks.documents(keys).wait(secs(6));
        let waits = match way {
            "intent" => waits.intent(&"half").unwrap(),
            _ => waits,
        };
        let (first, last) = match way {
            "task" => (ms(0), ms(100)),
            _ => (ms(100), ms(0)),
        };
        let beside = async {
            sleep(first).await;
            locks.documents(["d"]).wait(secs(20)).acquire().await
        };
        let late = async {
            sleep(last).await;
            let late = waits.acquire().await;
            assert!(spy.elapsed() - begun < secs(7), "{way}");
            late
        };
        let frees = async {
            sleep(secs(2)).await;
            let acquired = AtomicUsize::new(0);
            spy.decide(move |call| match (way, call) {
                ("intent", Call::Renew(..)) | ("task", Call::Acquire(_)) => Fate::Hangs,
                // The second key.
                ("key", Call::Acquire(_)) if acquired.fetch_add(1, Ordering::Relaxed) > 0 => {
                    Fate::Hangs
                }
                _ => Fate::Answered,
            });
            let _ = timeout(secs(1), guard.release()).await;
            sleep(secs(20)).await;
        };
        tokio::select! {
            late = late => assert!(matches!(late, Err(AcquireError::Store(_))), "{way}: {late:?}"),
            beside = beside => panic!("{way}: {beside:?}"),
            () = frees => panic!("{way}: it is still waited"),
        }
    }
}

/// The connection that tells of releases cannot be made, and nobody is told so.
#[tokio::test(start_paused = true)]
async fn a_watch_that_hangs_keeps_a_waiter_from_the_store_for_no_longer_than_a_pause() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match call {
        Call::Watch => Fate::FailsAfter(secs(5), ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let (locks, other) = (spy.locks(), spy.locks());
    let guard = hold(&other, &["d"]).await;
    let waits = async {
        let guard = locks.documents(["d"]).acquire().await.unwrap();
        (guard, spy.elapsed())
    };
    let frees = async {
        sleep(ms(10_500)).await;
        let _ = guard.release().await.unwrap();
        spy.elapsed()
    };
    let ((_guard, granted), freed) = tokio::join!(waits, frees);
    assert!(granted - freed <= ms(1_010), "{granted:?} after {freed:?}");
    let mut asked = spy.sent(asks).into_iter().map(|(at, _)| at);
    let mut last = asked.next().unwrap();
    for at in asked {
        assert!(at - last <= ms(1_010), "{at:?} after {last:?}");
        last = at;
    }
}

#[tokio::test(start_paused = true)]
async fn who_holds_something_comes_in_its_turn_like_those_who_hold_nothing() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let taken = hold(&other, &["d2"]).await;
    let order = Mutex::new(Vec::new());
    let turn = async |name: &'static str, after: u64, ids: &[&str]| {
        sleep(ms(after)).await;
        let guard = hold(&locks, ids).await;
        order
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(name);
        sleep(ms(1)).await;
        drop(guard);
    };
    let frees = async {
        sleep(ms(1_000)).await;
        drop(taken);
    };
    tokio::join!(
        turn("first", 0, &["d2"]),
        turn("holds d1", 100, &["d1", "d2"]),
        frees
    );
    let order = order.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(order, ["first", "holds d1"]);
}

#[tokio::test(start_paused = true)]
async fn those_who_hold_nothing_are_served_in_their_order() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let taken = hold(&other, &["d1"]).await;
    let order = Mutex::new(Vec::new());
    let turn = async |n: u64| {
        sleep(ms(100 * n)).await;
        let guard = hold(&locks, &["d1", "d2"]).await;
        order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
        sleep(ms(1)).await;
        drop(guard);
    };
    let frees = async {
        sleep(ms(1_000)).await;
        drop(taken);
    };
    tokio::join!(turn(0), turn(1), turn(2), frees);
    let order = order.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(order, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn only_the_first_in_line_asks_the_store() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let taken = hold(&other, &["d1"]).await;
    let before = spy.count(asks);
    let waits = (0..5).map(|n| {
        let locks = &locks;
        async move {
            sleep(ms(n)).await;
            let wait = locks.documents(["d1"]).wait(ms(20)).acquire();
            assert!(wait.await.is_err());
        }
    });
    let asked = async {
        sleep(ms(10)).await;
        spy.count(asks) - before
    };
    let (_, asked) = tokio::join!(futures_util::future::join_all(waits), asked);
    assert_eq!(asked, 2, "before it watches, and then");
    // Whoever tries, asks; whoever needs more than this key stands in line as well.
    let first = locks.documents(["d1"]).wait(secs(1));
    let others = async {
        sleep(ms(1)).await;
        let busy = timeout(ms(1), locks.documents(["d1"]).try_acquire()).await;
        assert!(matches!(busy, Ok(Ok(Attempt::Busy(_)))), "{busy:?}");
        let before = spy.count(asks);
        let two = locks.documents(["d1", "d2"]).wait(ms(1)).acquire().await;
        assert!(matches!(two, Err(AcquireError::Busy(_))), "{two:?}");
        assert_eq!(spy.count(asks) - before, 0);
        drop(taken);
    };
    let (first, ()) = tokio::join!(first.acquire(), others);
    drop(first.unwrap());
}

/// Each takes the key and gives it back at once: the order in which they had it.
async fn turns(locks: &Locks, tasks: usize) -> Vec<usize> {
    let order = Mutex::new(Vec::new());
    let all = (0..tasks).map(async |n| {
        let guard = hold(locks, &["d1"]).await;
        order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
        drop(guard);
    });
    futures_util::future::join_all(all).await;
    order.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[tokio::test(start_paused = true)]
async fn of_a_crowd_that_wants_a_free_key_one_asks_at_first_and_all_are_served_in_their_order() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match asks(call) {
        true => Fate::AnsweredAfter(ms(20)),
        false => Fate::Answered,
    });
    let locks = spy.locks();
    let asked = async {
        sleep(ms(19)).await;
        spy.count(asks)
    };
    let (order, asked) = tokio::join!(turns(&locks, 8), asked);
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(asked, 1);
    // Nor does anybody else stand in the queue then.
    assert_eq!(turns(&locks, 1).await, [0]);
    assert!(spy.count(asks) <= 16, "{}", spy.count(asks));
}

#[tokio::test(start_paused = true)]
async fn who_has_no_answer_holds_up_the_others_for_a_moment_only() {
    let spy = Spy::new(MemoryBackend::new());
    let mut first = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut first) {
        true => Fate::Hangs,
        false => Fate::Answered,
    });
    let locks = spy.locks();
    // It does not want what the others have.
    let hangs = timeout(secs(1), locks.lock("d1").acquire());
    let others = async {
        sleep(ms(1)).await;
        // Whoever does not wait for ever has to be told who is in the way.
        let limited = async || locks.documents(["d1"]).wait(ms(10)).acquire().await;
        let guard = limited().await.unwrap();
        assert!(matches!(limited().await, Err(AcquireError::Busy(_))));
        drop(guard);
        let begun = spy.elapsed();
        assert_eq!(turns(&locks, 3).await.len(), 3);
        spy.elapsed() - begun
    };
    let (hangs, took) = tokio::join!(hangs, others);
    assert!(hangs.is_err(), "{hangs:?}");
    assert!(took >= ms(50) && took < ms(60), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_of_the_same_process_is_seen_without_a_watch() {
    for (held, wanted) in [("/t", "/t"), ("/t/a/b", "/t"), ("/t", "/t/a/b")] {
        let spy = Spy::new(MemoryBackend::new());
        spy.decide(|call| match call {
            Call::Watch => Fate::Fails(ErrorKind::Unavailable),
            _ => Fate::Answered,
        });
        let locks = spy.locks();
        let guard = locks.tree().write(held).acquire().await.unwrap();
        let waits = async {
            let guard = locks.tree().write(wanted).acquire().await.unwrap();
            drop(guard);
            spy.elapsed()
        };
        let frees = async {
            sleep(secs(20)).await;
            assert_eq!(spy.count(asks), 1, "the process knows that it holds it");
            let locks = spy.locks();
            let late = locks.tree().write(wanted).wait(ms(1)).acquire().await;
            assert!(matches!(late, Err(AcquireError::Busy(_))));
            drop(guard);
            spy.elapsed()
        };
        let (granted, freed) = tokio::join!(waits, frees);
        // The place is watched, in vain, before the store is asked.
        assert!(granted - freed <= ms(2), "{granted:?} after {freed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_names_the_last_who_was_in_the_way() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, one, other) = (spy.locks(), spy.locks(), spy.locks());
    let first = hold(&one, &["d"]).await;
    let next = async {
        sleep(ms(500)).await;
        other.documents(["d"]).acquire().await.unwrap()
    };
    let waits = async {
        sleep(secs(1)).await;
        locks.documents(["d"]).wait(secs(5)).acquire().await
    };
    let frees = async {
        sleep(secs(2)).await;
        drop(first);
    };
    let (late, next, ()) = tokio::join!(waits, next, frees);
    match late {
        Err(AcquireError::Busy(busy)) => {
            let session = busy.first().holders[0].grant.map(|grant| grant.session);
            assert_eq!(session, Some(next.session()));
        }
        late => panic!("{late:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_names_who_was_in_the_way_although_the_store_is_slow_to_let_it_leave() {
    let store = MemoryBackend::new();
    let holder = Spy::new(Arc::clone(&store)).locks();
    let _held = holder.lock("k").acquire().await.unwrap();
    let spy = Spy::new(store);
    let locks = spy.locks();
    spy.decide(|call| match call {
        Call::Release(..) => Fate::AnsweredAfter(Duration::from_secs(3)),
        _ => Fate::Answered,
    });
    let limit = Duration::from_secs(1);
    let since = now();
    let waited = locks.lock("k").wait(limit).acquire().await;
    assert!(matches!(waited, Err(AcquireError::Busy(_))), "{waited:?}");
    assert!(now() - since < limit + Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn a_wait_and_a_patience_without_an_end_are_none_that_end() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().patience(Duration::MAX).build().unwrap();
    let taken = hold(&locks, &["d"]).await;
    let mut lost = false;
    spy.decide(
        move |call| match asks(call) && !std::mem::replace(&mut lost, true) {
            true => Fate::AnswerLost,
            false => Fate::Answered,
        },
    );
    let waits = locks.documents(["d"]).wait(Duration::MAX).acquire();
    let frees = async {
        sleep(secs(1_000)).await;
        assert_eq!(taken.release().await.unwrap(), crate::Released::Released);
    };
    let (waited, ()) = tokio::join!(waits, frees);
    assert!(waited.unwrap().is_valid());
    assert!(spy.elapsed() >= secs(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_as_patient_with_its_first_request_as_with_others() {
    for intent in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().patience(secs(60)).build().unwrap();
        let away = |call: &Call| match opens(call) {
            true => Fate::Fails(ErrorKind::Unavailable),
            false => Fate::Answered,
        };
        spy.decide(away);
        let acquisition = |wait| {
            let acquisition = locks.documents(["d"]).wait(wait);
            match intent {
                true => acquisition.intent(&"change").unwrap(),
                false => acquisition,
            }
        };
        let told = acquisition(secs(3)).acquire().await;
        assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
        assert!((secs(3)..secs(4)).contains(&spy.elapsed()));
        let told = acquisition(secs(3)).try_acquire().await;
        assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
        assert!(spy.elapsed() < secs(4), "a try is told at once");
        let mended = async {
            sleep(secs(30)).await;
            spy.answer_all();
        };
        let (guard, ()) = tokio::join!(acquisition(secs(60)).acquire(), mended);
        assert!(guard.unwrap().is_valid());
        assert!(spy.count(opens) < 100, "{}", spy.count(opens));
    }
}

/// Its session hangs, and the program keeps the guard: nobody tells those who wait for it.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_a_guard_of_its_process_that_has_lapsed_asks_the_store() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let change = locks.lock("k").intent(&"change").unwrap();
    let guard = change.acquire().await.unwrap();
    let hangs = guard.session();
    drop(hold(&locks, &["opens"]).await);
    spy.decide(move |call| match call {
        Call::Renew(session, _) if *session == hangs => Fate::Hangs,
        _ => Fate::Answered,
    });
    let late = timeout(secs(60), locks.lock("k").acquire()).await;
    assert!(
        matches!(late, Ok(Err(AcquireError::Abandoned(_)))),
        "{late:?}"
    );
    assert!(!guard.is_valid());
}

/// What takes many batches is given back by one write: the end of its session.
#[tokio::test(start_paused = true)]
async fn what_takes_many_batches_has_a_session_of_its_own() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let locks = spy.locks();
    let kept = hold(&locks, &["kept"]).await;
    let ids: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    for (many, own) in [(10, false), (11, true)] {
        let guard = locks.documents(&ids[..many]).acquire().await.unwrap();
        assert_eq!(guard.session() != kept.session(), own, "{many}");
        drop(guard);
        sleep(secs(1)).await;
        assert!(kept.confirm().await.unwrap());
    }
}

/// Others have had it since, and now the store does not answer.
#[tokio::test(start_paused = true)]
async fn who_has_gone_long_ago_is_not_told_to_be_in_the_way() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let theirs = hold(&other, &["d"]).await;
    #[expect(clippy::disallowed_methods, reason = "a task of the test")]
    let waits = || tokio::spawn(locks.documents(["d"]).acquire());
    let first = waits();
    sleep(ms(100)).await;
    let _ = theirs.release().await;
    let mut mine = first.await.unwrap().unwrap();
    for _ in 0..3 {
        let next = waits();
        sleep(secs(60)).await;
        drop(mine);
        mine = next.await.unwrap().unwrap();
    }
    let next = waits();
    sleep(secs(1)).await;
    spy.decide(|call| match call {
        Call::Acquire(_) => Fate::Hangs,
        _ => Fate::Answered,
    });
    let _ = mine.release().await;
    sleep(ms(200)).await;
    let late = locks.documents(["d"]).wait(secs(2)).acquire().await;
    assert!(matches!(late, Err(AcquireError::Store(_))), "{late:?}");
    next.abort();
}

/// They keep each other coming, and hold the key one after the other without a gap.
#[tokio::test(start_paused = true)]
async fn who_stands_in_line_is_served_beside_those_who_hold_other_keys() {
    let locks = Spy::new(MemoryBackend::new().with_keys_per_batch(1)).locks();
    let crowd = ["a0", "a1", "a2", "a3"].map(async |own| {
        loop {
            let guard = hold(&locks, &[own, "hot"]).await;
            sleep(ms(30)).await;
            drop(guard);
        }
    });
    let waits = async {
        sleep(ms(100)).await;
        hold(&locks, &["hot"]).await
    };
    let crowd = std::pin::pin!(join_all(crowd));
    tokio::select! {
        _ = crowd => unreachable!("they go on for ever"),
        guard = timeout(secs(20), waits) => assert!(guard.unwrap().is_valid()),
    }
}

/// The store does not acknowledge that the intent is there.
#[tokio::test(start_paused = true)]
async fn an_intent_that_is_not_acknowledged_ends_the_attempt_in_time() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
    let late = Fate::FailsAfter(secs(5), ErrorKind::Indeterminate);
    for fate in [Fate::Fails(ErrorKind::Unavailable), late] {
        spy.decide(move |call| match call {
            Call::Renew(..) => fate,
            _ => Fate::Answered,
        });
        let acquisition = locks.documents(["d"]).intent(&"change").unwrap();
        let error = timeout(secs(25), acquisition.try_acquire()).await.unwrap();
        assert!(
            matches!(&error, Err(AcquireError::Store(error)) if error.kind() == ErrorKind::Indeterminate),
            "{error:?}"
        );
        spy.answer_all();
        sleep(secs(10)).await;
        drop(hold(&locks, &["d"]).await);
    }
}

/// The patience is for requests that are sent again; the first renewal has the time that it takes.
#[tokio::test(start_paused = true)]
async fn without_patience_an_intent_is_registered_all_the_same() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().patience(secs(0)).build().unwrap();
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(ms(100)),
        _ => Fate::Answered,
    });
    let acquisition = locks.documents(["d"]).intent(&"change").unwrap();
    let guard = acquisition.acquire().await.unwrap();
    assert!(guard.release().await.is_ok());
    let kept = locks
        .documents(["e"])
        .own_session()
        .acquire()
        .await
        .unwrap();
    assert!(kept.keep_for(secs(60)).await.is_ok());
}

/// Those before the line are passed by the first in line alone.
#[tokio::test(start_paused = true)]
async fn a_crowd_behind_who_holds_other_keys_asks_as_one() {
    let store = MemoryBackend::new().with_keys_per_batch(1);
    let other = Spy::new(Arc::clone(&store)).locks();
    let _held = hold(&other, &["hot"]).await;
    let spy = Spy::new(store);
    let locks = spy.locks();
    let before = locks.documents(["a", "hot"]).wait(secs(10)).acquire();
    let crowd = (0..50).map(async |_| {
        sleep(ms(10)).await;
        locks.documents(["hot"]).wait(secs(9)).acquire().await
    });
    let (before, crowd) = futures_util::future::join(before, join_all(crowd)).await;
    assert!(before.is_err() && crowd.iter().all(Result::is_err));
    assert!(spy.count(asks) < 120, "{}", spy.count(asks));
}
