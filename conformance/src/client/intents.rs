//! Intents through the client: only a release says that the change is finished.

use std::time::Duration;

use lockcore::backend::End;
use lockcore::{AcquireError, Acquisition, Guard, Intent, Life, Locks, RunError, SessionId};
use tokio::time::sleep;

use crate::case::Case;
use crate::client::{SOON, acquired, ended, granted, locks, refusal, refused, release, soon};
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "intents";
        Recovery:
            a_released_guard_leaves_no_intent,
            a_dropped_guard_leaves_its_intent,
            a_guard_dropped_by_a_panic_leaves_its_intent,
            work_that_fails_leaves_its_intent,
            work_that_succeeds_leaves_none,
            work_that_is_dropped_leaves_its_intent,
            a_lost_guard_leaves_its_intent,
            a_process_that_dies_leaves_its_intent,
            an_acquisition_with_an_intent_has_a_session_of_its_own,
            an_intent_holds_the_whole_set_and_tree,
            a_very_large_set_with_an_intent;
        NothingKept:
            a_refused_acquisition_leaves_no_intent,
            a_cancelled_acquisition_leaves_no_intent,
            a_shutdown_leaves_no_finished_intent;
        RefusalIsAValue:
            an_intent_at_work_is_a_refusal_like_any_other;
    }
}

fn with_intent<S>(acquisition: Acquisition<S>) -> Verdict<Acquisition<S>> {
    Ok(acquisition.intent_bytes(Intent::new(&b"what I was about to do"[..])?))
}

/// Soon, this session is abandoned, and in everybody's way.
async fn left_behind(
    scene: &Scene,
    session: SessionId,
    acquire: impl AsyncFn() -> Verdict<Option<AcquireError>>,
) -> Verdict {
    soon("the change is left behind", async {
        while scene.state(session).await?.life == Life::Living {
            sleep(Duration::from_millis(20)).await;
        }
        Verdict::Ok(())
    })
    .await??;
    scene.is(session, Life::Abandoned).await?;
    match acquire().await? {
        Some(AcquireError::Abandoned(abandoned)) => {
            let sessions: Vec<SessionId> = abandoned
                .sessions
                .iter()
                .map(|state| state.session)
                .collect();
            ensure_eq!(sessions, [session], "the sessions in the way");
            ensure!(abandoned.recovery.is_none(), "there is no recovery handler");
            Ok(())
        }
        other => Err(Wrong(format!(
            "an abandoned change is in the way: {other:?}"
        ))),
    }
}

async fn try_global(b: &Locks) -> Verdict<Option<AcquireError>> {
    Ok(b.lock("g").try_acquire().await.err())
}

async fn a_released_guard_leaves_no_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for _ in 0..3 {
        let guard = granted(with_intent(a.lock("g"))?).await?;
        let session = guard.session();
        release(guard).await?;
        release(granted(b.lock("g")).await?).await?;
        ensure!(
            scene.state(session).await?.life != Life::Abandoned,
            "it was finished"
        );
    }
    ensure_eq!(b.abandoned().await?, [], "abandoned sessions");
    Ok(())
}

async fn a_dropped_guard_leaves_its_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(with_intent(a.lock("g"))?).await?;
    let session = guard.session();
    drop(guard);
    left_behind(&scene, session, async || try_global(&b).await).await?;
    let abandoned: Vec<SessionId> = b
        .abandoned()
        .await?
        .iter()
        .map(|state| state.session)
        .collect();
    ensure_eq!(abandoned, [session], "abandoned sessions");
    // Not for the process that left it either.
    left_behind(&scene, session, async || try_global(&a).await).await
}

async fn a_guard_dropped_by_a_panic_leaves_its_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(with_intent(a.lock("g"))?).await?;
    let session = guard.session();
    // `resume_unwind` unwinds without a message on the screen.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work panicked"))
    }));
    ensure!(panicked.is_err(), "the work panicked (the case's own)");
    left_behind(&scene, session, async || try_global(&b).await).await
}

async fn work_that_fails_leaves_its_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let work = with_intent(a.lock("g"))?.run(|held| async move { Err::<(), _>(held.session()) });
    match work.await {
        Err(RunError::Work(session)) => {
            left_behind(&scene, session, async || try_global(&b).await).await
        }
        other => Err(Wrong(format!("the work's own error: {other:?}"))),
    }
}

async fn work_that_succeeds_leaves_none(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let work = with_intent(a.lock("g"))?.run(|_| async { Verdict::Ok(7) });
    let done = work.await;
    ensure!(
        matches!(done, Ok((7, Ok(_)))),
        "the work's own result: {done:?}"
    );
    release(granted(b.lock("g")).await?).await
}

async fn work_that_is_dropped_leaves_its_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = with_intent(a.lock("g"))?.run(|held| async move {
        let _ = tell.send(held.session());
        std::future::pending::<Verdict>().await
    });
    let session = tokio::select! {
        _ = work => return Err(Wrong("the work ended".to_owned())),
        session = told => session?,
    };
    left_behind(&scene, session, async || try_global(&b).await).await
}

async fn a_lost_guard_leaves_its_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(with_intent(a.lock("g"))?).await?;
    let session = guard.session();
    scene.end(session, End::Revoke).await?;
    soon("the guard is lost", guard.lost()).await?;
    let released = guard.release().await?;
    ensure_eq!(
        released,
        lockcore::Released::NotHeld,
        "the release of what was lost"
    );
    left_behind(&scene, session, async || try_global(&b).await).await
}

async fn a_process_that_dies_leaves_its_intent(scene: Scene) -> Verdict {
    let b = locks(&scene).await?;
    let ttl = short(b.info());
    let dead = scene.actor_for(ttl).await?;
    let held = dead.ask(&[crate::scene::exclusive("g")]);
    let token = dead.take(&held).await?;
    dead.intend(token, "half done").await?;
    // It is in the way of whoever waits as soon as it is due.
    let late = b
        .lock("g")
        .wait(ttl + scene.space().allowance() + SOON)
        .acquire()
        .await;
    let late = std::sync::Mutex::new(late.err());
    left_behind(&scene, dead.session(), async || {
        Ok(late
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take())
    })
    .await
}

async fn an_acquisition_with_an_intent_has_a_session_of_its_own(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let plain = granted(a.lock("plain")).await?;
    let one = granted(with_intent(a.lock("one"))?).await?;
    let two = granted(with_intent(a.documents(["two", "three"]))?).await?;
    let sessions = [plain.session(), one.session(), two.session()];
    ensure!(
        sessions[0] != sessions[1] && sessions[0] != sessions[2] && sessions[1] != sessions[2],
        "each intent has a session of its own: {sessions:?}"
    );
    drop(one);
    release(two).await?;
    ensure!(plain.confirm().await?, "the others are held");
    release(plain).await?;
    scene.held("one").await?;
    Ok(())
}

async fn an_intent_holds_the_whole_set_and_tree(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let set = granted(with_intent(a.documents((0..7).map(|n| format!("d{n}"))))?).await?;
    let tree = granted(with_intent(a.tree().write("/to/x").write("/from/x"))?).await?;
    let sessions = [set.session(), tree.session()];
    drop(set);
    drop(tree);
    for n in 0..7 {
        let id = format!("d{n}");
        left_behind(&scene, sessions[0], async || {
            Ok(b.documents([&id]).try_acquire().await.err())
        })
        .await?;
    }
    for path in ["/to", "/from/x/y"] {
        left_behind(&scene, sessions[1], async || {
            Ok(b.tree().write(path).try_acquire().await.err())
        })
        .await?;
    }
    Ok(())
}

async fn a_very_large_set_with_an_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let ids: Vec<String> = (0..a.info().keys_per_batch * 10 + 1)
        .map(|n| format!("d{n}"))
        .collect();
    let last = &ids[ids.len() - 1];
    let guard = acquired(with_intent(a.documents(&ids))?).await?;
    refused(b.documents([last])).await?;
    release(guard).await?;
    release(granted(b.documents([last])).await?).await?;
    let guard: Guard = acquired(with_intent(a.documents(&ids))?).await?;
    let session = guard.session();
    drop(guard);
    for id in [&ids[0], last] {
        left_behind(&scene, session, async || {
            Ok(b.documents([id]).try_acquire().await.err())
        })
        .await?;
    }
    Ok(())
}

async fn a_refused_acquisition_leaves_no_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let taken = granted(b.documents(["d3"])).await?;
    for _ in 0..3 {
        refused(with_intent(a.documents(["d1", "d2", "d3"]))?).await?;
        let wait = Duration::from_secs(1);
        let late = with_intent(a.documents(["d1", "d2", "d3"]))?
            .wait(wait)
            .acquire()
            .await;
        refusal(late)?;
    }
    release(acquired(b.documents(["d1", "d2"])).await?).await?;
    release(taken).await?;
    ended([&a]).await?;
    ensure_eq!(b.abandoned().await?, [], "abandoned sessions");
    release(granted(b.documents(["d1", "d2", "d3"])).await?).await
}

async fn a_cancelled_acquisition_leaves_no_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for polls in 0..25 {
        let mut acquisition = Box::pin(with_intent(a.lock("g"))?.acquire());
        let mut granted = false;
        for _ in 0..polls {
            if let std::task::Poll::Ready(guard) = futures_util::poll!(&mut acquisition) {
                // Too late: this one began, and is finished as it should be.
                release(guard?).await?;
                granted = true;
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquisition);
        release(acquired(b.lock("g")).await?).await?;
        if granted {
            break;
        }
    }
    ended([&a]).await?;
    ensure_eq!(b.abandoned().await?, [], "abandoned sessions");
    Ok(())
}

async fn a_shutdown_leaves_no_finished_intent(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    release(granted(with_intent(a.lock("finished"))?).await?).await?;
    drop(granted(with_intent(a.lock("left"))?).await?);
    ensure!(a.shutdown(SOON).await, "everything is given back");
    release(granted(b.lock("finished")).await?).await?;
    ensure_eq!(b.abandoned().await?.len(), 1, "abandoned sessions");
    scene.held("left").await?;
    Ok(())
}

async fn an_intent_at_work_is_a_refusal_like_any_other(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(with_intent(a.lock("g"))?).await?;
    let busy = refused(b.lock("g")).await?;
    ensure_eq!(
        busy.first().holders[0].life,
        Life::Living,
        "the holder in the way"
    );
    ensure!(
        !format!("{busy:?}").contains("about to do"),
        "a refusal carries no intent: {busy:?}"
    );
    ensure!(
        b.adopt(guard.session()).await?.is_none(),
        "nobody adopts a living session"
    );
    ensure!(guard.confirm().await?, "it is held");
    release(guard).await
}
