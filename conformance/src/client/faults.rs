//! Answers that are lost and requests that arrive twice: unknown is not busy and not free.

use std::time::Duration;

use lockcore::{AcquireError, Attempt, ErrorKind, Locks, Released};
use tokio::time::Instant;

use crate::case::Case;
use crate::client::{SOON, acquired, given_back, granted, locks, refused, settles, soon, wired};
use crate::decorator::Decorated;
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, at_most, cases, ensure, ensure_eq};
use crate::wire::{Fault, Wire};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "faults";
        UnknownIsSettled:
            lost_answers_lose_no_lock,
            lost_answers_leave_no_lock_behind,
            lost_answers_never_make_two_holders,
            lost_answers_of_a_refused_attempt_leave_nothing,
            lost_answers_of_a_cancelled_acquisition_leave_nothing,
            doubled_requests_are_one_grant,
            a_request_that_arrives_after_its_release_holds_nothing,
            a_copy_that_the_store_makes_later_is_healed,
            a_store_that_cannot_be_reached_is_not_busy,
            a_wait_ends_though_the_store_hangs,
            what_was_asked_before_the_store_hung_is_given_back;
        Recovery:
            intents_survive_lost_answers;
        TokensOnlyRise:
            tokens_rise_over_lost_answers;
    }
}

/// A client whose way to the store can be disturbed, and that does not bear it for long.
async fn disturbed(scene: &Scene) -> Verdict<(Locks, std::sync::Arc<Decorated<Wire>>)> {
    let wire = Wire::new(scene.connect().await?);
    let locks = Locks::builder(wire.clone())
        .patience(Duration::from_secs(2))
        .build()?;
    Ok((locks, wire))
}

/// Everything that the client may hold is free when it is shut down.
async fn nothing_left(scene: &Scene, locks: Locks, wire: &Wire, keys: &[&str]) -> Verdict {
    wire.set(Fault::None);
    ensure!(locks.shutdown(SOON).await, "everything is given back");
    for key in keys {
        scene.free(key).await?;
    }
    Ok(())
}

const KEYS: [&str; 6] = ["g", "s", "d1", "d2", "/t", "/u"];

async fn each_scheme(a: &Locks) -> Verdict {
    given_back(acquired(a.lock("g")).await?).await?;
    given_back(acquired(a.semaphore("s", 1)).await?).await?;
    given_back(acquired(a.documents(["d1", "d2"])).await?).await?;
    given_back(acquired(a.tree().write("/t/m").read("/u")).await?).await
}

async fn lost_answers_lose_no_lock(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    for _ in 0..4 {
        let guard = acquired(a.tree().write("/t/m").read("/u")).await?;
        refused(b.tree().write("/t")).await?;
        refused(b.tree().write("/u/v")).await?;
        ensure!(guard.is_valid(), "it is held");
        given_back(guard).await?;
        given_back(granted(b.tree().write("/t").write("/u")).await?).await?;
    }
    nothing_left(&scene, a, &wire, &KEYS).await
}

async fn lost_answers_leave_no_lock_behind(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    for _ in 0..4 {
        each_scheme(&a).await?;
        // At once, while the client lives on.
        each_scheme(&b).await?;
    }
    nothing_left(&scene, a, &wire, &KEYS).await
}

async fn lost_answers_never_make_two_holders(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    for n in 0..6 {
        let guard = acquired(a.lock("g")).await?;
        let holders = scene.held("g").await?;
        ensure_eq!(holders.len(), 1, "holders after {n} rounds, {holders:?}");
        refused(b.lock("g")).await?;
        drop(guard);
        given_back(acquired(b.lock("g")).await?).await?;
    }
    nothing_left(&scene, a, &wire, &KEYS).await
}

async fn lost_answers_of_a_refused_attempt_leave_nothing(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    let taken = granted(b.documents(["d2"])).await?;
    wire.set(Fault::LosesAnswers);
    for _ in 0..4 {
        refused(a.documents(["d1", "d2", "d3"])).await?;
        given_back(acquired(b.documents(["d1", "d3"])).await?).await?;
    }
    given_back(taken).await?;
    nothing_left(&scene, a, &wire, &["d1", "d2", "d3"]).await
}

async fn lost_answers_of_a_cancelled_acquisition_leave_nothing(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    for polls in 0..15 {
        let mut acquisition = Box::pin(a.documents(["d1", "d2"]).acquire());
        for _ in 0..polls {
            if futures_util::poll!(&mut acquisition).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquisition);
        given_back(acquired(b.documents(["d1", "d2"])).await?).await?;
    }
    nothing_left(&scene, a, &wire, &["d1", "d2"]).await
}

async fn doubled_requests_are_one_grant(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::Doubles);
    for _ in 0..3 {
        each_scheme(&a).await?;
        each_scheme(&b).await?;
    }
    let one = acquired(a.semaphore("s", 2)).await?;
    let two = acquired(b.semaphore("s", 2)).await?;
    refused(b.semaphore("s", 2)).await?;
    given_back(one).await?;
    given_back(two).await?;
    nothing_left(&scene, a, &wire, &KEYS).await
}

async fn a_request_that_arrives_after_its_release_holds_nothing(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    let held = acquired(a.lock("held meanwhile")).await?;
    for cancelled in [false, true] {
        wire.set(Fault::Postpones);
        if cancelled {
            let acquisition = a.documents(["d1", "d2"]).acquire();
            let late = tokio::time::timeout(Duration::from_millis(200), acquisition).await;
            ensure!(late.is_err(), "nobody answers: {late:?}");
        } else {
            let failed = a.documents(["d1", "d2"]).try_acquire().await;
            ensure!(
                matches!(&failed, Err(AcquireError::Store(_))),
                "an outcome that stays unknown is an error: {failed:?}"
            );
        }
        // Its release was sent by now, and only now the request itself arrives.
        tokio::time::sleep(Duration::from_secs(1)).await;
        wire.set(Fault::None);
        let delivered = wire.deliver().await?;
        ensure!(delivered > 0, "something was under way (the case's own)");
        given_back(acquired(b.documents(["d1", "d2"])).await?).await?;
    }
    ensure!(held.confirm().await?, "the other lock is held");
    given_back(held).await?;
    nothing_left(&scene, a, &wire, &["d1", "d2"]).await
}

async fn a_copy_that_the_store_makes_later_is_healed(scene: Scene) -> Verdict {
    let (a, wire, ttl) = wired(&scene).await?;
    let b = locks(&scene).await?;
    // The session lives on, and is renewed.
    let held = acquired(a.lock("held meanwhile")).await?;
    for _ in 0..2 {
        wire.set(Fault::Repeats);
        given_back(acquired(a.tree().write("/t/m")).await?).await?;
        given_back(acquired(a.documents(["d1", "d2"])).await?).await?;
        wire.set(Fault::None);
        ensure!(
            wire.deliver().await? >= 2,
            "both came again (the case's own)"
        );
        // The next renewal says that they are over.
        given_back(b.tree().write("/t").wait(ttl + SOON).acquire().await?).await?;
        given_back(b.documents(["d2"]).wait(ttl + SOON).acquire().await?).await?;
    }
    ensure!(held.confirm().await?, "the other lock is held");
    given_back(held).await?;
    nothing_left(&scene, a, &wire, &["d1", "d2", "/t"]).await
}

async fn a_store_that_cannot_be_reached_is_not_busy(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    // With a session that is open, and before there is one.
    for opened in [false, true] {
        if opened {
            given_back(acquired(a.lock("g")).await?).await?;
        }
        wire.set(Fault::Refuses);
        for answer in [
            a.lock("g")
                .try_acquire()
                .await
                .map(|attempt| matches!(attempt, Attempt::Busy(_))),
            a.lock("g").wait(SOON).acquire().await.map(|_| false),
        ] {
            match answer {
                Err(AcquireError::Store(error)) => {
                    ensure_eq!(error.kind(), ErrorKind::Unavailable, "the error {error}");
                }
                other => return Err(Wrong(format!("the store cannot be reached: {other:?}"))),
            }
        }
        wire.set(Fault::None);
    }
    given_back(acquired(a.lock("g")).await?).await?;
    nothing_left(&scene, a, &wire, &["g"]).await
}

async fn a_wait_ends_though_the_store_hangs(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    given_back(acquired(a.lock("g")).await?).await?;
    wire.set(Fault::Hangs);
    let (since, limit) = (Instant::now(), Duration::from_millis(500));
    let late = a.lock("g").wait(limit).acquire().await;
    ensure!(
        matches!(late, Err(AcquireError::Store(_))),
        "an outcome that is not known is no refusal: {late:?}"
    );
    let took = since.elapsed();
    ensure!(took >= limit, "a wait of {limit:?} ended after {took:?}");
    at_most(since, limit + Duration::from_secs(2), "the wait")
}

async fn what_was_asked_before_the_store_hung_is_given_back(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let waiter = a.documents(["d1", "d2"]).wait(Duration::from_millis(400));
    let taken = granted(b.documents(["d2"])).await?;
    let cut = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        wire.set(Fault::Refuses);
    };
    let (late, ()) = futures_util::future::join(waiter.acquire(), cut).await;
    ensure!(late.is_err(), "the store was cut off: {late:?}");
    given_back(taken).await?;
    wire.set(Fault::None);
    given_back(acquired(b.documents(["d1", "d2"])).await?).await?;
    ensure_eq!(
        soon("the release", guard.release()).await??,
        Released::Released,
        "the guard held before"
    );
    nothing_left(&scene, a, &wire, &["d1", "d2", "g"]).await
}

async fn intents_survive_lost_answers(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    for _ in 0..3 {
        let guard = acquired(a.lock("g").intent(&"finished")?).await?;
        given_back(guard).await?;
        given_back(granted(b.lock("g")).await?).await?;
        let guard = acquired(a.lock("g").intent(&"left behind")?).await?;
        let session = guard.session();
        drop(guard);
        let left = soon("the change is left behind", async {
            loop {
                match b.adopt(session).await? {
                    Some(recovery) => return Verdict::Ok(recovery),
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        let recovery = left.await??;
        ensure_eq!(
            recovery.intent().as_bytes(),
            br#""left behind""#,
            "the intent"
        );
        settles(recovery).await?;
        given_back(granted(b.lock("g")).await?).await?;
    }
    nothing_left(&scene, a, &wire, &["g"]).await
}

async fn tokens_rise_over_lost_answers(scene: Scene) -> Verdict {
    let (a, wire) = disturbed(&scene).await?;
    let b = locks(&scene).await?;
    wire.set(Fault::LosesAnswers);
    let mut last = None;
    for _ in 0..5 {
        for locks in [&a, &b] {
            let guard = acquired(locks.documents(["d1", "d2"])).await?;
            ensure!(
                Some(guard.token()) > last,
                "token {} after {last:?}",
                guard.token()
            );
            last = Some(guard.token());
            given_back(guard).await?;
        }
    }
    nothing_left(&scene, a, &wire, &["d1", "d2"]).await
}
