//! A share without a limit that several tasks of a process have on one grant.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use tokio::time::{sleep, timeout};

use crate::client::tests::attempts::{asks, hold, ms, releases, secs};
use crate::client::tests::notes::evict_from;
use crate::client::tests::spy::{Fate, Spy};
use crate::{
    AcquireError, Acquisition, Attempt, ClaimStore as _, End, Guard, Locks, LostReason,
    MemoryBackend, Released, SessionStore as _,
};

async fn share(locks: &Locks) -> Guard {
    timeout(ms(5), locks.rwlock("k").read().acquire())
        .await
        .unwrap()
        .unwrap()
}

async fn shares(locks: &Locks, many: usize) -> Vec<Guard> {
    join_all((0..many).map(|_| share(locks))).await
}

async fn is_free(locks: &Locks) -> bool {
    let free = locks.lock("k").try_acquire().await;
    matches!(free.unwrap(), Attempt::Acquired(_))
}

#[tokio::test(start_paused = true)]
async fn many_have_it_on_one_grant_and_it_goes_back_with_the_last() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let mut guards = shares(&locks, 64).await;
    assert_eq!(spy.count(asks), 1);
    let tokens: Vec<u64> = guards.iter().map(|guard| guard.token().get()).collect();
    let first = tokens[0];
    assert_eq!(tokens, (first..first + 64).collect::<Vec<_>>());
    assert!(first.is_multiple_of(64));
    // No token is given out twice: one more has a grant of its own.
    let more = share(&locks).await;
    assert!(more.token().get() >= first + 64);
    assert_eq!(spy.count(asks), 2);
    drop(more);
    let last = guards.swap_remove(0);
    for (n, guard) in guards.into_iter().enumerate() {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        let held = guard.held();
        match n % 2 {
            0 => assert_eq!(guard.release().await.unwrap(), Released::HandedOn),
            _ => drop(guard),
        }
        assert!(!held.is_valid() && held.grants().all(|(grant, _)| grant.n == 0));
        assert!(last.is_valid() && !is_free(&other).await);
    }
    assert_eq!(spy.count(releases), 1);
    assert_eq!(last.release().await.unwrap(), Released::Released);
    assert_eq!(spy.count(releases), 2);
    assert!(is_free(&other).await);
    sleep(secs(1)).await;
    assert!(locks.core.queues.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nobody_joins_what_is_on_its_way_back_or_has_stood_for_fifty_milliseconds() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = share(&locks).await;
    spy.decide(|call| match releases(call) {
        true => Fate::AnsweredAfter(ms(20)),
        false => Fate::Answered,
    });
    let next = async {
        sleep(ms(5)).await;
        share(&locks).await
    };
    let (released, next) = join(guard.release(), next).await;
    assert_eq!(released.unwrap(), Released::Released);
    assert!(next.token().get().is_multiple_of(64));
    assert!(next.confirm().await.unwrap());
    sleep(ms(24)).await;
    assert_eq!(share(&locks).await.token().get(), next.token().get() + 1);
    sleep(ms(20)).await;
    let late = share(&locks).await;
    assert!(late.token().get() > next.token().get() + 1);
    // Others join that.
    assert_eq!(share(&locks).await.token().get(), late.token().get() + 1);
    assert_eq!(spy.count(asks), 3);
}

#[tokio::test(start_paused = true)]
async fn nobody_joins_before_an_exclusive_lock_that_waits() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let first = share(&locks).await;
    let writer = async {
        let guard = hold(&locks, &["k"]).await;
        sleep(ms(1)).await;
        guard.token()
    };
    let readers = async {
        sleep(ms(1)).await;
        let late = locks.rwlock("k").read().acquire();
        let late = async { late.await.unwrap().token() };
        let frees = async {
            sleep(ms(1)).await;
            drop(first);
        };
        join(late, frees).await.0
    };
    let (written, read) = join(writer, readers).await;
    assert!(written < read);
}

/// Nor is it offered to who stands behind that one.
#[tokio::test(start_paused = true)]
async fn what_one_has_asked_for_is_not_for_those_behind_an_exclusive_lock() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    spy.decide(|call| match asks(call) {
        true => Fate::AnsweredAfter(ms(5)),
        false => Fate::Answered,
    });
    let first = async {
        let guard = locks.rwlock("k").read().acquire().await.unwrap();
        sleep(ms(10)).await;
        guard.token()
    };
    let writer = async {
        sleep(ms(1)).await;
        let guard = hold(&locks, &["k"]).await;
        sleep(ms(1)).await;
        guard.token()
    };
    let late = async {
        sleep(ms(2)).await;
        locks.rwlock("k").read().acquire().await.unwrap().token()
    };
    let (first, written, late) = tokio::join!(first, writer, late);
    assert!(first < written && written < late);
}

/// Who has an offer, and does not look, is left alone; who has an intent asks for itself.
#[tokio::test(start_paused = true)]
async fn a_share_is_offered_once_and_to_nobody_who_wants_more() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    drop(hold(&locks, &["opens"]).await);
    spy.decide(|call| match asks(call) {
        true => Fate::AnsweredAfter(ms(5)),
        false => Fate::Answered,
    });
    let mut first = Box::pin(locks.rwlock("k").read().acquire());
    assert!((&mut first).now_or_never().is_none());
    let mut idle = Box::pin(locks.rwlock("k").read().acquire());
    assert!((&mut idle).now_or_never().is_none());
    let intent = locks
        .rwlock("k")
        .read()
        .intent(&"change")
        .unwrap()
        .acquire();
    let intent = intent.await.unwrap();
    let first = first.await.unwrap();
    assert!(intent.token().get().is_multiple_of(64));
    assert_eq!(intent.release().await.unwrap(), Released::Released);
    // Too late to join the first.
    sleep(ms(60)).await;
    let later = locks.rwlock("k").read().acquire().await.unwrap();
    assert!(later.token().get() >= first.token().get() + 64);
    assert_eq!(idle.await.unwrap().token().get(), first.token().get() + 1);
}

#[tokio::test(start_paused = true)]
async fn who_wants_more_than_the_share_has_a_grant_of_its_own() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    type Asks = fn(&Locks) -> Acquisition;
    let others: [(&str, Asks); 3] = [
        ("an intent", |locks| {
            locks.rwlock("k").read().intent(&"change").unwrap()
        }),
        ("an owner", |locks| {
            locks.rwlock("k").read().owner(&locks.owner())
        }),
        ("a place", |locks| locks.semaphore("k", 9)),
    ];
    for (what, other) in others {
        for first in [true, false] {
            let one = match first {
                true => other(&locks).acquire().await.unwrap(),
                false => share(&locks).await,
            };
            let two = match first {
                true => share(&locks).await,
                false => other(&locks).acquire().await.unwrap(),
            };
            for guard in [one, two] {
                assert!(guard.token().get().is_multiple_of(64), "{what} {first}");
                let released = guard.release().await.unwrap();
                assert_eq!(released, Released::Released, "{what} {first}");
            }
            sleep(secs(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_re_enters_is_excluded_by_the_others_of_its_grant() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guards = shares(&locks, 2).await;
    for guard in &guards {
        let owner = guard.owner();
        let exclusive = locks.documents(["k"]).owner(&owner).try_acquire();
        let exclusive = exclusive.await.unwrap();
        assert!(matches!(exclusive, Attempt::Busy(_)), "{exclusive:?}");
        // It re-enters what it has by that owner.
        let other = || locks.documents(["d"]).owner(&owner).try_acquire();
        let one = other().await.unwrap();
        assert!(matches!(other().await.unwrap(), Attempt::Acquired(_)));
        drop(one);
        sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_lost_to_all_who_have_it() {
    for evicted in [true, false] {
        let store = MemoryBackend::new();
        let spy = Spy::new(Arc::clone(&store));
        let locks = spy.locks();
        let kept = hold(&locks, &["kept"]).await;
        let guards = shares(&locks, 3).await;
        if evicted {
            evict_from(&spy, "k").await;
        } else {
            let (grant, _) = guards[0].grants().next().unwrap();
            let _ = store.release(grant, guards[0].claims()).await.unwrap();
            // Nobody knows yet.
            assert!(guards.iter().all(|guard| guard.is_valid()));
            assert!(!guards[1].confirm().await.unwrap());
        }
        for guard in &guards {
            let why = timeout(secs(12), guard.lost()).await.unwrap();
            match evicted {
                true => assert!(matches!(why, LostReason::Evicted(_)), "{why:?}"),
                false => assert_eq!(why, LostReason::Forgotten),
            }
            assert!(!guard.is_valid());
        }
        // Nobody joins it, and it goes back as often as it was granted.
        let next = share(&locks).await;
        assert!(next.token() > guards[2].token());
        let before = spy.count(releases);
        for guard in guards {
            assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
        }
        assert!(spy.count(releases) <= before + 1);
        assert_eq!(next.release().await.unwrap(), Released::Released);
        assert!(kept.is_valid() && kept.lost().now_or_never().is_none());
        sleep(secs(1)).await;
        assert!(is_free(&locks).await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_of_one_is_not_that_of_the_others() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.builder().ttl(secs(3)).build().unwrap(), spy.locks());
    let short = locks
        .rwlock("k")
        .read()
        .max_hold(secs(1))
        .acquire()
        .await
        .unwrap();
    let long = share(&locks).await;
    assert_eq!(short.lost().await, LostReason::TooLong);
    assert!(!short.is_valid() && long.is_valid());
    // A TTL later it is not its any more, and not counted twice when its program comes back.
    sleep(secs(5)).await;
    assert!(long.confirm().await.unwrap() && !is_free(&other).await);
    assert_eq!(short.release().await.unwrap(), Released::NotHeld);
    assert!(long.confirm().await.unwrap() && !is_free(&other).await);
    assert_eq!(long.release().await.unwrap(), Released::Released);
    // And the other way round: whoever hangs is the last one.
    let short = locks
        .rwlock("k")
        .read()
        .max_hold(secs(1))
        .acquire()
        .await
        .unwrap();
    assert_eq!(
        share(&locks).await.release().await.unwrap(),
        Released::HandedOn
    );
    sleep(secs(3)).await;
    assert!(!is_free(&other).await);
    sleep(secs(2)).await;
    assert!(is_free(&other).await);
    drop(short);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_no_share_behind() {
    for give_up in [0, 1, 3] {
        let spy = Spy::new(MemoryBackend::new());
        let (locks, other) = (spy.locks(), spy.locks());
        // All of them stand in line then, and nobody waits for a session.
        drop(hold(&locks, &["opens"]).await);
        spy.decide(|call| match asks(call) {
            true => Fate::AnsweredAfter(ms(2)),
            false => Fate::Answered,
        });
        // One asks for all, and goes; or one of those goes for whom it asks, or who have it before they look.
        let mut all: Vec<_> = (0..4)
            .map(|_| Box::pin(locks.rwlock("k").read().acquire()))
            .collect();
        for one in &mut all {
            assert!(one.now_or_never().is_none());
        }
        drop(all.remove(give_up));
        sleep(ms(give_up as u64)).await;
        drop(all.pop());
        for guard in join_all(all).await {
            let guard = guard.unwrap();
            assert!(guard.confirm().await.unwrap() && !is_free(&other).await);
        }
        sleep(ms(1)).await;
        assert!(is_free(&other).await, "{give_up}");
        // Nor does whoever gives up the last one's release.
        let guard = share(&locks).await;
        spy.decide(|_| Fate::AnsweredAfter(ms(5)));
        assert!(timeout(ms(1), guard.release()).await.is_err());
        spy.decide(|_| Fate::Answered);
        sleep(ms(10)).await;
        assert!(is_free(&other).await);
        assert!(locks.core.queues.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn that_an_answer_was_lost_is_known_to_the_last() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, &["kept"]).await;
    let mut first = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut first) {
        true => Fate::AnswerLost,
        false => Fate::Answered,
    });
    let guard = locks.rwlock("k").read().acquire().await.unwrap();
    let next = share(&locks).await;
    assert_eq!(next.token().get(), guard.token().get() + 1);
    drop(guard);
    assert_eq!(spy.count(releases), 0);
    drop(next);
    sleep(secs(60)).await;
    // At once, and when its number is over.
    assert_eq!(spy.count(releases), 2);
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_try_has_what_its_process_has() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let first = share(&locks).await;
    let second = locks.rwlock("k").read().try_acquire().await.unwrap();
    assert!(matches!(second, Attempt::Acquired(_)));
    assert_eq!(spy.count(asks), 1);
    let writes = locks.lock("k").wait(ms(5)).acquire();
    let tries = async {
        sleep(ms(1)).await;
        // The store decides.
        locks.rwlock("k").read().try_acquire().await.unwrap()
    };
    let (late, tried) = join(writes, tries).await;
    assert!(matches!(late, Err(AcquireError::Busy(_))), "{late:?}");
    assert!(matches!(tried, Attempt::Acquired(_)));
    // Whoever waits has been overtaken, and asks for a place in the store's line.
    assert_eq!(spy.count(asks), 3);
    drop(first);
}

/// A task hangs with a place that it has lost.
#[tokio::test(start_paused = true)]
async fn a_place_that_was_lost_is_free() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let hung = locks.semaphore("s", 2).acquire().await.unwrap();
    spy.end(&[hung.session()], End::Revoke).await.unwrap();
    sleep(secs(15)).await;
    assert!(!hung.is_valid());
    let second = locks.semaphore("s", 2).acquire().await.unwrap();
    let third = timeout(secs(5), locks.semaphore("s", 2).acquire()).await;
    drop(third.expect("a place is free").unwrap());
    drop((hung, second));
}
