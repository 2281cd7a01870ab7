//! The life of a client: work under a lock, the limits of what is under way, and its end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use lockcore::backend::End;
use lockcore::{
    AcquireError, Attempt, InputError, KeepError, Kept, KeptState, Label, Life, LockKey, Locks,
    Released, RunError, Turn,
};
use tokio::time::{Instant, sleep, timeout};

use crate::case::Case;
use crate::client::{SOON, acquired, granted, locks, refusal, refused, release, soon};
use crate::scene::{Scene, short};
use crate::verdict::{Unpassed, Verdict, Wrong, cases, ensure, ensure_eq, in_time};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "lifetime";
        Guard:
            work_runs_under_the_lock,
            work_that_fails_gives_the_lock_back,
            work_is_stopped_when_the_lock_is_lost,
            work_that_is_dropped_gives_the_lock_back,
            a_refused_run_never_begins;
        Limits:
            attempts_under_way_are_bounded,
            waiters_under_way_are_bounded;
        NothingKept:
            a_shutdown_gives_everything_back,
            a_shutdown_waits_for_guards_until_its_limit,
            after_a_shutdown_nothing_is_acquired,
            a_shutdown_ends_whoever_waits,
            the_last_clone_closes_the_session,
            a_guard_outlives_its_locks;
        Guard:
            a_kept_lock_is_held_for_its_time_and_no_longer,
            a_kept_lock_is_renewed_and_released_by_its_handle,
            a_schedule_runs_once_in_its_time,
            a_holder_hears_that_it_is_asked_for_the_lock,
            one_candidate_leads_and_the_next_one_after_it;
    }
}

async fn work_runs_under_the_lock(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let work = a.lock("g").run(|held| async move {
        ensure!(held.is_valid(), "it is held while the work runs");
        refused(b.lock("g")).await?;
        Verdict::Ok(held.token())
    });
    match work.await {
        Ok((token, released)) => {
            ensure_eq!(released?, Released::Released, "what its release said");
            // The store's; the guard's is 64 times that of its grant, and the number of its pass.
            let next = scene.token_of("g").await?.get();
            ensure!(next > token.get() / 64, "the next token is greater");
        }
        Err(RunError::Work(wrong)) => return Err(wrong),
        Err(_) => return Err(Wrong("the work did not run to its end".to_owned())),
    }
    Ok(())
}

async fn work_that_fails_gives_the_lock_back(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let work = a
        .documents(["d1", "d2"])
        .run(|_| async { Err::<(), _>("no") });
    let failed = work.await;
    ensure!(
        matches!(failed, Err(RunError::Work("no"))),
        "the work's own error: {failed:?}"
    );
    scene.free("d1").await?;
    scene.free("d2").await
}

/// Tells when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

async fn work_is_stopped_when_the_lock_is_lost(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let stopped = Arc::new(AtomicBool::new(false));
    let at_work = Dropped(stopped.clone());
    let inner = scene.clone();
    let work = a.lock("g").run(|held| async move {
        let _at_work = at_work;
        inner.end(held.session(), End::Revoke).await?;
        sleep(Duration::from_secs(3_600)).await;
        Verdict::<()>::Ok(())
    });
    let lost = soon("the work is stopped", work).await?;
    ensure!(
        matches!(lost, Err(RunError::Lost(_))),
        "the lock is lost: {lost:?}"
    );
    ensure!(
        stopped.load(Ordering::Acquire),
        "the work was stopped where it was"
    );
    Ok(())
}

async fn work_that_is_dropped_gives_the_lock_back(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let work = a.lock("g").run(|_| std::future::pending::<Verdict>());
    ensure!(
        tokio::time::timeout(Duration::from_millis(300), work)
            .await
            .is_err(),
        "the work never ends by itself"
    );
    release(acquired(a.lock("g")).await?).await
}

async fn a_refused_run_never_begins(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.lock("g")).await?;
    let run = b
        .lock("g")
        .wait(Duration::from_secs(1))
        .run(|_| async { Err::<(), _>(Wrong("the work began".to_owned())) });
    match run.await {
        Err(RunError::Acquire(error)) => drop(refusal(Err(error))?),
        other => ensure!(false, "somebody else holds it: {other:?}"),
    }
    release(guard).await
}

async fn attempts_under_way_are_bounded(scene: Scene) -> Verdict {
    let bounded = Locks::builder(scene.connect().await?)
        .max_attempts(2)
        .build()?;
    let tries = (0..20).map(|n| bounded.lock(format!("k{n}")).try_acquire());
    let mut limited = 0;
    let mut guards = Vec::new();
    for attempt in futures_util::future::join_all(tries).await {
        match attempt {
            Ok(lockcore::Attempt::Acquired(guard)) => guards.push(guard),
            Err(AcquireError::Input(InputError::TooMany { limit: 2, .. })) => limited += 1,
            other => return Err(Wrong(format!("granted or too many: {other:?}"))),
        }
    }
    ensure!(
        guards.len() >= 2 && limited > 0,
        "{} granted, {limited} too many",
        guards.len()
    );
    // Those that were too many have come back since.
    guards.push(granted(bounded.lock("later")).await?);
    for guard in guards {
        release(guard).await?;
    }
    Ok(())
}

async fn waiters_under_way_are_bounded(scene: Scene) -> Verdict {
    let (a, backend) = (locks(&scene).await?, scene.connect().await?);
    let bounded = Locks::builder(backend).max_waiters(2).build()?;
    release(acquired(bounded.lock("first")).await?).await?;
    let guard = granted(a.documents(["k0", "k1", "k2", "k3"])).await?;
    let limit = Duration::from_secs(3);
    let waits = (0..4).map(|n| bounded.lock(format!("k{n}")).wait(limit).acquire());
    let mut seen = [0, 0];
    for wait in futures_util::future::join_all(waits).await {
        match wait {
            Err(AcquireError::Busy(_)) => seen[0] += 1,
            Err(AcquireError::Input(InputError::TooMany { limit: 2, .. })) => seen[1] += 1,
            other => return Err(Wrong(format!("busy or too many: {other:?}"))),
        }
    }
    ensure_eq!(seen, [2, 2], "how many waited, and how many were too many");
    release(guard).await?;
    // Those that have gone make room, as soon as they have given up what they asked for.
    soon("there is room", async {
        loop {
            match bounded.lock("k0").wait(limit).acquire().await {
                Err(AcquireError::Input(InputError::TooMany { .. })) => {
                    sleep(Duration::from_millis(10)).await;
                }
                answer => return release(answer?).await,
            }
        }
    })
    .await?
}

async fn a_shutdown_gives_everything_back(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let kept = granted(a.lock("kept")).await?;
    let session = kept.session();
    for n in 0..10 {
        drop(granted(a.lock(format!("k{n}"))).await?);
    }
    drop(kept);
    ensure!(a.shutdown(SOON).await, "everything is given back in time");
    scene.is(session, Life::Dead).await?;
    for n in 0..10 {
        scene.free(&format!("k{n}")).await?;
    }
    scene.free("kept").await
}

async fn a_shutdown_waits_for_guards_until_its_limit(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let session = guard.session();
    ensure!(
        !a.shutdown(Duration::from_millis(200)).await,
        "a guard is still held"
    );
    ensure!(guard.is_valid() && guard.confirm().await?, "and stays held");
    scene.held("g").await?;
    release(guard).await?;
    ensure!(a.shutdown(SOON).await, "now everything is given back");
    scene.is(session, Life::Dead).await
}

async fn after_a_shutdown_nothing_is_acquired(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    release(granted(a.lock("g")).await?).await?;
    let clone = a.clone();
    ensure!(a.shutdown(SOON).await, "nothing is under way");
    let before = scene.journal().written();
    for late in [
        a.lock("g").acquire().await.err(),
        clone.documents(["d"]).acquire().await.err(),
        clone.tree().write("/t").try_acquire().await.err(),
    ] {
        ensure!(
            matches!(late, Some(AcquireError::Input(InputError::ShutDown))),
            "the client was shut down: {late:?}"
        );
    }
    ensure_eq!(
        scene.journal().written(),
        before,
        "requests after the shutdown"
    );
    Ok(())
}

async fn a_shutdown_ends_whoever_waits(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let own = granted(a.lock("g")).await?;
    let others = granted(b.lock("h")).await?;
    // One waits for its own process, and one for another.
    let wait = |name: &str| a.lock(name).acquire();
    let (first, second) = (wait("g"), wait("h"));
    let ends = async {
        sleep(Duration::from_millis(200)).await;
        let down = a.shutdown(Duration::from_millis(1)).await;
        ensure!(!down, "a guard is still there");
        Verdict::Ok(())
    };
    let all = Box::pin(async { tokio::join!(first, second, ends) });
    let ended = soon("waiters end", all).await?;
    ended.2?;
    for waited in [ended.0.err(), ended.1.err()] {
        ensure!(
            matches!(waited, Some(AcquireError::Input(InputError::ShutDown))),
            "the client was shut down: {waited:?}"
        );
    }
    ensure!(own.is_valid(), "what is held stays held");
    release(own).await?;
    release(others).await?;
    ensure!(a.shutdown(SOON).await, "nothing is under way");
    let (c, mut got) = (locks(&scene).await?, Vec::new());
    for name in ["g", "h"] {
        got.push(granted(c.lock(name)).await?);
    }
    Ok(())
}

/// The session is closed soon, which nobody waits for.
async fn closed(scene: &Scene, session: lockcore::SessionId) -> Verdict {
    soon("the session is closed", async {
        while scene.state(session).await?.life == Life::Living {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
    .await?
}

async fn the_last_clone_closes_the_session(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let session = guard.session();
    release(guard).await?;
    let clone = a.clone();
    drop(a);
    sleep(Duration::from_millis(100)).await;
    let again = granted(clone.lock("g")).await?;
    ensure_eq!(again.session(), session, "the session of the clone");
    release(again).await?;
    drop(clone);
    closed(&scene, session).await
}

async fn a_guard_outlives_its_locks(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let session = guard.session();
    drop(a);
    sleep(Duration::from_millis(100)).await;
    ensure!(
        guard.is_valid() && guard.confirm().await?,
        "it is still held"
    );
    scene.held("g").await?;
    ensure_eq!(guard.release().await?, Released::Released, "its release");
    closed(&scene, session).await?;
    scene.free("g").await
}

async fn a_kept_lock_is_held_for_its_time_and_no_longer(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let time = short(a.info()) * 2;
    let guard = acquired(a.lock("g").own_session()).await?;
    let held = guard.held();
    guard.keep_for(time).await.map_err(failed)?;
    let since = Instant::now();
    ensure!(!held.is_valid(), "nobody believes in it any more");
    ensure!(a.shutdown(SOON).await, "nothing is waited for");
    let busy = b.lock("g").try_acquire().await;
    in_time(since, time)?;
    ensure!(matches!(busy, Ok(Attempt::Busy(_))), "it is kept: {busy:?}");
    scene.expire(time).await;
    scene.free("g").await
}

async fn a_kept_lock_is_renewed_and_released_by_its_handle(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let time = short(a.info()) * 4;
    let guard = acquired(a.documents(["d1", "d2"]).own_session()).await?;
    let running = acquired(a.lock("g")).await?;
    let handle = guard.keep_for(time).await.map_err(failed)?.to_string();
    let other = acquired(a.lock("h").own_session()).await?;
    let other = other
        .keep_for(time * 100)
        .await
        .map_err(failed)?
        .to_string();
    let kept: Kept = handle.parse().map_err(failed)?;
    for _ in 0..3 {
        let state = b.renew_kept(&kept, time * 100).await.map_err(failed)?;
        ensure_eq!(state, KeptState::Held, "its renewal");
    }
    scene.expire(time).await;
    refused(b.documents(["d2"])).await?;
    // The secret of another one, and the session of a process that runs.
    let parts = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (mut of_other, mut of_running) = (parts(&handle), parts(&handle));
    of_other[2] = parts(&other)[2].clone();
    of_running[1] = running.session().to_string();
    let wrong: Kept = of_other.join(".").parse().map_err(failed)?;
    let refused = b.release_kept(&wrong).await;
    let input = matches!(refused, Err(KeepError::Input(InputError::WrongHandle)));
    ensure!(input, "another handle: {refused:?}");
    // That one keeps nothing.
    let wrong: Kept = of_running.join(".").parse().map_err(failed)?;
    let state = b.release_kept(&wrong).await.map_err(failed)?;
    ensure_eq!(state, KeptState::NotHeld, "a lock that is not kept");
    ensure!(running.confirm().await?, "the running process has its lock");
    let state = b.release_kept(&kept).await.map_err(failed)?;
    ensure_eq!(state, KeptState::Held, "its release");
    scene.free("d1").await?;
    scene.free("d2").await?;
    let state = b.renew_kept(&kept, time).await.map_err(failed)?;
    ensure_eq!(state, KeptState::NotHeld, "a renewal after its release");
    Ok(())
}

async fn a_schedule_runs_once_in_its_time(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let time = short(a.info()) * 3;
    let run = |locks: &Locks| {
        let schedule = locks.schedule("g").at_least(time);
        schedule.run(|_| async { Verdict::Ok(()) })
    };
    let since = Instant::now();
    let first = run(&a).await;
    ensure!(
        matches!(
            first,
            Ok(Turn::Ran {
                kept: Ok(Some(_)),
                ..
            })
        ),
        "{first:?}"
    );
    for locks in [&a, &b] {
        let again = run(locks).await;
        in_time(since, time)?;
        ensure!(
            matches!(again, Ok(Turn::Taken(_))),
            "in the same time: {again:?}"
        );
    }
    scene.expire(time).await;
    let next = run(&b).await;
    ensure!(matches!(next, Ok(Turn::Ran { .. })), "{next:?}");
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Unpassed {
    Wrong(error.to_string())
}

async fn a_holder_hears_that_it_is_asked_for_the_lock(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let (guard, other) = (acquired(a.lock("g")).await?, acquired(a.lock("h")).await?);
    let reason = Label::parse("maintenance").map_err(failed)?;
    let key = LockKey::parse("g").map_err(failed)?;
    ensure_eq!(b.ask(&key, reason.clone()).await?, 1, "how many are asked");
    let note = soon("the holder is told", guard.asked()).await?;
    ensure_eq!(note.reason, reason, "why");
    ensure!(guard.is_valid(), "it is held all the same");
    ensure!(guard.confirm().await?, "in the store, too");
    let nobody = timeout(Duration::ZERO, other.asked()).await;
    ensure!(nobody.is_err(), "nobody has asked for the other one");
    release(guard).await?;
    let again = acquired(b.lock("g")).await?;
    let next = acquired(a.lock("i")).await?;
    for fresh in [&again, &next] {
        let asked = timeout(Duration::ZERO, fresh.asked()).await;
        ensure!(asked.is_err(), "who has it next was not asked");
    }
    let nobody = LockKey::parse("free").map_err(failed)?;
    ensure_eq!(b.ask(&nobody, reason).await?, 0, "of a free key");
    Ok(())
}

async fn one_candidate_leads_and_the_next_one_after_it(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let of = |locks: &Locks| locks.election("e").map_err(failed);
    let (one, two, observer) = (of(&a)?, of(&b)?, of(&b)?);
    ensure_eq!(observer.leader().await?, None, "nobody leads");
    let first = one.campaign().await?;
    ensure!(two.try_campaign().await?.is_none(), "one leads");
    let mut leaders = pin!(observer.observe());
    let seen = soon("the first is seen", leaders.next()).await?;
    let seen = seen.ok_or_else(|| failed("the stream has ended"))??;
    ensure_eq!(seen.token, first.token(), "the token of the first");
    ensure_eq!(seen.session, first.session(), "its session");
    let (next, resigned) = tokio::join!(two.campaign(), first.resign());
    ensure_eq!(resigned?, Released::Released, "its resignation");
    let next = next?;
    let seen = soon("the second is seen", leaders.next()).await?;
    let seen = seen.ok_or_else(|| failed("the stream has ended"))??;
    ensure_eq!(seen.token, next.token(), "the token of the second");
    scene.end(next.session(), End::Revoke).await?;
    soon("the second is told", next.lost()).await?;
    ensure_eq!(observer.leader().await?, None, "nobody leads again");
    Ok(())
}
