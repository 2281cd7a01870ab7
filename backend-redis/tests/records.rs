//! What stands in Redis: what somebody else writes there, what does not count, and how much of it there may be.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use lockcore::backend::{
    Acquired, Adopt, Adopted, Changed, ClaimStore, End, Filter, Incarnation, Inspect, IntentChange,
    Opened, Ranges, Registered, Renewed, SessionStore, Stood, Sweep, Wakeups,
};
use lockcore::{
    ErrorKind, FencingToken, Grant, Intent, Label, Life, LockKey, Note, NoteKind, SessionId,
};
use lockcore_redis::{RedisBackend, RedisConfig};
use support::servers::{node, url};
use support::steps::{claim, granted, kind_of_acquire, open, renewal, request};
use support::{Place, Space};

#[tokio::test]
async fn whatever_is_no_holder_is_held_and_stays() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let id = session.to_string();
    let mut n = 0;
    for (key, stored) in [
        ("k", String::new()),
        ("k", "\n".to_owned()),
        ("k", "{}".to_owned()),
        ("k", "\u{0}\u{1}".to_owned()),
        ("k", format!("x{id}/1/1/5")),
        ("k", format!("c{id}/1/1")),
        ("k", format!("c{id}/1/1/5/6")),
        ("k", format!("c{}/1/1/5", &id[1..])),
        ("k", format!("c{}/1/1/5", id.replace('0', "G"))),
        ("k", format!("w{id}/1/1/5")),
        ("/k", format!("c{id}/1/1/5")),
    ] {
        let mut put = redis::cmd("HSET");
        space
            .raw::<()>(put.arg(space.key("records")).arg(key).arg(&stored))
            .unwrap();
        n += 1;
        let want = if key == "k" { "u k" } else { "w /k" };
        let answer = backend
            .acquire(&request(session, n, &[want]))
            .await
            .unwrap();
        let Acquired::Busy(busy) = answer else {
            panic!("{stored:?}: {answer:?}");
        };
        let holder = &busy.first().holders[0];
        assert!(
            holder.grant.is_none() && holder.label.starts_with("unreadable record"),
            "{holder:?}"
        );
        backend
            .release(Grant { session, n: 1 }, &[claim(want)])
            .await
            .unwrap();
        backend.sweep(Sweep::All, 100).await.unwrap();
        let mut get = redis::cmd("HGET");
        let still: String = space.raw(get.arg(space.key("records")).arg(key)).unwrap();
        assert_eq!(still, stored, "it is not changed");
        let filter = Filter::Key(LockKey::parse(key).unwrap());
        let page = backend.records(&filter, None, 10).await.unwrap();
        assert!(backend.evict(&page.items[0]).await.unwrap());
        n += 1;
        let request = request(session, n, &[want]);
        granted(&backend, &request).await;
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn holders_of_ours_beside_somebody_elses_are_kept_apart() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let share = request(session, 1, &["s k"]);
    granted(&backend, &share).await;
    let mut get = redis::cmd("HGET");
    let ours: String = space.raw(get.arg(space.key("records")).arg("k")).unwrap();
    let mut put = redis::cmd("HSET");
    let both = format!("{ours}\nsomebody else");
    space
        .raw::<()>(put.arg(space.key("records")).arg("k").arg(both))
        .unwrap();
    backend.release(share.grant, &share.claims).await.unwrap();
    let left: String = space.raw(&mut get).unwrap();
    assert_eq!(left, "somebody else");
}

#[tokio::test]
async fn a_session_that_cannot_be_understood_lives_and_frees_nothing() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["c k"])).await;
    let mut put = redis::cmd("HSET");
    put.arg(space.key("sessions"))
        .arg(one.to_string())
        .arg("v2 living");
    space.raw::<()>(&mut put).unwrap();
    let Acquired::Busy(busy) = backend.acquire(&request(two, 1, &["c k"])).await.unwrap() else {
        panic!("it is held");
    };
    assert!(
        busy.first().holders[0]
            .label
            .starts_with("unreadable session")
    );
    for how in [End::IfDue, End::Revoke, End::Discard] {
        let states = backend.end(&[one], how).await.unwrap();
        assert_eq!(states[0].life, Life::Living);
    }
    assert_eq!(
        backend.renew(one, &renewal(1)).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert_eq!(
        kind_of_acquire(&backend, &request(one, 2, &["c other"])).await,
        ErrorKind::Corrupt
    );
    assert_eq!(
        backend
            .settle(one, 1, one, Incarnation::UNKNOWN)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
    let by = Label::parse("operator").unwrap();
    let note = Note::new(NoteKind::Ask, by.clone(), by, SystemTime::UNIX_EPOCH);
    assert_eq!(
        backend.note(one, &note).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let held = request(one, 1, &["c k"]);
    let confirmed = backend.confirm(held.grant, &held.claims).await;
    assert_eq!(confirmed.unwrap_err().kind(), ErrorKind::Corrupt);
    backend.sweep(Sweep::All, 100).await.unwrap();
    let page = backend
        .records(&Filter::Prefix("k".into()), None, 10)
        .await
        .unwrap();
    assert!(backend.evict(&page.items[0]).await.unwrap());
    granted(&backend, &request(two, 2, &["c k"])).await;
}

#[tokio::test]
async fn an_id_of_which_something_is_left_is_not_opened() {
    let space = Space::new();
    let backend = space.connect().await;
    let label = Label::parse("again").unwrap();
    let forgotten = async |id: SessionId| {
        let mut remove = redis::cmd("HDEL");
        let remove = remove.arg(space.key("sessions")).arg(id.to_string());
        space.raw::<()>(remove).unwrap();
        let opened = backend.open(id, &label, Duration::from_secs(60)).await;
        assert_eq!(opened.unwrap(), Opened::Used);
    };
    forgotten(abandon(&backend, 1).await).await;
    // Of the second the only step is left.
    let session = open(&backend, 2).await;
    granted(&backend, &request(session, 1, &["c a", "c b"])).await;
    forgotten(session).await;
}

#[tokio::test]
async fn a_script_that_fails_half_way_leaves_nothing() {
    for (name, claim) in [
        ("batches", "c k"),
        ("writes", "w /k"),
        ("reads", "r /k"),
        ("records", "c k"),
        ("sessions", "c k"),
    ] {
        let space = Space::new();
        let backend = space.connect().await;
        let session = open(&backend, 1).await;
        let key = space.key(name);
        space.raw::<()>(redis::cmd("DEL").arg(&key)).unwrap();
        space
            .raw::<()>(redis::cmd("SET").arg(&key).arg("x"))
            .unwrap();
        let kind = kind_of_acquire(&backend, &request(session, 1, &[claim])).await;
        assert_eq!(kind, ErrorKind::Corrupt, "{name}");
        if name != "records" {
            let left: u32 = space
                .raw(redis::cmd("HLEN").arg(space.key("records")))
                .unwrap();
            assert_eq!(left, 1, "only the last token: {name}");
        }
    }
    // The long way, beside another holder: what can be had is not had either, and the other keeps what it has.
    for (name, held, claims) in [
        ("batches", "s k", ["s k", "c free"]),
        ("writes", "s k", ["s k", "w /free"]),
        ("reads", "r /k", ["r /k", "r /free"]),
    ] {
        let space = Space::new();
        let backend = space.connect().await;
        let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
        granted(&backend, &request(one, 1, &[held])).await;
        let records = || -> Vec<(String, String)> {
            let mut all = redis::cmd("HGETALL");
            let mut all: Vec<(String, String)> = space.raw(all.arg(space.key("records"))).unwrap();
            all.retain(|(key, _)| key != "///");
            all
        };
        let before = records();
        let key = space.key(name);
        space.raw::<()>(redis::cmd("DEL").arg(&key)).unwrap();
        space
            .raw::<()>(redis::cmd("SET").arg(&key).arg("x"))
            .unwrap();
        let kind = kind_of_acquire(&backend, &request(other, 1, &claims)).await;
        assert_eq!(kind, ErrorKind::Corrupt, "{name}");
        assert_eq!(records(), before, "{name}");
    }
}

#[tokio::test]
async fn a_release_that_fails_half_way_is_repeated_when_that_is_mended() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c a", "c b", "w /p"]);
    granted(&backend, &held).await;
    let (steps, aside) = (space.key("batches"), space.key("aside"));
    let rename = |from: &str, to: &str| {
        let mut rename = redis::cmd("RENAME");
        space.raw::<()>(rename.arg(from).arg(to)).unwrap();
    };
    rename(&steps, &aside);
    space
        .raw::<()>(redis::cmd("SET").arg(&steps).arg("x"))
        .unwrap();
    let error = backend.release(held.grant, &held.claims).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(
        backend.confirm(held.grant, &held.claims).await.unwrap(),
        "all of it is still held"
    );
    rename(&aside, &steps);
    backend.release(held.grant, &held.claims).await.unwrap();
    assert!(!backend.confirm(held.grant, &held.claims).await.unwrap());
    let left: u32 = space
        .raw(redis::cmd("HLEN").arg(space.key("records")))
        .unwrap();
    assert_eq!(left, 1, "only the last token");
}

#[tokio::test]
async fn a_release_of_a_part_of_a_step_leaves_the_rest_of_it() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let steps = || -> Vec<String> {
        let mut all = redis::cmd("ZRANGE");
        space
            .raw(all.arg(space.key("batches")).arg(0).arg(-1))
            .unwrap()
    };
    let held = request(session, 1, &["c k1", "c k2", "w /p", "s k3"]);
    granted(&backend, &held).await;
    let release = async |part: &[&str]| {
        let part: Vec<_> = part.iter().map(|text| claim(text)).collect();
        backend.release(held.grant, &part).await.unwrap();
        steps()
    };
    let name = format!("{session}/1");
    assert_eq!(steps(), [format!("{name}\nk1\nk2\n/p\nk3")]);
    assert_eq!(release(&["c k2"]).await, [format!("{name}\nk1\n/p\nk3")]);
    assert_eq!(release(&["w /p", "s k3"]).await, [format!("{name}\nk1")]);
    // One that is not held any more changes nothing.
    assert_eq!(release(&["c k2"]).await, [format!("{name}\nk1")]);
    assert_eq!(release(&["c k1"]).await, [""; 0]);
}

#[tokio::test]
async fn a_release_says_what_it_found() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(other, 1, &["s k2"])).await;
    let sessions = space.key("sessions");
    let kept: String = space
        .raw(redis::cmd("HGET").arg(&sessions).arg(one.to_string()))
        .unwrap();
    let mut n = 0;
    // Alone, and beside another holder.
    for keys in [&["s k1"][..], &["s k1", "w /p"], &["s k1", "s k2"]] {
        for (record, stood) in [
            (Some(kept.clone()), Stood::Held),
            (Some("v2 living".to_owned()), Stood::Held),
            (Some(kept.replace("living", "abandoned")), Stood::Fallen),
            (Some(kept.replace("living", "dead")), Stood::Fallen),
            (None, Stood::Fallen),
        ] {
            n += 1;
            let held = request(one, n, keys);
            granted(&backend, &held).await;
            let mut put = redis::cmd("HSET");
            match record {
                Some(record) => put.arg(&sessions).arg(one.to_string()).arg(record),
                None => {
                    put = redis::cmd("HDEL");
                    put.arg(&sessions).arg(one.to_string())
                }
            };
            space.raw::<()>(&mut put).unwrap();
            let told = async || backend.release(held.grant, &held.claims).await.unwrap();
            assert_eq!(told().await, stood, "{keys:?}");
            assert_eq!(told().await, Stood::Absent, "{keys:?}");
            let mut back = redis::cmd("HSET");
            back.arg(&sessions).arg(one.to_string()).arg(&kept);
            space.raw::<()>(&mut back).unwrap();
        }
        // Its number is over.
        n += 1;
        let held = request(one, n, keys);
        granted(&backend, &held).await;
        let retired = |from, to| Ranges::new(vec![(from, to)]).unwrap();
        let mut renewal = renewal(n);
        renewal.retired = retired(1, n);
        backend.renew(one, &renewal).await.unwrap();
        let told = backend.release(held.grant, &held.claims).await.unwrap();
        assert_eq!(told, Stood::Fallen, "{keys:?}");
        let mut back = redis::cmd("HSET");
        back.arg(&sessions).arg(one.to_string()).arg(&kept);
        space.raw::<()>(&mut back).unwrap();
    }
}

#[tokio::test]
async fn a_release_leaves_a_record_of_its_step_that_is_somebody_elses_by_now() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    for (held, key, letter) in [(["c a", "c b"], "a", "w"), (["w /a", "w /b"], "/b", "c")] {
        let held = request(session, 1, &held);
        granted(&backend, &held).await;
        let theirs = format!("{letter}{session}/1/1/5");
        let mut put = redis::cmd("HSET");
        space
            .raw::<()>(put.arg(space.key("records")).arg(key).arg(&theirs))
            .unwrap();
        backend.release(held.grant, &held.claims).await.unwrap();
        let mut all = redis::cmd("HGETALL");
        let mut left: Vec<(String, String)> = space.raw(all.arg(space.key("records"))).unwrap();
        left.retain(|(key, _)| key != "///");
        assert_eq!(left, [(key.to_owned(), theirs)]);
        let mut drop = redis::cmd("HDEL");
        space
            .raw::<()>(drop.arg(space.key("records")).arg(key))
            .unwrap();
    }
}

/// Whether each of these, which were watched before, is woken by what was told until now.
async fn woken(backend: &RedisBackend, session: SessionId, watched: Vec<Changed>) -> Vec<bool> {
    // What is told is heard in order: behind all of it comes this.
    let last = request(session, 1_000, &["c last"]);
    granted(backend, &last).await;
    let changed = backend.watch(&last.claims).await.unwrap();
    backend.release(last.grant, &last.claims).await.unwrap();
    let in_time = tokio::time::timeout(Duration::from_secs(10), changed).await;
    assert!(in_time.is_ok(), "nothing was told");
    let mut woken = Vec::new();
    for changed in watched {
        woken.push(changed.now_or_never().is_some());
    }
    woken
}

#[tokio::test]
async fn a_release_wakes_who_watches_its_keys_and_nobody_else() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(other, 1, &["s k1", "c stays"])).await;
    let watch = async |text: &str| backend.watch(&[claim(text)]).await.unwrap();
    // Beside another holder, and of keys that nobody else holds.
    for (n, keys) in [(1, ["s k1", "s k2"]), (2, ["s k2", "s k3"])] {
        let held = request(one, n, &keys);
        granted(&backend, &held).await;
        let watched = vec![watch("c k2").await, watch("c stays").await];
        backend.release(held.grant, &held.claims).await.unwrap();
        assert_eq!(
            woken(&backend, one, watched).await,
            [true, false],
            "{keys:?}"
        );
        // Sent again it frees nothing, and whatever stands there stays.
        let watched = vec![watch("c k1").await, watch("c k2").await];
        backend.release(held.grant, &held.claims).await.unwrap();
        assert_eq!(
            woken(&backend, one, watched).await,
            [false, false],
            "{keys:?}"
        );
    }
}

#[tokio::test]
async fn a_release_of_very_long_names_wakes_everybody() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let keys: Vec<String> = (0..146).map(|at| format!("s {at:0>112}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    granted(&backend, &request(other, 1, &["c stays"])).await;
    let mut n = 0;
    for shared in [false, true] {
        if shared {
            granted(&backend, &request(other, 2, &keys[..1])).await;
        }
        // A message names 16 KiB of keys, and the ends between them; one key more is told without a name.
        for (many, everybody) in [(145, false), (146, true)] {
            n += 1;
            let held = request(one, n, &keys[..many]);
            granted(&backend, &held).await;
            let watched = vec![
                backend.watch(&held.claims[many - 1..]).await.unwrap(),
                backend.watch(&[claim("c stays")]).await.unwrap(),
            ];
            backend.release(held.grant, &held.claims).await.unwrap();
            let woken = woken(&backend, one, watched).await;
            assert_eq!(woken, [true, everybody], "{many} keys, shared: {shared}");
        }
    }
}

#[tokio::test]
async fn a_renewal_that_fails_half_way_leaves_the_session_as_it_was() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let state = || -> String {
        let mut get = redis::cmd("HGET");
        let get = get.arg(space.key("sessions")).arg(session.to_string());
        space.raw(get).unwrap()
    };
    let before = state();
    let intents = space.key("intents");
    space
        .raw::<()>(redis::cmd("SET").arg(&intents).arg("x"))
        .unwrap();
    let mut registers = renewal(1);
    registers.intent = IntentChange::Put(Registered {
        intent: Intent::new("change").unwrap(),
        token: FencingToken::new(1).unwrap(),
    });
    let error = backend.renew(session, &registers).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(state(), before);
    space.raw::<()>(redis::cmd("DEL").arg(&intents)).unwrap();
    assert_eq!(
        backend.renew(session, &registers).await.unwrap(),
        Renewed::Living
    );
}

/// Leaves an intent, and is closed.
async fn abandon(backend: &RedisBackend, number: u128) -> SessionId {
    let session = open(backend, number).await;
    let mut registers = renewal(1);
    registers.intent = IntentChange::Put(Registered {
        intent: Intent::new("change").unwrap(),
        token: FencingToken::new(1).unwrap(),
    });
    backend.renew(session, &registers).await.unwrap();
    backend.end(&[session], End::Close).await.unwrap();
    session
}

/// How often that server has been written to.
fn writes(space: &Space) -> u64 {
    let info: String = space.raw(redis::cmd("INFO").arg("persistence")).unwrap();
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_may_not_be_forgotten_is_written_before_it_is_answered() {
    // Nobody else writes there. Replicas are waited for behind a write alone.
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let (lives, adopter) = (open(&backend, 1).await, open(&backend, 2).await);
    let (dead, left, settled) = (
        open(&backend, 3).await,
        abandon(&backend, 4).await,
        abandon(&backend, 5).await,
    );
    let held = request(lives, 1, &["c k"]);
    granted(&backend, &held).await;
    backend.end(&[dead], End::Close).await.unwrap();
    let take = |session| backend.adopt(session, 0, adopter, Adopt::Take, Incarnation::UNKNOWN);
    take(left).await.unwrap().adoption().unwrap();
    take(settled).await.unwrap().adoption().unwrap();
    assert!(
        backend
            .settle(settled, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );

    let before = writes(&space);
    let state = &backend.end(&[lives], End::IfDue).await.unwrap()[0];
    assert_eq!(
        (state.life, writes(&space)),
        (Life::Living, before),
        "no death"
    );
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    assert!(writes(&space) > before, "a confirmation");
    for (session, life) in [(dead, Life::Dead), (left, Life::Abandoned)] {
        for how in [End::IfDue, End::Close, End::Revoke] {
            let before = writes(&space);
            let state = &backend.end(&[session], how).await.unwrap()[0];
            assert_eq!(state.life, life);
            assert!(writes(&space) > before, "{life:?}, {how:?}");
        }
    }
    let before = writes(&space);
    take(left).await.unwrap().adoption().unwrap();
    assert!(writes(&space) > before, "an adoption sent again");
    let before = writes(&space);
    assert!(
        backend
            .settle(settled, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    assert!(writes(&space) > before, "a settlement sent again");
}

#[tokio::test]
async fn a_death_is_of_one_time_and_leaves_no_intent() {
    let space = Space::new();
    let backend = space.connect().await;
    let (dead, left) = (open(&backend, 1).await, abandon(&backend, 2).await);
    backend.end(&[dead], End::Close).await.unwrap();
    let stored = |session: SessionId| -> String {
        let mut get = redis::cmd("HGET");
        let get = get.arg(space.key("sessions")).arg(session.to_string());
        space.raw(get).unwrap()
    };
    for session in [dead, left] {
        let before = stored(session);
        tokio::time::sleep(Duration::from_millis(5)).await;
        for how in [End::IfDue, End::Close, End::Revoke] {
            backend.end(&[session], how).await.unwrap();
            assert_eq!(stored(session), before, "{how:?}");
        }
    }
    let intents = || -> u32 {
        let mut count = redis::cmd("HLEN");
        space.raw(count.arg(space.key("intents"))).unwrap()
    };
    assert_eq!(intents(), 1);
    let state = &backend.end(&[left], End::Discard).await.unwrap()[0];
    assert_eq!((state.life, intents()), (Life::Dead, 0));
    let (settled, adopter) = (abandon(&backend, 3).await, open(&backend, 4).await);
    let adopted = backend
        .adopt(settled, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .map(Adopted::adoption);
    assert_eq!((adopted.unwrap().unwrap().number, intents()), (1, 1));
    assert!(
        backend
            .settle(settled, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    assert_eq!(intents(), 0);
}

#[tokio::test]
async fn what_is_abandoned_and_cannot_be_understood_is_not_adopted() {
    let space = Space::new();
    let backend = space.connect().await;
    let adopter = open(&backend, 1).await;
    let left = abandon(&backend, 2).await;
    let put = |hash: &str, text: &str| {
        let mut put = redis::cmd("HSET");
        let put = put.arg(space.key(hash)).arg(left.to_string()).arg(text);
        space.raw::<()>(put).unwrap();
    };
    let refused = async |how| {
        let adopted = backend
            .adopt(left, 0, adopter, how, Incarnation::UNKNOWN)
            .await
            .map(Adopted::adoption);
        assert_eq!(adopted.unwrap_err().kind(), ErrorKind::Corrupt);
    };
    for broken in ["", "v2 change", "change\n1\n"] {
        put("intents", broken);
        refused(Adopt::Take).await;
    }
    let mut drop = redis::cmd("HDEL");
    let drop = drop.arg(space.key("intents")).arg(left.to_string());
    space.raw::<()>(drop).unwrap();
    refused(Adopt::Take).await;
    // Nobody has it by that: the next asks for the same number.
    let state = &backend.end(&[left], End::IfDue).await.unwrap()[0];
    assert_eq!((state.life, state.adoption), (Life::Abandoned, 0));
    put("intents", "1\nchange");
    let adopted = backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption();
    assert_eq!(adopted.unwrap().number, 1);

    put("sessions", "v2 abandoned");
    refused(Adopt::Take).await;
    refused(Adopt::GiveUp).await;
    assert_eq!(
        backend
            .settle(left, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Corrupt
    );
}

#[tokio::test]
async fn a_namespace_of_another_version_is_refused() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let all = || {
        ["records", "sessions", "meta"].map(|name| {
            let mut get = redis::cmd("HGETALL");
            let fields: BTreeMap<String, String> = space.raw(get.arg(space.key(name))).unwrap();
            fields
        })
    };
    for (version, says) in [
        ("1", "of an older version"),
        ("3", "of an older version"),
        ("5", "or a newer lockkeeper"),
    ] {
        let mut set = redis::cmd("HSET");
        set.arg(space.key("meta")).arg("version").arg(version);
        space.raw::<()>(&mut set).unwrap();
        let before = all();
        let error = RedisBackend::connect(space.config()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(said.contains(says), "{said}");
        assert!(said.contains("use another namespace"), "{said}");
        assert_eq!(all(), before, "nothing was written");
    }
    // Who was connected before notices it by the counter, which another version has elsewhere.
    let mut drop = redis::cmd("HDEL");
    drop.arg(space.key("records")).arg("///");
    space.raw::<()>(&mut drop).unwrap();
    let mut set = redis::cmd("HSET");
    set.arg(space.key("records"))
        .arg("")
        .arg("1700000000000000");
    space.raw::<()>(&mut set).unwrap();
    let asked = backend.acquire(&request(session, 1, &["c k"])).await;
    let error = asked.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(
        error.to_string().contains("use another namespace"),
        "{error}"
    );
    let left = all();
    assert_eq!(left[0].len(), 1, "nothing was granted: {left:?}");
}

#[tokio::test]
async fn a_counter_that_is_broken_is_said() {
    for broken in ["x", "-1", "9007199254740993", "1e300"] {
        let space = Space::new();
        let backend = space.connect().await;
        let session = open(&backend, 1).await;
        let left = abandon(&backend, 2).await;
        let mut set = redis::cmd("HSET");
        space
            .raw::<()>(set.arg(space.key("records")).arg("///").arg(broken))
            .unwrap();
        let kind = kind_of_acquire(&backend, &request(session, 1, &["c k"])).await;
        assert_eq!(kind, ErrorKind::Corrupt, "{broken}");
        let adopted = backend
            .adopt(left, 0, session, Adopt::Take, Incarnation::UNKNOWN)
            .await
            .map(Adopted::adoption);
        let error = adopted.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{broken}");
        let said = format!("{:?}", std::error::Error::source(&error));
        assert!(
            said.contains("the counter of the tokens is broken"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn tokens_are_exact_and_rise_beyond_the_clock() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let left = abandon(&backend, 2).await;
    let mut set = redis::cmd("HSET");
    // Where floating-point numbers as text would be rounded.
    space
        .raw::<()>(
            set.arg(space.key("records"))
                .arg("///")
                .arg("9007199254740000"),
        )
        .unwrap();
    for n in 1..=20 {
        let token = granted(&backend, &request(session, n, &[&format!("c {n}")])).await;
        assert_eq!(token.get(), 9_007_199_254_740_000 + n);
    }
    let adopted = backend
        .adopt(left, 0, session, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption();
    assert_eq!(adopted.unwrap().token.get(), 9_007_199_254_740_021);
    let next = granted(&backend, &request(session, 21, &["c next"])).await;
    assert_eq!(next.get(), 9_007_199_254_740_022);
}

#[tokio::test]
async fn nothing_is_left_of_what_was_released() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let first = request(session, 1, &["c a", "c b", "c c"]);
    let tree = request(session, 2, &["w /x/y", "r /z"]);
    granted(&backend, &first).await;
    granted(&backend, &tree).await;
    backend
        .release(first.grant, &first.claims[..1])
        .await
        .unwrap();
    let listed = backend
        .records(&Filter::Session(session), None, 10)
        .await
        .unwrap();
    let keys: Vec<&str> = listed
        .items
        .iter()
        .map(|record| record.key.as_str())
        .collect();
    assert_eq!(keys, ["b", "c", "/x/y", "/z"]);
    backend.release(first.grant, &first.claims).await.unwrap();
    backend.release(tree.grant, &tree.claims).await.unwrap();
    let records: u32 = space
        .raw(redis::cmd("HLEN").arg(space.key("records")))
        .unwrap();
    assert_eq!(records, 1, "only the last token");
    for name in ["writes", "reads", "batches", "intents"] {
        let there: u32 = space
            .raw(redis::cmd("EXISTS").arg(space.key(name)))
            .unwrap();
        assert_eq!(there, 0, "{name}");
    }
}

#[tokio::test]
async fn nothing_is_left_of_what_was_swept() {
    let space = Space::new();
    let backend = space.connect().await;
    let (dies, goes, lives) = (
        open(&backend, 1).await,
        open(&backend, 2).await,
        open(&backend, 3).await,
    );
    granted(&backend, &request(dies, 1, &["c a", "u b", "s s"])).await;
    granted(
        &backend,
        &request(dies, 2, &["w /x/y", "r /z", "w /garbage"]),
    )
    .await;
    granted(&backend, &request(goes, 1, &["c other", "s s"])).await;
    granted(&backend, &request(lives, 1, &["s s", "r /z"])).await;
    // Somebody else's, though it looks like a holder of a flat key.
    let garbage = format!("c{dies}/2/2/5");
    let mut put = redis::cmd("HSET");
    let put = put.arg(space.key("records")).arg("/garbage").arg(&garbage);
    space.raw::<()>(put).unwrap();
    backend.end(&[dies, goes], End::Close).await.unwrap();
    let records = || -> Vec<String> {
        let mut keys = redis::cmd("HKEYS");
        let mut keys: Vec<String> = space.raw(keys.arg(space.key("records"))).unwrap();
        keys.retain(|key| key != "///");
        keys.sort();
        keys
    };
    let lines = |key: &str| -> usize {
        let mut get = redis::cmd("HGET");
        let text: String = space.raw(get.arg(space.key("records")).arg(key)).unwrap();
        text.lines().count()
    };
    let count =
        |name: &str| -> u32 { space.raw(redis::cmd("ZCARD").arg(space.key(name))).unwrap() };
    let swept = backend.sweep(Sweep::Session(dies), 100).await.unwrap();
    assert_eq!(swept.removed, 5);
    assert_eq!(records(), ["/garbage", "/z", "other", "s"]);
    assert_eq!((lines("/z"), lines("s")), (1, 2));
    assert_eq!(
        (count("writes"), count("reads"), count("batches")),
        (1, 1, 2)
    );
    let swept = backend.sweep(Sweep::All, 100).await.unwrap();
    assert_eq!(swept.removed, 2);
    assert_eq!(records(), ["/garbage", "/z", "s"]);
    assert_eq!((lines("s"), count("batches")), (1, 1));
    let again = backend.sweep(Sweep::All, 100).await.unwrap();
    assert_eq!(again.removed, 0);
}

#[tokio::test]
async fn what_is_confirmed_is_what_is_held() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["u k", "w /p"]);
    granted(&backend, &held).await;
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    for other in [["c k", "w /p"], ["u k", "r /p"], ["s k", "w /p"]] {
        let other = request(session, 1, &other);
        let confirmed = backend.confirm(other.grant, &other.claims).await.unwrap();
        assert!(!confirmed, "{other:?}");
    }
}

#[tokio::test]
async fn namespaces_and_databases_do_not_meet() {
    let server = node(&[]).await;
    let base = url(&server);
    let mut seen = Vec::new();
    for place in ["/?namespace=a", "/?namespace=b", "/3?namespace=a"] {
        let config = RedisConfig::parse(&format!("{base}{place}")).unwrap();
        let backend = RedisBackend::connect(config).await.unwrap();
        let session = open(&backend, 1).await;
        seen.push(granted(&backend, &request(session, 1, &["c k"])).await);
    }
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn what_is_held_above_and_below_is_found_whatever_stands_between() {
    let paths = [
        "/a",
        "/a!",
        "/a!/x",
        "/a/b",
        "/a/b!",
        "/a/b!c/d",
        "/a/b/c",
        "/a/b/c/d/e",
        "/a b/c",
        "/a0",
        "/ab",
        "/ab/c/d",
        "/é/a",
        "/z",
    ];
    let keys = paths.map(|path| LockKey::parse(path).unwrap());
    let related =
        |one: &LockKey, other: &LockKey| one == other || one.is_above(other) || other.is_above(one);
    let space = Space::new();
    let backend = space.connect().await;
    let (holds, asks) = (open(&backend, 1).await, open(&backend, 2).await);
    let mut n = 0;
    for want in ["w", "r"] {
        for first in 0..keys.len() {
            for second in first + 1..keys.len() {
                let held = [&keys[first], &keys[second]];
                n += 1;
                // Of one owner, so that they may be related.
                let [claim, other] = held.map(|key| format!("{want} {key}"));
                let step = request(holds, n, &[&claim, &other]);
                granted(&backend, &step).await;
                for asked in &keys {
                    n += 1;
                    let request = request(asks, n, &[&format!("w {asked}")]);
                    let answer = backend.acquire(&request).await.unwrap();
                    let busy = held.iter().any(|held| related(held, asked));
                    assert_eq!(
                        matches!(answer, Acquired::Busy(_)),
                        busy,
                        "{asked} beside {held:?}, {want}: {answer:?}"
                    );
                    backend
                        .release(request.grant, &request.claims)
                        .await
                        .unwrap();
                }
                backend.release(step.grant, &step.claims).await.unwrap();
            }
        }
    }
}
