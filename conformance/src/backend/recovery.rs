//! Intents: what a holder leaves behind, and what stays held for it.

use lockcore::backend::{Acquire, End, IntentChange, Opened, Registered, Renewed};
use lockcore::limits::MAX_INTENT_BYTES;
use lockcore::{FencingToken, Intent, Life, Want};

use crate::actor::{Actor, SHARE, registered, share};
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "recovery";
        Recovery:
            a_closed_session_leaves_its_intent,
            a_revoked_session_leaves_its_intent,
            an_abandoned_session_keeps_every_lock,
            an_abandoned_share_still_counts,
            an_abandoned_session_keeps_what_is_below_and_above,
            a_dropped_intent_leaves_nothing,
            a_newer_intent_takes_the_place_of_an_older,
            an_intent_stays_over_renewals,
            an_intent_of_any_bytes_comes_back_as_it_was,
            an_intent_is_of_its_session_only,
            discarding_frees_the_locks_and_ends_the_session,
            discarding_a_dead_session_changes_nothing;
        DeadStaysDead:
            an_abandoned_session_is_not_renewed,
            an_abandoned_session_is_not_opened_again,
            an_abandoned_session_acquires_nothing_more,
            an_abandoned_session_that_is_ended_again_stays_abandoned;
        UnknownIsSettled:
            a_number_that_is_over_is_not_held_by_an_intent;
        Limits:
            intents_up_to_their_limit;
        AtMostOneHolder:
            an_abandoned_lock_is_not_free_for_anybody;
    }
}

/// A process that holds this with an intent.
pub(super) async fn with_intent(
    scene: &Scene,
    wants: &[(Want, &str)],
    text: &str,
) -> Verdict<(Actor, Acquire, FencingToken)> {
    let a = scene.actor().await?;
    let request = a.ask(wants);
    let token = a.take(&request).await?;
    a.intend(token, text).await?;
    Ok((a, request, token))
}

async fn left_by(scene: Scene, how: End) -> Verdict {
    let (a, held, token) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    let state = scene.end(a.session(), how).await?;
    ensure_eq!(
        (state.life, state.adoption, state.adopter, &state.label),
        (Life::Abandoned, 0, None, a.label()),
        "the session"
    );
    let holders = scene.held("k").await?;
    ensure_eq!(
        (holders[0].grant, holders[0].life),
        (Some(held.grant), Life::Abandoned),
        "who holds it"
    );
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    ensure_eq!(adoption.left, registered(token, "half done")?, "the intent");
    ensure!(
        adoption.token > token,
        "the adopter's token {} after {token}",
        adoption.token
    );
    Ok(())
}

async fn a_closed_session_leaves_its_intent(scene: Scene) -> Verdict {
    left_by(scene, End::Close).await
}

async fn a_revoked_session_leaves_its_intent(scene: Scene) -> Verdict {
    left_by(scene, End::Revoke).await
}

async fn an_abandoned_session_keeps_every_lock(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut last = None;
    for key in ["d1", "d2", "d3"] {
        last = Some(a.take(&a.ask(&[(Want::Upsert, key)])).await?);
    }
    if let Some(token) = last {
        a.intend(token, "over all three").await?;
    }
    a.end(End::Close).await?;
    for key in ["d1", "d2", "d3"] {
        scene.held(key).await?;
    }
    // And through a sweep.
    scene.sweep_all().await?;
    for key in ["d1", "d2", "d3"] {
        scene.held(key).await?;
    }
    Ok(())
}

async fn an_abandoned_share_still_counts(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(SHARE, "s")], "shared work").await?;
    let b = scene.actor().await?;
    a.end(End::Close).await?;
    b.refused(&b.ask(&[(share(1), "s")])).await?;
    b.refused(&b.ask(&[(Want::Upsert, "s")])).await?;
    b.hold(&[(share(2), "s")]).await?;
    Ok(())
}

async fn an_abandoned_session_keeps_what_is_below_and_above(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(
        &scene,
        &[(Want::Write, "/a/b"), (Want::Read, "/c/d")],
        "move",
    )
    .await?;
    let b = scene.actor().await?;
    a.end(End::Close).await?;
    for path in ["/a", "/a/b", "/a/b/c", "/c", "/c/d", "/c/d/e"] {
        b.refused(&b.ask(&[(Want::Write, path)])).await?;
    }
    b.refused(&b.ask(&[(Want::Read, "/a")])).await?;
    b.hold(&[(Want::Read, "/c"), (Want::Write, "/a/x")]).await?;
    Ok(())
}

async fn a_dropped_intent_leaves_nothing(scene: Scene) -> Verdict {
    for how in [End::Close, End::Revoke] {
        let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "done").await?;
        a.renew("", IntentChange::Drop).await?;
        scene.ends(a.session(), how, Life::Dead).await?;
        scene
            .stranger()
            .await?
            .adopts_nothing(a.session(), 0)
            .await?;
        scene.free("k").await?;
    }
    Ok(())
}

async fn a_newer_intent_takes_the_place_of_an_older(scene: Scene) -> Verdict {
    let (a, _, token) = with_intent(
        &scene,
        &[(Want::Create, "k")],
        "the first, and a longer one",
    )
    .await?;
    a.intend(token, "the second").await?;
    a.end(End::Close).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    ensure_eq!(
        adoption.left,
        registered(token, "the second")?,
        "the intent"
    );
    b.settles(a.session(), adoption.number).await?;
    scene.is(a.session(), Life::Dead).await
}

async fn an_intent_stays_over_renewals(scene: Scene) -> Verdict {
    let (a, held, token) = with_intent(&scene, &[(Want::Create, "k")], "long work").await?;
    let retired = format!("{}-{}", held.grant.n + 1, held.grant.n + 3);
    for retired in ["", &retired, &retired] {
        a.renew(retired, IntentChange::Keep).await?;
    }
    a.end(End::Close).await?;
    let adoption = scene.actor().await?.adopted(a.session(), 0).await?;
    ensure_eq!(adoption.left, registered(token, "long work")?, "the intent");
    Ok(())
}

async fn comes_back(scene: &Scene, bytes: Vec<u8>) -> Verdict {
    let a = scene.actor().await?;
    let request = a.hold(&[(Want::Create, "k")]).await?;
    let token = a.take(&request).await?;
    let left = Registered {
        token,
        intent: Intent::new(bytes)?,
    };
    a.renew("", IntentChange::Put(left.clone())).await?;
    a.ends(End::Close, Life::Abandoned).await?;
    let b = scene.actor().await?;
    let adoption = b.adopted(a.session(), 0).await?;
    ensure!(
        adoption.left == left,
        "the intent of {} bytes came back changed",
        left.intent.as_bytes().len()
    );
    b.settles(a.session(), adoption.number).await
}

async fn an_intent_of_any_bytes_comes_back_as_it_was(scene: Scene) -> Verdict {
    comes_back(&scene, (0..=255).collect()).await?;
    comes_back(
        &scene,
        b"{\"a\":\"\\u0000\", \"b\": 'x'}\r\n\0\xff\xfe".to_vec(),
    )
    .await?;
    comes_back(&scene, "é e\u{301} 🦀 \u{2028}".into()).await
}

async fn intents_up_to_their_limit(scene: Scene) -> Verdict {
    for bytes in [0, 1, MAX_INTENT_BYTES - 1, MAX_INTENT_BYTES] {
        comes_back(&scene, vec![0xfe; bytes]).await?;
    }
    Ok(())
}

async fn an_intent_is_of_its_session_only(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(SHARE, "s")], "one").await?;
    let (b, _, token) = with_intent(&scene, &[(SHARE, "s")], "other").await?;
    let c = scene.actor().await?;
    c.hold(&[(SHARE, "s")]).await?;
    for actor in [&a, &b] {
        actor.ends(End::Close, Life::Abandoned).await?;
    }
    c.ends(End::Close, Life::Dead).await?;
    let adopter = scene.actor().await?;
    let one = adopter.adopted(a.session(), 0).await?;
    adopter.settles(a.session(), one.number).await?;
    let other = adopter.adopted(b.session(), 0).await?;
    ensure_eq!(
        other.left,
        registered(token, "other")?,
        "the other's intent"
    );
    let holders = scene.held("s").await?;
    let sessions: Vec<_> = holders
        .iter()
        .filter_map(|holder| holder.grant)
        .map(|grant| grant.session)
        .collect();
    ensure_eq!(sessions, [b.session()], "who is left");
    Ok(())
}

async fn discarding_frees_the_locks_and_ends_the_session(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Write, "/a/b")], "hopeless").await?;
    a.end(End::Close).await?;
    let state = scene.end(a.session(), End::Discard).await?;
    ensure_eq!(
        (state.life, state.adopter),
        (Life::Dead, None),
        "the session"
    );
    ensure!(
        state.adoption > 0,
        "its adoption number is used up: {state:?}"
    );
    scene.free("/a").await?;
    let b = scene.actor().await?;
    for seen in 0..=state.adoption {
        b.adopts_nothing(a.session(), seen).await?;
        b.settles_nothing(a.session(), seen).await?;
    }
    Ok(())
}

async fn discarding_a_dead_session_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    a.hold(&[(Want::Create, "k")]).await?;
    a.end(End::Close).await?;
    for _ in 0..2 {
        scene.ends(a.session(), End::Discard, Life::Dead).await?;
    }
    scene.free("k").await
}

async fn an_abandoned_session_is_not_renewed(scene: Scene) -> Verdict {
    let (a, held, token) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    scene.end(a.session(), End::Revoke).await?;
    for change in [
        IntentChange::Keep,
        IntentChange::Drop,
        IntentChange::Put(registered(token, "too late")?),
    ] {
        let retired = format!("1-{}", held.grant.n);
        a.renews(&a.renewal(&retired, change), Renewed::Dead)
            .await?;
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.retired.is_empty()),
        (Life::Abandoned, true),
        "the session"
    );
    scene.held("k").await?;
    let adoption = scene.actor().await?.adopted(a.session(), 0).await?;
    ensure_eq!(adoption.left, registered(token, "half done")?, "the intent");
    Ok(())
}

async fn an_abandoned_session_is_not_opened_again(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let ttl = a.backend().info().max_ttl;
    let opened = a.backend().open(a.session(), a.label(), ttl).await?;
    ensure_eq!(opened, Opened::Used, "open of an abandoned session");
    scene.is(a.session(), Life::Abandoned).await
}

async fn an_abandoned_session_acquires_nothing_more(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let batch = a.ask(&[(Want::Upsert, "l"), (Want::Upsert, "m")]);
    ensure_eq!(
        a.send(&batch).await?,
        lockcore::backend::Acquired::Void,
        "a batch of an abandoned session"
    );
    for key in ["l", "m"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn an_abandoned_session_that_is_ended_again_stays_abandoned(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    for how in [End::Close, End::Revoke, End::IfDue, End::Close] {
        let state = scene.end(a.session(), how).await?;
        ensure_eq!(
            (state.life, state.adoption),
            (Life::Abandoned, 0),
            "the session"
        );
        scene.held("k").await?;
    }
    Ok(())
}

async fn a_number_that_is_over_is_not_held_by_an_intent(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let retired = a.hold(&[(Want::Upsert, "given up")]).await?;
    let kept = a.ask(&[(Want::Upsert, "kept")]);
    let token = a.take(&kept).await?;
    a.retired(&[&retired]).await?;
    let numbers = format!("{0}-{0}", retired.grant.n);
    let put = IntentChange::Put(registered(token, "half done")?);
    a.renew(&numbers, put).await?;
    let state = a.end(End::Close).await?;
    ensure_eq!(
        (state.life, state.retired.to_string()),
        (Life::Abandoned, numbers),
        "the session"
    );
    scene.free("given up").await?;
    scene.held("kept").await?;
    // A copy of it that comes now is void as well.
    a.send(&retired).await?;
    scene.free("given up").await
}

async fn an_abandoned_lock_is_not_free_for_anybody(scene: Scene) -> Verdict {
    let (a, held, _) = with_intent(&scene, &[(Want::Upsert, "k")], "half done").await?;
    a.end(End::Close).await?;
    let b = scene.actor().await?;
    let busy = b.refused(&b.ask(&[(Want::Upsert, "k")])).await?;
    ensure_eq!(
        busy.first().holders[0].grant,
        Some(held.grant),
        "who is in the way"
    );
    // Not for its adopter either, whose locks these are not.
    b.adopted(a.session(), 0).await?;
    b.refused(&b.ask(&[(Want::Upsert, "k")])).await?;
    Ok(())
}
