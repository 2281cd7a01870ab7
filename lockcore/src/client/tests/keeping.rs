//! What the keeper sends, and when.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, End, ErrorKind, Guard, Inspect, IntentChange, Life, Locks, LostReason,
    MemoryBackend, Released, SessionStore, Sweep,
};

const TTL: Duration = Duration::from_secs(30);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

fn releases(call: &Call) -> bool {
    matches!(call, Call::Release(_))
}

fn closes(call: &Call) -> bool {
    matches!(call, Call::End(_, End::Close))
}

async fn hold(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap()
}

/// More documents than ten batches take, of a store that takes one at a time: the guard has a session of its own.
async fn hold_many(locks: &Locks) -> Guard {
    let ids = (0..11).map(|n| format!("d{n:02}"));
    locks.documents(ids).acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_renewal_goes_out_every_third_of_the_ttl() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    sleep(secs(35)).await;
    assert_eq!(spy.times(renews), [10, 20, 30].map(secs));
    assert_eq!(
        guard.remaining(),
        secs(25) - Duration::from_millis(300),
        "counted from the last renewal"
    );
}

/// As one that failed over to a copy which was behind.
#[tokio::test(start_paused = true)]
async fn a_store_that_lost_what_it_acknowledged_is_believed_until_the_next_renewal() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    let intent = locks.lock("i").intent(&"half done").unwrap();
    let left = intent.acquire().await.unwrap();
    sleep(secs(15)).await;
    spy.decide(|call| match renews(call) {
        true => Fate::Forgotten,
        false => Fate::Answered,
    });
    sleep(secs(10)).await;
    spy.answer_all();
    let renewed = spy.times(renews);
    assert!(guard.is_valid() && guard.confirm().await.unwrap());
    let reasons = tokio::join!(guard.lost(), left.lost());
    assert_eq!(reasons, (LostReason::Forgotten, LostReason::Forgotten));
    let next = *spy.times(renews).last().unwrap();
    assert_eq!(next, *renewed.last().unwrap() + secs(10));
    assert!(spy.elapsed() - next < Duration::from_millis(10), "{next:?}");
    assert!(!guard.is_valid() && !guard.confirm().await.unwrap());
    // Who asks from now on has another session.
    let again = hold(&locks, "h").await;
    let lost = [guard.session(), left.session()];
    assert!(!lost.contains(&again.session()));
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    drop(left);
    sleep(secs(1)).await;
    let states = spy.end(&lost, End::IfDue).await.unwrap();
    let lives: Vec<Life> = states.iter().map(|state| state.life).collect();
    assert_eq!(lives, [Life::Dead, Life::Abandoned], "both are closed");
    assert!(again.confirm().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_sent_again_after_pauses_that_grow_up_to_a_tenth_of_the_ttl() {
    for (ttl, longest) in [(5, 500), (20, 2_000), (60, 2_000)] {
        let spy = Spy::new(MemoryBackend::new());
        let ttl = secs(ttl);
        let locks = spy.builder().ttl(ttl).build().unwrap();
        let guard = hold(&locks, "g").await;
        spy.decide(|call| match renews(call) {
            true => Fate::Fails(ErrorKind::Unavailable),
            false => Fate::Answered,
        });
        guard.lost().await;
        let times = spy.times(renews);
        let first = (ttl / 3).min(secs(10));
        assert!(times[0] - first < Duration::from_millis(1), "{times:?}");
        let longest = Duration::from_millis(longest);
        let mut greatest = Duration::ZERO;
        for (at, pair) in times.windows(2).enumerate() {
            // A moment passes until it has failed, and a timer fires up to a moment late.
            let pause = pair[1] - pair[0] - Duration::from_millis(1);
            let doubled = Duration::from_millis(50) * (1 << at.min(6));
            let most = doubled.min(longest) + Duration::from_millis(1);
            assert!(pause <= most, "{pause:?} after {} failures", at + 1);
            greatest = greatest.max(pause);
        }
        assert!(greatest > longest / 2, "{greatest:?} of {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_sent_before_acknowledges_no_intent() {
    let spy = Spy::new(MemoryBackend::new());
    // The renewal of 10 s is answered at 13 s; the last claim is granted at 11 s.
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(secs(3)),
        Call::Acquire(_) => Fate::AnsweredAfter(secs(11)),
        _ => Fate::Answered,
    });
    let acquisition = spy.locks().documents(["d"]).intent(&"change").unwrap();
    let guard = acquisition.acquire().await.unwrap();
    let puts = spy.times(|call| call.changes_intent(|how| matches!(how, IntentChange::Put(_))));
    assert_eq!(puts, [secs(13)]);
    assert!(guard.is_valid());
    assert_eq!(spy.elapsed(), secs(16));
}

#[tokio::test(start_paused = true)]
async fn a_request_in_doubt_is_released_once_more_when_its_number_is_over() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, "kept").await;
    let mut first = true;
    spy.decide(move |call| match call {
        Call::Acquire(_) if std::mem::take(&mut first) => Fate::AnswerLost,
        _ => Fate::Answered,
    });
    let guard = hold(&locks, "g").await;
    let asked = spy.times(|call| matches!(call, Call::Acquire(_)));
    assert_eq!(asked.len(), 3, "once for what is kept, and twice for this");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    sleep(secs(300)).await;
    let renewed = spy.times(|call| matches!(call, Call::Renew(..)))[0];
    assert!(renewed < secs(1), "it is asked for: {renewed:?}");
    assert_eq!(spy.times(releases), [asked[2], renewed]);
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_under_way_settles_nothing_that_came_in_doubt_later() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, "kept").await;
    let mut first = true;
    spy.decide(move |call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(secs(3)),
        Call::Acquire(_) if std::mem::take(&mut first) => Fate::AnswerLost,
        _ => Fate::Answered,
    });
    sleep(secs(11)).await;
    drop(hold(&locks, "g").await);
    sleep(secs(20)).await;
    let renewed = spy.times(|call| matches!(call, Call::Renew(..)));
    assert_eq!(renewed[..2], [secs(10), secs(13)]);
    let released = spy.times(releases);
    assert_eq!(released[1..], [secs(16)], "{released:?}");
    assert!(kept.is_valid());
}

/// Each of many that fail costs as much as one.
#[tokio::test(start_paused = true)]
async fn what_fails_again_and_again_is_no_storm_and_is_over_when_the_store_is_back() {
    const EACH_SECOND: usize = 20;
    let spy = Spy::new(MemoryBackend::new());
    let settings = spy.builder().patience(Duration::ZERO).max_unsettled(100);
    let locks = settings.build().unwrap();
    let kept = hold(&locks, "kept").await;
    spy.decide(|call| match call {
        Call::Acquire(_) => Fate::Fails(ErrorKind::Indeterminate),
        _ => Fate::Answered,
    });
    let mut failed = 0;
    for second in 0..30 {
        for n in 0..EACH_SECOND {
            let tried = locks.documents([format!("{second}/{n}")]).try_acquire();
            assert!(matches!(tried.await, Err(AcquireError::Store(_))));
            failed += 1;
            sleep(Duration::from_millis(49)).await;
        }
    }
    spy.answer_all();
    assert!(spy.count(releases) <= 2 * failed, "{}", spy.count(releases));
    let renewals = spy.count(|call| matches!(call, Call::Renew(..)));
    assert!(renewals <= 30 * 5 + 1, "{renewals}");
    sleep(secs(5)).await;
    let since = spy.count(releases);
    for n in 0..100 {
        drop(hold(&locks, &format!("after {n}")).await);
    }
    sleep(secs(5)).await;
    assert_eq!(spy.count(releases), since + 100);
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn what_is_released_is_not_released_again() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, "kept").await;
    drop(hold(&locks, "dropped").await);
    let released = hold(&locks, "released").await.release().await;
    assert_eq!(released.unwrap(), Released::Released);
    sleep(secs(1_000)).await;
    assert_eq!(spy.count(releases), 2);
    let own = Sweep::Session(kept.session());
    assert_eq!(
        spy.count(|call| matches!(call, Call::Sweep(which, _) if *which == own)),
        0,
        "nothing is left that does not count"
    );
}

/// A guard that is kept, of a session of which another one was dropped; no release succeeds.
async fn with_a_release_that_fails(spy: &Arc<Spy>) -> Guard {
    let locks = spy.locks();
    let kept = hold(&locks, "kept").await;
    let dropped = hold(&locks, "g").await;
    spy.decide(|call| match releases(call) {
        true => Fate::Fails(ErrorKind::Corrupt),
        false => Fate::Answered,
    });
    drop(dropped);
    kept
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_sent_again_after_each_renewal() {
    let spy = Spy::new(MemoryBackend::new());
    let kept = with_a_release_that_fails(&spy).await;
    sleep(secs(5)).await;
    let renewed = || spy.times(|call| matches!(call, Call::Renew(..)));
    assert_eq!(spy.times(releases), [Duration::ZERO, renewed()[0]]);
    sleep(secs(10)).await;
    assert_eq!(spy.times(releases)[2], renewed()[1]);
    spy.answer_all();
    sleep(secs(100)).await;
    assert_eq!(spy.count(releases), 4, "until it is acknowledged");
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_never_succeeds_is_tried_for_a_minute() {
    let spy = Spy::new(MemoryBackend::new());
    let kept = with_a_release_that_fails(&spy).await;
    sleep(secs(300)).await;
    assert_eq!(spy.count(releases), 1 + 6, "after each renewal");
    assert!(kept.is_valid());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_doubt_counts_until_it_is_settled_or_its_session_ends() {
    for ends in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().max_unsettled(1).build().unwrap();
        let kept = hold(&locks, "kept").await;
        let mut first = true;
        spy.decide(move |call| match call {
            Call::Acquire(_) if std::mem::take(&mut first) => Fate::AnswerLost,
            Call::Release(_) => Fate::Fails(ErrorKind::Unavailable),
            _ => Fate::Answered,
        });
        drop(hold(&locks, "g").await);
        sleep(secs(25)).await;
        let next = locks.lock("next").acquire().await;
        assert!(matches!(next, Err(AcquireError::Input(_))), "{next:?}");
        spy.answer_all();
        if ends {
            let ended = spy.end(&[kept.session()], End::Revoke).await.unwrap();
            assert_eq!(ended[0].life, Life::Dead);
            drop(kept);
        } else {
            assert!(kept.is_valid());
        }
        sleep(secs(11)).await;
        drop(hold(&locks, "next").await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_namespace_is_swept_every_ten_minutes() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    sleep(secs(3_600)).await;
    let sweeps = spy.sent(|call| matches!(call, Call::Sweep(..)));
    let all = |(_, call): &(Duration, Call)| *call == Call::Sweep(Sweep::All, 1_000);
    assert!(sweeps.iter().all(all), "{sweeps:?}");
    let times: Vec<Duration> = sweeps.into_iter().map(|(at, _)| at).collect();
    assert!(
        times[0] >= secs(300) && times[0] <= secs(910),
        "not all at once: {times:?}"
    );
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] == secs(600)),
        "{times:?}"
    );
    assert!(times.len() >= 5, "{times:?}");
    assert!(guard.is_valid());
}

/// Each looks at all sessions: if all of them did so every ten minutes, it would be the square of their number.
#[tokio::test(start_paused = true)]
async fn of_many_clients_some_sweep_the_namespace() {
    for backend in [MemoryBackend::new(), MemoryBackend::records()] {
        some_of_many_sweep(Spy::new(backend)).await;
    }
}

async fn some_of_many_sweep(spy: Arc<Spy>) {
    const CLIENTS: u64 = 64;
    let mut guards = Vec::new();
    for seed in 0..CLIENTS {
        let builder = spy.builder().ttl(secs(600)).seed(seed);
        let locks = builder.build().unwrap();
        let key = format!("g{seed}");
        guards.push(locks.lock(&key).acquire().await.unwrap());
    }
    // Each of them once, before it knows how many there are.
    sleep(secs(1_200)).await;
    let sweeps = || spy.times(|call| matches!(call, Call::Sweep(Sweep::All, _)));
    let first = sweeps().len();
    sleep(secs(6_000)).await;
    let times = sweeps().split_off(first);
    // 16 in ten minutes.
    assert!((80..240).contains(&times.len()), "{}", times.len());
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest < Some(secs(900)), "{longest:?}");
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

/// What they know of each other is old.
#[tokio::test(start_paused = true)]
async fn one_that_is_left_of_many_sweeps_within_the_hour() {
    for seed in 0..6 {
        let spy = Spy::new(MemoryBackend::records());
        let locks = spy.builder().ttl(secs(600)).seed(seed).build().unwrap();
        let mut guards = Vec::new();
        for n in 0..200 {
            let key = format!("g{n}");
            guards.push(locks.lock(&key).own_session().acquire().await.unwrap());
        }
        sleep(secs(1_000)).await;
        guards.truncate(1);
        let sweeps = || spy.count(|call| matches!(call, Call::Sweep(Sweep::All, _)));
        let before = sweeps();
        assert!(before > 0);
        sleep(secs(75 * 60)).await;
        let now = sweeps();
        assert!(now > before, "{seed}: {before}");
        sleep(secs(1_500)).await;
        assert!(
            sweeps() >= now + 2,
            "{seed}: it knows by now that it is alone"
        );
    }
}

/// A store that does one request at a time.
#[tokio::test(start_paused = true)]
async fn a_sweep_goes_on_beside_the_close_that_waits_for_it() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    spy.decide(|call| match call {
        Call::Sweep(..) => Fate::InTurn(secs(3)),
        Call::End(..) => Fate::InTurn(secs(0)),
        _ => Fate::Answered,
    });
    while spy.count(|call| matches!(call, Call::Sweep(..))) == 0 {
        sleep(secs(1)).await;
    }
    drop(guard);
    assert!(locks.shutdown(secs(10)).await);
    assert_eq!(spy.count(closes), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_takes_long_keeps_nobody_from_ending() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    spy.decide(|call| match call {
        Call::Sweep(..) => Fate::Hangs,
        _ => Fate::Answered,
    });
    sleep(secs(1_000)).await;
    assert_eq!(spy.count(|call| matches!(call, Call::Sweep(..))), 1);
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(locks.shutdown(secs(1)).await);
    assert_eq!(spy.count(closes), 1);
    // Where there is none, nothing is waited for.
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().seed(1).build().unwrap();
    drop(hold(&locks, "g").await);
    let since = spy.elapsed();
    assert!(locks.shutdown(secs(1)).await);
    assert!(spy.elapsed() - since < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_had_a_request_in_doubt_sweeps_its_own_records() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let kept = hold(&locks, "kept").await;
    let own = Call::Sweep(Sweep::Session(kept.session()), 1_000);
    let sweeps = |spy: &Spy| spy.times(|call| *call == own);
    let in_doubt = async || {
        let mut first = true;
        spy.decide(move |call| match call {
            Call::Acquire(_) if std::mem::take(&mut first) => Fate::AnswerLost,
            _ => Fate::Answered,
        });
        drop(hold(&locks, "g").await);
    };
    in_doubt().await;
    sleep(secs(1_000)).await;
    let times = sweeps(&spy);
    assert_eq!(times.len(), 1, "{times:?}");
    assert!(times[0] >= secs(300) && times[0] < secs(310), "{times:?}");
    in_doubt().await;
    sleep(secs(3)).await;
    in_doubt().await;
    sleep(secs(1_000)).await;
    let times = sweeps(&spy);
    assert_eq!(times.len(), 3, "{times:?}");
    assert!(
        times[1] < secs(1_010),
        "the last one is long ago: {times:?}"
    );
    assert!(times[2] - times[1] >= secs(300), "{times:?}");
}

/// The renewal is next when the release is answered, and the close stands behind it.
#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_does_not_keep_the_session_from_closing() {
    let moment = Duration::from_millis(50);
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    spy.decide(move |_| Fate::InTurn(moment));
    sleep(secs(10) - spy.elapsed() - moment / 2).await;
    drop((guard, locks));
    sleep(secs(1)).await;
    assert_eq!(spy.times(renews), [secs(10)]);
    let closed = spy.times(closes);
    assert_eq!(
        closed,
        [secs(10) + moment / 2],
        "asked when the release is answered"
    );
    assert_eq!(
        Arc::strong_count(&spy),
        1,
        "the close is answered, and the keeper gone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_that_closes_sweeps_until_there_is_no_more() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let locks = spy.locks();
    let guard = hold_many(&locks).await;
    let session = guard.session();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    sleep(secs(1)).await;
    let own = Call::Sweep(Sweep::Session(session), 1_000);
    assert_eq!(spy.count(|call| *call == own), 1);
    assert_eq!(spy.count(releases), 1, "it says whether all of it was held");
    assert_eq!(spy.count(closes), 1);
    drop(hold(&locks, "g").await);
    assert!(locks.shutdown(secs(1)).await);
    assert_eq!(spy.count(closes), 2);
    assert_eq!(
        spy.count(|call| matches!(call, Call::Sweep(..))),
        1,
        "nothing is left of the other one"
    );
    assert_eq!(spy.count(renews), 0, "whose intent there is none of");
}

#[tokio::test(start_paused = true)]
async fn a_session_of_which_something_was_given_back_before_is_closed_all_the_same() {
    let spy = Spy::new(MemoryBackend::records().with_keys_per_batch(2));
    let mut lost = 0;
    spy.decide(move |call| match call {
        Call::Acquire(_) if lost == 0 => {
            lost += 1;
            Fate::AnswerLost
        }
        _ => Fate::Answered,
    });
    let locks = spy.locks();
    let ids = (0..22).map(|n| format!("d{n:02}"));
    let guard = locks.documents(ids).acquire().await.unwrap();
    let before = spy.count(releases);
    assert!(before > 0, "the batch of unknown outcome");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert_eq!((spy.count(releases) - before, spy.count(closes)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn many_claims_are_released_one_by_one_while_something_re_enters() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let locks = spy.locks();
    let guard = hold_many(&locks).await;
    let inner = locks.documents(["d00", "inner"]).owner(&guard.owner());
    let inner = inner.acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(inner.is_valid() && inner.confirm().await.unwrap());
    assert_eq!(spy.count(releases), 11);
    assert_eq!(spy.count(closes), 0);
    sleep(TTL).await;
    assert!(inner.is_valid());
    let other = spy.locks();
    drop(other.documents(["d01"]).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn many_claims_are_released_one_by_one_while_something_waits_in_line() {
    let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
    let (locks, other) = (spy.locks(), spy.locks());
    let taken = hold(&other, "taken").await;
    let guard = hold_many(&locks).await;
    let owner = guard.owner();
    let waits = locks.documents(["taken"]).owner(&owner).acquire();
    let ends = async {
        sleep(secs(1)).await;
        drop(guard);
        sleep(secs(1)).await;
        drop(taken);
    };
    let (waited, ()) = tokio::join!(waits, ends);
    let waited = waited.unwrap();
    assert!(waited.is_valid() && waited.confirm().await.unwrap());
    assert_eq!(spy.count(closes), 0);
}

#[tokio::test(start_paused = true)]
async fn a_close_says_what_the_release_before_it_found() {
    for (fails, released) in [(false, Released::Released), (true, Released::Unknown)] {
        let spy = Spy::new(MemoryBackend::new().with_keys_per_batch(1));
        let guard = hold_many(&spy.locks()).await;
        let time = guard.remaining();
        spy.decide(move |call| match call {
            Call::Release(_) if fails => Fate::Fails(ErrorKind::Unavailable),
            // The deadline passes meanwhile, and nobody has ended the session before.
            Call::End(..) => Fate::AnsweredAfter(time),
            _ => Fate::Answered,
        });
        assert_eq!(guard.release().await.unwrap(), released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_change_is_not_handed_on_though_its_session_was_lost() {
    // The removal hangs, or a renewal before it does, which was executed.
    for (since, fate, removals) in [
        (15, Fate::Hangs, 2),
        (5, Fate::AnsweredAfter(secs(1_000)), 1),
    ] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let acquisition = locks.documents(["d"]).intent(&"change").unwrap();
        let guard = acquisition.acquire().await.unwrap();
        sleep(secs(since)).await;
        spy.decide(move |call| match renews(call) {
            true => fate,
            false => Fate::Answered,
        });
        sleep(secs(15 - since)).await;
        let remaining = guard.remaining();
        let mended = async {
            sleep(remaining - secs(1)).await;
            spy.answer_all();
        };
        let (released, ()) = tokio::join!(guard.release(), mended);
        let unknown = released.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Indeterminate, "{unknown}");
        assert!(locks.shutdown(secs(1)).await);
        let removed = spy.count(|call| call.changes_intent(|how| *how == IntentChange::Drop));
        assert_eq!(removed, removals, "the last one at the end");
        let states = spy.sessions(None, 10).await.unwrap().items;
        let lives: Vec<Life> = states.iter().map(|state| state.life).collect();
        assert_eq!(lives, [Life::Dead], "nobody has to finish it");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_may_be_repeated_are_repeated_after_pauses_that_grow() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    spy.decide(|call| match releases(call) {
        true => Fate::Fails(ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    let since = spy.elapsed();
    assert!(guard.release().await.is_err());
    let took = spy.elapsed() - since;
    assert!(took >= secs(10) && took < secs(12), "{took:?}");
    // Pauses of up to 20 ms, 40 ms, …, 1 s: half of that on the average.
    let times = spy.times(releases);
    assert!(times.len() > 15 && times.len() < 50, "{}", times.len());
}
