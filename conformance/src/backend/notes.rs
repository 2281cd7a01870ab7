//! Notes: what is told to the owner of a session, and stays for people.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::try_join_all;
use lockcore::backend::{End, IntentChange, Opened, Renewed};
use lockcore::limits::MAX_NOTES_BYTES;
use lockcore::{Label, Life, Note, NoteKind, Notes, SessionId, Want};

use crate::actor::{Actor, registered};
use crate::backend::adoption::abandoned;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "notes";
        NotesArrive:
            a_note_is_told_with_each_renewal,
            a_note_leaves_everything_else_as_it_is,
            a_note_for_a_session_without_a_record_makes_none,
            notes_stay_with_the_dead,
            notes_stay_with_what_is_abandoned_settled_and_discarded,
            notes_of_several_at_once_are_all_there,
            the_oldest_notes_go,
            notes_of_any_text;
    }
}

fn note(kind: NoteKind, by: &str, reason: &str) -> Verdict<Note> {
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    Ok(Note::new(
        kind,
        Label::parse(by)?,
        Label::parse(reason)?,
        at,
    ))
}

async fn is_noted(actor: &Actor, session: SessionId, note: &Note) -> Verdict {
    let noted = actor.backend().note(session, note).await?;
    ensure!(noted, "{note} for {session}: there is no record");
    Ok(())
}

/// The notes that the next renewal tells.
async fn told(actor: &Actor, intent: IntentChange) -> Verdict<Vec<Note>> {
    let renewal = actor.renewal("", intent);
    Ok(match actor.send_renewal(&renewal).await? {
        Renewed::Noted(notes) => notes.iter().collect(),
        renewed => {
            ensure_eq!(renewed, Renewed::Living, "renewal of a living session");
            Vec::new()
        }
    })
}

async fn listed(scene: &Scene, session: SessionId) -> Verdict<Notes> {
    let stranger = scene.stranger().await?;
    let mut after: Option<String> = None;
    loop {
        let page = stranger.backend().sessions(after.as_deref(), 100).await?;
        if let Some(state) = page.items.into_iter().find(|it| it.session == session) {
            return Ok(state.notes);
        }
        after = page.next;
        ensure!(after.is_some(), "{session} is not listed");
    }
}

async fn a_note_is_told_with_each_renewal(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let first = note(NoteKind::Evict, "ops", "it hangs")?.about(held.grant.n);
    let second = note(NoteKind::Ask, "deploy", "")?;
    ensure_eq!(told(&a, IntentChange::Keep).await?, [], "before any");
    is_noted(&b, a.session(), &first).await?;
    for _ in 0..2 {
        let notes = told(&a, IntentChange::Keep).await?;
        ensure_eq!(notes, std::slice::from_ref(&first), "after the first");
    }
    is_noted(&a, a.session(), &second).await?;
    let both = [first, second];
    ensure_eq!(told(&a, IntentChange::Keep).await?, both, "after both");
    let notes = scene.state(a.session()).await?.notes;
    ensure_eq!(notes.iter().collect::<Vec<_>>(), both, "in its state");
    let notes = listed(&scene, a.session()).await?;
    ensure_eq!(notes.iter().collect::<Vec<_>>(), both, "in the list");
    ensure_eq!(
        told(&b, IntentChange::Keep).await?,
        [],
        "of another session"
    );
    // With whatever else a renewal writes.
    let n = held.grant.n;
    let renewal = a.renewal(&format!("{n}-{n}"), IntentChange::Keep);
    let renewed = a.send_renewal(&renewal).await?;
    ensure!(
        matches!(&renewed, Renewed::Noted(notes) if notes.iter().eq(both.iter().cloned())),
        "a renewal that ends the number: {renewed:?}"
    );
    scene.free("k").await
}

async fn a_note_leaves_everything_else_as_it_is(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.ask(&[(Want::Create, "k"), (Want::Read, "/a/b")]);
    let token = a.take(&held).await?;
    let before = scene.state(a.session()).await?;
    for kind in [
        NoteKind::Evict,
        NoteKind::Ask,
        NoteKind::Revoke,
        NoteKind::Discard,
    ] {
        is_noted(&b, a.session(), &note(kind, "b", "why")?).await?;
        is_noted(
            &b,
            a.session(),
            &note(kind, "b", "why")?.about(held.grant.n),
        )
        .await?;
    }
    let mut after = scene.state(a.session()).await?;
    after.notes = before.notes.clone();
    ensure_eq!(after, before, "the session but for its notes");
    scene.held("k").await?;
    a.holds(&held).await?;
    let more = a.ask(&[(Want::Create, "l")]);
    a.take(&more).await?;
    // An intent goes its way.
    let intent = registered(token, "half done")?;
    told(&a, IntentChange::Put(intent.clone())).await?;
    is_noted(&b, a.session(), &note(NoteKind::Ask, "b", "again")?).await?;
    a.ends(End::Close, Life::Abandoned).await?;
    let adoption = b.adopted(a.session(), 0).await?;
    ensure_eq!(adoption.left, intent, "the intent");
    b.settles(a.session(), 1).await
}

async fn a_note_for_a_session_without_a_record_makes_none(scene: Scene) -> Verdict {
    let stranger = scene.stranger().await?;
    let session = scene.session_id();
    let noted = stranger
        .backend()
        .note(session, &note(NoteKind::Revoke, "ops", "gone")?)
        .await?;
    ensure!(!noted, "a note for nobody was taken");
    let ttl = stranger.backend().info().max_ttl;
    let opened = stranger
        .backend()
        .open(session, stranger.label(), ttl)
        .await?;
    ensure!(
        matches!(opened, Opened::Opened(_)),
        "an open after it: {opened:?}"
    );
    let state = scene.end(session, End::Close).await?;
    ensure!(state.notes.is_empty(), "its notes: {:?}", state.notes);
    Ok(())
}

async fn notes_stay_with_the_dead(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Create, "k")]).await?;
    let why = note(NoteKind::Revoke, "ops", "it is stuck")?;
    is_noted(&b, a.session(), &why).await?;
    let revoked = b.end_of(a.session(), End::Revoke).await?;
    ensure_eq!(revoked.life, Life::Dead, "a revoked session");
    scene.free("k").await?;
    let late = note(NoteKind::Ask, "b", "too late")?;
    is_noted(&b, a.session(), &late).await?;
    a.renews(&a.renewal("", IntentChange::Keep), Renewed::Dead)
        .await?;
    for how in [End::IfDue, End::Close] {
        let state = a.end(how).await?;
        ensure_eq!(state.notes.last(NoteKind::Revoke), Some(why.clone()), "why");
    }
    // A sweep may take a second time for what it has found in the first.
    for sweeps in 0..3 {
        if sweeps > 0 {
            scene.sweep_all().await?;
        }
        let notes = listed(&scene, a.session()).await?;
        let both = [why.clone(), late.clone()];
        ensure_eq!(
            notes.iter().collect::<Vec<_>>(),
            both,
            "in the list after {sweeps} sweeps"
        );
        let state = a.end(End::IfDue).await?;
        ensure_eq!(state.notes.last(NoteKind::Revoke), Some(why.clone()), "why");
    }
    a.renews(&a.renewal("", IntentChange::Keep), Renewed::Dead)
        .await
}

async fn notes_stay_with_what_is_abandoned_settled_and_discarded(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let (settled, ..) = abandoned(&scene).await?;
    let (first, second) = (
        note(NoteKind::Discard, "ops", "undone by hand")?,
        note(NoteKind::Ask, "b", "")?,
    );
    is_noted(&b, settled.session(), &first).await?;
    let adoption = b.adopted(settled.session(), 0).await?;
    is_noted(&b, settled.session(), &second).await?;
    b.settles(settled.session(), adoption.number).await?;
    let (discarded, ..) = abandoned(&scene).await?;
    for note in [&first, &second] {
        is_noted(&b, discarded.session(), note).await?;
    }
    let state = b.end_of(discarded.session(), End::Discard).await?;
    ensure_eq!(state.life, Life::Dead, "what was discarded");
    let both = [first, second];
    for session in [settled.session(), discarded.session()] {
        let notes = scene.state(session).await?.notes;
        ensure_eq!(notes.iter().collect::<Vec<_>>(), both, "{session}");
    }
    Ok(())
}

async fn notes_of_several_at_once_are_all_there(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(scene.actor().await?);
    }
    let notes = (1..).zip(&others).map(|(n, other)| {
        let session = a.session();
        async move { is_noted(other, session, &note(NoteKind::Ask, "b", "")?.about(n)).await }
    });
    let renewals = async {
        for _ in 0..8 {
            told(&a, IntentChange::Keep).await?;
        }
        Ok(())
    };
    futures_util::future::try_join(try_join_all(notes), renewals).await?;
    let notes = told(&a, IntentChange::Keep).await?;
    let mut numbers: Vec<_> = notes.iter().filter_map(|note| note.grant).collect();
    numbers.sort_unstable();
    ensure_eq!(
        numbers,
        (1..=8).collect::<Vec<_>>(),
        "whose notes are there"
    );
    Ok(())
}

async fn the_oldest_notes_go(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let (long, longest) = ("x".repeat(256), "€".repeat(85));
    let mut expected = Notes::default();
    for n in 1..=20 {
        let reason = if n % 5 == 0 { &longest } else { &long };
        let note = note(NoteKind::Ask, "b", reason)?.about(n);
        is_noted(&b, a.session(), &note).await?;
        expected.add(&note);
        let notes = scene.state(a.session()).await?.notes;
        ensure_eq!(notes, expected, "after {n} notes");
        ensure!(notes.as_str().len() <= MAX_NOTES_BYTES, "{notes:?}");
    }
    let notes = told(&a, IntentChange::Keep).await?;
    ensure_eq!(notes, expected.iter().collect::<Vec<_>>(), "as told");
    Ok(())
}

async fn notes_of_any_text(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut written = Vec::new();
    for text in [
        "",
        " ",
        "a b",
        "a/b//c",
        "%2f%",
        "'; drop table sessions; --",
        "\"\\u0000\\",
        "{\"a\": 1}",
        "$1 {} ${x}",
        "ünïcödé 漢字 🔒",
        "e\u{301} is not é",
    ] {
        let note = note(NoteKind::Ask, text, text)?.about(u64::MAX);
        is_noted(&b, a.session(), &note).await?;
        written.push(note);
    }
    ensure_eq!(told(&a, IntentChange::Keep).await?, written, "as told");
    let notes = listed(&scene, a.session()).await?;
    ensure_eq!(notes.iter().collect::<Vec<_>>(), written, "as listed");
    Ok(())
}
