//! Watches: what frees a claim wakes who watches it.

use std::time::Duration;

use lockcore::{Changed, End, Want};

use crate::actor::{Actor, SHARE, share};
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::{Scene, claim, short};
use crate::verdict::{Verdict, Wrong, cases, ensure};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "wakeups";
        Waiting:
            a_release_wakes,
            a_release_in_the_same_process_wakes,
            a_release_above_wakes,
            a_release_below_wakes,
            a_released_share_wakes_who_waits_for_room,
            the_last_released_reader_wakes_a_writer,
            a_release_of_one_of_many_wakes,
            a_close_wakes,
            a_revocation_wakes,
            an_expiry_that_was_established_wakes,
            a_settlement_wakes,
            a_discard_wakes,
            every_watcher_is_woken,
            a_dropped_watch_is_no_harm;
    }
}

/// Longest that a watcher may sleep on when what it watches is free.
const WAKE: Duration = Duration::from_secs(15);

async fn watch(a: &Actor, want: Want, key: &str) -> Verdict<Changed> {
    Ok(a.backend().watch(&[claim(want, key)?]).await?)
}

async fn woken(changed: Changed) -> Verdict {
    tokio::time::timeout(WAKE, changed)
        .await
        .map_err(|_| Wrong(format!("nobody woke the watcher within {WAKE:?}")))
}

async fn a_release_wakes(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    for (want, key) in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (Want::Write, "/w/x"),
    ] {
        let held = a.hold(&[(want, key)]).await?;
        let changed = watch(&b, want, key).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        a.release(&held).await?;
        woken(changed).await?;
        b.hold(&[(want, key)]).await?;
    }
    Ok(())
}

async fn a_release_in_the_same_process_wakes(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let b = scene.beside(&a).await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let changed = watch(&b, Want::Create, "k").await?;
    a.release(&held).await?;
    woken(changed).await
}

async fn a_release_above_wakes(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let held = a.hold(&[(Want::Write, "/a")]).await?;
    let changed = watch(&b, Want::Read, "/a/b/c").await?;
    a.release(&held).await?;
    woken(changed).await
}

async fn a_release_below_wakes(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let held = a.hold(&[(Want::Read, "/a/b/c")]).await?;
    let changed = watch(&b, Want::Write, "/a").await?;
    a.release(&held).await?;
    woken(changed).await
}

async fn a_released_share_wakes_who_waits_for_room(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let held = a.hold(&[(share(2), "s")]).await?;
    a.hold(&[(share(2), "s")]).await?;
    let changed = watch(&b, share(2), "s").await?;
    a.release(&held).await?;
    woken(changed).await
}

async fn the_last_released_reader_wakes_a_writer(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let (first, last) = (
        a.hold(&[(Want::Read, "/a")]).await?,
        a.hold(&[(Want::Read, "/a")]).await?,
    );
    a.release(&first).await?;
    let changed = watch(&b, Want::Write, "/a").await?;
    a.release(&last).await?;
    woken(changed).await
}

async fn a_release_of_one_of_many_wakes(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let mut held = Vec::new();
    for key in ["k1", "k2", "k3"] {
        held.push(a.hold(&[(Want::Upsert, key)]).await?);
    }
    for request in held {
        let claims: Verdict<Vec<_>> = ["k1", "k2", "k3"]
            .iter()
            .map(|key| claim(Want::Upsert, key))
            .collect();
        // Only those still held: a watch over something free may wake at once.
        let claims: Vec<_> = claims?
            .into_iter()
            .filter(|claim| claim.key() >= request.claims[0].key())
            .collect();
        let changed = b.backend().watch(&claims).await?;
        a.release(&request).await?;
        woken(changed).await?;
    }
    Ok(())
}

async fn a_death_wakes(scene: Scene, how: End) -> Verdict {
    for (want, key) in [(Want::Create, "c"), (Want::Write, "/w/x")] {
        let (a, b) = (scene.actor().await?, scene.actor().await?);
        a.hold(&[(want, key)]).await?;
        let changed = watch(&b, want, key).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        scene.end(a.session(), how).await?;
        woken(changed).await?;
        b.hold(&[(want, key)]).await?;
    }
    Ok(())
}

async fn a_close_wakes(scene: Scene) -> Verdict {
    a_death_wakes(scene, End::Close).await
}

async fn a_revocation_wakes(scene: Scene) -> Verdict {
    a_death_wakes(scene, End::Revoke).await
}

async fn an_expiry_that_was_established_wakes(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let ttl = short(&b.backend().info());
    let a = scene.actor_for(ttl).await?;
    a.hold(&[(SHARE, "s")]).await?;
    let changed = watch(&b, Want::Create, "s").await?;
    scene.expire(ttl).await;
    scene.state(a.session()).await?;
    woken(changed).await
}

async fn a_settlement_wakes(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Write, "/a/b")], "half done").await?;
    a.end(End::Close).await?;
    let (b, c) = (scene.actor().await?, scene.actor().await?);
    b.adopted(a.session(), 0).await?;
    let changed = watch(&c, Want::Write, "/a").await?;
    ensure!(b.settle(a.session(), 1).await?, "it is settled");
    woken(changed).await
}

async fn a_discard_wakes(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let b = scene.actor().await?;
    let changed = watch(&b, Want::Create, "k").await?;
    scene.end(a.session(), End::Discard).await?;
    woken(changed).await
}

async fn every_watcher_is_woken(scene: Scene) -> Verdict {
    let (a, b, c) = (
        scene.actor().await?,
        scene.actor().await?,
        scene.actor().await?,
    );
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let mut watches = Vec::new();
    for actor in [&a, &b, &b, &c] {
        watches.push(watch(actor, Want::Create, "k").await?);
    }
    a.release(&held).await?;
    for changed in watches {
        woken(changed).await?;
    }
    Ok(())
}

async fn a_dropped_watch_is_no_harm(scene: Scene) -> Verdict {
    let (a, b) = (scene.actor().await?, scene.actor().await?);
    let held = a.hold(&[(Want::Create, "k")]).await?;
    for _ in 0..20 {
        drop(watch(&b, Want::Create, "k").await?);
    }
    let changed = watch(&b, Want::Create, "k").await?;
    a.release(&held).await?;
    woken(changed).await?;
    b.hold(&[(Want::Create, "k")]).await?;
    Ok(())
}
