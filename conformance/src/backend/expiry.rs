//! Sessions that become due by the store's time.

use std::time::Duration;

use futures_util::future::{join, join3};
use lockcore::backend::{Acquire, Acquired, End, Filter, IntentChange, Renewed, Sweep};
use lockcore::{Life, Want};
use tokio::time::{Instant, sleep};

use crate::actor::{Actor, SHARE, registered, share};
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, cases, ensure, ensure_eq, in_time};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "expiry";
        ExpiryFrees:
            a_lock_is_held_until_its_ttl_and_then_free,
            a_renewal_counts_from_when_it_was_sent,
            a_renewal_changes_the_ttl,
            whoever_asks_frees_what_is_due,
            every_lock_of_a_session_is_free_at_once,
            a_due_ancestor_is_free,
            a_due_holder_far_below_is_free,
            each_session_is_due_by_its_own_ttl,
            a_due_session_among_many_holders,
            a_due_session_behind_many_permits,
            a_sweep_leaves_what_is_due_its_intent,
            whoever_looks_at_what_is_due_leaves_it_so,
            releases_and_acquires_are_no_renewals;
        DiesOfItsEnd:
            a_ttl_of_no_whole_second_is_lived_to_its_end;
        DeadStaysDead:
            a_session_that_is_due_and_renewed_lives_or_is_dead_for_good,
            a_death_and_a_renewal_at_once_agree,
            a_late_copy_of_an_expired_session_takes_nothing,
            a_late_release_of_an_expired_session_leaves_the_next_holder;
        Recovery:
            an_expired_session_with_an_intent_is_abandoned,
            an_intent_that_was_dropped_is_not_left,
            whoever_asks_finds_the_abandoned_session;
    }
}

/// A process with the store's shortest TTL.
async fn short_lived(scene: &Scene) -> Verdict<(Actor, Duration)> {
    let ttl = short(&scene.stranger().await?.backend().info());
    Ok((scene.actor_for(ttl).await?, ttl))
}

async fn a_lock_is_held_until_its_ttl_and_then_free(scene: Scene) -> Verdict {
    let ttl = short(&scene.stranger().await?.backend().info()) * 3;
    let a = scene.actor_for(ttl).await?;
    let held = a.hold(&[(Want::Create, "k"), (Want::Create, "l")]).await?;
    scene.pass(ttl * 2 / 3).await;
    let state = scene.state(a.session()).await?;
    let confirmed = a.confirms(&held).await?;
    let holders = scene.held("k").await;
    a.lives()?;
    ensure_eq!(state.life, Life::Living, "the session before its TTL");
    ensure!(confirmed, "the lock is held before its TTL");
    ensure_eq!(holders?[0].grant, Some(held.grant), "who holds it");
    scene.expire(ttl).await;
    scene.is(a.session(), Life::Dead).await?;
    scene.free("k").await?;
    scene.free("l").await
}

async fn a_ttl_of_no_whole_second_is_lived_to_its_end(scene: Scene) -> Verdict {
    const MS: Duration = Duration::from_millis(1);
    // Asked for first: nothing else has to be done within the TTL.
    let shortest = short(&scene.stranger().await?.backend().info());
    let whole = Duration::from_secs(shortest.as_millis().div_ceil(1_000).try_into()?);
    let ttl = whole + 900 * MS;
    let renewed = scene.actor().await?;
    let mut held = vec![renewed.hold(&[(Want::Create, "renewed")]).await?];
    let sent = Instant::now();
    let opened = scene.actor_for(ttl).await?;
    held.push(opened.hold(&[(Want::Create, "opened")]).await?);
    let shorter = renewed.renewal("", IntentChange::Keep).lasting(ttl);
    let answer = renewed.send_renewal(&shorter).await?;
    // Over, if nothing but whole seconds counted.
    scene.pass(whole + 200 * MS).await;
    for (actor, held, what) in [
        (&renewed, &held[0], "renewed"),
        (&opened, &held[1], "opened"),
    ] {
        let state = scene.state(actor.session()).await?;
        let confirmed = actor.confirms(held).await?;
        let holders = scene.held(what).await;
        in_time(sent, ttl)?;
        ensure_eq!(
            state.life,
            Life::Living,
            "the session that was {what} for {ttl:?}"
        );
        ensure!(confirmed, "the lock of the session that was {what} is held");
        ensure_eq!(holders?[0].grant, Some(held.grant), "who holds it");
    }
    ensure_eq!(answer, Renewed::Living, "a renewal with a shorter TTL");
    scene.expire(ttl).await;
    scene.free("renewed").await?;
    scene.free("opened").await
}

async fn a_renewal_counts_from_when_it_was_sent(scene: Scene) -> Verdict {
    let ttl = short(&scene.stranger().await?.backend().info()) * 3;
    let mut sent = Instant::now();
    let a = scene.actor_for(ttl).await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    for _ in 0..2 {
        scene.pass(ttl / 2).await;
        let renewal = Instant::now();
        let renewed = a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
        in_time(sent, ttl)?;
        ensure_eq!(renewed, Renewed::Living, "renewal before the TTL");
        sent = renewal;
    }
    scene.pass(ttl / 2).await;
    let holders = scene.held("k").await;
    in_time(sent, ttl)?;
    ensure_eq!(
        holders?[0].grant,
        Some(held.grant),
        "who holds it, long after the first TTL"
    );
    scene.expire(ttl).await;
    scene.free("k").await
}

async fn a_renewal_changes_the_ttl(scene: Scene) -> Verdict {
    let ttl = short(&scene.stranger().await?.backend().info());
    let (a, long) = (scene.actor_for(ttl).await?, ttl * 4);
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let mut sent = Instant::now();
    let longer = a.renewal("", IntentChange::Keep).lasting(long);
    let renewed = a.send_renewal(&longer).await?;
    in_time(sent, ttl)?;
    ensure_eq!(renewed, Renewed::Living, "a renewal with a longer TTL");
    for renewal in [false, true] {
        if renewal {
            sent = Instant::now();
            a.renews(&a.renewal("", IntentChange::Keep), Renewed::Living)
                .await?;
        }
        scene.expire(ttl).await;
        let state = scene.state(a.session()).await?;
        let holders = scene.held("k").await;
        in_time(sent, long)?;
        ensure_eq!(state.life, Life::Living, "the session behind its first TTL");
        ensure_eq!(holders?[0].grant, Some(held.grant), "who holds it");
    }
    let shorter = a.renewal("", IntentChange::Keep).lasting(ttl);
    let renewed = a.send_renewal(&shorter).await?;
    in_time(sent, long)?;
    ensure_eq!(renewed, Renewed::Living, "a renewal with a shorter TTL");
    // A copy of the earlier one that comes late.
    let late = a.send_renewal(&longer).await?;
    ensure!(
        matches!(late, Renewed::Overtaken | Renewed::Dead),
        "an overtaken renewal with a longer TTL: {late:?}"
    );
    scene.expire(ttl).await;
    scene.is(a.session(), Life::Dead).await?;
    scene.free("k").await
}

async fn whoever_asks_frees_what_is_due(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    for want in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (SHARE, "s"),
        (Want::Write, "/w"),
        (Want::Read, "/r"),
    ] {
        a.hold(&[want]).await?;
    }
    scene.expire(ttl).await;
    // Nobody has ended the session: these requests themselves meet it.
    for want in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (Want::Create, "s"),
        (Want::Write, "/w"),
        (Want::Write, "/r"),
    ] {
        b.hold(&[want]).await?;
    }
    let renewed = a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
    ensure_eq!(
        renewed,
        Renewed::Dead,
        "renewal after another took its lock"
    );
    Ok(())
}

async fn every_lock_of_a_session_is_free_at_once(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    let names: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
    for batch in names.chunks(5) {
        let wants: Vec<(Want, &str)> = batch
            .iter()
            .map(|name| (Want::Upsert, name.as_str()))
            .collect();
        a.hold(&wants).await?;
    }
    a.hold(&[(Want::Write, "/a/b/c")]).await?;
    scene.expire(ttl).await;
    b.hold(&[(Want::Upsert, &names[0])]).await?;
    let rest: Vec<(Want, &str)> = names[1..]
        .iter()
        .map(|name| (Want::Upsert, name.as_str()))
        .collect();
    b.hold(&rest).await?;
    b.hold(&[(Want::Write, "/a")]).await?;
    Ok(())
}

async fn a_due_ancestor_is_free(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    a.hold(&[(Want::Write, "/a")]).await?;
    scene.expire(ttl).await;
    b.hold(&[(Want::Write, "/a/b/c/d")]).await?;
    Ok(())
}

async fn a_due_holder_far_below_is_free(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    a.hold(&[(Want::Write, "/a/b/c/d"), (Want::Read, "/a/x/y")])
        .await?;
    scene.expire(ttl).await;
    b.hold(&[(Want::Write, "/a")]).await?;
    Ok(())
}

/// More permits are held than a store looks at one by one, and those that are free stand behind them.
async fn a_due_session_behind_many_permits(scene: Scene) -> Verdict {
    const PERMITS: u32 = 90;
    let permit = (share(PERMITS), "s");
    let lives = scene.actor().await?;
    // Wherever records stand in the order of sessions, its own stand behind.
    let dying = async || {
        for _ in 0..16 {
            let (dies, ttl) = short_lived(&scene).await?;
            if dies.session() > lives.session() {
                return Ok((dies, ttl));
            }
        }
        short_lived(&scene).await
    };
    let first = lives.hold(&[permit]).await?;
    for _ in 6..PERMITS {
        lives.hold(&[permit]).await?;
    }
    let (dies, ttl) = dying().await?;
    for _ in 0..5 {
        dies.hold(&[permit]).await?;
    }
    scene.expire(ttl).await;
    let c = scene.actor().await?;
    for _ in 0..5 {
        c.hold(&[permit]).await?;
    }
    c.refused(&c.ask(&[permit])).await?;
    // Nor does one who waits keep a permit.
    let (dies, ttl) = dying().await?;
    dies.refused(&dies.ask(&[permit]).waiting()).await?;
    lives.release(&first).await?;
    scene.expire(ttl).await;
    c.hold(&[permit]).await?;
    lives.lives()
}

/// A session that is due, with a lock, and perhaps an intent.
struct Due {
    actor: Actor,
    key: String,
    held: Acquire,
    intends: bool,
}

/// So many sessions, of which every other one has an intent; all of them are due.
async fn due(scene: &Scene, count: usize) -> Verdict<Vec<Due>> {
    let first = scene.actor().await?;
    let ttl = short(&first.backend().info()) * 2;
    let mut all = Vec::new();
    for at in 0..count {
        let actor = scene.beside_for(&first, ttl).await?;
        let (key, intends) = (format!("k{at}"), at % 2 == 0);
        let held = actor.ask(&[(Want::Create, &key)]);
        let token = actor.take(&held).await?;
        if intends {
            let intent = IntentChange::Put(registered(token, "half done")?);
            let renewed = actor.send_renewal(&actor.renewal("", intent)).await?;
            actor.lives()?;
            ensure_eq!(renewed, Renewed::Living, "renewal of a living session");
        }
        all.push(Due {
            actor,
            key,
            held,
            intends,
        });
    }
    scene.expire(ttl).await;
    Ok(all)
}

impl Due {
    /// Nobody has what an intent needs; and whoever was said not to live does not.
    async fn is_over(&self, scene: &Scene, said_dead: bool, after: &str) -> Verdict {
        let key = &self.key;
        let renewal = self.actor.renewal("", IntentChange::Keep);
        let renewed = self.actor.send_renewal(&renewal).await?;
        if said_dead {
            ensure_eq!(renewed, Renewed::Dead, "a renewal after {after}");
        }
        if renewed != Renewed::Dead {
            return Ok(());
        }
        if !self.intends {
            return scene.free(key).await.map(drop);
        }
        let holders = scene.held(key).await?;
        ensure_eq!(
            (holders[0].grant, holders[0].life),
            (Some(self.held.grant), Life::Abandoned),
            "who is in the way of {key} after {after}"
        );
        Ok(())
    }
}

/// Nobody has ended them before.
async fn a_sweep_leaves_what_is_due_its_intent(scene: Scene) -> Verdict {
    let all = due(&scene, 4).await?;
    scene.sweep_all().await?;
    for one in &all {
        // What was removed lives no more.
        let gone = scene.record(&one.key).await?.is_none();
        one.is_over(&scene, gone, "a sweep").await?;
    }
    Ok(())
}

async fn whoever_looks_at_what_is_due_leaves_it_so(scene: Scene) -> Verdict {
    let all = due(&scene, 10).await?;
    let b = scene.actor().await?;
    let backend = b.backend();
    for (at, one) in all.iter().enumerate() {
        let id = one.actor.session();
        let (said_dead, what) = match at / 2 {
            0 => {
                scene.sweep(Sweep::Session(id)).await?;
                (scene.record(&one.key).await?.is_none(), "a sweep of it")
            }
            1 => (!b.confirms(&one.held).await?, "a confirmation"),
            2 => {
                let filter = Filter::Session(id);
                let listed = backend.records(&filter, None, 10).await?.items;
                let mut holders = listed.iter().flat_map(|record| &record.holders);
                let lives = holders.any(|it| it.life == Life::Living);
                (!lives, "a listing of what it holds")
            }
            3 => {
                let (mut after, mut lives) = (None::<String>, false);
                loop {
                    let page = backend.sessions(after.as_deref(), 100).await?;
                    let mut states = page.items.iter();
                    lives |= states.any(|it| it.session == id && it.life == Life::Living);
                    match page.next {
                        Some(next) => after = Some(next),
                        None => break,
                    }
                }
                (!lives, "a listing of sessions")
            }
            _ => {
                let adopted = b.adopt(id, 0).await?.is_some();
                ensure!(one.intends || !adopted, "it left no intent");
                (adopted, "an adoption")
            }
        };
        one.is_over(&scene, said_dead, what).await?;
    }
    Ok(())
}

/// Whoever renews, whoever ends and whoever asks for the lock ask at the same time.
async fn a_death_and_a_renewal_at_once_agree(scene: Scene) -> Verdict {
    let [b, c] = scene.actors().await?;
    for (at, one) in due(&scene, 16).await?.into_iter().enumerate() {
        let id = one.actor.session();
        let pause = || Duration::from_millis(scene.below(3) as u64);
        let mut pauses = [pause(), pause(), pause()];
        if at / 2 % 2 == 0 {
            // Whoever asks ends it as well: sometimes that comes last.
            pauses[2] += Duration::from_millis(10);
        }
        let renews = async {
            sleep(pauses[0]).await;
            let renewal = one.actor.renewal("", IntentChange::Keep);
            one.actor.send_renewal(&renewal).await
        };
        let ends = async {
            sleep(pauses[1]).await;
            b.end_of(id, End::IfDue).await
        };
        let wants = c.ask(&[(Want::Create, &one.key)]);
        let asks = async {
            sleep(pauses[2]).await;
            c.send(&wants).await
        };
        let (renewed, state, asked) = join3(renews, ends, asks).await;
        let (renewed, state, asked) = (renewed?, state?, asked?);
        let is_granted = matches!(asked, Acquired::Acquired(_));
        let told = format!(
            "renewed: {renewed:?}, {:?}, granted: {is_granted}",
            state.life
        );
        if renewed.is_living() {
            one.actor.lives()?;
            let agrees = state.life == Life::Living && !is_granted;
            ensure!(agrees, "of a session that lives on: {told}");
            continue;
        }
        ensure_eq!(renewed, Renewed::Dead, "of a session that is due: {told}");
        let (left, free) = match one.intends {
            true => (Life::Abandoned, false),
            false => (Life::Dead, true),
        };
        ensure_eq!(state.life, left, "{told}");
        ensure!(free || !is_granted, "an intent has its lock: {told}");
        if is_granted {
            c.release(&wants).await?;
        }
        one.is_over(&scene, true, "its end").await?;
    }
    // The same of a revocation and a registration.
    for round in 0..16 {
        let (a, key) = (scene.actor().await?, format!("r{round}"));
        let held = a.ask(&[(Want::Create, &key)]);
        let token = a.take(&held).await?;
        let intent = IntentChange::Put(registered(token, "begun")?);
        let (renewal, pause) = (a.renewal("", intent), scene.below(3) as u64);
        let registers = a.send_renewal(&renewal);
        let revokes = async {
            sleep(Duration::from_millis(pause)).await;
            b.end_of(a.session(), End::Revoke).await
        };
        let (renewed, state) = join(registers, revokes).await;
        let (renewed, state) = (renewed?, state?);
        let left = match renewed.is_living() {
            true => Life::Abandoned,
            false => Life::Dead,
        };
        ensure_eq!(state.life, left, "what was revoked when it was {renewed:?}");
        match left {
            Life::Abandoned => drop(scene.held(&key).await?),
            _ => scene.free(&key).await?,
        }
    }
    Ok(())
}

async fn each_session_is_due_by_its_own_ttl(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let (b, c) = (scene.actor().await?, scene.beside(&a).await?);
    a.hold(&[(Want::Create, "a")]).await?;
    let held = b.hold(&[(Want::Create, "b")]).await?;
    let beside = c.hold(&[(Want::Create, "c")]).await?;
    scene.expire(ttl).await;
    scene.free("a").await?;
    for (actor, request) in [(&b, &held), (&c, &beside)] {
        actor.holds(request).await?;
        actor.renew("", IntentChange::Keep).await?;
    }
    Ok(())
}

async fn a_due_session_among_many_holders(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    let living = b.hold(&[(SHARE, "s")]).await?;
    for _ in 0..20 {
        a.hold(&[(SHARE, "s")]).await?;
    }
    scene.expire(ttl).await;
    let holders = scene.held("s").await?;
    let named: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
    ensure_eq!(named, [Some(living.grant)], "who is in the way");
    b.release(&living).await?;
    scene.free("s").await
}

async fn releases_and_acquires_are_no_renewals(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    a.hold(&[(Want::Create, "k")]).await?;
    scene.pass(ttl / 2).await;
    // Whether or not the session still lives by now, none of this makes it live longer.
    let request = a.ask(&[(Want::Create, "l")]);
    a.send(&request).await?;
    a.confirms(&request).await?;
    a.release(&request).await?;
    // Nor does a renewal that knows more than the store.
    let renewal = a.renewal("", IntentChange::Keep);
    let after = renewal.seq + 7;
    let renewed = a.send_renewal(&renewal.after(after)).await?;
    ensure!(renewed != Renewed::Living, "it knows more than the store");
    scene.expire(ttl / 2).await;
    scene.free("k").await
}

async fn a_session_that_is_due_and_renewed_lives_or_is_dead_for_good(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    scene.expire(ttl).await;
    let renewed = a.send_renewal(&a.renewal("", IntentChange::Keep)).await?;
    match renewed {
        Renewed::Living => {
            let holders = scene.held("k").await;
            a.lives()?;
            ensure_eq!(
                holders?[0].grant,
                Some(held.grant),
                "who holds it after the renewal"
            );
        }
        Renewed::Dead => {
            scene.free("k").await?;
            scene.is(a.session(), Life::Dead).await?;
        }
        other => ensure!(false, "the renewal was answered {other:?}"),
    }
    Ok(())
}

async fn a_late_copy_of_an_expired_session_takes_nothing(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    let lone = a.hold(&[(Want::Create, "k")]).await?;
    let batch = a.hold(&[(Want::Upsert, "l"), (Want::Upsert, "m")]).await?;
    scene.expire(ttl).await;
    let taken = b.hold(&[(Want::Create, "k")]).await?;
    a.send(&lone).await?;
    b.holds(&taken).await?;
    a.send(&batch).await?;
    a.holds_no_more(&batch).await?;
    scene.free("l").await?;
    scene.free("m").await?;
    b.release(&taken).await?;
    scene.free("k").await
}

async fn a_late_release_of_an_expired_session_leaves_the_next_holder(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let b = scene.actor().await?;
    let first = a.hold(&[(Want::Write, "/k/l")]).await?;
    scene.expire(ttl).await;
    let second = b.hold(&[(Want::Write, "/k/l")]).await?;
    a.release(&first).await?;
    b.holds(&second).await?;
    for path in ["/k", "/k/l", "/k/l/m"] {
        scene.held(path).await?;
    }
    Ok(())
}

async fn an_expired_session_with_an_intent_is_abandoned(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let held = a.ask(&[(Want::Write, "/a/b")]);
    let token = a.take(&held).await?;
    a.intend(token, "half done").await?;
    scene.expire(ttl).await;
    scene
        .is_adopted(a.session(), Life::Abandoned, 0, None)
        .await?;
    a.renews(&a.renewal("", IntentChange::Drop), Renewed::Dead)
        .await?;
    for path in ["/a", "/a/b", "/a/b/c"] {
        scene.held(path).await?;
    }
    ensure!(
        scene
            .stranger()
            .await?
            .adopt(a.session(), 0)
            .await?
            .is_some(),
        "the intent is still there"
    );
    Ok(())
}

async fn an_intent_that_was_dropped_is_not_left(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let held = a.ask(&[(Want::Create, "k")]);
    let token = a.take(&held).await?;
    for change in [
        IntentChange::Put(registered(token, "begun")?),
        IntentChange::Keep,
        IntentChange::Drop,
        IntentChange::Keep,
    ] {
        a.renew("", change).await?;
    }
    scene.expire(ttl).await;
    scene.is(a.session(), Life::Dead).await?;
    scene.free("k").await
}

async fn whoever_asks_finds_the_abandoned_session(scene: Scene) -> Verdict {
    let (a, ttl) = short_lived(&scene).await?;
    let held = a.ask(&[(Want::Upsert, "k"), (Want::Upsert, "l")]);
    let token = a.take(&held).await?;
    a.intend(token, "half done").await?;
    scene.expire(ttl).await;
    for key in ["k", "l"] {
        let holders = scene.held(key).await?;
        ensure_eq!(
            (holders[0].grant, holders[0].life),
            (Some(held.grant), Life::Abandoned),
            "who is in the way of {key}"
        );
    }
    let state = scene.end(a.session(), End::IfDue).await?;
    ensure_eq!(state.life, Life::Abandoned, "the session");
    Ok(())
}
