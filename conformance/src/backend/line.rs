//! The line of a key: who waits in it comes in turn.

use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Changed, End, Filter, IntentChange, Past, Stood, Sweep,
};
use lockcore::limits::MAX_LISTED;
use lockcore::{Busy, Grant, Holder, Life, LockKey, Mode, Waiting, Want};
use tokio::time::timeout;

use crate::actor::{Actor, SHARE, share};
use crate::backend::wakeups::wakes_in_time;
use crate::backend::watches::asleep;
use crate::case::Case;
use crate::scene::{Scene, claim, short};
use crate::verdict::{Under, Unpassed, Verdict, Wrong, cases, ensure, ensure_eq, within};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "line";
        Waiting:
            who_waits_comes_before_whoever_asks_later,
            who_waits_above_or_below_comes_first_too,
            who_waits_keeps_its_place,
            who_waits_keeps_its_place_beyond_its_first_lease,
            forty_come_in_turn,
            a_sweep_leaves_a_waiter_its_place,
            a_sweep_removes_who_waits_no_more,
            what_does_not_conflict_does_not_wait,
            a_session_waits_behind_its_own_waiter_and_an_owner_does_not,
            who_waits_holds_nothing,
            who_asks_without_waiting_leaves_nothing,
            who_gives_up_makes_room,
            who_died_makes_room,
            what_an_abandoned_session_waits_for_is_free,
            waiters_take_the_places_of_a_limit,
            who_may_go_and_does_not_is_removed,
            who_may_go_is_removed_although_others_are_in_the_way,
            who_waits_for_a_permit_is_kept_out_by_who_has_it,
            a_try_sees_who_holds_behind_many_who_wait,
            a_session_passes_who_waits_for_it,
            a_session_passes_who_waits_for_it_behind_many,
            who_is_refused_all_the_same_has_passed_nobody,
            who_removes_a_waiter_has_passed_nobody,
            a_session_passes_who_waits_for_its_permit,
            a_session_passes_who_waits_for_who_waits_for_it,
            who_waits_is_listed_in_its_turn,
            a_waiter_that_goes_wakes,
            a_waiter_learns_that_it_may_go;
    }
}

/// Longest that a case waits for a waiter's turn.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long nothing happens.
const QUIET: Duration = Duration::from_millis(300);

/// A refused request that waits from then on.
async fn waits(actor: &Actor, wants: &[(Want, &str)]) -> Verdict<Acquire> {
    let request = actor.ask(wants).waiting();
    actor.refused(&request).await?;
    Ok(request)
}

/// Those in the way who wait.
fn waiters(busy: &Busy) -> Vec<(Grant, Waiting)> {
    let holders = busy.first().holders.iter();
    holders
        .filter_map(|holder| Some((holder.grant?, holder.waiting?)))
        .collect()
}

/// The request is refused by those who wait alone.
async fn refused_by(actor: &Actor, request: &Acquire, by: &[&Acquire]) -> Verdict<Busy> {
    let busy = actor.refused(request).await?;
    let mut grants: Vec<Grant> = waiters(&busy).into_iter().map(|(grant, _)| grant).collect();
    let mut wanted: Vec<Grant> = by.iter().map(|request| request.grant).collect();
    grants.sort();
    wanted.sort();
    ensure_eq!(grants, wanted, "who waits before");
    let holds = |holder: &&Holder| holder.waiting.is_none();
    let holds: Vec<_> = busy.first().holders.iter().filter(holds).collect();
    ensure!(holds.is_empty(), "nobody holds it: {holds:?}");
    Ok(busy)
}

/// What is held, what somebody waits for meanwhile, and what others ask for later.
const CONFLICTS: [(Want, Want, Want); 7] = [
    (Want::Create, Want::Create, Want::Create),
    (Want::Upsert, Want::Upsert, Want::Create),
    (SHARE, Want::Create, SHARE),
    (SHARE, Want::Upsert, SHARE),
    (Want::Create, SHARE, Want::Upsert),
    (Want::Read, Want::Write, Want::Read),
    (Want::Write, Want::Read, Want::Write),
];

fn key_of(want: Want, flat: &str) -> String {
    match want.is_path() {
        true => format!("/{flat}"),
        false => flat.to_owned(),
    }
}

async fn who_waits_comes_before_whoever_asks_later(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    for (at, (held, first, later)) in CONFLICTS.into_iter().enumerate() {
        let key = key_of(held, &format!("k{at}"));
        let key = key.as_str();
        let holds = a.hold(&[(held, key)]).await?;
        let waits = waits(&b, &[(first, key)]).await?;
        if held.mode().beside(later.mode()) {
            // Those who hold it would let it in: who waits does not.
            let busy = c.refused(&c.ask(&[(later, key)])).await?;
            let by = waiters(&busy);
            ensure_eq!(
                by.len(),
                1,
                "{held:?} {first:?} {later:?}: who is in the way"
            );
            ensure_eq!(by[0].0, waits.grant, "{held:?} {first:?} {later:?}");
        }
        a.release(&holds).await?;
        refused_by(&c, &c.ask(&[(later, key)]), &[&waits]).await?;
        refused_by(&a, &a.ask(&[(later, key)]).waiting(), &[&waits]).await?;
        b.take(&waits).await?;
        b.take(&waits).await?;
        b.holds(&waits).await?;
        b.releases(&waits, Stood::Held).await?;
    }
    Ok(())
}

async fn who_waits_above_or_below_comes_first_too(scene: Scene) -> Verdict {
    for (held, first, later) in [
        ("/a/b", "/a", "/a/c"),
        ("/a", "/a/b", "/a"),
        ("/a/b/c", "/a", "/a/b/d"),
    ] {
        let [a, b, c] = scene.actors().await?;
        let holds = a.hold(&[(Want::Read, held)]).await?;
        let waits = waits(&b, &[(Want::Write, first)]).await?;
        c.refused(&c.ask(&[(Want::Read, later)])).await?;
        a.release(&holds).await?;
        refused_by(&c, &c.ask(&[(Want::Read, later)]), &[&waits]).await?;
        refused_by(&c, &c.ask(&[(Want::Write, later)]), &[&waits]).await?;
        b.take(&waits).await?;
        b.release(&waits).await?;
        let read = c.hold(&[(Want::Read, later)]).await?;
        c.release(&read).await?;
    }
    Ok(())
}

async fn who_waits_keeps_its_place(scene: Scene) -> Verdict {
    for wants in [(Want::Create, "k"), (Want::Write, "/a/b/c")] {
        let [a, b, c] = scene.actors().await?;
        let holds = a.hold(&[wants]).await?;
        let second = waits(&b, &[wants]).await?;
        let third = waits(&c, &[wants]).await?;
        // Whoever asks again does not lose its place, and does not gain one.
        b.refused(&second).await?;
        c.refused(&third).await?;
        b.refused(&second).await?;
        a.release(&holds).await?;
        refused_by(&c, &third, &[&second]).await?;
        // Who has had it stands at the end.
        let last = a.ask(&[wants]).waiting();
        refused_by(&a, &last, &[&second, &third]).await?;
        b.take(&second).await?;
        let busy = c.refused(&third).await?;
        ensure_eq!(waiters(&busy), [], "nobody waits before the third");
        b.release(&second).await?;
        c.take(&third).await?;
    }
    Ok(())
}

/// Its session is renewed, and it asks again as the client does.
async fn who_waits_keeps_its_place_beyond_its_first_lease(scene: Scene) -> Verdict {
    let [a, c] = scene.actors().await?;
    let ttl = short(&a.backend().info()) * 2;
    let b = scene.actor_for(ttl).await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    for _ in 0..3 {
        scene.pass(ttl / 2).await;
        b.renew("", IntentChange::Keep).await?;
    }
    a.release(&held).await?;
    let later = c.ask(&[(Want::Create, "k")]);
    refused_by(&c, &later, &[&waiter]).await?;
    b.take(&waiter).await?;
    b.lives()
}

async fn a_sweep_leaves_a_waiter_its_place(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let wants = [(Want::Create, "k")];
    let holds = a.hold(&wants).await?;
    let waiter = waits(&b, &wants).await?;
    for session in [a.session(), b.session()] {
        scene.sweep(Sweep::Session(session)).await?;
    }
    scene.sweep_all().await?;
    a.release(&holds).await?;
    refused_by(&c, &c.ask(&wants), &[&waiter]).await?;
    b.take(&waiter).await?;
    b.lives()
}

async fn a_sweep_removes_who_waits_no_more(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let wants = [(Want::Create, "k")];
    let holds = a.hold(&wants).await?;
    for _ in 0..3 {
        waits(&b, &wants).await?;
    }
    let over = waits(&c, &wants).await?;
    let stays = waits(&c, &wants).await?;
    b.end(End::Close).await?;
    c.retired(&[&over]).await?;
    let removed = scene.sweep_by(Sweep::Session(b.session()), 100).await?;
    ensure!(removed >= 3, "removed {removed} of 3 who waited");
    // A renewal may have removed what is retired.
    scene.sweep(Sweep::Session(c.session())).await?;
    scene.sweep_all().await?;
    a.release(&holds).await?;
    refused_by(&a, &a.ask(&wants), &[&stays]).await?;
    c.take(&stays).await.map(drop)
}

async fn forty_come_in_turn(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let wants = [(Want::Create, "k")];
    let holds = a.hold(&wants).await?;
    let mut line = Vec::new();
    for n in 0..40 {
        let actor = if n % 2 == 0 { &b } else { &c };
        line.push((actor, waits(actor, &wants).await?));
    }
    a.release(&holds).await?;
    let Some(((by, last), line)) = line.split_last() else {
        return Ok(());
    };
    for (n, (actor, waiter)) in line.iter().enumerate() {
        // Whoever got no place when it first asked is behind this one then.
        let busy = by.refused(last).await;
        busy.about(format!("{n} have had it"))?;
        actor.take(waiter).await.about(format!("waiter {n}"))?;
        actor.release(waiter).await?;
    }
    by.take(last).await.map(drop)
}

async fn what_does_not_conflict_does_not_wait(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(Want::Create, "k"), (Want::Write, "/a/b")])
        .await?;
    waits(&b, &[(SHARE, "k")]).await?;
    waits(&b, &[(Want::Write, "/a/b")]).await?;
    let share = c.ask(&[(SHARE, "k")]).waiting();
    ensure_eq!(
        waiters(&c.refused(&share).await?),
        [],
        "a share beside a share"
    );
    c.hold(&[(Want::Create, "l")]).await?;
    c.hold(&[(Want::Write, "/a/c")]).await?;
    // It waits for /a/b, and so for /a in mode IX.
    let above = c.refused(&c.ask(&[(Want::Write, "/a")])).await?;
    ensure!(
        !above.first().holders.is_empty(),
        "what is below is in the way"
    );
    Ok(())
}

async fn a_session_waits_behind_its_own_waiter_and_an_owner_does_not(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Read, "/a")]).await?;
    let owner = b.owner();
    let waits = b.ask_as(owner, &[(Want::Write, "/a")]).waiting();
    b.refused(&waits).await?;
    refused_by(&b, &b.ask(&[(Want::Read, "/a")]), &[&waits]).await?;
    b.hold_as(owner, &[(Want::Read, "/a/b")]).await?;
    Ok(())
}

async fn who_waits_holds_nothing(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let holds = a.hold(&[(SHARE, "k")]).await?;
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    b.holds_no_more(&waiter).await?;
    a.release(&holds).await?;
    b.holds_no_more(&waiter).await?;
    b.releases(&waiter, Stood::Absent).await?;
    c.hold(&[(Want::Create, "k")]).await?;
    Ok(())
}

async fn who_asks_without_waiting_leaves_nothing(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let holds = a.hold(&[(Want::Create, "k")]).await?;
    b.refused(&b.ask(&[(Want::Create, "k")])).await?;
    // Nor does one of several claims, which may wait for each of them.
    let several = [(Want::Upsert, "k"), (Want::Upsert, "l")];
    b.refused(&b.ask(&several).waiting()).await?;
    let ttl = short(&c.backend().info());
    let dead = scene.actor_for(ttl).await?;
    waits(&dead, &[(Want::Create, "k")]).await?;
    dead.end(End::Close).await?;
    a.release(&holds).await?;
    c.hold(&[(Want::Create, "k")]).await?;
    c.hold(&[(Want::Create, "l")]).await?;
    Ok(())
}

async fn who_gives_up_makes_room(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(SHARE, "k")]).await?;
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    c.refused(&c.ask(&[(SHARE, "k")])).await?;
    b.release(&waiter).await?;
    let share = c.hold(&[(SHARE, "k")]).await?;
    c.release(&share).await?;
    // The same without a release: its number is over.
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    c.refused(&c.ask(&[(SHARE, "k")])).await?;
    b.retired(&[&waiter]).await?;
    c.hold(&[(SHARE, "k")]).await?;
    let late = b.send(&waiter).await?;
    ensure_eq!(late, Acquired::Void, "a late copy of what is over");
    Ok(())
}

async fn who_died_makes_room(scene: Scene) -> Verdict {
    let [a, c] = scene.actors().await?;
    a.hold(&[(SHARE, "k")]).await?;
    for how in [End::Close, End::Revoke] {
        let b = scene.actor().await?;
        waits(&b, &[(Want::Create, "k")]).await?;
        c.refused(&c.ask(&[(SHARE, "k")])).await?;
        scene.end(b.session(), how).await?;
        let share = c.hold(&[(SHARE, "k")]).await?;
        c.release(&share).await?;
    }
    let ttl = short(&c.backend().info());
    let b = scene.actor_for(ttl).await?;
    waits(&b, &[(Want::Create, "k")]).await?;
    scene.expire(ttl).await;
    c.hold(&[(SHARE, "k")]).await?;
    Ok(())
}

async fn what_an_abandoned_session_waits_for_is_free(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let holds = a.hold(&[(Want::Create, "k")]).await?;
    let change = b.ask(&[(Want::Create, "change")]);
    let token = b.take(&change).await?;
    b.intend(token, "to be finished").await?;
    waits(&b, &[(Want::Create, "k")]).await?;
    a.release(&holds).await?;
    c.refused(&c.ask(&[(Want::Create, "k")])).await?;
    scene.end(b.session(), End::Close).await?;
    // It holds what it held, and waits for nothing any more.
    let busy = c.refused(&c.ask(&[(Want::Create, "change")])).await?;
    ensure_eq!(busy.first().holders[0].life, Life::Abandoned, "the holder");
    c.hold(&[(Want::Create, "k")]).await?;
    Ok(())
}

async fn waiters_take_the_places_of_a_limit(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let wants = [(share(2), "s")];
    let (first, second) = (a.hold(&wants).await?, a.hold(&wants).await?);
    let third = waits(&b, &wants).await?;
    a.release(&first).await?;
    let busy = c.refused(&c.ask(&wants)).await?;
    ensure_eq!(
        waiters(&busy)
            .into_iter()
            .map(|(grant, _)| grant)
            .collect::<Vec<_>>(),
        [third.grant],
        "who waits for the place"
    );
    // With another place there is one for both.
    let other = c.hold(&[(share(3), "s")]).await?;
    c.release(&other).await?;
    a.release(&second).await?;
    let fourth = c.hold(&wants).await?;
    b.take(&third).await?;
    c.refused(&c.ask(&wants)).await?;
    c.release(&fourth).await
}

/// What a refusal says of the one that waits before.
async fn seen(actor: &Actor, request: &Acquire) -> Verdict<Past> {
    match *waiters(&actor.refused(request).await?) {
        [(grant, waiting)] => Ok(Past { grant, waiting }),
        ref others => Err(Wrong(format!("one waits before: {others:?}"))),
    }
}

async fn who_may_go_and_does_not_is_removed(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let holds = a.hold(&[(SHARE, "k")]).await?;
    let first = waits(&b, &[(Want::Create, "k")]).await?;
    let second = c.ask(&[(Want::Create, "k")]).waiting();
    let before = seen(&c, &second).await?;
    ensure!(!before.waiting.may_go, "a share keeps it out: {before:?}");
    a.release(&holds).await?;
    // What was true when it was seen is not any more: it has to be seen once more.
    let still = seen(&c, &second.clone().past(vec![before])).await?;
    ensure!(still.waiting.may_go, "nobody keeps it out: {still:?}");
    let wrong = Past {
        grant: second.grant,
        ..still
    };
    seen(&c, &second.clone().past(vec![wrong])).await?;
    // Who has no place in line takes none away.
    let no_waiter = a.ask(&[(Want::Create, "k")]).past(vec![still]);
    a.refused(&no_waiter).await?;
    c.take(&second.clone().past(vec![still])).await?;
    // Its place is gone: it stands at the end, behind whoever came meanwhile.
    let third = waits(&a, &[(Want::Create, "k")]).await?;
    b.refused(&first).await?;
    c.release(&second).await?;
    refused_by(&b, &first, &[&third]).await?;
    a.take(&third).await?;
    a.release(&third).await?;
    b.take(&first).await?;
    Ok(())
}

async fn who_may_go_is_removed_although_others_are_in_the_way(scene: Scene) -> Verdict {
    for key in ["k", "/p/k"] {
        let [a, b, c, d] = scene.actors().await?;
        let want = match key.starts_with('/') {
            true => Want::Write,
            false => Want::Create,
        };
        let holds = a.hold(&[(want, key)]).await?;
        let first = waits(&b, &[(want, key)]).await?;
        let second = waits(&c, &[(want, key)]).await?;
        a.release(&holds).await?;
        let last = d.ask(&[(want, key)]).waiting();
        let known = waiters(&d.refused(&last).await?);
        let past: Vec<Past> = known
            .into_iter()
            .filter(|(_, waiting)| waiting.may_go)
            .map(|(grant, waiting)| Past { grant, waiting })
            .collect();
        ensure_eq!(
            past.iter().map(|past| past.grant).collect::<Vec<_>>(),
            [first.grant],
            "who may go"
        );
        refused_by(&d, &last.clone().past(past), &[&second]).await?;
        // It is the next one's turn.
        c.take(&second).await?;
        c.release(&second).await?;
        d.take(&last).await?;
        d.release(&last).await?;
        b.release(&first).await?;
    }
    Ok(())
}

async fn who_waits_for_a_permit_is_kept_out_by_who_has_it(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let permit = [(share(1), "s")];
    let holds = a.hold(&permit).await?;
    let waiter = waits(&b, &permit).await?;
    let request = c.ask(&[(Want::Create, "s")]).waiting();
    let before = seen(&c, &request).await?;
    ensure!(
        !before.waiting.may_go,
        "the permit keeps it out: {before:?}"
    );
    // As if nobody had the permit.
    let waiting = Waiting {
        may_go: true,
        ..before.waiting
    };
    seen(&c, &request.clone().past(vec![Past { waiting, ..before }])).await?;
    a.release(&holds).await?;
    b.take(&waiter).await?;
    b.release(&waiter).await?;
    c.take(&request).await?;
    Ok(())
}

/// More wait for a permit than a refusal lists. Whichever session's records come first, who asks without waiting is refused by
/// who holds the key, or by as many permits as there are.
async fn a_try_sees_who_holds_behind_many_who_wait(scene: Scene) -> Verdict {
    const PERMITS: u32 = 20;
    let [a, b, c] = scene.actors().await?;
    for (round, (holds, waiting)) in [(&a, &b), (&b, &a)].into_iter().enumerate() {
        let (key, permit) = (format!("s{round}"), share(PERMITS));
        let other = format!("other {round}");
        let is_kept_out = async || {
            c.refused(&c.ask(&[(permit, &key)])).await?;
            c.refused(&c.ask(&[(permit, &key), (SHARE, &other)]))
                .await?;
            Ok::<_, Unpassed>(())
        };
        let held = holds.hold(&[(Want::Create, &key)]).await?;
        let mut line = Vec::new();
        for _ in 0..=MAX_LISTED {
            line.push(waits(waiting, &[(permit, &key)]).await?);
        }
        is_kept_out().await?;
        holds.release(&held).await?;
        for waiter in &line {
            waiting.release(waiter).await?;
        }
        for _ in 0..PERMITS {
            holds.hold(&[(permit, &key)]).await?;
        }
        for _ in 0..=MAX_LISTED {
            waits(waiting, &[(permit, &key)]).await?;
        }
        is_kept_out().await?;
    }
    Ok(())
}

async fn a_session_passes_who_waits_for_it(scene: Scene) -> Verdict {
    for (key, held, waited_for, asked) in [
        ("k", (SHARE, "k"), (Want::Create, "k"), (SHARE, "k")),
        (
            "/a/b",
            (Want::Write, "/a/b/x"),
            (Want::Write, "/a/b"),
            (Want::Write, "/a/b/y"),
        ),
    ] {
        let [a, b, c] = scene.actors().await?;
        let holds = a.hold(&[held]).await?;
        let waiter = waits(&b, &[waited_for]).await?;
        let again = a.ask(&[asked]).waiting();
        let past = seen(&a, &again).await?;
        ensure!(!past.waiting.may_go, "its holder keeps it out: {past:?}");
        ensure_eq!(past.waiting.passed, 0, "how often it was passed");
        // Another session keeps nobody waiting, and waits.
        let other = c.ask(&[asked]).waiting();
        c.refused(&other).await?;
        let busy = c.refused(&other.clone().past(vec![past])).await?;
        ensure!(
            waiters(&busy)
                .iter()
                .any(|(grant, _)| *grant == waiter.grant),
            "it is not passed by a session that it does not wait for: {busy:?}"
        );
        c.release(&other).await?;
        a.take(&again.clone().past(vec![past])).await?;
        a.take(&again).await?;
        b.refused(&waiter).await?;
        // Everybody waits anew then.
        let once_more = a.ask(&[asked]).waiting().past(vec![past]);
        let busy = a.refused(&once_more).await?;
        ensure_eq!(waiters(&busy)[0].1.passed, 1, "how often it was passed");
        a.release(&once_more).await?;
        a.release(&again).await?;
        // It has its place, and is next.
        a.release(&holds).await?;
        refused_by(&c, &c.ask(&[(waited_for.0, key)]), &[&waiter]).await?;
        b.take(&waiter).await?;
        b.release(&waiter).await?;
    }
    Ok(())
}

/// Two waiters are in its way, of which a store may know in different records.
async fn who_is_refused_all_the_same_has_passed_nobody(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(Want::Write, "/a/b/x")]).await?;
    waits(&b, &[(Want::Write, "/a/b")]).await?;
    waits(&c, &[(Want::Write, "/a")]).await?;
    let again = a.ask(&[(Want::Write, "/a/b/y")]).waiting();
    let before = waiters(&a.refused(&again).await?);
    ensure_eq!(before.len(), 2, "who is in the way");
    let past = |at: usize| {
        let (grant, waiting) = before[at];
        Past { grant, waiting }
    };
    for one in [past(0), past(1)] {
        a.refused(&again.clone().past(vec![one])).await?;
        let after = waiters(&a.refused(&again).await?);
        ensure_eq!(after, before, "who is in the way, and was not passed");
    }
    a.take(&again.past(vec![past(0), past(1)])).await?;
    let once_more = a.ask(&[(Want::Write, "/a/b/z")]).waiting();
    let after = waiters(&a.refused(&once_more).await?);
    let passed: Vec<u32> = after.iter().map(|(_, waiting)| waiting.passed).collect();
    ensure_eq!(passed, [1, 1], "how often each was passed");
    Ok(())
}

/// One of three waiters in its way may go and does not, one is passed, and the third refuses it.
async fn who_removes_a_waiter_has_passed_nobody(scene: Scene) -> Verdict {
    let [a, b, c, d] = scene.actors().await?;
    let e = scene.actor().await?;
    a.hold(&[(Want::Write, "/a/b/x")]).await?;
    let held = e.hold(&[(Want::Write, "/a/b/y")]).await?;
    waits(&d, &[(Want::Write, "/a/b/y")]).await?;
    waits(&b, &[(Want::Write, "/a/b")]).await?;
    waits(&c, &[(Want::Write, "/a")]).await?;
    e.release(&held).await?;
    let again = a.ask(&[(Want::Write, "/a/b/y")]).waiting();
    let before = waiters(&a.refused(&again).await?);
    let may_go: Vec<bool> = before.iter().map(|(_, waiting)| waiting.may_go).collect();
    ensure_eq!(may_go, [true, false, false], "who may go");
    let past = before[..2].iter();
    let past = past.map(|&(grant, waiting)| Past { grant, waiting });
    a.refused(&again.clone().past(past.collect())).await?;
    let after = waiters(&a.refused(&again).await?);
    ensure_eq!(after, before[1..], "who is in the way, and was not passed");
    Ok(())
}

/// A waiter counts as if it had a permit, until it is passed.
/// Whoever it waits for besides holds so much that what the session holds is far behind.
async fn a_session_passes_who_waits_for_it_behind_many(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    for first in (0..1_050).step_by(50) {
        let keys: Vec<String> = (first..first + 50)
            .map(|n| format!("/a/b/f{n:04}"))
            .collect();
        let claims: Vec<_> = keys.iter().map(|key| (Want::Write, &**key)).collect();
        c.hold(&claims).await?;
    }
    a.hold(&[(Want::Write, "/a/b/x")]).await?;
    waits(&b, &[(Want::Write, "/a/b")]).await?;
    let again = a.ask(&[(Want::Write, "/a/b/y")]).waiting();
    let past = seen(&a, &again).await?;
    a.take(&again.past(vec![past])).await?;
    Ok(())
}

async fn a_session_passes_who_waits_for_its_permit(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    a.hold(&[(share(2), "s")]).await?;
    waits(&b, &[(Want::Create, "s")]).await?;
    waits(&c, &[(share(2), "s")]).await?;
    let again = a.ask(&[(share(2), "s")]).waiting();
    let past: Vec<Past> = waiters(&a.refused(&again).await?)
        .into_iter()
        .map(|(grant, waiting)| Past { grant, waiting })
        .collect();
    ensure_eq!(past.len(), 2, "who waits");
    a.take(&again.clone().past(past)).await?;
    let more = a.ask(&[(share(2), "s")]);
    a.refused(&more).await?;
    Ok(())
}

async fn a_session_passes_who_waits_for_who_waits_for_it(scene: Scene) -> Verdict {
    let [a, b, c, d] = scene.actors().await?;
    a.hold(&[(Want::Read, "/a/b/c")]).await?;
    let first = waits(&b, &[(Want::Write, "/a/b")]).await?;
    // Nobody but the first one keeps it out.
    let second = c.ask(&[(Want::Read, "/a")]).waiting();
    refused_by(&c, &second, &[&first]).await?;
    let third = d.ask(&[(Want::Write, "/a/y")]).waiting();
    let past = seen(&d, &third).await?;
    ensure_eq!(past.grant, second.grant, "who is in the way");
    seen(&d, &third.clone().past(vec![past])).await?;
    let again = a.ask(&[(Want::Write, "/a/z")]).waiting();
    seen(&a, &again).await?;
    a.take(&again.clone().past(vec![past])).await?;
    Ok(())
}

async fn who_waits_is_listed_in_its_turn(scene: Scene) -> Verdict {
    let [a, actors @ ..] = scene.actors::<5>().await?;
    let holds = a.hold(&[(Want::Create, "k")]).await?;
    let mut wanted = vec![holds.grant];
    for actor in &actors {
        wanted.push(waits(actor, &[(Want::Create, "k")]).await?.grant);
    }
    let listed = |record: &lockcore::backend::Record| -> Vec<Grant> {
        record.holders.iter().filter_map(|it| it.grant).collect()
    };
    let Some(record) = scene.record("k").await? else {
        return Err(Wrong("it is held, and not listed".to_owned()));
    };
    ensure_eq!(listed(&record), wanted, "the holder, and who waits");
    let waiting = record.holders.iter().map(|holder| holder.waiting.is_some());
    let waiting: Vec<bool> = waiting.collect();
    ensure_eq!(
        waiting,
        [false, true, true, true, true],
        "who of them waits"
    );
    let modes = record.holders.iter().all(|holder| holder.mode == Mode::X);
    ensure!(modes, "how it is held, and waited for: {record:?}");
    for filter in [
        Filter::Prefix("k".to_owned()),
        Filter::Session(actors[2].session()),
    ] {
        let records = a.listed(&filter, 10).await?;
        ensure_eq!(records.len(), 1, "{filter:?}");
        ensure_eq!(records[0].key, LockKey::parse("k")?, "{filter:?}");
        ensure_eq!(listed(&records[0]), wanted, "{filter:?}");
    }
    a.release(&holds).await?;
    let Some(record) = scene.record("k").await? else {
        return Err(Wrong("somebody waits for it, and is not listed".to_owned()));
    };
    ensure_eq!(listed(&record), wanted[1..].to_vec(), "who waits");
    Ok(())
}

async fn a_waiter_that_goes_wakes(scene: Scene) -> Verdict {
    let [a, c] = scene.actors().await?;
    a.hold(&[(SHARE, "k")]).await?;
    let b = scene.actor().await?;
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    let changed = asleep(&c, &[claim(SHARE, "k")?]).await?;
    c.refused(&c.ask(&[(SHARE, "k")])).await?;
    wakes_in_time(&scene, changed, b.release(&waiter)).await?;
    waits(&b, &[(Want::Create, "k")]).await?;
    let changed = asleep(&c, &[claim(SHARE, "k")?]).await?;
    wakes_in_time(&scene, changed, scene.end(b.session(), End::Revoke)).await?;
    let b = scene.actor().await?;
    let waiter = waits(&b, &[(Want::Create, "k")]).await?;
    let changed = asleep(&c, &[claim(SHARE, "k")?]).await?;
    let retired = b.renewal(&format!("{0}-{0}", waiter.grant.n), IntentChange::Keep);
    wakes_in_time(&scene, changed, b.send_renewal(&retired)).await?;
    c.hold(&[(SHARE, "k")]).await?;
    Ok(())
}

/// The watch for a waiter's turn, where the store has one.
async fn turn(actor: &Actor, waiter: &Acquire) -> Verdict<Option<Changed>> {
    let (backend, claim) = (actor.backend(), &waiter.claims[0]);
    let watch = backend.watch_turn(waiter.grant, waiter.owner, claim);
    Ok(watch.await?)
}

async fn a_waiter_learns_that_it_may_go(scene: Scene) -> Verdict {
    for wants in [(Want::Create, "k"), (Want::Write, "/a/b")] {
        let [a, b, c, d] = scene.actors().await?;
        let holds = a.hold(&[wants]).await?;
        let (first, second, third) = (
            waits(&b, &[wants]).await?,
            waits(&c, &[wants]).await?,
            waits(&d, &[wants]).await?,
        );
        let Some(mut changed) = turn(&b, &first).await? else {
            return Err(Unpassed::Lacking);
        };
        let quiet = timeout(QUIET, &mut changed).await;
        ensure!(quiet.is_err(), "it sleeps while somebody is in its way");
        wakes_in_time(&scene, changed, a.release(&holds)).await?;
        // What has happened before the watch stood is learnt, too.
        let late = turn(&b, &first).await?.ok_or_else(none)?;
        wakes_in_time(&scene, late, async { Ok(()) }).await?;
        let mut changed = turn(&d, &third).await?.ok_or_else(none)?;
        let quiet = timeout(QUIET, &mut changed).await;
        ensure!(quiet.is_err(), "who waits before is in its way");
        b.take(&first).await?;
        b.release(&first).await?;
        c.release(&second).await?;
        within(PATIENCE, "the last one's turn", changed).await?;
        d.take(&third).await?;
        let changed = turn(&d, &third).await?.ok_or_else(none)?;
        // It is no waiter any more.
        within(PATIENCE, "who has been granted it", changed).await?;
        d.release(&third).await?;
    }
    Ok(())
}

fn none() -> Unpassed {
    Wrong("a store has such a watch, or has none".to_owned())
}
