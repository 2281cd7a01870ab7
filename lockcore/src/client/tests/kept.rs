//! Locks that stay held without a process.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::notes::evict_from;
use super::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, End, ErrorKind, Incarnation, InputError, KeepError, Kept, KeptState,
    Label, LockKey, Locks, MemoryBackend, Released, RunError, Turn,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

async fn is_free(locks: &Locks, key: &str) -> bool {
    matches!(
        locks.lock(key).try_acquire().await,
        Ok(Attempt::Acquired(_))
    )
}

async fn keep(locks: &Locks, key: &str, time: Duration) -> Kept {
    let guard = locks.lock(key).own_session().acquire().await.unwrap();
    let held = guard.held();
    let kept = guard.keep_for(time).await.unwrap();
    assert!(!held.is_valid(), "nobody relies on it any more");
    kept
}

fn spy() -> (Arc<Spy>, Locks, Locks) {
    let spy = Spy::new(MemoryBackend::new());
    let (one, other) = (spy.locks(), spy.locks());
    (spy, one, other)
}

#[tokio::test(start_paused = true)]
async fn it_is_held_for_its_time_without_a_request() {
    for time in [3 * SECOND, HOUR] {
        let (spy, one, other) = spy();
        keep(&one, "g", time).await;
        assert!(one.shutdown(SECOND).await, "nothing is waited for");
        let before = spy.count(|_| true);
        sleep(time - SECOND).await;
        assert_eq!(spy.count(|_| true), before);
        assert!(!is_free(&other, "g").await);
        sleep(SECOND + Duration::from_millis(1)).await;
        assert!(is_free(&other, "g").await, "after {time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_schedules_cost_nothing_while_they_are_kept() {
    let (spy, one, other) = spy();
    let run = |n: usize| {
        one.schedule(format!("job/{n}"))
            .at_least(HOUR)
            .run(async |_| Ok::<_, Infallible>(()))
    };
    for n in 0..10_000 {
        let turn = run(n).await.unwrap();
        assert!(
            matches!(
                turn,
                Turn::Ran {
                    kept: Ok(Some(_)),
                    ..
                }
            ),
            "{turn:?}"
        );
    }
    // What is swept once by a session that begins.
    sleep(SECOND).await;
    let before = spy.count(|_| true);
    sleep(HOUR - 60 * SECOND).await;
    assert_eq!(spy.count(|_| true), before);
    assert!(!is_free(&other, "job/9999").await);
    sleep(60 * SECOND).await;
    assert!(is_free(&other, "job/9999").await && is_free(&other, "job/0").await);
}

#[tokio::test(start_paused = true)]
async fn hosts_whose_clocks_differ_run_a_job_once_in_a_period() {
    const PERIOD: Duration = Duration::from_secs(900);
    const PERIODS: u32 = 20;
    let store = Spy::new(MemoryBackend::new());
    let begun = Instant::now();
    let host = |offset: u64| {
        let locks = store.locks();
        async move {
            let mut ran = Vec::new();
            for period in 0..PERIODS {
                tokio::time::sleep_until(begun + PERIOD * period + Duration::from_millis(offset))
                    .await;
                let work = async |_| {
                    sleep(2 * SECOND).await;
                    // Whether it succeeds makes no difference.
                    if period % 3 == 0 {
                        Err("failed")
                    } else {
                        Ok(())
                    }
                };
                let schedule = locks.schedule("nightly").at_least(PERIOD - 60 * SECOND);
                match schedule.run(work).await {
                    Ok(Turn::Ran { kept, .. }) => assert!(kept.unwrap().is_some()),
                    Err(RunError::Work("failed")) => {}
                    Ok(Turn::Taken(busy)) => {
                        assert_eq!(busy.first().claim.key().as_str(), "nightly");
                        continue;
                    }
                    other => panic!("{other:?}"),
                }
                ran.push(period);
            }
            ran
        }
    };
    let ran = join_all([0, 4_700, 9_300].map(host)).await.concat();
    let mut periods = ran.clone();
    periods.sort_unstable();
    assert_eq!(periods, (0..PERIODS).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_schedule_keeps_its_lock_however_its_work_ends() {
    let (_, one, other) = spy();
    let schedule = |name: &str| one.schedule(name).at_least(HOUR);
    let long = schedule("dropped").run(async |_| {
        sleep(HOUR).await;
        Ok::<_, Infallible>(())
    });
    assert!(timeout(60 * SECOND, long).await.is_err());
    let panics =
        schedule("panicked").run(async |_| -> Result<(), Infallible> { panic!("on purpose") });
    assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    sleep(60 * SECOND).await;
    for name in ["dropped", "panicked"] {
        assert!(!is_free(&other, name).await, "{name}");
    }
    // What takes longer than its time is released at its end.
    let turn = one.schedule("long").at_least(SECOND).run(async |_| {
        sleep(5 * SECOND).await;
        Ok::<_, Infallible>(())
    });
    assert!(matches!(
        turn.await.unwrap(),
        Turn::Ran { kept: Ok(None), .. }
    ));
    assert!(is_free(&other, "long").await);
    sleep(HOUR).await;
    for name in ["dropped", "panicked"] {
        assert!(is_free(&other, name).await, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn any_process_renews_and_releases_it_by_its_handle() {
    let (_, one, other) = spy();
    let handle = keep(&one, "g", 60 * SECOND).await.to_string();
    one.shutdown(SECOND).await;
    let kept: Kept = handle.parse().unwrap();
    for _ in 0..40 {
        sleep(50 * SECOND).await;
        assert_eq!(other.kept_state(&kept).await.unwrap(), KeptState::Held);
        let renewed = other.renew_kept(&kept, 60 * SECOND).await.unwrap();
        assert_eq!(renewed, KeptState::Held);
    }
    assert!(!is_free(&other, "g").await);
    assert_eq!(other.release_kept(&kept).await.unwrap(), KeptState::Held);
    assert!(is_free(&other, "g").await);
    for _ in 0..2 {
        assert_eq!(other.kept_state(&kept).await.unwrap(), KeptState::NotHeld);
        assert_eq!(
            other.renew_kept(&kept, TTL).await.unwrap(),
            KeptState::NotHeld
        );
        assert_eq!(other.release_kept(&kept).await.unwrap(), KeptState::NotHeld);
    }
    // Shorter, too; and one whose time is over is not brought back.
    let kept = keep(&other, "g", HOUR).await;
    assert_eq!(
        other.renew_kept(&kept, 2 * SECOND).await.unwrap(),
        KeptState::Held
    );
    sleep(3 * SECOND).await;
    assert_eq!(other.kept_state(&kept).await.unwrap(), KeptState::NotHeld);
    assert!(is_free(&other, "g").await);
    assert_eq!(
        other.renew_kept(&kept, TTL).await.unwrap(),
        KeptState::NotHeld
    );
}

#[tokio::test(start_paused = true)]
async fn another_handle_is_refused_and_changes_nothing() {
    let (_, one, other) = spy();
    let (kept, second) = (keep(&one, "g", HOUR).await, keep(&one, "h", HOUR).await);
    let running = one.lock("r").acquire().await.unwrap();
    let mut wrong = Vec::new();
    for secret in [
        second.secret,
        0x8000_0000,
        u32::MAX,
        kept.secret - 1,
        kept.secret + 1,
    ] {
        let session = kept.session;
        wrong.push(Kept {
            secret,
            session,
            ..second.clone()
        });
    }
    for wrong in wrong
        .iter()
        .filter(|wrong| wrong.secret != kept.secret || wrong.session != kept.session)
    {
        let refused = |error: KeepError| matches!(error, KeepError::Input(InputError::WrongHandle));
        assert!(refused(other.kept_state(wrong).await.unwrap_err()));
        assert!(refused(other.renew_kept(wrong, SECOND).await.unwrap_err()));
        assert!(refused(other.release_kept(wrong).await.unwrap_err()));
    }
    // That session keeps nothing.
    let wrong = Kept {
        session: running.session(),
        ..kept
    };
    for state in [
        other.kept_state(&wrong).await,
        other.renew_kept(&wrong, SECOND).await,
        other.release_kept(&wrong).await,
    ] {
        assert_eq!(state.unwrap(), KeptState::NotHeld);
    }
    sleep(60 * SECOND).await;
    for key in ["g", "h", "r"] {
        assert!(!is_free(&other, key).await, "{key}");
    }
    assert!(running.confirm().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn two_that_use_a_handle_at_once_do_not_stop_each_other() {
    let (spy, one, other) = spy();
    let kept = keep(&one, "g", 60 * SECOND).await;
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(Duration::from_millis(20)),
        _ => Fate::Answered,
    });
    for _ in 0..5 {
        let renewals = [&one, &other, &one].map(|locks| locks.renew_kept(&kept, 60 * SECOND));
        for renewed in join_all(renewals).await {
            assert_eq!(renewed.unwrap(), KeptState::Held);
        }
        sleep(50 * SECOND).await;
    }
    let (released, renewed) = tokio::join!(one.release_kept(&kept), other.renew_kept(&kept, HOUR));
    let (_, _) = (released.unwrap(), renewed.unwrap());
    assert_eq!(other.kept_state(&kept).await.unwrap(), KeptState::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again() {
    let (spy, one, other) = spy();
    let guard = one.lock("g").own_session().acquire().await.unwrap();
    let mut lost = 3;
    spy.decide(move |call| match call {
        Call::Renew(..) if lost > 0 => {
            lost -= 1;
            match lost {
                1 => Fate::Fails(ErrorKind::Unavailable),
                _ => Fate::AnswerLost,
            }
        }
        _ => Fate::Answered,
    });
    let kept = guard.keep_for(HOUR).await.unwrap();
    sleep(HOUR - 60 * SECOND).await;
    assert!(!is_free(&other, "g").await);
    spy.decide(move |call| match call {
        Call::Renew(_, renewal) if renewal.ttl.is_some() && lost < 3 => {
            lost += 1;
            Fate::AnswerLost
        }
        _ => Fate::Answered,
    });
    assert_eq!(
        other.renew_kept(&kept, HOUR).await.unwrap(),
        KeptState::Held
    );
    sleep(HOUR - SECOND).await;
    assert!(!is_free(&other, "g").await);
    sleep(2 * SECOND).await;
    assert!(is_free(&other, "g").await);
}

/// Of the next renewal that changes the TTL the answer is lost, and that is told only when so short a lease is over and somebody
/// else has the lock.
fn loses_the_next_answer(spy: &Spy) {
    let mut lost = 0;
    spy.decide(move |call| match call {
        Call::Renew(_, renewal) if renewal.ttl.is_some() && lost == 0 => {
            lost += 1;
            Fate::AnswerLostAfter(5 * SECOND)
        }
        _ => Fate::Answered,
    });
}

fn is_unknown(error: KeepError) {
    match error {
        KeepError::Store(error) => assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}"),
        known => panic!("{known}"),
    }
}

async fn has_it_next(other: &Locks) {
    let next = other.lock("g").wait(60 * SECOND).acquire().await.unwrap();
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

/// Nothing was executed before: the store knows.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_revoked_is_lost_also_if_the_store_was_away_for_a_moment() {
    let (spy, one, _other) = spy();
    let guard = one.lock("g").own_session().acquire().await.unwrap();
    let backend: &dyn crate::LockBackend = &*spy;
    backend.end(&[guard.session()], End::Revoke).await.unwrap();
    let mut failed = 0;
    spy.decide(move |call| match call {
        Call::Renew(_, renewal) if renewal.ttl.is_some() && failed == 0 => {
            failed += 1;
            Fate::Fails(ErrorKind::Unavailable)
        }
        _ => Fate::Answered,
    });
    let kept = guard.keep_for(2 * SECOND).await;
    assert!(matches!(kept, Err(KeepError::Lost)), "{kept:?}");
}

/// Who is impatient asks again when so short a lease is over.
#[tokio::test(start_paused = true)]
async fn whether_a_lock_was_held_is_not_known_if_its_release_is_answered_too_late() {
    let (spy, one, other) = spy();
    let kept = keep(&one, "g", HOUR).await;
    let impatient = spy.builder().patience(SECOND).build().unwrap();
    loses_the_next_answer(&spy);
    let (released, ()) = tokio::join!(impatient.release_kept(&kept), has_it_next(&other));
    is_unknown(released.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_is_lost_finds_the_lock_held() {
    let (spy, one, other) = spy();
    let kept = keep(&one, "g", HOUR).await;
    loses_the_next_answer(&spy);
    let (released, ()) = tokio::join!(one.release_kept(&kept), has_it_next(&other));
    assert_eq!(released.unwrap(), KeptState::Held);
}

#[tokio::test(start_paused = true)]
async fn whether_a_lock_was_kept_is_not_known_if_it_is_over_before_that_is_answered() {
    let (spy, one, other) = spy();
    let guard = one.lock("g").own_session().acquire().await.unwrap();
    loses_the_next_answer(&spy);
    let (kept, ()) = tokio::join!(guard.keep_for(2 * SECOND), has_it_next(&other));
    is_unknown(kept.unwrap_err());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_keeps_nobody_waiting() {
    let (spy, one, other) = spy();
    let guard = one.lock("g").own_session().acquire().await.unwrap();
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let since = Instant::now();
    assert!(matches!(
        guard.keep_for(HOUR).await,
        Err(KeepError::Store(_))
    ));
    assert!(since.elapsed() <= 11 * SECOND, "{:?}", since.elapsed());
    assert!(one.shutdown(SECOND).await);
    sleep(TTL).await;
    assert!(is_free(&other, "g").await, "its lease was not renewed");
}

#[tokio::test(start_paused = true)]
async fn what_was_broken_is_not_kept() {
    let (spy, one, other) = spy();
    // Nobody is told of the note before.
    let guard = one.lock("g").own_session().acquire().await.unwrap();
    evict_from(&spy, "g").await;
    assert!(matches!(guard.keep_for(HOUR).await, Err(KeepError::Lost)));
    sleep(SECOND).await;
    assert!(is_free(&other, "g").await);
    // Of one that is kept nobody hears of it before who has the handle comes.
    let kept = keep(&one, "g", HOUR).await;
    evict_from(&spy, "g").await;
    assert_eq!(
        other.renew_kept(&kept, HOUR).await.unwrap(),
        KeptState::NotHeld
    );
    assert!(is_free(&other, "g").await);
}

#[tokio::test(start_paused = true)]
async fn a_kept_session_is_told_from_one_that_is_renewed() {
    let (spy, one, other) = spy();
    let kept = keep(&one, "g", HOUR).await;
    let guard = one.lock("h").own_session().acquire().await.unwrap();
    sleep(60 * SECOND).await;
    let state = |session| {
        let sent = spy.count(|_| true);
        let (other, spy) = (other.clone(), spy.clone());
        async move {
            let is_kept = other.is_kept(session).await.unwrap();
            assert_eq!(spy.count(|_| true), sent + 1, "one request");
            is_kept
        }
    };
    assert!(state(kept.session).await);
    assert!(!state(guard.session()).await);
    assert!(!state(crate::SessionId::new(1)).await);
    assert!(guard.confirm().await.unwrap(), "nothing has changed");
    assert_eq!(other.kept_state(&kept).await.unwrap(), KeptState::Held);
    assert_eq!(other.release_kept(&kept).await.unwrap(), KeptState::Held);
    assert!(!state(kept.session).await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_deadline_passes_before_it_is_left_is_not_kept() {
    for late in [false, true] {
        let (spy, one, other) = spy();
        let guard = one.lock("g").own_session().acquire().await.unwrap();
        // The store still has the lease; this process may not believe in it.
        let margin = TTL - guard.remaining();
        sleep(SECOND).await;
        let renewals = spy.count(|call| matches!(call, Call::Renew(..)));
        let kept = guard.keep_for(HOUR);
        if late {
            // The runtime is blocked between the order and the keeper's turn.
            let at = Instant::now() + TTL - SECOND - margin / 2;
            let mut kept = std::pin::pin!(kept);
            assert!(futures_util::poll!(kept.as_mut()).is_pending());
            tokio::time::advance(at - Instant::now()).await;
            assert!(matches!(kept.await, Err(KeepError::Lost)));
            assert_eq!(spy.count(|call| matches!(call, Call::Renew(..))), renewals);
            sleep(TTL).await;
            assert!(is_free(&other, "g").await);
        } else {
            kept.await.unwrap();
            sleep(TTL).await;
            assert!(!is_free(&other, "g").await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept() {
    let (spy, one, other) = spy();
    let input = |kept: Result<Kept, KeepError>| match kept {
        Err(KeepError::Input(error)) => error,
        other => panic!("{other:?}"),
    };
    let shared = one.lock("a").acquire().await.unwrap();
    assert!(matches!(
        input(shared.keep_for(HOUR).await),
        InputError::NotKeepable
    ));
    let own = || one.lock("a").own_session();
    let with_intent = own().intent(&"change").unwrap().acquire().await.unwrap();
    assert!(matches!(
        input(with_intent.keep_for(HOUR).await),
        InputError::NotKeepable
    ));
    assert!(matches!(
        own().try_acquire().await,
        Err(AcquireError::Abandoned(_))
    ));
    let own = || one.documents(["b"]).own_session();
    let long = own().acquire().await.unwrap().keep_for(25 * HOUR).await;
    assert!(matches!(input(long), InputError::Ttl { .. }));
    let run = one
        .schedule("b")
        .at_least(25 * HOUR)
        .run(async |_| Ok::<_, Infallible>(()));
    assert!(matches!(
        run.await,
        Err(RunError::Acquire(AcquireError::Input(
            InputError::Ttl { .. }
        )))
    ));
    let guard = own().acquire().await.unwrap();
    let with_it = |keys: &'static [&str]| one.documents(keys).owner(&guard.owner()).acquire();
    let nested = with_it(&["b", "c"]).await.unwrap();
    let given_back = with_it(&["d"]).await.unwrap();
    // Its release is no matter.
    let mut hangs = true;
    spy.decide(move |call| match call {
        Call::Release(_) if std::mem::take(&mut hangs) => Fate::Hangs,
        _ => Fate::Answered,
    });
    drop(given_back);
    let kept = timeout(SECOND, guard.keep_for(HOUR)).await;
    assert!(matches!(input(kept.unwrap()), InputError::SharedSession));
    assert!(
        nested.confirm().await.unwrap(),
        "the others of the session stay"
    );
    assert_eq!(nested.release().await.unwrap(), Released::Released);
    sleep(SECOND).await;
    assert!(is_free(&other, "b").await, "it is given back");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_moved_has_it_or_has_lost_it() {
    for forgets in [false, true] {
        let (spy, one, other) = spy();
        spy.fails_over(&[]).await;
        let kept = keep(&one, "g", HOUR).await;
        assert_ne!(kept.incarnation, Incarnation::UNKNOWN);
        spy.fails_over(if forgets { &["g"] } else { &[] }).await;
        let renewed = other.renew_kept(&kept, HOUR).await.unwrap();
        assert_eq!(renewed == KeptState::NotHeld, forgets);
    }
}

/// Dropped before it is known that the session has something else.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_is_released_although_nobody_waits_for_the_answer() {
    let (_, one, other) = spy();
    let guard = one.lock("b").own_session().acquire().await.unwrap();
    let owner = guard.owner();
    let nested = one.documents(["c"]).owner(&owner).acquire().await.unwrap();
    {
        let mut keep = Box::pin(guard.keep_for(2 * TTL));
        assert!(futures_util::poll!(&mut keep).is_pending());
    }
    sleep(SECOND).await;
    assert!(nested.is_valid());
    assert!(is_free(&other, "b").await);
}

/// An operator has broken something else of the session before.
#[tokio::test(start_paused = true)]
async fn what_stands_is_kept_although_something_else_was_evicted() {
    let (spy, one, other) = spy();
    let guard = one.lock("b").own_session().acquire().await.unwrap();
    let owner = guard.owner();
    let nested = one.documents(["c"]).owner(&owner).acquire().await.unwrap();
    evict_from(&spy, "c").await;
    sleep(TTL / 2).await;
    assert!(!nested.is_valid());
    drop(nested);
    sleep(SECOND).await;
    assert!(guard.confirm().await.unwrap());
    guard.keep_for(HOUR).await.unwrap();
    assert!(!is_free(&other, "b").await);
}

/// The longest hold is shorter than the period.
#[tokio::test(start_paused = true)]
async fn a_schedule_whose_work_takes_too_long_is_kept_all_the_same() {
    let spy = Spy::new(MemoryBackend::new());
    let one = spy.builder().max_hold(TTL).build().unwrap();
    let work = async |_| {
        sleep(HOUR).await;
        Ok::<_, std::io::Error>(())
    };
    let ran = one.schedule("b").at_least(HOUR).run(work).await;
    assert!(matches!(ran, Err(RunError::Lost(_))), "{ran:?}");
    sleep(10 * TTL).await;
    assert!(!is_free(&one, "b").await);
    sleep(HOUR).await;
    assert!(is_free(&one, "b").await);
}

/// Its time is never longer for it.
#[tokio::test(start_paused = true)]
async fn a_release_that_fails_does_not_lengthen_the_time() {
    let (spy, one, other) = spy();
    let kept = keep(&one, "b", HOUR).await;
    sleep(HOUR - 2 * TTL).await;
    spy.decide(|call| match call {
        Call::End(_, End::Close) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    assert!(one.release_kept(&kept).await.is_err());
    spy.answer_all();
    sleep(2 * TTL + SECOND).await;
    assert!(is_free(&other, "b").await);
}

/// The store has lost the renewal that kept it.
#[tokio::test(start_paused = true)]
async fn what_the_store_has_forgotten_to_keep_is_not_held() {
    let (spy, one, other) = spy();
    let guard = one.lock("b").own_session().acquire().await.unwrap();
    spy.decide(|call| match call {
        Call::Renew(_, renewal) if renewal.ttl.is_some() => Fate::Forgotten,
        _ => Fate::Answered,
    });
    let kept = guard.keep_for(HOUR).await.unwrap();
    spy.answer_all();
    assert_eq!(
        other.renew_kept(&kept, HOUR).await.unwrap(),
        KeptState::NotHeld
    );
    assert_eq!(other.release_kept(&kept).await.unwrap(), KeptState::NotHeld);
    sleep(2 * TTL).await;
    assert!(is_free(&other, "b").await);
}

/// Notes are limited; the one that somebody leads is not the one that goes.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_asked_often_still_leads() {
    let (_, one, other) = spy();
    let leads = one.election("e").unwrap().campaign().await.unwrap();
    let (key, reason) = (
        LockKey::parse("e").unwrap(),
        Label::parse("x".repeat(200)).unwrap(),
    );
    for _ in 0..40 {
        assert_eq!(other.ask(&key, reason.clone()).await.unwrap(), 1);
    }
    assert!(
        other
            .election("e")
            .unwrap()
            .leader()
            .await
            .unwrap()
            .is_some()
    );
    assert!(leads.confirm().await.unwrap());
}
