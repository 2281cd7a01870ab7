//! Listings of records and sessions, page by page.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use lockcore::backend::{Acquire, End, Filter, IntentChange, Record};
use lockcore::{Grant, Life, Mode, SessionId, SessionState, Want};
use tokio::time::Instant;

use crate::actor::{Actor, SHARE};
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Unpassed, Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "listing";
        Listing:
            nothing_held_is_nothing_listed,
            a_record_says_who_holds_it_and_how,
            a_holder_is_said_to_hold_since_it_was_granted,
            a_released_key_is_not_listed,
            a_dead_holder_is_not_listed,
            an_abandoned_holder_is_listed_as_such,
            a_number_that_is_over_is_not_listed,
            of_many_holders_some_are_listed_and_more_is_said,
            who_holds_is_listed_before_many_who_wait,
            pages_are_whole_and_in_bounds,
            a_prefix_lists_what_begins_with_it,
            a_session_lists_what_it_holds,
            a_session_lists_paths_that_it_holds,
            sessions_are_listed_with_their_state,
            pages_of_sessions_are_whole_and_in_bounds,
            sessions_are_told_by_their_ids,
            what_is_left_of_leases_is_told,
            a_listing_changes_nothing;
    }
}

async fn keys(a: &Actor, filter: Filter, limit: usize) -> Verdict<Vec<String>> {
    let listed = a.listed(&filter, limit).await?;
    let mut keys: Vec<String> = listed.iter().map(|record| record.key.to_string()).collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    ensure_eq!(keys.len(), count, "records, each listed once: {listed:?}");
    Ok(keys)
}

async fn sessions(a: &Actor, limit: usize) -> Verdict<Vec<SessionState>> {
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    for _ in 0..1_000 {
        let page = a.backend().sessions(after.as_deref(), limit).await?;
        ensure!(
            page.items.len() <= limit,
            "a page of {limit} has {} sessions",
            page.items.len()
        );
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
    Err(Wrong("a listing that never ends".to_owned()))
}

async fn nothing_held_is_nothing_listed(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for filter in [
        Filter::Prefix(String::new()),
        Filter::Prefix("k".to_owned()),
        Filter::Key("k".parse()?),
        Filter::Key("/a".parse()?),
        Filter::Session(a.session()),
        Filter::Session(scene.session_id()),
    ] {
        ensure_eq!(a.listed(&filter, 10).await?, [], "records of {filter:?}");
    }
    Ok(())
}

async fn a_record_says_who_holds_it_and_how(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key, mode) in [
        (Want::Create, "c", Mode::X),
        (Want::Upsert, "u", Mode::X),
        (SHARE, "s", Mode::IS),
        (Want::Write, "/w/x", Mode::X),
        (Want::Read, "/r/x", Mode::S),
    ] {
        let held = a.hold(&[(want, key)]).await?;
        let Some(record) = scene.record(key).await? else {
            return Err(Wrong(format!("{key} is held and not listed")));
        };
        ensure!(!record.more, "there is one holder and no more: {record:?}");
        ensure_eq!(record.holders.len(), 1, "holders of {key}");
        let holder = &record.holders[0];
        ensure_eq!(
            (holder.grant, holder.owner, holder.key.as_str()),
            (Some(held.grant), Some(held.owner), key),
            "who holds what"
        );
        ensure_eq!(
            (holder.mode, holder.life, holder.label.as_str()),
            (mode, Life::Living, a.label().as_str()),
            "how {key} is held, and by what session"
        );
    }
    Ok(())
}

/// What every listing and a refusal say of since when the one holder of this key holds it: the same.
async fn since(scene: &Scene, held: &Acquire, key: &str) -> Verdict<Option<SystemTime>> {
    let stranger = scene.stranger().await?;
    let mut said = Vec::new();
    for filter in [
        Filter::Key(key.parse()?),
        Filter::Prefix(key.to_owned()),
        Filter::Session(held.grant.session),
    ] {
        let listed = stranger.listed(&filter, 10).await?;
        let record = listed.into_iter().find(|record| record.key.as_str() == key);
        let Some(record) = record else {
            return Err(Wrong(format!("{key} is held and not listed: {filter:?}")));
        };
        said.push((format!("{filter:?}"), record.holders[0].since));
    }
    said.push(("a refusal".to_owned(), scene.held(key).await?[0].since));
    let (_, first) = said[0];
    ensure!(
        said.iter().all(|(_, since)| *since == first),
        "since when {key} is held: {said:?}"
    );
    Ok(first)
}

#[expect(
    clippy::disallowed_methods,
    reason = "what people are told is held against the time of people"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

async fn a_holder_is_said_to_hold_since_it_was_granted(scene: Scene) -> Verdict {
    const BETWEEN: Duration = Duration::from_secs(1);
    let allowance = scene.space().allowance() + Duration::from_millis(5);
    let a = scene.actor().await?;
    for (want, first, second) in [
        (Want::Create, "k", "l"),
        (SHARE, "s", "t"),
        (Want::Write, "/a/b", "/c/d"),
    ] {
        let began = Instant::now();
        let one = a.hold(&[(want, first)]).await?;
        let at_first = since(&scene, &one, first).await?;
        scene.pass(BETWEEN).await;
        let two = a.hold(&[(want, second)]).await?;
        // As long as the store's time may have passed at most.
        let most = BETWEEN + began.elapsed() + allowance;
        let later = since(&scene, &two, second).await?;
        ensure_eq!(
            since(&scene, &one, first).await?,
            at_first,
            "since when {first} is held, asked later"
        );
        match (at_first, later) {
            (None, None) => {}
            (Some(at_first), Some(later)) => {
                let apart = later.duration_since(at_first).unwrap_or_default();
                ensure!(
                    BETWEEN.saturating_sub(allowance) <= apart && apart <= most,
                    "granted between {BETWEEN:?} and {most:?} apart, said to be {apart:?}"
                );
                let ahead = later.duration_since(wall_clock()).unwrap_or_default();
                ensure!(
                    ahead < Duration::from_secs(60) + allowance,
                    "held since {ahead:?} from now"
                );
            }
            _ => {
                return Err(Wrong(format!(
                    "told of one and not of the other: {at_first:?}, {later:?}"
                )));
            }
        }
    }
    Ok(())
}

async fn a_released_key_is_not_listed(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "c"), (SHARE, "s"), (Want::Write, "/w/x")] {
        let held = a.hold(&[(want, key)]).await?;
        a.release(&held).await?;
        ensure_eq!(scene.record(key).await?, None, "the record of {key}");
    }
    ensure_eq!(
        keys(&a, Filter::Prefix(String::new()), 10).await?.len(),
        0,
        "records"
    );
    Ok(())
}

async fn a_dead_holder_is_not_listed(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let ttl = short(&a.backend().info());
    let b = scene.actor_for(ttl).await?;
    for actor in [&a, &b] {
        actor.hold(&[(SHARE, "s"), (SHARE, "t")]).await?;
        actor.hold(&[(Want::Read, "/r/x")]).await?;
    }
    a.end(End::Close).await?;
    scene.expire(ttl).await;
    scene.state(b.session()).await?;
    let stranger = scene.stranger().await?;
    for filter in [
        Filter::Prefix(String::new()),
        Filter::Key("s".parse()?),
        Filter::Key("/r".parse()?),
        Filter::Session(a.session()),
        Filter::Session(b.session()),
    ] {
        ensure_eq!(
            stranger.listed(&filter, 10).await?,
            [],
            "records of {filter:?}"
        );
    }
    Ok(())
}

async fn an_abandoned_holder_is_listed_as_such(scene: Scene) -> Verdict {
    let (a, held, _) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let Some(record) = scene.record("k").await? else {
        return Err(Wrong("an abandoned lock is not listed".to_owned()));
    };
    let holder = &record.holders[0];
    ensure_eq!(
        (holder.grant, holder.life, holder.label.as_str()),
        (Some(held.grant), Life::Abandoned, a.label().as_str()),
        "who holds it"
    );
    Ok(())
}

async fn a_number_that_is_over_is_not_listed(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let retired = a.hold(&[(SHARE, "s"), (SHARE, "t")]).await?;
    let held = a.hold(&[(SHARE, "s")]).await?;
    a.retired(&[&retired]).await?;
    ensure_eq!(scene.record("t").await?, None, "the record of t");
    let record = scene.record("s").await?;
    let grants: Vec<_> = record
        .iter()
        .flat_map(|record| &record.holders)
        .map(|holder| holder.grant)
        .collect();
    ensure_eq!(grants, [Some(held.grant)], "the holders of s");
    Ok(())
}

async fn of_many_holders_some_are_listed_and_more_is_said(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut held = BTreeSet::new();
    for _ in 0..40 {
        held.insert(a.hold(&[(SHARE, "s")]).await?.grant);
    }
    let Some(record) = scene.record("s").await? else {
        return Err(Wrong("s is held and not listed".to_owned()));
    };
    let listed: BTreeSet<Grant> = record
        .holders
        .iter()
        .filter_map(|holder| holder.grant)
        .collect();
    ensure_eq!(
        listed.len(),
        record.holders.len(),
        "holders, each listed once"
    );
    ensure!(listed.is_subset(&held), "only holders are listed");
    ensure_eq!(
        record.more,
        listed.len() < held.len(),
        "whether there are more than are listed"
    );
    Ok(())
}

/// Whichever session comes last in the store's own order holds one of the keys.
async fn who_holds_is_listed_before_many_who_wait(scene: Scene) -> Verdict {
    let actors: [Actor; 3] = scene.actors().await?;
    for (n, holder) in actors.iter().enumerate() {
        for (held, key) in [
            ((Want::Create, format!("k{n}")), format!("k{n}")),
            ((Want::Write, format!("/p{n}/x")), format!("/p{n}")),
        ] {
            let mut line = vec![holder.hold(&[(held.0, &held.1)]).await?.grant];
            let others = actors.iter().filter(|it| it.session() != holder.session());
            for actor in others.cycle().take(30) {
                let request = actor.ask(&[(held.0, &key)]).waiting();
                actor.refused(&request).await?;
                line.push(request.grant);
            }
            let mut records: Vec<Record> = scene.record(&key).await?.into_iter().collect();
            if held.1 == key {
                records.extend(holder.listed(&Filter::Prefix(key.clone()), 100).await?);
                ensure_eq!(records.len(), 2, "looks at {key}");
            }
            for record in records {
                let holders = record.holders.iter();
                let listed: Vec<Grant> = holders.filter_map(|holder| holder.grant).collect();
                ensure!(
                    !listed.is_empty() && line.starts_with(&listed),
                    "of {key} the holder first, then its waiters in their order, not {listed:?} of {line:?}"
                );
                ensure!(record.holders[0].waiting.is_none(), "{key} is held");
                ensure_eq!(
                    record.more,
                    listed.len() < line.len(),
                    "whether more stand at {key}"
                );
            }
        }
    }
    Ok(())
}

async fn pages_are_whole_and_in_bounds(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut held: Vec<String> = (0..11).map(|n| format!("k{n}")).collect();
    held.extend((0..6).map(|n| format!("/p{n}")));
    for key in &held {
        a.hold(&[crate::scene::exclusive(key)]).await?;
    }
    held.sort();
    for limit in [1, 2, 5, 16, 17, 18, 1_000] {
        let listed = keys(&a, Filter::Prefix(String::new()), limit).await?;
        ensure_eq!(listed, held, "keys by pages of {limit}");
        let listed = keys(&a, Filter::Session(a.session()), limit).await?;
        ensure_eq!(listed, held, "keys of the session by pages of {limit}");
    }
    Ok(())
}

async fn a_prefix_lists_what_begins_with_it(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for key in ["k", "k1", "k10", "k2", "kk", "K1", "l", "/k", "/k1/x"] {
        a.hold(&[crate::scene::exclusive(key)]).await?;
    }
    for (prefix, expected) in [
        ("k", vec!["k", "k1", "k10", "k2", "kk"]),
        ("k1", vec!["k1", "k10"]),
        ("k10", vec!["k10"]),
        ("k100", vec![]),
        ("m", vec![]),
        ("/k1/x", vec!["/k1/x"]),
    ] {
        let listed = keys(&a, Filter::Prefix(prefix.to_owned()), 2).await?;
        ensure_eq!(listed, expected, "keys that begin with {prefix:?}");
    }
    Ok(())
}

async fn a_session_lists_what_it_holds(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[
        (Want::Upsert, "d1"),
        (Want::Upsert, "d2"),
        (Want::Upsert, "d3"),
    ])
    .await?;
    a.hold(&[(SHARE, "s")]).await?;
    for _ in 0..3 {
        b.hold(&[(SHARE, "s")]).await?;
    }
    let other = b.hold(&[(Want::Create, "c")]).await?;
    ensure_eq!(
        keys(&a, Filter::Session(a.session()), 2).await?,
        ["d1", "d2", "d3", "s"],
        "one session"
    );
    ensure_eq!(
        keys(&a, Filter::Session(b.session()), 2).await?,
        ["c", "s"],
        "the other session"
    );
    b.release(&other).await?;
    ensure_eq!(
        keys(&a, Filter::Session(b.session()), 2).await?,
        ["s"],
        "after a release"
    );
    Ok(())
}

async fn a_session_lists_paths_that_it_holds(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    a.hold(&[(Want::Write, "/a/b/c"), (Want::Read, "/d")])
        .await?;
    let listed = keys(&a, Filter::Session(a.session()), 1).await?;
    for path in ["/a/b/c", "/d"] {
        ensure!(
            listed.iter().any(|key| key == path),
            "{path} is held: {listed:?}"
        );
    }
    for key in &listed {
        // A store may keep ancestors as records, and then lists those as well.
        ensure!(
            ["/a", "/a/b", "/a/b/c", "/d"].contains(&key.as_str()),
            "{key} is not held"
        );
    }
    Ok(())
}

/// The one that is abandoned is adopted by the one that lives.
async fn living_dead_and_abandoned(scene: &Scene) -> Verdict<[Actor; 3]> {
    let living = scene.actor().await?;
    let dead = scene.actor().await?;
    dead.end(End::Close).await?;
    let (abandoned, ..) = with_intent(scene, &[(Want::Create, "k")], "half done").await?;
    abandoned.end(End::Close).await?;
    living.adopted(abandoned.session(), 0).await?;
    Ok([living, dead, abandoned])
}

async fn sessions_are_listed_with_their_state(scene: Scene) -> Verdict {
    let [living, dead, abandoned] = living_dead_and_abandoned(&scene).await?;
    let listed = sessions(&living, 10).await?;
    let find = |session: SessionId| listed.iter().find(|state| state.session == session);
    for (actor, life, adoption, adopter) in [
        (&living, Life::Living, 0, None),
        (&abandoned, Life::Abandoned, 1, Some(living.session())),
    ] {
        let Some(state) = find(actor.session()) else {
            return Err(Wrong(format!("{} is not listed", actor.session())));
        };
        ensure_eq!(
            (state.life, &state.label, state.adoption, state.adopter),
            (life, actor.label(), adoption, adopter),
            "the state of {}",
            actor.session()
        );
    }
    // A store that remembers dead sessions lists them as what they are.
    if let Some(state) = find(dead.session()) {
        ensure_eq!(state.life, Life::Dead, "the state of {}", dead.session());
    }
    Ok(())
}

async fn pages_of_sessions_are_whole_and_in_bounds(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut opened = BTreeSet::from([a.session()]);
    for _ in 0..10 {
        opened.insert(scene.beside(&a).await?.session());
    }
    for limit in [1, 2, 10, 11, 12, 1_000] {
        let listed: Vec<SessionId> = sessions(&a, limit)
            .await?
            .iter()
            .map(|state| state.session)
            .collect();
        let distinct: BTreeSet<SessionId> = listed.iter().copied().collect();
        ensure_eq!(
            distinct.len(),
            listed.len(),
            "sessions, each listed once by pages of {limit}"
        );
        ensure_eq!(distinct, opened, "sessions by pages of {limit}");
    }
    Ok(())
}

async fn sessions_are_told_by_their_ids(scene: Scene) -> Verdict {
    let [living, dead, abandoned] = living_dead_and_abandoned(&scene).await?;
    let unknown = scene.session_id();
    // Its lease is over, and nobody has ended it.
    let ttl = short(&living.backend().info());
    let due = scene.actor_for(ttl).await?;
    scene.expire(ttl).await;
    let told = async |ids: &[SessionId]| living.backend().session_states(ids).await;
    ensure_eq!(told(&[]).await?, [], "of none");
    let ids = [
        abandoned.session(),
        unknown,
        living.session(),
        dead.session(),
        due.session(),
        abandoned.session(),
    ];
    let before = sessions(&living, 10).await?;
    let states = told(&ids).await?;
    let listed = sessions(&living, 10).await?;
    let find = |id: &SessionId| listed.iter().find(|state| state.session == *id);
    let found: Vec<_> = ids.iter().map(|id| find(id).cloned()).collect();
    ensure_eq!(states, found, "the states of {ids:?}, as they are listed");
    ensure_eq!(before, listed, "the sessions, before they were asked about");
    ensure_eq!(
        (&states[1], states[2].as_ref().map(|it| it.life)),
        (&None, Some(Life::Living)),
        "one that never was, and one that lives"
    );
    // Behind many of which there is none.
    let mut many: Vec<SessionId> = (0..1_100).map(|_| scene.session_id()).collect();
    many.push(living.session());
    let states = told(&many).await?;
    ensure_eq!(states.len(), many.len(), "how many are told of");
    let last = states.last().cloned().flatten();
    ensure_eq!(last, find(&living.session()).cloned(), "the last of many");
    // It was asked about, and not used up.
    let backend = living.backend().clone();
    let late = (scene.open_as(backend, unknown, "comes later", Duration::from_secs(20))).await?;
    late.end(End::Close).await?;
    Ok(())
}

async fn what_is_left_of_leases_is_told(scene: Scene) -> Verdict {
    const TTL: Duration = Duration::from_secs(60);
    /// What a store may add to a lease, or take from it by counting in seconds.
    const ABOUT: Duration = Duration::from_secs(5);
    let a = scene.actor_for(TTL).await?;
    let dead = scene.beside(&a).await?;
    dead.end(End::Close).await?;
    let unknown = scene.session_id();
    let told = a.backend().lease_left(&[a.session()]).await?;
    if told == [None] {
        return Err(Unpassed::Lacking);
    }
    let left = async |a: &Actor| {
        let ids = [dead.session(), a.session(), unknown, a.session()];
        let told = a.backend().lease_left(&ids).await?;
        ensure!(
            matches!(told[..], [None, Some(_), None, Some(_)]),
            "of a dead session, a living one, one that never was, and the living one again: {told:?}"
        );
        Ok::<_, Unpassed>(told[1].unwrap_or_default())
    };
    let is_about = |left: Duration, lease: Duration, since: Instant| {
        left <= lease + ABOUT && left + since.elapsed() + ABOUT >= lease
    };
    let opened = Instant::now();
    let first = left(&a).await?;
    ensure!(
        is_about(first, TTL, opened),
        "{first:?} of a lease of {TTL:?}"
    );
    scene.pass(Duration::from_secs(2)).await;
    let later = left(&a).await?;
    ensure!(
        later + Duration::from_secs(1) <= first,
        "{later:?} two seconds after {first:?}"
    );
    let renewed = Instant::now();
    a.send_renewal(&a.renewal("", IntentChange::Keep).lasting(10 * TTL))
        .await?;
    let longer = left(&a).await?;
    ensure!(
        is_about(longer, 10 * TTL, renewed),
        "{longer:?} of {:?}",
        10 * TTL
    );
    // Nobody has left a record by being asked for.
    let listed = sessions(&a, 10).await?;
    ensure!(
        listed.iter().all(|state| state.session != unknown),
        "{listed:?}"
    );
    Ok(())
}

async fn a_listing_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let held = a.hold(&[(Want::Write, "/a/b")]).await?;
    let before = scene.record("/a/b").await?;
    for _ in 0..3 {
        keys(&a, Filter::Prefix(String::new()), 1).await?;
        sessions(&a, 1).await?;
    }
    ensure_eq!(scene.record("/a/b").await?, before, "the record");
    a.holds(&held).await
}
