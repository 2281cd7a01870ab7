//! What an acquisition sends, request by request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, End, ErrorKind, FencingToken, Guard, Life, Locks, MemoryBackend,
    SessionStore,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn opens(call: &Call) -> bool {
    matches!(call, Call::Open(_))
}

fn asks(call: &Call) -> bool {
    matches!(call, Call::Acquire(_))
}

fn releases(call: &Call) -> bool {
    matches!(call, Call::Release(_))
}

async fn hold(locks: &Locks, ids: &[&str]) -> Guard {
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
async fn a_session_that_is_found_dead_between_two_steps_is_the_end() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_step(1));
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
async fn a_request_says_whether_its_guard_has_other_steps() {
    for (keys, joined) in [(1, vec![true; 3]), (2, vec![true; 2]), (3, vec![false])] {
        let spy = Spy::new(MemoryBackend::new().with_keys_per_step(keys));
        drop(hold(&spy.locks(), &["d1", "d2", "d3"]).await);
        let sent = spy.sent(asks).into_iter().map(|(_, call)| match call {
            Call::Acquire(request) => request.joined,
            _ => unreachable!("those that acquire"),
        });
        assert_eq!(sent.collect::<Vec<_>>(), joined, "{keys} keys a step");
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

#[tokio::test(start_paused = true)]
async fn who_holds_something_stands_before_those_who_hold_nothing() {
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
    assert_eq!(order, ["holds d1", "first"]);
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
    let locks = spy.locks();
    let taken = hold(&locks, &["d1"]).await;
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
    // Whoever tries, asks; whoever needs more than this key looks for itself.
    let first = locks.documents(["d1"]).wait(secs(1));
    let others = async {
        sleep(ms(1)).await;
        let busy = timeout(ms(1), locks.documents(["d1"]).try_acquire()).await;
        assert!(matches!(busy, Ok(Ok(Attempt::Busy(_)))), "{busy:?}");
        let before = spy.count(asks);
        let two = locks.documents(["d1", "d2"]).wait(ms(1)).acquire().await;
        assert!(matches!(two, Err(AcquireError::Busy(_))), "{two:?}");
        assert_eq!(spy.count(asks) - before, 1);
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
    let hangs = timeout(secs(1), locks.documents(["d1"]).acquire());
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
async fn a_guard_whose_request_was_in_doubt_is_released_more_than_once() {
    // The first of the steps, or the last, was asked for twice.
    for lost in [1, 2] {
        let spy = Spy::new(MemoryBackend::new().with_keys_per_step(1));
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
async fn whose_caller_has_gone_takes_no_further_step() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_step(1));
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
async fn a_token_that_went_back_is_an_error_and_its_lock_is_given_back() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = hold(&locks, &["before"]).await;
    let token = before.token();
    for went_back in [token.get(), token.get() - 1] {
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

#[tokio::test(start_paused = true)]
async fn who_met_another_process_lets_it_look_after_a_release() {
    const POLL: Duration = ms(30);
    let store = MemoryBackend::new();
    let spy = Spy::with_info(Arc::clone(&store), |info| info.poll = Some(POLL));
    let (locks, other) = (spy.locks(), Spy::new(store).locks());
    let takes = async || {
        let since = spy.elapsed();
        let guard = hold(&locks, &["d"]).await;
        (guard, spy.elapsed() - since)
    };
    let busy = async || {
        let busy = locks.documents(["d"]).try_acquire().await.unwrap();
        assert!(matches!(busy, Attempt::Busy(_)));
    };
    let (guard, _) = takes().await;
    busy().await;
    drop(guard);
    let (guard, pause) = takes().await;
    assert_eq!(pause, ms(0), "only the process itself was in the way");
    drop(guard);
    sleep(ms(1)).await;
    let foreign = hold(&other, &["d"]).await;
    busy().await;
    drop(foreign);
    sleep(ms(1)).await;
    let (guard, pause) = takes().await;
    assert_eq!(pause, ms(0), "it was not released here");
    drop(guard);
    tokio::task::yield_now().await;
    let (_guard, pause) = takes().await;
    assert_eq!(pause, POLL);
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
            let asked = spy.times(asks);
            assert!(asked.len() > 20 && asked.len() < 80, "{}", asked.len());
            // Between two polls.
            while spy
                .times(asks)
                .last()
                .is_some_and(|last| *last == spy.elapsed())
            {
                sleep(ms(1)).await;
            }
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
    let waits = locks.documents(["d"]).wait(secs(5)).acquire();
    let changes = async {
        sleep(secs(1)).await;
        let next = other.documents(["d"]).acquire();
        let frees = async {
            sleep(secs(1)).await;
            // Whoever waits longest is not always first among processes: its next request fails.
            let asked = spy.sent(asks);
            let waits = asked.iter().find_map(|(_, call)| match call {
                Call::Acquire(request) if request.grant.session != first.session() => {
                    Some(request.grant.session)
                }
                _ => None,
            });
            let mut failed = false;
            spy.decide(move |call| match call {
                Call::Acquire(request) if waits == Some(request.grant.session) && !failed => {
                    failed = true;
                    Fate::Fails(ErrorKind::Unavailable)
                }
                _ => Fate::Answered,
            });
            drop(first);
        };
        let (next, ()) = tokio::join!(next, frees);
        next.unwrap()
    };
    let (late, next) = tokio::join!(waits, changes);
    match late {
        Err(AcquireError::Busy(busy)) => {
            let session = busy.first().holders[0].grant.map(|grant| grant.session);
            assert_eq!(session, Some(next.session()));
        }
        late => panic!("{late:?}"),
    }
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
async fn a_step_of_several_records_of_unknown_outcome_is_given_back_before_it_is_asked_for_again() {
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
