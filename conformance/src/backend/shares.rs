//! Shares: a set of holders, and limits that bind who asks.

use lockcore::backend::End;
use lockcore::{Grant, Want};

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "shares";
        SharedAreASet:
            every_share_is_a_holder_of_its_own,
            a_share_sent_again_counts_once,
            two_shares_of_one_session_count_twice,
            a_share_that_died_does_not_count,
            a_share_that_expired_does_not_count,
            a_share_that_is_over_does_not_count,
            a_share_of_a_revoked_session_among_others;
        AtMostOneHolder:
            no_more_shares_than_the_limit,
            a_limit_of_one_is_exclusive_among_its_like,
            the_last_of_many_shares_keeps_a_create_out;
        AllowedIsGranted:
            a_limit_binds_who_asks_and_not_who_holds,
            a_released_share_makes_room,
            the_greatest_limit_is_no_limit;
    }
}

async fn actors(scene: &Scene, count: usize) -> Verdict<Vec<Actor>> {
    let mut actors = Vec::with_capacity(count);
    for _ in 0..count {
        actors.push(scene.actor().await?);
    }
    Ok(actors)
}

async fn holders(scene: &Scene, key: &str) -> Verdict<Vec<Grant>> {
    let record = scene.record(key).await?;
    let mut grants: Vec<Grant> = record
        .map(|record| record.holders)
        .unwrap_or_default()
        .iter()
        .filter_map(|holder| holder.grant)
        .collect();
    grants.sort();
    Ok(grants)
}

async fn every_share_is_a_holder_of_its_own(scene: Scene) -> Verdict {
    let actors = actors(&scene, 5).await?;
    let mut held = Vec::new();
    for actor in &actors {
        held.push(actor.hold(&[(SHARE, "s")]).await?);
    }
    for (at, actor) in actors.iter().enumerate() {
        let mut left: Vec<Grant> = held[at..].iter().map(|request| request.grant).collect();
        left.sort();
        ensure_eq!(
            holders(&scene, "s").await?,
            left,
            "holders after {at} releases"
        );
        actor.release(&held[at]).await?;
    }
    scene.free("s").await
}

async fn a_share_sent_again_counts_once(scene: Scene) -> Verdict {
    let actors = actors(&scene, 3).await?;
    let first = actors[0].hold(&[(share(2), "s")]).await?;
    for _ in 0..3 {
        actors[0].take(&first).await?;
    }
    let second = actors[1].hold(&[(share(2), "s")]).await?;
    actors[2]
        .refused(&actors[2].ask(&[(share(2), "s")]))
        .await?;
    for (actor, held) in [(&actors[0], &first), (&actors[1], &second)] {
        actor.release(held).await?;
    }
    scene.free("s").await?;
    Ok(())
}

async fn two_shares_of_one_session_count_twice(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let owner = a.owner();
    let first = a.hold_as(owner, &[(share(2), "s")]).await?;
    a.hold_as(owner, &[(share(2), "s")]).await?;
    for actor in [&a, &b] {
        actor.refused(&actor.ask(&[(share(2), "s")])).await?;
    }
    a.refused(&a.ask_as(owner, &[(share(2), "s")])).await?;
    a.release(&first).await?;
    b.hold(&[(share(2), "s")]).await?;
    Ok(())
}

async fn a_share_that_died_does_not_count(scene: Scene) -> Verdict {
    for how in [End::Close, End::Revoke] {
        let [a, b, c] = scene.actors().await?;
        a.hold(&[(share(2), "s")]).await?;
        let second = b.hold(&[(share(2), "s")]).await?;
        c.refused(&c.ask(&[(share(2), "s")])).await?;
        scene.end(a.session(), how).await?;
        let third = c.hold(&[(share(2), "s")]).await?;
        b.refused(&b.ask(&[(share(2), "s")])).await?;
        b.release(&second).await?;
        c.release(&third).await?;
        scene.free("s").await?;
    }
    Ok(())
}

async fn a_share_that_expired_does_not_count(scene: Scene) -> Verdict {
    let [b, c] = scene.actors().await?;
    let ttl = short(&b.backend().info());
    let a = scene.actor_for(ttl).await?;
    a.hold(&[(share(2), "s")]).await?;
    b.hold(&[(share(2), "s")]).await?;
    scene.expire(ttl).await;
    c.hold(&[(share(2), "s")]).await?;
    c.refused(&c.ask(&[(share(2), "s")])).await?;
    Ok(())
}

async fn a_share_that_is_over_does_not_count(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let first = a.hold(&[(share(1), "s")]).await?;
    b.refused(&b.ask(&[(share(1), "s")])).await?;
    a.retired(&[&first]).await?;
    b.hold(&[(share(1), "s")]).await?;
    Ok(())
}

async fn a_share_of_a_revoked_session_among_others(scene: Scene) -> Verdict {
    let actors = actors(&scene, 4).await?;
    let mut held = Vec::new();
    for actor in &actors {
        held.push(actor.hold(&[(SHARE, "s")]).await?);
    }
    scene.end(actors[2].session(), End::Revoke).await?;
    let mut left = vec![held[0].grant, held[1].grant, held[3].grant];
    left.sort();
    ensure_eq!(holders(&scene, "s").await?, left, "holders after one died");
    for at in [0, 1, 3] {
        ensure!(
            actors[at].confirms(&held[at]).await?,
            "the others' shares are held"
        );
    }
    ensure!(
        !actors[2].confirms(&held[2]).await?,
        "the dead session's share is not"
    );
    Ok(())
}

async fn no_more_shares_than_the_limit(scene: Scene) -> Verdict {
    let actors = actors(&scene, 4).await?;
    let mut held = Vec::new();
    for actor in &actors[..3] {
        held.push(actor.hold(&[(share(3), "s")]).await?.grant);
    }
    held.sort();
    let busy = actors[3]
        .refused(&actors[3].ask(&[(share(3), "s")]))
        .await?;
    let mut named: Vec<Grant> = busy
        .first()
        .holders
        .iter()
        .filter_map(|holder| holder.grant)
        .collect();
    named.sort();
    ensure_eq!(named, held, "who is in the way");
    ensure_eq!(holders(&scene, "s").await?, held, "who holds it");
    Ok(())
}

async fn a_limit_of_one_is_exclusive_among_its_like(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for _ in 0..3 {
        for (holder, asker) in [(&a, &b), (&b, &a)] {
            let held = holder.hold(&[(share(1), "s")]).await?;
            asker.refused(&asker.ask(&[(share(1), "s")])).await?;
            holder.refused(&holder.ask(&[(share(1), "s")])).await?;
            holder.release(&held).await?;
        }
    }
    Ok(())
}

async fn the_last_of_many_shares_keeps_a_create_out(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(a.hold(&[(SHARE, "s")]).await?);
    }
    for request in &held {
        scene.held("s").await?;
        a.release(request).await?;
    }
    scene.free("s").await
}

async fn a_limit_binds_who_asks_and_not_who_holds(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(share(1), "s")]).await?;
    b.hold(&[(share(3), "s")]).await?;
    c.refused(&c.ask(&[(share(2), "s")])).await?;
    c.hold(&[(SHARE, "s")]).await?;
    b.refused(&b.ask(&[(share(3), "s")])).await?;
    b.hold(&[(share(4), "s")]).await?;
    Ok(())
}

async fn a_released_share_makes_room(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut oldest = a.hold(&[(share(2), "s")]).await?;
    for _ in 0..5 {
        let next = a.hold(&[(share(2), "s")]).await?;
        b.refused(&b.ask(&[(share(2), "s")])).await?;
        a.release(&oldest).await?;
        oldest = next;
    }
    b.hold(&[(share(2), "s")]).await?;
    Ok(())
}

async fn the_greatest_limit_is_no_limit(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for _ in 0..20 {
        let held = a.hold(&[(share(u32::MAX), "s")]).await?;
        ensure_eq!(
            held.claims[0].want(),
            share(u32::MAX),
            "the limit (the case's own)"
        );
    }
    a.refused(&a.ask(&[(share(20), "s")])).await?;
    a.hold(&[(share(21), "s")]).await?;
    a.refused(&a.ask(&[(Want::Create, "s")])).await?;
    Ok(())
}
