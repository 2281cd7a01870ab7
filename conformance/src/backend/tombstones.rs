//! Tombstones: a dead session is remembered as long as its late requests may come, and not for ever.

use std::time::Duration;

use lockcore::backend::{Acquire, End, IntentChange, Opened, Renewed, Sweep};
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{Life, SessionId, Want};

use crate::actor::Actor;
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Unpassed, Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "tombstones";
        DeadStaysDead:
            a_tombstone_stays_while_late_requests_may_come;
        Listing:
            an_old_tombstone_goes;
    }
}

/// How far from the moment at which a tombstone may go, to either side: clocks are read in whole seconds here and there.
const MARGIN: Duration = Duration::from_secs(60);

/// What the session is listed as.
async fn listed(by: &Actor, session: SessionId) -> Verdict<Option<Life>> {
    let mut after: Option<String> = None;
    for _ in 0..100 {
        let page = by.backend().sessions(after.as_deref(), 10).await?;
        if let Some(state) = page.items.iter().find(|state| state.session == session) {
            return Ok(Some(state.life));
        }
        after = page.next;
        if after.is_none() {
            return Ok(None);
        }
    }
    Err(Wrong("a listing that never ends".to_owned()))
}

/// Whatever arrives late of a dead session has no effect, and whoever looks sees why.
async fn is_remembered(scene: &Scene, a: &Actor, held: &Acquire, age: &str) -> Verdict {
    let listed = listed(a, a.session()).await?;
    ensure_eq!(listed, Some(Life::Dead), "what it is listed as {age}");
    let opened = a
        .backend()
        .open(a.session(), a.label(), a.backend().info().max_ttl)
        .await?;
    ensure_eq!(opened, Opened::Used, "a late open {age}");
    a.renews(&a.renewal("", IntentChange::Keep), Renewed::Dead)
        .await?;
    // Whatever the answer is, nothing is held by it.
    a.send(held).await?;
    // By somebody new: where time was moved, the others are due.
    let b = scene.actor().await?;
    b.release(&b.hold(&[(Want::Create, "k")]).await?).await
}

async fn a_tombstone_stays_while_late_requests_may_come(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    a.end(End::Close).await?;
    scene.sweep_all().await?;
    scene.sweep_all().await?;
    is_remembered(&scene, &a, &held, "at once").await?;
    if !scene.age(a.session(), TOMBSTONE_KEPT - MARGIN).await? {
        return Err(Unpassed::Lacking);
    }
    scene.sweep_all().await?;
    let age = format!("after {:?}", TOMBSTONE_KEPT - MARGIN);
    is_remembered(&scene, &a, &held, &age).await
}

async fn an_old_tombstone_goes(scene: Scene) -> Verdict {
    let mut dead = Vec::new();
    for key in ["d1", "d2", "d3"] {
        let a = scene.actor().await?;
        a.hold(&[(Want::Create, key)]).await?;
        a.end(End::Close).await?;
        dead.push(a.session());
    }
    let (abandoned, held, _) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    abandoned.end(End::Close).await?;
    scene.sweep_all().await?;
    for session in dead.iter().chain([&abandoned.session()]) {
        if !scene.age(*session, TOMBSTONE_KEPT + MARGIN).await? {
            return Err(Unpassed::Lacking);
        }
    }
    // Opened when time was moved: the others may be due.
    let living = scene.actor().await?;
    // A portion is less than there is: it says that there is more.
    scene.sweep_by(Sweep::All, 2).await?;
    let of_the_dead = dead
        .into_iter()
        .map(|session| (session, None, "that died long ago"));
    let of_the_others = [
        (
            abandoned.session(),
            Some(Life::Abandoned),
            "that left a change half done long ago",
        ),
        (living.session(), Some(Life::Living), "that lives"),
    ];
    for (session, as_what, what) in of_the_dead.chain(of_the_others) {
        let listed = listed(&living, session).await?;
        ensure_eq!(listed, as_what, "a session {what}, after a sweep");
    }
    let busy = living.refused(&living.ask(&[(Want::Create, "k")])).await?;
    ensure!(
        busy.first().holders[0].grant == Some(held.grant),
        "a change half done keeps its locks: {busy:?}"
    );
    Ok(())
}
