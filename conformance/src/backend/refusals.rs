//! What a refusal says, and how much of it.

use lockcore::backend::{Acquire, Acquired, End};
use lockcore::limits::MAX_LISTED;
use lockcore::{Grant, Life, Mode, Want};

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "refusals";
        RefusalIsAValue:
            the_first_refused_claim_comes_first,
            refused_claims_keep_the_order_of_the_request,
            of_many_refused_claims_some_are_listed,
            of_many_holders_some_are_listed,
            sixteen_holders_are_all_listed,
            every_holder_in_the_way_is_named,
            an_abandoned_holder_is_named_as_such,
            a_dead_holder_is_never_named,
            a_due_holder_is_never_named,
            a_number_that_is_over_is_never_named,
            a_dead_session_is_not_told_of_a_later_claim_first,
            labels_come_as_they_were_given;
    }
}

async fn the_first_refused_claim_comes_first(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let batch = a.ask(&["k1", "k2", "k3", "k4", "k5", "k6"].map(|key| (Want::Upsert, key)));
    let mut last: Option<Acquire> = None;
    // From the back, so that each is found before the one that was refused first till now.
    for at in (0..6).rev() {
        let key = batch.claims[at].key().as_str();
        let held = b.hold(&[(Want::Upsert, key)]).await?;
        let again = a.ask_claims(batch.owner, batch.claims.clone());
        let busy = a.refused(&again).await?;
        ensure_eq!(
            busy.first().claim,
            batch.claims[at],
            "the first refused claim"
        );
        ensure_eq!(
            busy.first().holders[0].grant,
            Some(held.grant),
            "who is in its way"
        );
        last = Some(held);
    }
    if let Some(held) = last {
        b.release(&held).await?;
        let busy = a
            .refused(&a.ask_claims(batch.owner, batch.claims.clone()))
            .await?;
        ensure_eq!(
            busy.first().claim,
            batch.claims[1],
            "the first refused claim"
        );
    }
    Ok(())
}

/// What it has left of its first claim may still be there, and of its second claim not.
async fn a_dead_session_is_not_told_of_a_later_claim_first(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let batch = a.hold(&[(share(1), "k1"), (share(1), "k2")]).await?;
    b.hold(&[(share(2), "k1")]).await?;
    scene.end(a.session(), End::Revoke).await?;
    // Whoever takes the second claim exclusively goes past the dead.
    let passing = b.hold(&[(Want::Create, "k2")]).await?;
    b.release(&passing).await?;
    b.hold(&[(SHARE, "k2")]).await?;
    match a.send(&batch).await? {
        Acquired::Void => Ok(()),
        Acquired::Busy(busy) => {
            let first = busy.first().claim.key().as_str();
            ensure_eq!(first, "k1", "the first refused claim");
            Ok(())
        }
        answer => Err(Wrong(format!(
            "a dead session is granted nothing: {answer:?}"
        ))),
    }
}

async fn refused_claims_keep_the_order_of_the_request(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let wants = ["k1", "k2", "k3", "k4", "k5", "k6"].map(|key| (Want::Upsert, key));
    let batch = a.ask(&wants);
    let held = b.hold(&[wants[1], wants[3], wants[4]]).await?;
    let busy = a.refused(&batch).await?;
    let mut expected = [1, 3, 4].map(|at| &batch.claims[at]).into_iter();
    for refused in busy.refused() {
        ensure!(
            expected.any(|claim| *claim == refused.claim),
            "{:?} is not refused, or not in order: {busy:?}",
            refused.claim
        );
        for holder in &refused.holders {
            ensure_eq!(
                (holder.grant, holder.key.as_str()),
                (Some(held.grant), refused.claim.key().as_str()),
                "who is in the way"
            );
        }
    }
    ensure!(
        busy.more || expected.next().is_none(),
        "a refusal that lists fewer claims than were refused says so: {busy:?}"
    );
    Ok(())
}

async fn of_many_refused_claims_some_are_listed(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let count = a.backend().info().keys_per_batch.min(40);
    let names: Vec<String> = (10..10 + count).map(|n| format!("k{n}")).collect();
    let wants: Vec<(Want, &str)> = names
        .iter()
        .map(|name| (Want::Upsert, name.as_str()))
        .collect();
    b.hold(&wants).await?;
    let busy = a.refused(&a.ask(&wants)).await?;
    let listed = busy.refused().len();
    ensure!(listed <= MAX_LISTED, "{listed} claims are listed");
    ensure!(
        busy.more || listed == count,
        "{listed} of {count} are listed, and no word of more"
    );
    ensure_eq!(
        busy.first().claim.key().as_str(),
        "k10",
        "the first refused claim"
    );
    Ok(())
}

async fn of_many_holders_some_are_listed(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut held = Vec::new();
    for _ in 0..MAX_LISTED + 4 {
        held.push(b.hold(&[(SHARE, "s")]).await?.grant);
    }
    let busy = a.refused(&a.ask(&[(Want::Create, "s")])).await?;
    let holders = &busy.first().holders;
    ensure!(
        holders.len() <= MAX_LISTED,
        "{} holders are listed",
        holders.len()
    );
    ensure!(
        busy.first().more,
        "there are more holders than are listed, and no word of it"
    );
    for holder in holders {
        ensure!(
            holder.grant.is_some_and(|grant| held.contains(&grant)),
            "{holder:?} holds nothing"
        );
    }
    Ok(())
}

async fn sixteen_holders_are_all_listed(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut held = Vec::new();
    for _ in 0..MAX_LISTED {
        held.push(b.hold(&[(SHARE, "s")]).await?.grant);
    }
    let busy = a.refused(&a.ask(&[(Want::Create, "s")])).await?;
    let mut named: Vec<Grant> = busy
        .first()
        .holders
        .iter()
        .filter_map(|holder| holder.grant)
        .collect();
    named.sort();
    held.sort();
    ensure_eq!(named, held, "who is in the way");
    ensure!(!busy.first().more, "there are no more than are listed");
    Ok(())
}

async fn every_holder_in_the_way_is_named(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let above = b.hold(&[(Want::Read, "/a")]).await?;
    let on = c.hold(&[(Want::Read, "/a/b")]).await?;
    let below = b.hold(&[(Want::Read, "/a/b/c")]).await?;
    let busy = a.refused(&a.ask(&[(Want::Write, "/a/b")])).await?;
    let mut named: Vec<(Option<Grant>, &str, Mode)> = busy
        .first()
        .holders
        .iter()
        .map(|holder| (holder.grant, holder.key.as_str(), holder.mode))
        .collect();
    named.sort();
    let mut expected = vec![
        (Some(above.grant), "/a", Mode::S),
        (Some(on.grant), "/a/b", Mode::S),
        (Some(below.grant), "/a/b", Mode::IS),
    ];
    expected.sort();
    // A store that asks for one record after the other may stop at the first one that refuses.
    for holder in &named {
        ensure!(expected.contains(holder), "{holder:?} is not in the way");
    }
    ensure!(
        named == expected || busy.more || busy.first().more,
        "not all are named, and no word of more: {named:?}"
    );
    Ok(())
}

async fn an_abandoned_holder_is_named_as_such(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.ask(&[(Want::Write, "/a/b")]);
    let token = a.take(&held).await?;
    a.intend(token, "rename").await?;
    scene.end(a.session(), End::Revoke).await?;
    for path in ["/a", "/a/b", "/a/b/c"] {
        let busy = b.refused(&b.ask(&[(Want::Write, path)])).await?;
        let holder = &busy.first().holders[0];
        ensure_eq!(
            (holder.grant, holder.life, holder.label.as_str()),
            (Some(held.grant), Life::Abandoned, a.label().as_str()),
            "who is in the way of {path}"
        );
    }
    Ok(())
}

/// This one alone is in the way of the request.
async fn refused_by(actor: &Actor, request: &Acquire, by: &Acquire) -> Verdict {
    let busy = actor.refused(request).await?;
    let named = busy.first().holders.iter().map(|holder| holder.grant);
    ensure_eq!(
        named.collect::<Vec<_>>(),
        [Some(by.grant)],
        "who is in the way"
    );
    Ok(())
}

async fn a_dead_holder_is_never_named(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(SHARE, "s")]).await?;
    let living = b.hold(&[(SHARE, "s")]).await?;
    a.end(End::Close).await?;
    refused_by(&c, &c.ask(&[(Want::Create, "s")]), &living).await
}

async fn a_due_holder_is_never_named(scene: Scene) -> Verdict {
    let [b, c] = scene.actors().await?;
    let ttl = short(&b.backend().info());
    let a = scene.actor_for(ttl).await?;
    a.hold(&[(SHARE, "s")]).await?;
    let living = b.hold(&[(SHARE, "s")]).await?;
    scene.expire(ttl).await;
    refused_by(&c, &c.ask(&[(Want::Create, "s")]), &living).await
}

async fn a_number_that_is_over_is_never_named(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let retired = a.hold(&[(SHARE, "s")]).await?;
    let held = a.hold(&[(SHARE, "s")]).await?;
    a.retired(&[&retired]).await?;
    refused_by(&b, &b.ask(&[(Want::Create, "s")]), &held).await
}

async fn labels_come_as_they_were_given(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    for (n, text) in [
        "",
        "a'; drop table \"holders\"; --",
        "{\"json\": [1]}",
        "é e\u{301} 🦀",
        &"€".repeat(85),
    ]
    .into_iter()
    .enumerate()
    {
        let a = scene.labelled(text).await?;
        let key = format!("k{n}");
        a.hold(&[(Want::Create, &key)]).await?;
        let busy = b.refused(&b.ask(&[(Want::Create, &key)])).await?;
        ensure_eq!(busy.first().holders[0].label, text, "the holder's label");
        ensure_eq!(
            scene.state(a.session()).await?.label.as_str(),
            text,
            "the session's label"
        );
    }
    Ok(())
}
