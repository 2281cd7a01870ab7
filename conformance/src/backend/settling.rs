//! Settling an adopted change: by its number, once, and for good.

use lockcore::backend::End;
use lockcore::{Life, Want};

use crate::backend::adoption::abandoned;
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

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
    ensure!(
        b.settle(a.session(), adoption.number).await?,
        "it is settled"
    );
    scene.free("/a").await?;
    scene.free("/a/b/c").await?;
    ensure_eq!(
        scene.state(a.session()).await?.life,
        Life::Dead,
        "the session"
    );
    // The late copies of what it was granted take nothing.
    a.send(&held).await?;
    scene.free("/a").await?;
    ensure!(!a.confirms(&held).await?, "a settled session holds nothing");
    Ok(())
}

async fn settling_again_is_answered_alike(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    for _ in 0..3 {
        ensure!(
            b.settle(a.session(), adoption.number).await?,
            "it is settled"
        );
    }
    ensure_eq!(
        scene.state(a.session()).await?.life,
        Life::Dead,
        "the session"
    );
    Ok(())
}

async fn settling_by_a_wrong_number_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    for number in [0, 2, 3, 1_000_000] {
        ensure!(
            !b.settle(a.session(), number).await?,
            "settling by number {number}"
        );
    }
    scene.held("/a/b").await?;
    ensure_eq!(
        scene.state(a.session()).await?.life,
        Life::Abandoned,
        "the session"
    );
    ensure!(b.settle(a.session(), 1).await?, "it is settled");
    Ok(())
}

async fn settling_without_an_adoption_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    for number in [0, 1] {
        ensure!(
            !b.settle(a.session(), number).await?,
            "settling by number {number}"
        );
    }
    scene.held("/a/b").await?;
    b.adopted(a.session(), 0).await?;
    Ok(())
}

async fn settling_late_after_the_next_adopter_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let (b, c) = (scene.actor().await?, scene.actor().await?);
    b.adopted(a.session(), 0).await?;
    scene.end(b.session(), End::Revoke).await?;
    c.adopted(a.session(), 1).await?;
    ensure!(
        !b.settle(a.session(), 1).await?,
        "the former adopter settles nothing"
    );
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.adoption, state.adopter),
        (Life::Abandoned, 2, Some(c.session())),
        "the session"
    );
    scene.held("/a/b").await?;
    Ok(())
}

async fn settling_after_giving_up_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    b.give_up(a.session(), 0).await?;
    for number in [0, 1, 2, 3] {
        ensure!(
            !b.settle(a.session(), number).await?,
            "settling by number {number}"
        );
    }
    scene.held("/a/b").await?;
    ensure_eq!(
        scene.state(a.session()).await?.life,
        Life::Abandoned,
        "the session"
    );
    Ok(())
}

async fn settling_after_a_discard_changes_nothing(scene: Scene) -> Verdict {
    let (a, ..) = abandoned(&scene).await?;
    let b = scene.actor().await?;
    b.adopted(a.session(), 0).await?;
    ensure_eq!(
        scene.end(a.session(), End::Discard).await?.life,
        Life::Dead,
        "the session"
    );
    for number in [0, 1, 2] {
        ensure!(
            !b.settle(a.session(), number).await?,
            "settling by number {number}"
        );
    }
    scene.free("/a").await?;
    Ok(())
}

async fn settling_one_leaves_the_other(scene: Scene) -> Verdict {
    let (one, ..) = abandoned(&scene).await?;
    let (other, held, _) = with_intent(&scene, &[(Want::Write, "/a/c")], "other").await?;
    other.end(End::Close).await?;
    let b = scene.actor().await?;
    b.adopted(one.session(), 0).await?;
    b.adopted(other.session(), 0).await?;
    ensure!(b.settle(one.session(), 1).await?, "one is settled");
    let holders = scene.held("/a").await?;
    let grants: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
    ensure_eq!(grants, [Some(held.grant)], "who is left below /a");
    ensure_eq!(
        scene.state(other.session()).await?.life,
        Life::Abandoned,
        "the other session"
    );
    Ok(())
}
