//! Settling an adopted change: by its number, once, and for good.

use lockcore::backend::End;
use lockcore::{Life, Want};

use crate::backend::adoption::abandoned;
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "settling";
        Recovery:
            settling_frees_the_locks_and_ends_the_session,
            settling_again_is_answered_alike,
            settling_by_a_wrong_number_changes_nothing,
            settling_without_an_adoption_changes_nothing,
            settling_late_after_the_next_adopter_changes_nothing,
            settling_after_giving_up_changes_nothing,
            settling_after_a_discard_changes_nothing,
            settling_one_leaves_the_other;
    }
}

async fn settling_frees_the_locks_and_ends_the_session(scene: Scene) -> Verdict {
    let (a, held, _) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    scene.held("/a/b").await?;
    b.settles(a.session(), adoption.number).await?;
    scene.free("/a").await?;
    scene.free("/a/b/c").await?;
    scene.is(a.session(), Life::Dead).await?;
    // The late copies of what it was granted take nothing.
    a.send(&held).await?;
    scene.free("/a").await?;
    a.holds_no_more(&held).await
}

async fn settling_again_is_answered_alike(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    for _ in 0..3 {
        b.settles(a.session(), adoption.number).await?;
    }
    scene.is(a.session(), Life::Dead).await
}

async fn settling_by_a_wrong_number_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    for number in [0, 2, 3, 1_000_000] {
        b.settles_nothing(a.session(), number).await?;
    }
    scene.held("/a/b").await?;
    scene.is(a.session(), Life::Abandoned).await?;
    b.settles(a.session(), 1).await
}

async fn settling_without_an_adoption_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    for number in [0, 1] {
        b.settles_nothing(a.session(), number).await?;
    }
    scene.held("/a/b").await?;
    b.adopted(a.session(), 0).await?;
    Ok(())
}

async fn settling_late_after_the_next_adopter_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let [b, c] = scene.actors().await?;
    b.adopted(a.session(), 0).await?;
    scene.end(b.session(), End::Revoke).await?;
    c.adopted(a.session(), 1).await?;
    b.settles_nothing(a.session(), 1).await?;
    scene
        .is_adopted(a.session(), Life::Abandoned, 2, Some(c.session()))
        .await?;
    scene.held("/a/b").await?;
    Ok(())
}

async fn settling_after_giving_up_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    b.give_up(a.session(), 0).await?;
    for number in [0, 1, 2, 3] {
        b.settles_nothing(a.session(), number).await?;
    }
    scene.held("/a/b").await?;
    scene.is(a.session(), Life::Abandoned).await
}

async fn settling_after_a_discard_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    scene.ends(a.session(), End::Discard, Life::Dead).await?;
    for number in [0, 1, 2] {
        b.settles_nothing(a.session(), number).await?;
    }
    scene.free("/a").await
}

async fn settling_one_leaves_the_other(scene: Scene) -> Verdict {
    let (one, ..) = abandoned(&scene).await?;
    let (other, held, _) = with_intent(&scene, &[(Want::Write, "/a/c")], "other").await?;
    other.end(End::Close).await?;
    let b = scene.actor().await?;
    b.adopted(one.session(), 0).await?;
    b.adopted(other.session(), 0).await?;
    b.settles(one.session(), 1).await?;
    let holders = scene.held("/a").await?;
    let grants: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
    ensure_eq!(grants, [Some(held.grant)], "who is left below /a");
    scene.is(other.session(), Life::Abandoned).await
}
