//! A lock that goes from one task of a process to the next without the store.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::client::tests::attempts::{asks, hold, ms, releases, secs};
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, ClaimStore, End, Grant, Guard, Inspect as _, Locks, MemoryBackend,
    Released, SessionStore, Stood,
};

/// Somebody who waits for `d`, from now on.
async fn waits(locks: &Locks) -> tokio::task::JoinHandle<Result<Guard, AcquireError>> {
    let waits = locks.documents(["d"]).acquire();
    #[expect(clippy::disallowed_methods, reason = "a task of the test")]
    let task = tokio::spawn(waits);
    sleep(ms(1)).await;
    task
}

/// Lets everything that can be done at once be done.
async fn at_once() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

async fn holds_nothing(store: &MemoryBackend) {
    let all = crate::Filter::Prefix(String::new());
    let held = store.records(&all, None, 10).await.unwrap();
    assert!(held.items.is_empty(), "{held:?}");
}

fn of_the_store(guard: &Guard) -> (u64, u64) {
    (guard.token().get() / 64, guard.token().get() % 64)
}

#[tokio::test(start_paused = true)]
async fn a_crowd_has_its_turns_on_one_grant_and_every_token_rises() {
    for store in [MemoryBackend::new(), MemoryBackend::records()] {
        let spy = Spy::new(store);
        let locks = spy.locks();
        let turns = (0..100).map(async |_| {
            let guard = hold(&locks, &["d"]).await;
            assert!(guard.is_valid());
            let had = (guard.token(), of_the_store(&guard));
            at_once().await;
            (had, guard.release().await.unwrap())
        });
        let (had, released): (Vec<_>, Vec<_>) = join_all(turns).await.into_iter().unzip();
        let handed_on = released.split(|released| *released == Released::Released);
        let handed_on: Vec<_> = handed_on.collect();
        assert_eq!(
            handed_on,
            [
                vec![Released::HandedOn; 63],
                vec![Released::HandedOn; 35],
                vec![]
            ]
        );
        assert!(had.is_sorted_by(|one, next| one.0 < next.0), "{had:?}");
        let passes: Vec<u64> = had.iter().map(|(_, (_, pass))| *pass).collect();
        assert_eq!(passes[..64], (0..64).collect::<Vec<u64>>());
        assert_eq!(passes[64..], (0..36).collect::<Vec<u64>>());
        assert_eq!((spy.count(asks), spy.count(releases)), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_for_fifty_milliseconds_or_half_of_that_where_others_look_seldom() {
    // Five of 11 ms each on one grant, or three: the last one ends behind it.
    for (poll, grants) in [(None, 3), (Some(ms(25)), 3), (Some(ms(26)), 4)] {
        let spy = Spy::with_info(MemoryBackend::new(), |info| info.poll = poll);
        let locks = spy.locks();
        let turns = (0..12).map(async |_| {
            let guard = hold(&locks, &["d"]).await;
            sleep(ms(11)).await;
            drop(guard);
        });
        join_all(turns).await;
        sleep(ms(1)).await;
        assert_eq!(spy.count(releases), grants, "{poll:?}");
        assert!(spy.count(asks) < 9, "{poll:?}: {}", spy.count(asks));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_handed_on_and_who_waits_longest_is_next() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let held = guard.held();
    let (next, last) = (waits(&locks).await, waits(&locks).await);
    drop(guard);
    let next = timeout(ms(1), next).await.unwrap().unwrap().unwrap();
    assert!(!held.is_valid(), "it is another one's");
    assert!(held.grants().all(|(grant, _)| grant.n == 0));
    assert!(!held.confirm().await.unwrap());
    assert!(next.is_valid() && next.confirm().await.unwrap());
    assert!(!last.is_finished());
    assert_eq!(next.session(), held.session());
    assert_eq!(spy.count(asks), 1);
    drop((next, last));
}

/// Exclusive documents that are the same for both: up to 16 of them.
#[tokio::test(start_paused = true)]
async fn sixteen_keys_go_on_and_seventeen_do_not() {
    for keys in [16_u32, 17] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let all: Vec<String> = (0..keys).map(|key| format!("d{key}")).collect();
        let guard = locks.documents(&all).acquire().await.unwrap();
        let waits = locks.documents(&all).acquire();
        let release = async {
            sleep(ms(1)).await;
            guard.release().await.unwrap()
        };
        let (next, released) = tokio::join!(waits, release);
        assert!(next.unwrap().is_valid());
        let handed_on = released == Released::HandedOn;
        assert_eq!(handed_on, keys == 16, "{keys} keys");
    }
}

#[tokio::test(start_paused = true)]
async fn who_wants_something_else_is_served_by_the_store() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    type Asks = Arc<dyn Fn(Locks) -> crate::Acquisition + Send + Sync>;
    let others: [(&str, Asks); 4] = [
        ("more", Arc::new(|locks| locks.documents(["d", "e"]))),
        (
            "with an intent",
            Arc::new(|locks| locks.documents(["d"]).intent(&"change").unwrap()),
        ),
        (
            "an owner",
            Arc::new(|locks| {
                let owner = locks.owner();
                locks.documents(["d"]).owner(&owner)
            }),
        ),
        ("held by an owner", Arc::new(|locks| locks.documents(["d"]))),
    ];
    for (what, other) in others {
        let guard = hold(&locks, &["d"]).await;
        if what == "held by an owner" {
            let _owner = guard.owner();
        }
        let before = spy.count(releases);
        let waits = async {
            let guard = other(locks.clone()).acquire().await.unwrap();
            assert_eq!(of_the_store(&guard).1, 0, "{what}");
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        };
        let frees = async {
            sleep(ms(5)).await;
            drop(guard);
        };
        tokio::join!(waits, frees);
        assert!(spy.count(releases) > before + 1, "{what}");
        // A session of its own closes.
        sleep(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_overtaken_by_who_wants_the_same() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = locks.tree().write("/a/b").acquire().await.unwrap();
    let above = async {
        let guard = locks.tree().write("/a").acquire().await.unwrap();
        of_the_store(&guard)
    };
    let same = async {
        sleep(ms(1)).await;
        let guard = locks.tree().write("/a/b").acquire().await.unwrap();
        of_the_store(&guard)
    };
    let frees = async {
        sleep(ms(2)).await;
        drop(guard);
    };
    let (above, same, ()) = tokio::join!(above, same, frees);
    assert_eq!((above.1, same.1), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_offered_to_somebody_who_goes_is_the_next_ones_or_the_stores() {
    // Before it can be taken, and after that.
    for (waits_too, early) in [(true, true), (true, false), (false, true), (false, false)] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let guard = hold(&locks, &["d"]).await;
        let goes = waits(&locks).await;
        let next = match waits_too {
            true => Some(waits(&locks).await),
            false => None,
        };
        if early {
            goes.abort();
        }
        drop(guard);
        goes.abort();
        match next {
            Some(next) => {
                let next = timeout(ms(1), next).await.unwrap().unwrap().unwrap();
                assert_eq!(of_the_store(&next).1, 1);
                assert_eq!(spy.count(asks), 1);
            }
            None => {
                let other = spy.locks();
                drop(timeout(ms(5), hold(&other, &["d"])).await.unwrap());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_release_is_nobody_elses() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    spy.decide(|call| match releases(call) {
        true => Fate::AnsweredAfter(ms(20)),
        false => Fate::Answered,
    });
    // Its release is on its way when somebody comes, and when it is given up.
    let mut release = Box::pin(guard.release());
    assert!(timeout(ms(5), &mut release).await.is_err());
    let next = waits(&locks).await;
    drop(release);
    let next = next.await.unwrap().unwrap();
    assert_eq!(of_the_store(&next).1, 0);
    assert!(next.confirm().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_does_not_stand_any_more_is_handed_to_nobody() {
    for revoked in [true, false] {
        let store = MemoryBackend::new();
        let spy = Spy::new(Arc::clone(&store));
        let (locks, other) = (spy.locks(), Spy::new(Arc::clone(&store)).locks());
        let guard = hold(&locks, &["d"]).await;
        let (grant, _) = guard.grants().next().unwrap();
        let next = waits(&locks).await;
        if revoked {
            store.end(&[guard.session()], End::Revoke).await.unwrap();
        } else {
            let released = store.release(grant, guard.claims()).await;
            assert_eq!(released.unwrap(), Stood::Held);
        }
        let rival = hold(&other, &["d"]).await;
        assert!(!guard.confirm().await.unwrap());
        drop(guard);
        sleep(secs(2)).await;
        if revoked {
            // Its session is the guard's.
            assert!(matches!(next.await.unwrap(), Err(AcquireError::Lost)));
            continue;
        }
        assert!(!next.is_finished(), "somebody else has it");
        assert!(rival.is_valid() && rival.confirm().await.unwrap());
        let token = rival.token();
        drop(rival);
        assert!(next.await.unwrap().unwrap().token() > token);
    }
}

/// A confirmation that was asked by one guard is answered when the next one has the grant.
#[tokio::test(start_paused = true)]
async fn a_no_that_comes_late_is_told_to_whoever_has_it_then() {
    let store = MemoryBackend::new();
    let spy = Spy::new(Arc::clone(&store));
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let (session, n) = (guard.session(), guard.numbers().next().unwrap());
    let claims = guard.claims().to_vec();
    let next = waits(&locks).await;
    store.release(Grant { session, n }, &claims).await.unwrap();
    spy.decide(|call| match call {
        Call::Confirm(_) => Fate::AnsweredAfter(ms(5)),
        _ => Fate::Answered,
    });
    let held = guard.held();
    let asked = async { held.confirm().await.unwrap() };
    let handed = async {
        sleep(ms(1)).await;
        drop(guard);
        let next = next.await.unwrap().unwrap();
        assert!(next.is_valid(), "nobody knows yet");
        next
    };
    let (held, next) = tokio::join!(asked, handed);
    assert!(!held && !next.is_valid());
    assert_eq!(next.release().await.unwrap(), Released::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handed_out_after_the_deadline() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let next = waits(&locks).await;
    spy.decide(|_| Fate::Hangs);
    // The offer is made while the lease is running, and found when it has ended.
    drop(guard);
    tokio::time::advance(secs(31)).await;
    spy.answer_all();
    assert!(matches!(next.await.unwrap(), Err(AcquireError::Lost)));
}

#[tokio::test(start_paused = true)]
async fn what_the_next_one_has_asked_for_meanwhile_is_given_back() {
    let store = MemoryBackend::new();
    let spy = Spy::new(Arc::clone(&store));
    let (locks, other) = (spy.locks(), spy.locks());
    // It asks, because another process holds the key; and is still asking when this one has it.
    let foreign = hold(&other, &["d"]).await;
    let next = waits(&locks).await;
    let mut slow = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut slow) {
        true => Fate::AnsweredAfter(secs(3)),
        false => Fate::Answered,
    });
    sleep(secs(1)).await;
    drop(foreign);
    let next = next.await.unwrap().unwrap();
    drop(next);
    sleep(secs(60)).await;
    holds_nothing(&store).await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_the_store_and_is_not_answered_takes_what_is_offered() {
    let store = MemoryBackend::new();
    let spy = Spy::new(Arc::clone(&store));
    let locks = spy.locks();
    drop(hold(&locks, &["opens"]).await);
    let mut hangs = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut hangs) {
        true => Fate::Hangs,
        false => Fate::Answered,
    });
    #[expect(clippy::disallowed_methods, reason = "a task of a test")]
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.documents(["d"]).acquire().await }
    });
    sleep(secs(1)).await;
    // Who does not wait does not stand in line.
    let tried = locks.documents(["d"]).try_acquire().await.unwrap();
    let Attempt::Acquired(first) = tried else {
        panic!("{tried:?}");
    };
    assert!(!next.is_finished());
    drop(first);
    let next = timeout(ms(1), next).await.unwrap().unwrap().unwrap();
    assert_eq!(of_the_store(&next).1, 1);
    drop(next);
    sleep(secs(60)).await;
    holds_nothing(&store).await;
}

#[tokio::test(start_paused = true)]
async fn that_an_answer_was_lost_is_known_to_whoever_has_it_then() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, &["kept"]).await;
    let mut first = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut first) {
        true => Fate::AnswerLost,
        false => Fate::Answered,
    });
    let guard = hold(&locks, &["d"]).await;
    let next = waits(&locks).await;
    drop(guard);
    let next = next.await.unwrap().unwrap();
    assert_eq!(of_the_store(&next).1, 1);
    drop(next);
    sleep(secs(60)).await;
    assert_eq!(
        spy.count(releases),
        2,
        "at once, and when its number is over"
    );
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_names_the_processs_own_holder() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let late = locks.documents(["d"]).wait(ms(10)).acquire().await;
    let Err(AcquireError::Busy(busy)) = late else {
        panic!("{late:?}");
    };
    let holder = &busy.first().holders[0];
    let (grant, claims) = guard.grants().next().unwrap();
    assert_eq!(holder.grant, Some(grant));
    assert_eq!(holder.mode, claims[0].want().mode());
    assert_eq!(spy.count(asks), 1, "the store was not asked");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_in_the_line_when_all_have_gone() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    for round in 0..3 {
        let guard = hold(&locks, &["d"]).await;
        let next = waits(&locks).await;
        drop(guard);
        let next = next.await.unwrap().unwrap();
        if round == 1 {
            spy.end(&[next.session()], End::Revoke).await.unwrap();
        }
        drop(next);
        sleep(secs(1)).await;
        assert!(locks.core.queues.is_empty(), "{round}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_another_process_has_it_in_a_tenth_of_a_second() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let until = Instant::now() + secs(5);
    let crowd = (0..8).map(async |_| {
        while Instant::now() < until {
            let guard = hold(&locks, &["d"]).await;
            sleep(ms(1)).await;
            drop(guard);
        }
    });
    let beside = async {
        let mut waits = Vec::new();
        while Instant::now() < until {
            sleep(ms(1)).await;
            let since = Instant::now();
            drop(hold(&other, &["d"]).await);
            waits.push(since.elapsed());
        }
        waits
    };
    let (_, waits) = tokio::join!(join_all(crowd), beside);
    assert!(waits.len() > 50, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= ms(100)), "{waits:?}");
}

/// Whoever had it before cannot re-enter what the next task has.
#[tokio::test(start_paused = true)]
async fn the_owner_of_what_was_handed_on_holds_nothing() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, &["d"]).await;
    let held = guard.held();
    let next = waits(&locks).await;
    assert_eq!(guard.release().await.unwrap(), Released::HandedOn);
    let next = next.await.unwrap().unwrap();
    let owner = held.owner();
    let again = locks.documents(["d"]).owner(&owner).try_acquire().await;
    assert!(again.unwrap().acquired().is_none(), "{next:?} has it");
    // Its own owner does.
    let owner = next.owner();
    let again = locks.documents(["d"]).owner(&owner).try_acquire().await;
    assert!(again.unwrap().acquired().is_some());
}

/// A task that waits, and is never polled again.
#[tokio::test(start_paused = true)]
async fn who_is_not_polled_has_it_until_the_next_renewal() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let guard = hold(&locks, &["d"]).await;
    let mut waits = Box::pin(locks.documents(["d"]).acquire());
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert_eq!(guard.release().await.unwrap(), Released::HandedOn);
    let since = Instant::now();
    let theirs = timeout(secs(60), other.documents(["d"]).acquire()).await;
    let theirs = theirs.expect("nobody holds it for long").unwrap();
    assert!(since.elapsed() <= secs(11), "{:?}", since.elapsed());
    drop(theirs);
    // It goes on where it is polled again.
    drop(timeout(secs(5), waits).await.unwrap().unwrap());
}

/// Whoever is granted it next may have it before the answer to the release is here.
#[tokio::test(start_paused = true)]
async fn what_is_being_released_is_not_valid_any_more() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let guard = hold(&locks, &["d"]).await;
    let held = guard.held();
    spy.decide(|call| match call {
        Call::Release(_) => Fate::AnsweredAfter(secs(5)),
        _ => Fate::Answered,
    });
    let looks = async {
        sleep(ms(1)).await;
        let next = hold(&other, &["d"]).await;
        assert!(next.is_valid() && !held.is_valid());
        assert_eq!(held.remaining(), secs(0));
    };
    let (released, ()) = tokio::join!(guard.release(), looks);
    assert_eq!(released.unwrap(), Released::Released);
}
