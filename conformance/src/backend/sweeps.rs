//! Sweeps take what does not count and leave what does.

use lockcore::backend::{Acquire, End, IntentChange, Sweep};
use lockcore::{Life, Want};

use crate::actor::{Actor, SHARE};
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "sweeps";
        Listing:
            a_sweep_leaves_living_sessions,
            a_sweep_leaves_abandoned_sessions,
            a_sweep_of_a_living_session_leaves_what_counts,
            a_sweep_of_one_session_leaves_the_others,
            a_sweep_leaves_the_other_holders_of_a_record,
            a_sweep_leaves_the_ancestors_of_others,
            a_sweep_of_an_unknown_session_is_nothing,
            a_sweep_of_many_records_ends,
            a_sweep_removes_all_that_does_not_count_in_portions,
            a_second_sweep_finds_nothing;
        DeadStaysDead:
            a_swept_session_stays_dead;
        ExpiryFrees:
            a_sweep_of_everything_meets_what_is_due;
        Recovery:
            a_swept_adoption_goes_on;
    }
}

const WANTS: [(Want, &str); 4] = [
    (Want::Create, "c"),
    (Want::Upsert, "u"),
    (Want::Write, "/w/x/y"),
    (Want::Read, "/r/x/y"),
];

async fn hold_all(a: &Actor) -> Verdict<Vec<Acquire>> {
    let mut held = Vec::new();
    for want in WANTS {
        held.push(a.hold(&[want]).await?);
    }
    Ok(held)
}

async fn all_held(a: &Actor, held: &[Acquire], scene: &Scene) -> Verdict {
    for request in held {
        ensure!(
            a.confirms(request).await?,
            "{} is still held",
            request.grant
        );
    }
    for key in ["c", "u", "/w", "/w/x/y", "/r/x"] {
        scene.held(key).await?;
    }
    Ok(())
}

async fn a_sweep_leaves_living_sessions(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = hold_all(&a).await?;
    scene.sweep_all().await?;
    all_held(&a, &held, &scene).await?;
    a.renew("", IntentChange::Keep).await
}

async fn a_sweep_leaves_abandoned_sessions(scene: Scene) -> Verdict {
    let (a, held, _) = with_intent(&scene, &WANTS[2..], "half done").await?;
    a.end(End::Close).await?;
    scene.sweep_all().await?;
    scene.sweep(Sweep::Session(a.session())).await?;
    for path in ["/w", "/w/x/y", "/r/x"] {
        let holders = scene.held(path).await?;
        ensure_eq!(
            (holders[0].grant, holders[0].life),
            (Some(held.grant), Life::Abandoned),
            "who holds {path}"
        );
    }
    Ok(())
}

async fn a_sweep_of_a_living_session_leaves_what_counts(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let retired = a
        .hold(&[(Want::Upsert, "over"), (Want::Upsert, "over too")])
        .await?;
    let held = hold_all(&a).await?;
    a.retired(&[&retired]).await?;
    scene.sweep(Sweep::Session(a.session())).await?;
    all_held(&a, &held, &scene).await?;
    scene.free("over").await?;
    scene.free("over too").await
}

async fn a_sweep_of_one_session_leaves_the_others(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(SHARE, "s"), (SHARE, "t")]).await?;
    let held = hold_all(&b).await?;
    let share = b.hold(&[(SHARE, "s")]).await?;
    a.end(End::Close).await?;
    scene.sweep(Sweep::Session(a.session())).await?;
    all_held(&b, &held, &scene).await?;
    b.holds(&share).await?;
    scene.free("t").await
}

async fn a_sweep_leaves_the_other_holders_of_a_record(scene: Scene) -> Verdict {
    let mut actors = Vec::new();
    let mut held = Vec::new();
    for _ in 0..4 {
        let actor = scene.actor().await?;
        held.push(actor.hold(&[(SHARE, "s")]).await?);
        actors.push(actor);
    }
    actors[1].end(End::Close).await?;
    actors[3].end(End::Close).await?;
    scene.sweep_all().await?;
    for at in [0, 2] {
        ensure!(
            actors[at].confirms(&held[at]).await?,
            "a living share is held"
        );
        scene.held("s").await?;
        actors[at].release(&held[at]).await?;
    }
    scene.free("s").await
}

async fn a_sweep_leaves_the_ancestors_of_others(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Write, "/a/b/1"), (Want::Read, "/a/c")])
        .await?;
    let held = b.hold(&[(Want::Write, "/a/b/2")]).await?;
    a.end(End::Close).await?;
    scene.sweep(Sweep::Session(a.session())).await?;
    for path in ["/a", "/a/b"] {
        let holders = scene.held(path).await?;
        let grants: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
        ensure_eq!(grants, [Some(held.grant)], "who is below {path}");
    }
    scene.free("/a/b/1").await?;
    scene.free("/a/c").await
}

async fn a_sweep_of_an_unknown_session_is_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = hold_all(&a).await?;
    scene.sweep(Sweep::Session(scene.session_id())).await?;
    all_held(&a, &held, &scene).await
}

/// Most that a sweep of this limit may remove: what counts as one batch goes at once.
const fn most(limit: usize, batch: usize) -> usize {
    limit + batch - 1
}

/// Sweeps by this limit until the store says that there is no more: exactly so many holders are removed, in portions,
/// and the store says so when the last of them is gone, not before. No batch of them has more than `batch` keys.
async fn sweep_out(
    scene: &Scene,
    which: Sweep,
    limit: usize,
    batch: usize,
    holders: usize,
) -> Verdict {
    let stranger = scene.stranger().await?;
    let mut removed = 0;
    // Half of what it was asked for is enough, and one call more finds that nothing is left.
    for _ in 0..=2 * holders.div_ceil(limit) + 1 {
        let swept = stranger.backend().sweep(which, limit).await?;
        ensure!(
            swept.removed <= most(limit, batch),
            "a sweep by {limit} of batches of {batch} keys removed {}",
            swept.removed
        );
        removed += swept.removed;
        if !swept.more {
            ensure_eq!(
                removed,
                holders,
                "holders removed by {which:?} when no more are left"
            );
            let again = stranger.backend().sweep(which, limit).await?;
            ensure_eq!(
                (again.removed, again.more),
                (0, false),
                "a sweep after the last"
            );
            return Ok(());
        }
    }
    Err(Wrong(format!(
        "a sweep by {limit} that still says more after {removed} of {holders} holders"
    )))
}

/// Holds so many keys of that name, in batches of that many.
async fn hold_many(a: &Actor, name: &str, keys: usize, batch: usize) -> Verdict<Vec<Acquire>> {
    let keys: Vec<String> = (0..keys).map(|n| format!("{name}{n}")).collect();
    let mut held = Vec::new();
    for batch in keys.chunks(batch) {
        let wants: Vec<(Want, &str)> = batch
            .iter()
            .map(|key| (Want::Upsert, key.as_str()))
            .collect();
        held.push(a.hold(&wants).await?);
    }
    Ok(held)
}

async fn a_sweep_of_many_records_ends(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    hold_many(&a, "d", 300, 20).await?;
    a.end(End::Close).await?;
    sweep_out(&scene, Sweep::Session(a.session()), 7, 20, 300).await?;
    scene.free("d0").await?;
    scene.free("d299").await
}

async fn a_sweep_removes_all_that_does_not_count_in_portions(scene: Scene) -> Verdict {
    let [dead, living] = scene.actors().await?;
    for round in [Sweep::Session(dead.session()), Sweep::All] {
        // What is over of who lives, beside what stays.
        let retired = hold_many(&living, "over", 12, 4).await?;
        let share = living.hold(&[(SHARE, "s")]).await?;
        living.retired(&retired.iter().collect::<Vec<_>>()).await?;
        let dead = match round {
            Sweep::Session(_) => &dead,
            Sweep::All => &scene.actor().await?,
        };
        hold_many(dead, "dead", 12, 4).await?;
        for _ in 0..3 {
            dead.hold(&[(SHARE, "s")]).await?;
        }
        dead.end(End::Close).await?;
        match round {
            Sweep::Session(_) => {
                sweep_out(&scene, round, 5, 4, 15).await?;
                sweep_out(&scene, Sweep::Session(living.session()), 5, 4, 12).await?;
            }
            Sweep::All => sweep_out(&scene, round, 5, 4, 27).await?,
        }
        living.holds(&share).await?;
        scene.held("s").await?;
        living.release(&share).await?;
        for key in ["over0", "dead11", "s"] {
            scene.free(key).await?;
        }
    }
    Ok(())
}

async fn a_second_sweep_finds_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    hold_all(&a).await?;
    b.hold(&[(Want::Write, "/z/y")]).await?;
    a.end(End::Close).await?;
    scene.sweep_all().await?;
    let again = scene
        .stranger()
        .await?
        .backend()
        .sweep(Sweep::All, 100)
        .await?;
    ensure_eq!((again.removed, again.more), (0, false), "a second sweep");
    Ok(())
}

async fn a_swept_session_stays_dead(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = hold_all(&a).await?;
    a.end(End::Close).await?;
    for _ in 0..2 {
        scene.sweep(Sweep::Session(a.session())).await?;
        scene.sweep_all().await?;
    }
    let renewed = a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
    ensure_eq!(renewed, lockcore::backend::Renewed::Dead, "a late renewal");
    for request in &held {
        a.send(request).await?;
    }
    for key in ["c", "u", "/w", "/r"] {
        scene.free(key).await?;
    }
    let opened = a
        .backend()
        .open(a.session(), a.label(), a.backend().info().max_ttl)
        .await?;
    ensure_eq!(opened, lockcore::backend::Opened::Used, "a late open");
    Ok(())
}

async fn a_sweep_of_everything_meets_what_is_due(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let ttl = short(&b.backend().info());
    let a = scene.actor_for(ttl).await?;
    a.hold(&[(SHARE, "s"), (SHARE, "t")]).await?;
    let held = b.hold(&[(SHARE, "s")]).await?;
    scene.expire(ttl).await;
    scene.sweep_all().await?;
    b.holds(&held).await?;
    scene.free("t").await?;
    scene.is(a.session(), Life::Dead).await
}

async fn a_swept_adoption_goes_on(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    scene.sweep_all().await?;
    scene.held("k").await?;
    b.settles(a.session(), adoption.number).await?;
    scene.sweep_all().await?;
    scene.free("k").await?;
    b.settles(a.session(), adoption.number).await
}
