//! Another incarnation of the store takes over, and has what the one before had, or not.

#![expect(clippy::disallowed_methods, reason = "these tasks are the tests' own")]

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Adopt, ErrorKind, Grant, Guard, Locks, LostReason, MemoryBackend, Ranges,
    Released,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store whose incarnation has a name.
async fn named() -> Arc<Spy> {
    let spy = Spy::new(MemoryBackend::new());
    spy.fails_over(&[]).await;
    spy
}

async fn hold(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap()
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

fn asks(call: &Call) -> bool {
    matches!(call, Call::Acquire(_))
}

/// A renewal that says what is held.
fn moves(call: &Call) -> bool {
    matches!(call, Call::Renew(_, renewal) if renewal.granted != Ranges::EMPTY)
}

fn asked(spy: &Spy) -> Vec<Grant> {
    let sent = spy.sent(asks).into_iter();
    let grants = sent.map(|(_, call)| match call {
        Call::Acquire(request) => request.grant,
        other => panic!("{other:?}"),
    });
    grants.collect()
}

#[tokio::test(start_paused = true)]
async fn what_has_everything_is_moved_to_at_the_next_renewal() {
    let spy = named().await;
    let locks = spy.locks();
    let (one, two) = (hold(&locks, "one").await, hold(&locks, "two").await);
    let given_back = hold(&locks, "given back").await;
    assert_eq!(given_back.release().await.unwrap(), Released::Released);
    sleep(secs(15)).await;
    assert_eq!(spy.times(renews), [secs(10)]);
    assert_eq!(spy.count(moves), 0);
    spy.fails_over(&[]).await;
    sleep(secs(100)).await;
    assert!(one.is_valid() && two.confirm().await.unwrap());
    // The answer to the one is the other; from then on all is as it was.
    let times = [10, 20, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110].map(secs);
    assert_eq!(spy.times(renews), times);
    assert_eq!(spy.times(moves), [secs(20)]);
    let three = hold(&locks, "three").await;
    assert_eq!(three.session(), one.session());
    for guard in [one, two, three] {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_released_need_not_be_there() {
    for dropped in [false, true] {
        let spy = named().await;
        let locks = spy.locks();
        let held = hold(&locks, "held").await;
        let given_back = hold(&locks, "given back").await;
        spy.decide(|call| match call {
            Call::Release(_) => Fate::AnsweredAfter(secs(15)),
            _ => Fate::Answered,
        });
        let releases = tokio::spawn(async move {
            match dropped {
                true => drop(given_back),
                false => assert_eq!(given_back.release().await.unwrap(), Released::Released),
            }
        });
        sleep(secs(1)).await;
        spy.fails_over(&["given back"]).await;
        sleep(secs(100)).await;
        assert_eq!(spy.times(moves), [secs(10)]);
        assert!(held.is_valid() && held.confirm().await.unwrap());
        releases.await.unwrap();
    }
}

/// A release that begins after the renewal was sent may be executed before it.
#[tokio::test(start_paused = true)]
async fn what_is_released_beside_a_renewal_need_not_be_there_either() {
    for lost in ["given back", "held"] {
        let spy = named().await;
        let locks = spy.locks();
        let held = hold(&locks, "held").await;
        let given_back = hold(&locks, "given back").await;
        spy.decide(|call| match moves(call) {
            true => Fate::AnsweredAfter(secs(5)),
            false => Fate::Answered,
        });
        sleep(secs(11)).await;
        spy.fails_over(&[lost]).await;
        sleep(secs(11)).await;
        assert_eq!(spy.times(moves), [secs(20)], "it is under way");
        let released = given_back.release().await.unwrap();
        assert_eq!(released == Released::Released, lost == "held");
        sleep(secs(100)).await;
        // It is asked once more, for what is still held.
        assert_eq!(spy.times(moves), [secs(20), secs(25)]);
        assert_eq!(held.is_valid(), lost == "given back");
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_lost_a_grant_is_told_of_at_the_next_renewal() {
    let spy = named().await;
    let (locks, others) = (spy.locks(), spy.locks());
    let (kept, lost) = (hold(&locks, "kept").await, hold(&locks, "lost").await);
    sleep(secs(11)).await;
    spy.fails_over(&["lost"]).await;
    let theirs = hold(&others, "lost").await;
    assert!(lost.is_valid(), "nobody has told it");
    let reasons = tokio::join!(kept.lost(), lost.lost());
    assert_eq!(reasons, (LostReason::Forgotten, LostReason::Forgotten));
    assert_eq!(spy.elapsed(), secs(20));
    assert_eq!(lost.release().await.unwrap(), Released::NotHeld);
    assert!(theirs.confirm().await.unwrap());
    let again = hold(&locks, "again").await;
    assert_ne!(again.session(), kept.session());
}

#[tokio::test(start_paused = true)]
async fn who_asks_meets_it_before_the_next_renewal() {
    for lost in [&[][..], &["held"]] {
        let spy = named().await;
        let locks = spy.locks();
        let held = hold(&locks, "held").await;
        sleep(secs(1)).await;
        spy.fails_over(lost).await;
        let new = hold(&locks, "new").await;
        assert_eq!(spy.elapsed(), secs(1));
        assert_eq!(held.is_valid(), lost.is_empty());
        assert_eq!(new.session() == held.session(), lost.is_empty());
        assert!(new.confirm().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_goes_on_waiting() {
    let spy = named().await;
    let (locks, others) = (spy.locks(), spy.locks());
    let theirs = hold(&others, "k").await;
    let waits = tokio::spawn(locks.lock("k").acquire().into_future());
    sleep(secs(1)).await;
    spy.fails_over(&[]).await;
    sleep(secs(60)).await;
    assert!(!waits.is_finished() && theirs.is_valid());
    assert_eq!(theirs.release().await.unwrap(), Released::Released);
    let ours = waits.await.unwrap().unwrap();
    assert!(ours.confirm().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_told_after_the_move_is_given_back() {
    let spy = named().await;
    let locks = spy.locks();
    let held = hold(&locks, "held").await;
    spy.decide(|call| match asks(call) {
        true => Fate::AnsweredAfter(secs(15)),
        false => Fate::Answered,
    });
    let late = tokio::spawn(locks.lock("late").acquire().into_future());
    sleep(secs(1)).await;
    spy.fails_over(&["late"]).await;
    spy.answer_all();
    let late = late.await.unwrap().unwrap();
    assert_eq!(spy.elapsed(), secs(15));
    assert!(held.is_valid() && late.confirm().await.unwrap());
    let grants = asked(&spy);
    assert_eq!(grants.len(), 3);
    assert!(spy.count(|call| *call == Call::Release(grants[1])) > 0);
    sleep(secs(100)).await;
    assert!(held.is_valid() && late.confirm().await.unwrap());
}

/// The new incarnation has what it was asked for, and meanwhile the one before has granted more.
#[tokio::test(start_paused = true)]
async fn what_was_granted_while_a_session_moves_is_asked_for_too() {
    for lost in [&[][..], &["late"]] {
        let spy = named().await;
        let locks = spy.locks();
        let held = hold(&locks, "held").await;
        spy.decide(|call| match asks(call) {
            true => Fate::AnsweredAfter(secs(11)),
            false => Fate::Answered,
        });
        let late = tokio::spawn(locks.lock("late").acquire().into_future());
        sleep(secs(1)).await;
        spy.fails_over(lost).await;
        let mut first = true;
        spy.decide(
            move |call| match moves(call) && std::mem::take(&mut first) {
                true => Fate::AnsweredAfter(secs(3)),
                false => Fate::Answered,
            },
        );
        let late = late.await.unwrap().unwrap();
        assert_eq!(spy.elapsed(), secs(11), "before the session has moved");
        sleep(secs(4)).await;
        assert_eq!(spy.times(moves), [10, 13].map(secs));
        assert_eq!(held.is_valid() && late.is_valid(), lost.is_empty());
        sleep(secs(100)).await;
        assert_eq!(held.is_valid() && late.is_valid(), lost.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_with_an_intent_does_not_move() {
    let spy = named().await;
    let locks = spy.locks();
    let intent = locks.lock("i").intent(&"half done").unwrap();
    let (held, left) = (hold(&locks, "k").await, intent.acquire().await.unwrap());
    assert_ne!(held.session(), left.session());
    spy.fails_over(&[]).await;
    assert_eq!(left.lost().await, LostReason::Forgotten);
    sleep(secs(100)).await;
    assert!(held.is_valid());
    drop(left);
    sleep(secs(1)).await;
    assert_eq!(
        locks.abandoned().await.unwrap().len(),
        1,
        "somebody finishes it"
    );
}

/// The server that has taken over acknowledges no renewal, as Redis does without the replicas that it is to wait for.
#[tokio::test(start_paused = true)]
async fn who_asks_a_store_that_has_failed_over_is_told_in_time_that_it_fails() {
    for wait in [None, Some(secs(3_600))] {
        let spy = named().await;
        let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
        let held = hold(&locks, "held").await;
        spy.fails_over(&[]).await;
        spy.decide(|call| match call {
            Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
            _ => Fate::Answered,
        });
        let asks = locks.lock("other");
        let told = match wait {
            None => timeout(secs(12), asks.try_acquire()).await.unwrap().err(),
            Some(wait) => {
                let waits = asks.wait(wait).acquire();
                timeout(secs(12), waits).await.unwrap().err()
            }
        };
        let is_told = matches!(&told, Some(AcquireError::Store(error)) if error.kind() == ErrorKind::Unavailable);
        assert!(is_told, "{told:?}");
        spy.answer_all();
        sleep(secs(60)).await;
        assert!(held.is_valid());
        assert!(hold(&locks, "other").await.is_valid());
    }
}

/// The first copy was executed, and its answer is lost with the server.
#[tokio::test(start_paused = true)]
async fn who_was_not_answered_before_the_store_failed_over_is_not_told_that_nothing_has_happened() {
    for acknowledges in [false, true] {
        let spy = named().await;
        let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
        let held = hold(&locks, "held").await;
        let mut asked = 0;
        spy.decide(move |call| match call {
            Call::Renew(..) if !acknowledges => Fate::Fails(ErrorKind::Unavailable),
            _ if asks(call) => {
                asked += 1;
                match asked {
                    1 => Fate::AnswerLost,
                    // The second one is told that the session has to move, and does so.
                    3 => Fate::Fails(ErrorKind::Unavailable),
                    _ => Fate::Answered,
                }
            }
            _ => Fate::Answered,
        });
        let told = locks.lock("other").try_acquire().into_future();
        let fails_over = async {
            while spy.count(asks) < 2 {
                tokio::task::yield_now().await;
            }
            spy.fails_over(&[]).await;
        };
        let (told, ()) = tokio::join!(timeout(secs(30), told), fails_over);
        let told = told.expect("in time").err();
        let is_unknown = matches!(
            &told,
            Some(AcquireError::Store(error)) if !error.is_certainly_without_effect()
        );
        assert!(is_unknown, "{told:?}");
        spy.answer_all();
        sleep(secs(60)).await;
        assert!(held.is_valid());
        assert!(hold(&locks, "other").await.is_valid());
    }
}

/// The adoption is refused by the server that has taken over, and is given up there when it answers.
#[tokio::test(start_paused = true)]
async fn who_adopts_where_the_store_has_failed_over_is_told_in_time() {
    let spy = named().await;
    let dies = spy.locks();
    let asks = dies.lock("d").intent(&"change").unwrap();
    let guard = asks.acquire().await.unwrap();
    let session = guard.session();
    drop(guard);
    sleep(secs(1)).await;
    let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
    let held = hold(&locks, "held").await;
    spy.fails_over(&[]).await;
    let gives_up = |call: &Call| matches!(call, Call::Adopt(_, _, Adopt::GiveUp));
    spy.decide(move |call| match call {
        _ if gives_up(call) => Fate::Fails(ErrorKind::Unavailable),
        Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let told = timeout(secs(30), locks.adopt(session)).await;
    let told = told.expect("in time");
    assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
    assert!(spy.count(gives_up) > 0);
    spy.answer_all();
    sleep(secs(60)).await;
    assert!(held.is_valid());
    assert!(locks.adopt(session).await.unwrap().is_some());
}
