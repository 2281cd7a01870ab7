//! Batches of several claims: granted whole, or not at all.

use futures_util::future::join;
use lockcore::Want;
use lockcore::backend::{Acquire, Acquired, Filter};

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::scene::{Scene, claim};
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "batches";
        AllowedIsGranted:
            a_batch_is_held_whole_and_released_whole,
            an_owner_takes_a_batch_again_that_it_holds_in_part;
        Limits:
            a_batch_of_as_many_keys_as_the_store_takes,
            a_batch_of_more_keys_is_held_whole_or_not_at_all;
        NothingKept:
            refused_at_the_first_claim_holds_nothing,
            refused_in_the_middle_holds_nothing,
            refused_at_the_last_claim_holds_nothing,
            refused_by_a_limit_holds_nothing,
            refused_again_and_again_holds_nothing,
            refused_leaves_what_its_own_owner_held_before,
            crossing_batches_never_leave_a_rest;
    }
}

const KEYS: [&str; 5] = ["d1", "d2", "d3", "d4", "d5"];

fn upserts(keys: &[&'static str]) -> Vec<(Want, &'static str)> {
    keys.iter().map(|key| (Want::Upsert, *key)).collect()
}

async fn a_batch_is_held_whole_and_released_whole(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let batch = a.hold(&upserts(&KEYS)).await?;
    for key in KEYS {
        let holders = scene.held(key).await?;
        ensure_eq!(holders.len(), 1, "holders of {key}");
        ensure_eq!(holders[0].grant, Some(batch.grant), "who holds {key}");
    }
    a.holds(&batch).await?;
    a.release(&batch).await?;
    for key in KEYS {
        scene.free(key).await?;
    }
    a.holds_no_more(&batch).await
}

async fn an_owner_takes_a_batch_again_that_it_holds_in_part(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let part = a.hold_as(owner, &upserts(&["d2", "d4"])).await?;
    let whole = a.hold_as(owner, &upserts(&KEYS)).await?;
    a.release(&whole).await?;
    for (key, held) in [
        ("d1", false),
        ("d2", true),
        ("d3", false),
        ("d4", true),
        ("d5", false),
    ] {
        if held {
            scene.held(key).await?;
        } else {
            scene.free(key).await?;
        }
    }
    a.holds(&part).await
}

async fn a_batch_of_as_many_keys_as_the_store_takes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let names: Vec<String> = (0..a.backend().info().keys_per_batch)
        .map(|n| format!("document-{n}"))
        .collect();
    let claims: Verdict<Vec<_>> = names.iter().map(|name| claim(Want::Upsert, name)).collect();
    let batch = a.ask_claims(a.owner(), claims?);
    let first = a.take(&batch).await?;
    let again = a.take(&batch).await?;
    ensure!(
        again >= first,
        "a re-sent request's token: {first}, then {again}"
    );
    a.holds(&batch).await?;
    for name in [&names[0], &names[names.len() - 1]] {
        b.refused(&b.ask(&[(Want::Upsert, name)])).await?;
    }
    a.release(&batch).await?;
    b.take(&b.ask_claims(b.owner(), batch.claims)).await?;
    Ok(())
}

/// The client asks for no such batch. A store may take it, and then all of it, or say that it cannot, and then holds
/// nothing of it once it is released.
async fn a_batch_of_more_keys_is_held_whole_or_not_at_all(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let most = a.backend().info().keys_per_batch;
    let flat: Vec<String> = (0..=most).map(|n| format!("document-{n:05}")).collect();
    // Each counts itself and what is above it, of which they have one in common.
    let paths: Vec<String> = (0..most).map(|n| format!("/tree/{n:05}")).collect();
    for (want, names) in [(Want::Upsert, flat), (Want::Write, paths)] {
        let claims: Verdict<Vec<_>> = names.iter().map(|name| claim(want, name)).collect();
        let batch = a.ask_claims(a.owner(), claims?);
        let ends = [&names[0], &names[names.len() - 1]];
        match a.backend().acquire(&batch).await {
            Ok(Acquired::Acquired(_)) => {
                ensure!(
                    a.confirms(&batch).await?,
                    "a batch of {} keys that was granted is held",
                    most + 1
                );
                for name in ends {
                    b.refused(&b.ask(&[(want, name)])).await?;
                }
            }
            Ok(answer) => {
                return Err(Wrong(format!(
                    "nobody is in the way of {} keys: {answer:?}",
                    most + 1
                )));
            }
            Err(_) => ensure!(!a.confirms(&batch).await?, "what failed is not held whole"),
        }
        a.release(&batch).await?;
        for name in ends {
            scene.free(name).await?;
        }
        let left = a.listed(&Filter::Session(a.session()), 100).await?;
        ensure_eq!(left, [], "what the session holds after the release");
    }
    Ok(())
}

async fn refused_at_the_first_claim_holds_nothing(scene: Scene) -> Verdict {
    refused_at(scene, 0).await
}

async fn refused_in_the_middle_holds_nothing(scene: Scene) -> Verdict {
    refused_at(scene, 2).await
}

async fn refused_at_the_last_claim_holds_nothing(scene: Scene) -> Verdict {
    refused_at(scene, 4).await
}

async fn refused_at(scene: Scene, at: usize) -> Verdict {
    let [a, b] = scene.actors().await?;
    let other = b.hold(&[(Want::Upsert, KEYS[at])]).await?;
    let batch = a.ask(&upserts(&KEYS));
    let busy = a.refused(&batch).await?;
    ensure_eq!(
        busy.first().claim,
        batch.claims[at],
        "the first refused claim"
    );
    ensure_eq!(
        busy.first().holders[0].grant,
        Some(other.grant),
        "who is in the way"
    );
    nothing_is_held(&scene, &a, &batch).await?;
    for (n, key) in KEYS.iter().enumerate() {
        if n != at {
            scene.free(key).await?;
        }
    }
    b.holds(&other).await
}

/// The session that asked holds nothing that counts, and the grant confirms nothing.
async fn nothing_is_held(scene: &Scene, asker: &Actor, batch: &Acquire) -> Verdict {
    let stranger = scene.stranger().await?;
    let records = stranger
        .listed(&Filter::Session(asker.session()), 100)
        .await?;
    ensure_eq!(records, [], "what the refused session holds");
    asker.holds_no_more(batch).await?;
    for claim in &batch.claims {
        let mut one = batch.clone();
        one.claims = vec![claim.clone()];
        asker.holds_no_more(&one).await?;
    }
    Ok(())
}

async fn refused_by_a_limit_holds_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    b.hold(&[(SHARE, "s2")]).await?;
    let batch = a.ask(&[(share(2), "s1"), (share(1), "s2"), (share(2), "s3")]);
    let busy = a.refused(&batch).await?;
    ensure_eq!(
        busy.first().claim,
        batch.claims[1],
        "the first refused claim"
    );
    nothing_is_held(&scene, &a, &batch).await?;
    scene.free("s1").await?;
    scene.free("s3").await
}

async fn refused_again_and_again_holds_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let other = b.hold(&[(Want::Upsert, "d3")]).await?;
    let mut last = None;
    for _ in 0..10 {
        let batch = a.ask(&upserts(&KEYS));
        a.refused(&batch).await?;
        last = Some(batch);
    }
    if let Some(batch) = last {
        nothing_is_held(&scene, &a, &batch).await?;
    }
    b.release(&other).await?;
    for key in KEYS {
        scene.free(key).await?;
    }
    Ok(())
}

async fn refused_leaves_what_its_own_owner_held_before(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let owner = a.owner();
    let before = a.hold_as(owner, &upserts(&["d1", "d2"])).await?;
    b.hold(&[(Want::Upsert, "d5")]).await?;
    a.refused(&a.ask_as(owner, &upserts(&KEYS))).await?;
    a.holds(&before).await?;
    for key in ["d1", "d2"] {
        scene.held(key).await?;
    }
    for key in ["d3", "d4"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn crossing_batches_never_leave_a_rest(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for _ in 0..20 {
        let (left, right) = (a.ask(&upserts(&KEYS)), b.ask(&upserts(&KEYS)));
        let (for_a, for_b) = join(a.send(&left), b.send(&right)).await;
        let mut winners = 0;
        for (actor, batch, answer) in [(&a, &left, for_a?), (&b, &right, for_b?)] {
            match answer {
                Acquired::Acquired(_) => {
                    winners += 1;
                    actor.holds(batch).await?;
                    actor.release(batch).await?;
                }
                Acquired::Busy(_) => ensure!(!actor.confirms(batch).await?, "refused is not held"),
                answer => ensure!(false, "a living session is granted or refused: {answer:?}"),
            }
        }
        ensure!(winners < 2, "both batches were granted");
        for key in KEYS {
            scene.free(key).await?;
        }
    }
    Ok(())
}
