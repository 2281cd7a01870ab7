//! Watches over sessions: their owner hears of what somebody else does to them.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::FutureExt;
use lockcore::backend::{Changed, End, IntentChange};
use lockcore::{Label, Note, NoteKind, SessionId, Want};
use tokio::time::{Instant, sleep, timeout_at};

use crate::actor::Actor;
use crate::backend::wakeups::wakes_in_time;
use crate::backend::watches::ends_when_dropped;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "news";
        Waiting:
            a_revocation_wakes_its_owner,
            a_note_wakes_its_owner,
            every_watch_of_a_session_is_woken,
            nothing_of_other_sessions_wakes_an_owner,
            a_dropped_watch_of_a_session_ends;
    }
}

/// How often a watch may wake for nothing: the way on which it is told may be made anew, once.
const FOR_NOTHING: usize = 1;
/// How long after the last that others have done a watch may still wake for it.
const QUIET: Duration = Duration::from_millis(400);
/// How many others do something, and what lies between.
const OTHERS: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// A watch over the actor's session that sleeps; `None` where the store does not push, and the watch never resolves.
async fn asleep(a: &Actor) -> Verdict<Option<Changed>> {
    for _ in 0..=FOR_NOTHING {
        let mut changed = a.backend().watch_session(a.session()).await?;
        if (&mut changed).now_or_never().is_none() {
            return Ok(a.backend().info().poll.is_none().then_some(changed));
        }
    }
    Err(Wrong(
        "a watch over a session wakes at once, every time".to_owned(),
    ))
}

async fn note(by: &Actor, session: SessionId, kind: NoteKind) -> Verdict {
    let reason = Label::parse("why")?;
    let note = Note::new(kind, Label::parse("ops")?, reason, UNIX_EPOCH).about(1);
    let noted = by.backend().note(session, &note).await?;
    ensure!(noted, "a note for {session}: there is no record");
    Ok(())
}

async fn a_revocation_wakes_its_owner(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Create, "k")]).await?;
    if let Some(changed) = asleep(&a).await? {
        wakes_in_time(&scene, changed, b.end_of(a.session(), End::Revoke)).await?;
    }
    Ok(())
}

async fn a_note_wakes_its_owner(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Create, "k")]).await?;
    for kind in [NoteKind::Evict, NoteKind::Ask, NoteKind::Revoke] {
        for _ in 0..2 {
            let Some(changed) = asleep(&a).await? else {
                return Ok(());
            };
            wakes_in_time(&scene, changed, note(&b, a.session(), kind)).await?;
        }
        a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
    }
    Ok(())
}

async fn every_watch_of_a_session_is_woken(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    // Of another connection, too.
    let elsewhere = scene.actor().await?;
    let mut watches = Vec::new();
    for actor in [&a, &a, &elsewhere] {
        watches.push(actor.backend().watch_session(a.session()).await?);
    }
    if a.backend().info().poll.is_some() {
        return Ok(());
    }
    let all = futures_util::future::join_all(watches).map(|_| ());
    wakes_in_time(&scene, Box::pin(all), note(&b, a.session(), NoteKind::Ask)).await
}

/// What others do, whatever it is, and what the owner itself does.
async fn nothing_of_other_sessions_wakes_an_owner(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    drop(asleep(&a).await?);
    let others = async {
        for _ in 0..OTHERS {
            let other = scene.beside(&a).await?;
            let theirs = other.hold(&[(Want::Create, "other")]).await?;
            other.release(&theirs).await?;
            other.retired(&[&theirs]).await?;
            note(&b, other.session(), NoteKind::Ask).await?;
            scene.end(other.session(), End::Revoke).await?;
            let closed = scene.actor().await?;
            closed.end(End::Close).await?;
            a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
            scene.state(a.session()).await?;
            b.refused(&b.ask(&[(Want::Create, "k")])).await?;
            // Whoever is woken watches again, and is woken by the next.
            sleep(PAUSE).await;
        }
        Verdict::Ok(Instant::now() + QUIET)
    };
    let wakes = async {
        for _ in 0..=FOR_NOTHING {
            let changed = a.backend().watch_session(a.session()).await?;
            changed.await;
        }
        Verdict::Ok(())
    };
    let mut wakes = std::pin::pin!(wakes);
    let mut others = std::pin::pin!(others);
    let told = "nothing happened to a session, and a watch over it woke, more than once";
    let until = tokio::select! {
        biased;
        woken = &mut wakes => return Err(woken.err().unwrap_or_else(|| Wrong(told.to_owned()))),
        until = &mut others => until?,
    };
    if let Ok(woken) = timeout_at(until, wakes).await {
        return Err(woken.err().unwrap_or_else(|| Wrong(told.to_owned())));
    }
    a.release(&held).await
}

/// As [that over claims](super::watches): no task of it is left in this process.
async fn a_dropped_watch_of_a_session_ends(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    ends_when_dropped(async || Ok(a.backend().watch_session(a.session()).await?)).await?;
    if let Some(changed) = asleep(&a).await? {
        wakes_in_time(&scene, changed, b.end_of(a.session(), End::Revoke)).await?;
    }
    Ok(())
}
