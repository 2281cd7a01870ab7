//! Sessions: opened once, written by their owner alone, dead for ever.

use std::time::Duration;

use lockcore::backend::{Acquired, End, Incarnation, IntentChange, Opened, Ranges, Renewed};
use lockcore::limits::MAX_LABEL_BYTES;
use lockcore::{Label, Life, SessionId, Want};
use tokio::time::Instant;

use crate::actor::{Actor, SHARE, registered};
use crate::backend::late;
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Unpassed, Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "sessions";
        DeadStaysDead:
            an_id_is_opened_once,
            an_id_that_was_never_opened_is_dead_and_stays_so,
            ending_a_living_session_if_due_changes_nothing,
            discarding_a_living_session_changes_nothing,
            an_ended_session_is_ended_again_alike,
            sessions_are_ended_in_one_request_each_by_itself,
            sessions_ended_in_one_request_stay_dead,
            ending_one_session_leaves_the_others_of_its_process,
            a_renewal_of_a_session_that_was_never_opened_makes_none;
        ExpiryFrees:
            a_closed_session_frees_all_of_its_locks;
        OneWriter:
            a_smaller_number_changes_nothing,
            numbers_may_leave_gaps,
            an_overtaken_renewal_neither_puts_nor_drops_an_intent,
            a_renewal_that_knows_more_than_the_store_changes_nothing,
            what_is_meant_for_another_incarnation_changes_nothing,
            a_renewal_is_seen_by_other_processes;
        Limits:
            the_shortest_and_the_longest_ttl,
            labels_up_to_their_limit,
            ids_at_both_ends,
            a_hundred_sessions_in_one_request;
    }
}

async fn an_id_is_opened_once(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let other = Label::parse("somebody else")?;
    let ttl = a.backend().info().max_ttl;
    for actor in [&a, &b] {
        let opened = actor.backend().open(a.session(), &other, ttl).await?;
        ensure_eq!(opened, Opened::Used, "a second open");
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (&state.label, state.life),
        (a.label(), Life::Living),
        "the session"
    );
    a.renew("", IntentChange::Keep).await?;
    a.holds(&held).await
}

async fn an_id_that_was_never_opened_is_dead_and_stays_so(scene: Scene) -> Verdict {
    for how in [End::IfDue, End::Close, End::Revoke, End::Discard] {
        let session = scene.session_id();
        let state = scene.end(session, how).await?;
        ensure_eq!(
            (
                state.life,
                state.label.as_str(),
                state.adoption,
                state.adopter
            ),
            (Life::Dead, "", 0, None),
            "a session without a record"
        );
        let stranger = scene.stranger().await?;
        let opened = stranger
            .backend()
            .open(session, stranger.label(), stranger.backend().info().max_ttl)
            .await?;
        ensure_eq!(
            opened,
            Opened::Used,
            "a late open of what was called dead ({how:?})"
        );
    }
    Ok(())
}

async fn a_renewal_of_a_session_that_was_never_opened_makes_none(scene: Scene) -> Verdict {
    let backend = scene.connect().await?;
    let label = Label::parse("nobody")?;
    let a = Actor::new(
        backend,
        scene.session_id(),
        label,
        Duration::MAX,
        Instant::now(),
    );
    a.renews(&a.renewal("", IntentChange::Keep), Renewed::Dead)
        .await?;
    scene.is(a.session(), Life::Dead).await?;
    late::uncounted(&a, &a.ask(&[(Want::Create, "k")])).await?;
    scene.free("k").await
}

async fn ending_a_living_session_if_due_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.hold(&[(Want::Create, "k"), (Want::Create, "l")]).await?;
    for _ in 0..3 {
        let state = scene.state(a.session()).await?;
        ensure_eq!(
            (state.life, &state.label, state.adoption, state.adopter),
            (Life::Living, a.label(), 0, None),
            "the session"
        );
        a.renew("", IntentChange::Keep).await?;
    }
    a.holds(&held).await?;
    scene.held("k").await?;
    Ok(())
}

async fn discarding_a_living_session_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.ask(&[(Want::Create, "k")]);
    let token = a.take(&held).await?;
    a.intend(token, "still at it").await?;
    scene.ends(a.session(), End::Discard, Life::Living).await?;
    a.renew("", IntentChange::Keep).await?;
    a.holds(&held).await?;
    a.ends(End::Close, Life::Abandoned).await
}

async fn an_ended_session_is_ended_again_alike(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let first = a.end(End::Close).await?;
    for how in [End::IfDue, End::Close, End::Revoke, End::IfDue] {
        let again = scene.end(a.session(), how).await?;
        ensure_eq!(
            (again.life, &again.label),
            (Life::Dead, &first.label),
            "the session"
        );
    }
    Ok(())
}

async fn sessions_are_ended_in_one_request_each_by_itself(scene: Scene) -> Verdict {
    let living = scene.actor().await?;
    let dead = scene.actor().await?;
    dead.end(End::Close).await?;
    let abandoned = scene.actor().await?;
    let held = abandoned.ask(&[(Want::Create, "k")]);
    let token = abandoned.take(&held).await?;
    abandoned.intend(token, "half done").await?;
    abandoned.end(End::Close).await?;
    let asked = [
        abandoned.session(),
        scene.session_id(),
        living.session(),
        dead.session(),
    ];
    let states = scene
        .stranger()
        .await?
        .backend()
        .end(&asked, End::IfDue)
        .await?;
    let seen: Vec<(SessionId, Life)> = states
        .iter()
        .map(|state| (state.session, state.life))
        .collect();
    let lives = [Life::Abandoned, Life::Dead, Life::Living, Life::Dead];
    let expected: Vec<(SessionId, Life)> = asked.into_iter().zip(lives).collect();
    ensure_eq!(seen, expected, "the sessions, in the order asked");
    living.renew("", IntentChange::Keep).await
}

async fn sessions_ended_in_one_request_stay_dead(scene: Scene) -> Verdict {
    let process = scene.actor().await?;
    for how in [End::Close, End::Revoke] {
        let mut ended = Vec::new();
        for n in 0..3 {
            let one = scene.beside(&process).await?;
            let held = one.hold(&[(Want::Create, &format!("{how:?} {n}"))]).await?;
            ended.push((one, held));
        }
        let sessions: Vec<SessionId> = ended.iter().map(|(one, _)| one.session()).collect();
        process.backend().end(&sessions, how).await?;
        for (n, (one, held)) in ended.iter().enumerate() {
            let renewal = one.renewal("", IntentChange::Keep);
            one.renews(&renewal, Renewed::Dead).await?;
            one.holds_no_more(held).await?;
            scene.free(&format!("{how:?} {n}")).await?;
        }
    }
    process.renew("", IntentChange::Keep).await
}

async fn ending_one_session_leaves_the_others_of_its_process(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let beside = scene.beside(&a).await?;
    let ours = a.hold(&[(SHARE, "s"), (SHARE, "t")]).await?;
    let theirs = beside.hold(&[(SHARE, "s"), (SHARE, "u")]).await?;
    a.end(End::Close).await?;
    a.holds_no_more(&ours).await?;
    beside.holds(&theirs).await?;
    beside.renew("", IntentChange::Keep).await?;
    scene.held("s").await?;
    scene.free("t").await
}

async fn a_closed_session_frees_all_of_its_locks(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for want in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (SHARE, "s"),
        (Want::Write, "/w/x"),
        (Want::Read, "/r/x"),
    ] {
        a.hold(&[want]).await?;
    }
    a.end(End::Close).await?;
    for key in ["c", "u", "s", "/w/x", "/w", "/r", "/r/x/y"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_smaller_number_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let n = held.grant.n;
    let older = [
        a.renewal("", IntentChange::Keep),
        a.renewal(&format!("{n}-{n}"), IntentChange::Keep),
        a.renewal(&format!("1-{n}"), IntentChange::Keep),
    ];
    let retired = format!("{}-{}", n + 5, n + 9);
    a.renew(&retired, IntentChange::Keep).await?;
    for renewal in older {
        a.renews(&renewal, Renewed::Overtaken).await?;
        ensure_eq!(
            scene.state(a.session()).await?.retired.to_string(),
            retired,
            "what is over"
        );
        a.holds(&held).await?;
    }
    a.renew(&retired, IntentChange::Keep).await
}

async fn numbers_may_leave_gaps(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut renewal = a.renewal("", IntentChange::Keep);
    for (seq, renewed) in [
        (3, Renewed::Living),
        (100, Renewed::Living),
        (99, Renewed::Overtaken),
        (4, Renewed::Overtaken),
        (101, Renewed::Living),
        (1_000_000_000_000, Renewed::Living),
        (102, Renewed::Overtaken),
        (1_000_000_000_001, Renewed::Living),
    ] {
        renewal.seq = seq;
        ensure_eq!(
            a.send_renewal(&renewal).await?,
            renewed,
            "renewal number {seq}"
        );
    }
    Ok(())
}

/// A store with a name that is another one than the client believes, as where a copy has taken over.
async fn what_is_meant_for_another_incarnation_changes_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let here = a.incarnation();
    ensure_eq!(b.incarnation(), here, "the incarnation of another session");
    if !here.is_known() {
        // The store loses nothing, or cannot tell.
        return Err(Unpassed::Lacking);
    }
    let held = a.ask(&[(Want::Create, "k"), (SHARE, "l")]);
    let token = a.take(&held).await?;
    let given_back = a.hold(&[(Want::Create, "m")]).await?;
    a.release(&given_back).await?;
    let n = held.grant.n;
    // Who waits was granted nothing; where there is no line nothing is left of it.
    b.hold(&[(Want::Create, "waited for")]).await?;
    let waiter = a.ask(&[(Want::Create, "waited for")]).waiting();
    a.refused(&waiter).await?;
    let renewal = |granted: &[u64], incarnation| {
        let intent = IntentChange::Put(registered(token, "of another incarnation")?);
        let renewal = a.renewal("1000-1000", intent);
        Ok::<_, Unpassed>(renewal.within(incarnation, Ranges::of(granted.iter().copied())))
    };
    let elsewhere = Incarnation::new(here.get() + 1);
    for (granted, incarnation, answer) in [
        (&[][..], elsewhere, Renewed::Moved(here)),
        (&[n], elsewhere, Renewed::Moved(here)),
        (&[n + 100], here, Renewed::Forgotten),
        (&[n, n + 100], here, Renewed::Forgotten),
        (&[n - 1, n], here, Renewed::Forgotten),
        (&[n, given_back.grant.n], here, Renewed::Forgotten),
        (&[n, waiter.grant.n], here, Renewed::Forgotten),
        (&[u64::MAX], here, Renewed::Forgotten),
    ] {
        let renewed = a.send_renewal(&renewal(granted, incarnation)?).await?;
        ensure_eq!(renewed, answer, "a renewal with grants {granted:?}");
    }
    for wants in [
        &[(Want::Create, "o")][..],
        &[(SHARE, "o")],
        &[(Want::Upsert, "k")],
        &[(Want::Upsert, "o"), (Want::Create, "p")],
        &[(Want::Write, "/o/p")],
    ] {
        let asked = a.ask(wants).within(elsewhere);
        ensure_eq!(a.send(&asked).await?, Acquired::Moved, "{wants:?}");
        a.holds_no_more(&asked).await?;
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.retired.to_string().as_str()),
        (Life::Living, ""),
        "the session"
    );
    // Who knows all of that moves.
    a.renews(&renewal(&[n], here)?, Renewed::Living).await?;
    a.holds(&held).await?;
    // A session that is dead has forgotten nothing.
    let closed = a.end(End::Close).await?;
    ensure_eq!(closed.life, Life::Abandoned, "with the intent of the last");
    a.renews(&renewal(&[n + 100], here)?, Renewed::Dead).await
}

/// A store that has lost what it acknowledged, as this session's process sees it.
async fn a_renewal_that_knows_more_than_the_store_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.ask(&[(Want::Create, "k")]);
    let token = a.take(&held).await?;
    let n = held.grant.n;
    for seq in [3, 5] {
        let mut renewal = a.renewal("", IntentChange::Keep);
        renewal.seq = seq;
        ensure_eq!(
            a.send_renewal(&renewal).await?,
            Renewed::Living,
            "renewal number {seq}, after number {}",
            renewal.acknowledged
        );
    }
    for (seq, acknowledged) in [
        (7, 6),
        (1_000_000_000_001, 1_000_000_000_000),
        (5, 6),
        (4, 6),
    ] {
        for intent in [
            IntentChange::Keep,
            IntentChange::Put(registered(token, "of what is forgotten")?),
        ] {
            let mut renewal = a.renewal(&format!("{n}-{n}"), intent).after(acknowledged);
            renewal.seq = seq;
            a.renews(&renewal, Renewed::Forgotten).await?;
        }
    }
    let state = scene.state(a.session()).await?;
    ensure_eq!(
        (state.life, state.retired.to_string().as_str()),
        (Life::Living, ""),
        "the session"
    );
    a.holds(&held).await?;
    let mut renewal = a.renewal("", IntentChange::Keep).after(5);
    renewal.seq = 6;
    a.renews(&renewal, Renewed::Living).await?;
    a.ends(End::Close, Life::Dead).await?;
    renewal.seq = 8;
    a.renews(&renewal.after(7), Renewed::Dead).await
}

async fn an_overtaken_renewal_neither_puts_nor_drops_an_intent(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.ask(&[(Want::Create, "k")]);
    let token = a.take(&held).await?;
    let put = a.renewal("", IntentChange::Put(registered(token, "the older")?));
    a.renew("", IntentChange::Keep).await?;
    a.renews(&put, Renewed::Overtaken).await?;
    let drop = a.renewal("", IntentChange::Drop);
    a.intend(token, "the newer").await?;
    for late in [&put, &drop] {
        a.renews(late, Renewed::Overtaken).await?;
    }
    a.ends(End::Close, Life::Abandoned).await?;
    let adoption = scene.stranger().await?.adopt(a.session(), 0).await?;
    let left = adoption.map(|adoption| adoption.left);
    ensure_eq!(left, Some(registered(token, "the newer")?), "the intent");
    Ok(())
}

async fn a_renewal_is_seen_by_other_processes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let request = a.hold(&[(Want::Create, "k")]).await?;
    b.refused(&b.ask(&[(Want::Create, "k")])).await?;
    a.retired(&[&request]).await?;
    b.hold(&[(Want::Create, "k")]).await?;
    Ok(())
}

/// What a store may add to a lease, or take from it by counting in seconds.
const SECONDS: Duration = Duration::from_secs(5);

async fn the_shortest_and_the_longest_ttl(scene: Scene) -> Verdict {
    let info = scene.connect().await?.info();
    ensure!(info.min_ttl <= info.max_ttl, "{info:?}");
    ensure!(info.min_ttl >= lockcore::limits::MIN_TTL, "{info:?}");
    ensure!(info.max_ttl <= lockcore::limits::MAX_TTL, "{info:?}");
    let sent = Instant::now();
    let longest = scene.actor_for(info.max_ttl).await?;
    longest.hold(&[(Want::Create, "long")]).await?;
    // Nobody can wait for its end: what the store says of it has to do, if it does.
    let told = longest.backend().lease_left(&[longest.session()]).await?;
    ensure_eq!(told.len(), 1, "leases of one session");
    if let Some(left) = told[0] {
        // A store may count in seconds.
        let least = info.max_ttl.saturating_sub(sent.elapsed() + SECONDS);
        ensure!(
            left >= least && left <= info.max_ttl + SECONDS,
            "{left:?} of the longest TTL, {:?}",
            info.max_ttl
        );
    }
    let shortest = scene.actor_for(info.min_ttl).await?;
    shortest.hold(&[(Want::Create, "short")]).await?;
    scene.expire(info.min_ttl).await;
    scene.free("short").await?;
    scene.held("long").await?;
    Ok(())
}

async fn labels_up_to_their_limit(scene: Scene) -> Verdict {
    for label in [
        "",
        "x",
        &"y".repeat(MAX_LABEL_BYTES),
        &"🦀".repeat(MAX_LABEL_BYTES / 4),
    ] {
        let a = scene.labelled(label).await?;
        ensure_eq!(
            scene.state(a.session()).await?.label.as_str(),
            label,
            "the label, living"
        );
        a.end(End::Close).await?;
        scene.is(a.session(), Life::Dead).await?;
    }
    Ok(())
}

async fn ids_at_both_ends(scene: Scene) -> Verdict {
    let backend = scene.connect().await?;
    let ttl = Duration::from_secs(600).min(backend.info().max_ttl);
    for (n, id) in [0, 1, u128::MAX, 1 << 127, u128::from(u64::MAX)]
        .into_iter()
        .enumerate()
    {
        let session = SessionId::new(id);
        let a = scene
            .open_as(backend.clone(), session, "at an end", ttl)
            .await?;
        let held = a.hold(&[(Want::Create, &format!("k{n}"))]).await?;
        let holders = scene.held(&format!("k{n}")).await?;
        ensure_eq!(holders[0].grant, Some(held.grant), "who holds it");
    }
    scene
        .ends(SessionId::new(0), End::Close, Life::Dead)
        .await?;
    scene.free("k0").await?;
    for key in ["k1", "k2", "k3", "k4"] {
        scene.held(key).await?;
    }
    Ok(())
}

async fn a_hundred_sessions_in_one_request(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut sessions = Vec::new();
    for _ in 0..100 {
        let one = scene.beside(&a).await?;
        one.hold(&[(SHARE, "s")]).await?;
        sessions.push(one.session());
    }
    let states = a.backend().end(&sessions, End::Revoke).await?;
    let ended: Vec<SessionId> = states.iter().map(|state| state.session).collect();
    ensure_eq!(ended, sessions, "the sessions, in the order asked");
    ensure!(
        states.iter().all(|state| state.life == Life::Dead),
        "all of them are dead"
    );
    scene.free("s").await?;
    a.renew("", IntentChange::Keep).await
}
