//! Finishing or undoing what a dead holder left, by hand and by a handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use lockcore::backend::End;
use lockcore::{
    AcquireError, FencingToken, Intent, Life, Locks, Recover, RecoverError, Recovery, SessionId,
};
use tokio::time::sleep;

use crate::case::Case;
use crate::client::{SOON, acquired, granted, locks, refused, release, settles, soon};
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "recovering";
        Recovery:
            an_adopted_change_comes_with_its_intent,
            a_settled_change_frees_its_locks,
            a_change_that_was_given_up_is_the_next_ones,
            a_dropped_recovery_is_the_next_ones,
            an_adopter_that_died_is_followed_by_the_next,
            of_rivals_one_adopts,
            what_is_not_abandoned_is_not_adopted,
            a_discarded_change_is_not_settled,
            a_handler_runs_before_the_guard_is_handed_out,
            a_handler_runs_for_an_attempt_too,
            a_handler_that_fails_leaves_the_change,
            a_handler_finishes_several_changes,
            handlers_of_several_processes_never_run_at_once,
            a_waiter_runs_its_handler_when_the_holder_dies;
        TokensOnlyRise:
            a_recovery_has_a_greater_token;
    }
}

const INTENT: &[u8] = b"move /a to /b";

/// A process that left its change on `g` and went; its session and its token.
async fn left(scene: &Scene, key: &str) -> Verdict<(SessionId, FencingToken)> {
    let a = locks(scene).await?;
    let guard = granted(a.lock(key).intent_bytes(Intent::new(INTENT)?)).await?;
    let (session, token) = (guard.session(), guard.token());
    drop(guard);
    ensure!(a.shutdown(SOON).await, "the process is gone");
    scene.is(session, Life::Abandoned).await?;
    Ok((session, token))
}

async fn adopted(locks: &Locks, session: SessionId) -> Verdict<Recovery> {
    let recovery = locks.adopt(session).await?;
    recovery.ok_or_else(|| Wrong(format!("{session} is abandoned and was not adopted")))
}

async fn an_adopted_change_comes_with_its_intent(scene: Scene) -> Verdict {
    let (session, token) = left(&scene, "g").await?;
    let b = locks(&scene).await?;
    let recovery = adopted(&b, session).await?;
    ensure_eq!(recovery.intent().as_bytes(), INTENT, "the intent");
    ensure_eq!(
        recovery.old_token(),
        token,
        "the token of the holder that died"
    );
    ensure_eq!(recovery.session().session, session, "the session");
    ensure!(recovery.is_valid(), "the adoption is this process's");
    refused_or_abandoned(&b).await?;
    settles(recovery).await
}

/// The lock is not free.
async fn refused_or_abandoned(locks: &Locks) -> Verdict {
    match locks.lock("g").try_acquire().await {
        Ok(lockcore::Attempt::Busy(_)) | Err(AcquireError::Abandoned(_)) => Ok(()),
        other => Err(Wrong(format!(
            "the lock of an unfinished change is not free: {other:?}"
        ))),
    }
}

async fn a_settled_change_frees_its_locks(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let (b, c) = (locks(&scene).await?, locks(&scene).await?);
    ensure!(adopted(&b, session).await?.settle().await?, "it is settled");
    release(granted(c.lock("g")).await?).await?;
    scene.is(session, Life::Dead).await?;
    ensure!(
        b.adopt(session).await?.is_none(),
        "there is nothing more to adopt"
    );
    Ok(())
}

async fn a_change_that_was_given_up_is_the_next_ones(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let (b, c) = (locks(&scene).await?, locks(&scene).await?);
    for locks in [&b, &b, &c] {
        adopted(locks, session).await?.give_up().await?;
        ensure_eq!(scene.state(session).await?.adopter, None, "the adopter");
    }
    let recovery = adopted(&c, session).await?;
    ensure_eq!(recovery.intent().as_bytes(), INTENT, "the intent");
    settles(recovery).await
}

async fn a_dropped_recovery_is_the_next_ones(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let (b, c) = (locks(&scene).await?, locks(&scene).await?);
    drop(adopted(&b, session).await?);
    let next = soon("the next adopts", async {
        loop {
            if let Some(recovery) = c.adopt(session).await? {
                return Verdict::Ok(recovery);
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    ensure!(next.await??.settle().await?, "it is settled");
    Ok(())
}

async fn an_adopter_that_died_is_followed_by_the_next(scene: Scene) -> Verdict {
    let (session, token) = left(&scene, "g").await?;
    let (b, c) = (locks(&scene).await?, locks(&scene).await?);
    let first = adopted(&b, session).await?;
    ensure!(c.adopt(session).await?.is_none(), "a living adopter has it");
    let Some(adopter) = scene.state(session).await?.adopter else {
        return Err(Wrong("an adopted session names its adopter".to_owned()));
    };
    scene.end(adopter, End::Revoke).await?;
    let next = adopted(&c, session).await?;
    ensure_eq!(
        (next.intent().as_bytes(), next.old_token()),
        (INTENT, token),
        "what was left"
    );
    soon("the first is told", first.lost()).await?;
    ensure!(!first.is_valid(), "the first has lost it");
    ensure!(!first.settle().await?, "it is not settled by this one");
    refused_or_abandoned(&c).await?;
    settles(next).await?;
    release(granted(c.lock("g")).await?).await
}

async fn of_rivals_one_adopts(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let mut rivals = Vec::new();
    for _ in 0..4 {
        rivals.push(locks(&scene).await?);
    }
    let adoptions = join_all(rivals.iter().map(|rival| rival.adopt(session))).await;
    let mut recoveries = Vec::new();
    for adoption in adoptions {
        recoveries.extend(adoption?);
    }
    ensure_eq!(recoveries.len(), 1, "adopters of one session");
    for recovery in recoveries {
        settles(recovery).await?;
    }
    Ok(())
}

async fn what_is_not_abandoned_is_not_adopted(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let living = granted(a.lock("g").intent_bytes(Intent::new(INTENT)?)).await?;
    ensure!(
        b.adopt(living.session()).await?.is_none(),
        "a living session"
    );
    let session = living.session();
    release(living).await?;
    ensure!(b.adopt(session).await?.is_none(), "a finished session");
    ensure!(
        b.adopt(scene.session_id()).await?.is_none(),
        "a session that never was"
    );
    ensure_eq!(b.abandoned().await?, [], "abandoned sessions");
    Ok(())
}

async fn a_discarded_change_is_not_settled(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let b = locks(&scene).await?;
    let recovery = adopted(&b, session).await?;
    scene.end(session, End::Discard).await?;
    ensure!(!recovery.settle().await?, "it is not settled by this one");
    release(granted(b.lock("g")).await?).await
}

async fn a_recovery_has_a_greater_token(scene: Scene) -> Verdict {
    let (session, token) = left(&scene, "g").await?;
    let b = locks(&scene).await?;
    let between = granted(b.lock("between")).await?;
    let recovery = adopted(&b, session).await?;
    ensure!(
        recovery.token() > token,
        "the recovery's token after the holder's"
    );
    ensure!(recovery.token() > between.token(), "and after every other");
    let last = recovery.token();
    settles(recovery).await?;
    let next = granted(b.lock("g")).await?;
    ensure!(
        next.token() > last,
        "the next holder's token after the recovery's"
    );
    Ok(())
}

/// A handler that counts its runs, and fails the first few of them.
#[derive(Default)]
struct Handler {
    runs: AtomicUsize,
    failures: usize,
    inside: Arc<AtomicUsize>,
    crowded: Arc<AtomicUsize>,
}

#[async_trait]
impl Recover for Handler {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.crowded.fetch_add(1, Ordering::SeqCst);
        }
        sleep(Duration::from_millis(20)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        if recovery.intent().as_bytes() != INTENT || !recovery.is_valid() {
            return Err("not the change that was left".into());
        }
        if run < self.failures {
            return Err("cannot finish it yet".into());
        }
        Ok(())
    }
}

/// Lets a case look at the handler that its locks have.
struct Lent(Arc<Handler>);

#[async_trait]
impl Recover for Lent {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        self.0.recover(recovery).await
    }
}

async fn handled(scene: &Scene, handler: Handler) -> Verdict<(Locks, Arc<Handler>)> {
    let handler = Arc::new(handler);
    let locks = Locks::builder(scene.connect().await?).recovery(Lent(handler.clone()));
    Ok((locks.build()?, handler))
}

async fn a_handler_runs_before_the_guard_is_handed_out(scene: Scene) -> Verdict {
    let (session, token) = left(&scene, "g").await?;
    let (b, handler) = handled(&scene, Handler::default()).await?;
    let guard = acquired(b.lock("g")).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        1,
        "runs of the handler"
    );
    ensure!(
        guard.token() > token,
        "the guard's token after the dead holder's"
    );
    scene.is(session, Life::Dead).await?;
    release(guard).await?;
    release(acquired(b.lock("g")).await?).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        1,
        "runs of the handler, later"
    );
    Ok(())
}

async fn a_handler_runs_for_an_attempt_too(scene: Scene) -> Verdict {
    left(&scene, "g").await?;
    let (b, handler) = handled(&scene, Handler::default()).await?;
    release(granted(b.lock("g")).await?).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        1,
        "runs of the handler"
    );
    Ok(())
}

async fn a_handler_that_fails_leaves_the_change(scene: Scene) -> Verdict {
    let (session, _) = left(&scene, "g").await?;
    let failing = Handler {
        failures: 2,
        ..Handler::default()
    };
    let (b, handler) = handled(&scene, failing).await?;
    for _ in 0..2 {
        match b.lock("g").wait(SOON).acquire().await {
            Err(AcquireError::Abandoned(abandoned)) => {
                ensure_eq!(
                    abandoned.sessions[0].session,
                    session,
                    "the session in the way"
                );
                let why = abandoned.recovery.map(|error| error.to_string());
                ensure_eq!(
                    why.as_deref(),
                    Some("cannot finish it yet"),
                    "why it was not finished"
                );
            }
            other => return Err(Wrong(format!("the handler failed: {other:?}"))),
        }
        scene.is(session, Life::Abandoned).await?;
        ensure_eq!(scene.state(session).await?.adopter, None, "its adopter");
        scene.held("g").await?;
    }
    release(acquired(b.lock("g")).await?).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        3,
        "runs of the handler"
    );
    Ok(())
}

async fn a_handler_finishes_several_changes(scene: Scene) -> Verdict {
    for key in ["d1", "d3", "d5"] {
        left(&scene, key).await?;
    }
    let (b, handler) = handled(&scene, Handler::default()).await?;
    let guard = acquired(b.documents(["d1", "d2", "d3", "d4", "d5"])).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        3,
        "runs of the handler"
    );
    ensure!(guard.confirm().await?, "all of it is held");
    ensure_eq!(b.abandoned().await?, [], "abandoned sessions");
    release(guard).await
}

async fn handlers_of_several_processes_never_run_at_once(scene: Scene) -> Verdict {
    let (inside, crowded) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    left(&scene, "g").await?;
    let mut processes = Vec::new();
    for _ in 0..4 {
        let handler = Handler {
            inside: inside.clone(),
            crowded: crowded.clone(),
            ..Handler::default()
        };
        processes.push(handled(&scene, handler).await?);
    }
    let turns = processes.iter().map(async |(locks, _)| -> Verdict {
        // Somebody else is at it: look again.
        soon("the lock is acquired", async {
            loop {
                match locks.lock("g").wait(SOON).acquire().await {
                    Ok(guard) => return release(guard).await,
                    Err(AcquireError::Abandoned(_) | AcquireError::Busy(_)) => {
                        sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        })
        .await?
    });
    try_join_all(turns).await?;
    let runs: usize = processes
        .iter()
        .map(|(_, handler)| handler.runs.load(Ordering::SeqCst))
        .sum();
    ensure_eq!(
        (runs, crowded.load(Ordering::SeqCst)),
        (1, 0),
        "runs of the handlers, and those at once"
    );
    Ok(())
}

async fn a_waiter_runs_its_handler_when_the_holder_dies(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let (b, handler) = handled(&scene, Handler::default()).await?;
    let guard = granted(a.lock("g").intent_bytes(Intent::new(INTENT)?)).await?;
    refused(b.lock("g")).await?;
    let (next, ()) = futures_util::future::join(acquired(b.lock("g")), async {
        sleep(Duration::from_millis(100)).await;
        drop(guard);
    })
    .await;
    release(next?).await?;
    ensure_eq!(
        handler.runs.load(Ordering::SeqCst),
        1,
        "runs of the handler"
    );
    Ok(())
}
