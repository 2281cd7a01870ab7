//! What the server of Redis forgets, refuses and loses.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use lockcore::backend::{
    Acquire, Acquired, Adopt, ClaimStore, End, Filter, Incarnation, Inspect, IntentChange, Ranges,
    Registered, Renewed, SessionStore, Stood, Sweep, Swept, Wakeups,
};
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{
    ErrorKind, FencingToken, Intent, Label, Life, LockBackend, LockKey, Locks, Note, NoteKind,
    Operation, Released, SessionId,
};
use lockcore_redis::{RedisBackend, RedisConfig};
use support::servers::{node, node_at, port, replica_of, url};
use support::steps::{claim, granted, open, renewal, request};
use support::{Place, Space};

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let request = request(session, 1, &["c k"]);
    for _ in 0..3 {
        space.raw::<()>(redis::cmd("SCRIPT").arg("FLUSH")).unwrap();
        granted(&backend, &request).await;
        space.raw::<()>(redis::cmd("SCRIPT").arg("FLUSH")).unwrap();
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
    }
}

/// How often the server has executed each command.
fn calls(space: &Space) -> BTreeMap<String, usize> {
    let info: String = space.raw(redis::cmd("INFO").arg("commandstats")).unwrap();
    let line = |line: &str| {
        let (command, calls) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = calls.split(',').next()?;
        Some((command.to_owned(), calls.parse().unwrap()))
    };
    info.lines().filter_map(line).collect()
}

/// What was executed since then, and how often, but for `INFO`.
fn since(before: &BTreeMap<String, usize>, space: &Space) -> BTreeMap<String, usize> {
    let mut calls = calls(space);
    calls.remove("info");
    for (command, calls) in &mut calls {
        *calls -= before.get(command).unwrap_or(&0);
    }
    calls.retain(|_, calls| *calls > 0);
    calls
}

#[tokio::test]
async fn what_is_held_alone_is_released_in_few_commands() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let mut n = 0;
    // Flat keys, paths, and both; how often many keys are looked at, and keys and paths removed.
    for (keys, looks, removes) in [
        (&["c k"][..], 0, 1),
        (&["u k"], 0, 1),
        (&["s k"], 0, 1),
        (&["u k", "u l"], 1, 1),
        (&["w /p"], 1, 2),
        (&["r /p"], 1, 2),
        (&["w /p", "r /q"], 1, 3),
    ] {
        // The second time all scripts are loaded.
        for loaded in [false, true] {
            n += 1;
            let request = request(session, n, keys);
            granted(&backend, &request).await;
            let before = calls(&space);
            let release = backend.release(request.grant, &request.claims);
            release.await.unwrap();
            if !loaded {
                continue;
            }
            let expected = [
                ("evalsha", 1),
                // The session, and a key that is alone.
                ("hget", 2 - looks),
                ("hmget", looks),
                ("zrem", removes),
                ("hdel", 1),
                ("spublish", 1),
            ];
            let expected = expected.into_iter().filter(|(_, calls)| *calls > 0);
            let expected = expected.map(|(command, calls)| (command.to_owned(), calls));
            assert_eq!(since(&before, &space), expected.collect(), "{keys:?}");
        }
    }
}

/// Whatever is asked while a request is under way goes together, and each has an answer of its own.
#[tokio::test]
async fn what_is_asked_meanwhile_is_one_script_for_all_and_answered_alike() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let [one, other, dead] = [1, 2, 3].map(|number| open(&backend, number));
    let (one, other, dead) = (one.await, other.await, dead.await);
    backend.end(&[dead], End::Close).await.unwrap();
    // A number that is over, and what somebody else holds.
    granted(&backend, &request(other, 100, &["c held"])).await;
    let mut retired = renewal(1);
    retired.retired = Ranges::of([9]);
    assert!(backend.renew(one, &retired).await.unwrap().is_living());
    let small =
        |session, from: u64| (from..from + 10).map(move |n| (session, n, format!("u k{n}")));
    let mut wanted: Vec<_> = small(one, 10).chain(small(other, 110)).collect();
    for (session, n, claim) in [
        (one, 30, "u k10"),
        (one, 31, "c held"),
        (one, 9, "u over"),
        (dead, 1, "u dead"),
        (one, 32, "w /path"),
        (one, 33, "s shared"),
        (other, 133, "s shared"),
    ] {
        wanted.push((session, n, claim.to_owned()));
    }
    let requests = wanted
        .iter()
        .map(|(session, n, claim)| request(*session, *n, &[claim]));
    let mut requests: Vec<_> = requests.collect();
    let mut elsewhere = request(one, 34, &["u elsewhere"]);
    elsewhere.incarnation = Incarnation::new(1);
    requests.push(elsewhere);
    let asked = |requests: &[Acquire]| {
        let asked = requests.iter().cloned().map(|request| {
            let backend = Arc::clone(&backend);
            async move { backend.acquire(&request).await.unwrap() }
        });
        join_all(asked.collect::<Vec<_>>())
    };
    // The scripts are loaded.
    let first = [(one, 7), (one, 8)].map(|(one, n)| request(one, n, &[&format!("u l{n}")]));
    asked(&first).await;
    let released = first
        .iter()
        .map(|Acquire { grant, claims, .. }| backend.release(*grant, claims));
    for stood in join_all(released).await {
        assert_eq!(stood.unwrap(), Stood::Held);
    }

    let before = calls(&space);
    let answers = asked(&requests).await;
    let told: Vec<&str> = answers
        .iter()
        .map(|answer| match answer {
            Acquired::Acquired(_) => "granted",
            Acquired::Busy(_) => "busy",
            Acquired::Void => "void",
            Acquired::Moved => "moved",
        })
        .collect();
    assert_eq!(told[..20], ["granted"; 20]);
    assert_eq!(
        told[20..],
        [
            "busy", "busy", "void", "void", "granted", "granted", "granted", "moved"
        ]
    );
    // The first of one session alone, the others and those of the other in a script for each; of the rest, what the
    // short way does not do by itself, and the path.
    let scripts = since(&before, &space)["evalsha"];
    assert!(scripts <= 5 + 7, "{scripts} scripts");
    let tokens = answers[1..10].iter().filter_map(|answer| match answer {
        Acquired::Acquired(token) => Some(*token),
        _ => None,
    });
    let tokens: Vec<_> = tokens.collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(tokens.len(), 9);

    let holds = |at: usize| told[at] == "granted";
    for (at, Acquire { grant, claims, .. }) in requests.iter().enumerate() {
        let held = backend.confirm(*grant, claims).await.unwrap();
        assert_eq!(held, holds(at), "{grant}");
    }
    // What is not there is released, too; who waits for something else is not told.
    let watched = backend.watch(&[claim("c k15")]).await.unwrap();
    let mut beside = backend.watch(&[claim("c held")]).await.unwrap();
    let before = calls(&space);
    let released = requests
        .iter()
        .map(|Acquire { grant, claims, .. }| backend.release(*grant, claims));
    let released = join_all(released).await;
    for (at, stood) in released.into_iter().enumerate() {
        let expected = if holds(at) {
            Stood::Held
        } else {
            Stood::Absent
        };
        assert_eq!(stood.unwrap(), expected, "{}", requests[at].grant);
    }
    let scripts = since(&before, &space)["evalsha"];
    assert!(scripts <= 5 + 8, "{scripts} scripts");
    tokio::time::timeout(Duration::from_secs(5), watched)
        .await
        .unwrap();
    assert!(poll!(&mut beside).is_pending());
    let all = Filter::Prefix(String::new());
    let left = backend.records(&all, None, 100).await.unwrap().items;
    let left: Vec<&str> = left.iter().map(|record| record.key.as_str()).collect();
    assert_eq!(left, ["held"]);
    let steps: usize = space
        .raw(redis::cmd("ZCARD").arg(space.key("batches")))
        .unwrap();
    assert_eq!(steps, 1);
}

/// As one that is due, one whose record cannot be read, and one without a record.
#[tokio::test]
async fn what_is_asked_together_by_a_session_that_may_not_have_it_is_answered_alike() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let [due, broken] = [1, 2].map(|number| open(&backend, number));
    let (due, broken) = (due.await, broken.await);
    let unknown = SessionId::new(3);
    let requests = [1, 2, 3].map(|n| request(unknown, n, &[&format!("u k{n}")]));
    let released = requests
        .iter()
        .map(|it| backend.release(it.grant, &it.claims));
    for stood in join_all(released).await {
        assert_eq!(stood.unwrap(), Stood::Absent);
    }
    let asked = requests.iter().map(|request| backend.acquire(request));
    for answer in join_all(asked).await {
        assert!(matches!(answer, Ok(Acquired::Void)), "{answer:?}");
    }
    for (session, record) in [
        (due, "living\n1000\n\n600000\n0\n0\n\n\n\ntest\n"),
        (broken, "living"),
    ] {
        let mut put = redis::cmd("HSET");
        let put = put.arg(space.key("sessions")).arg(session.to_string());
        space.raw::<()>(put.arg(record)).unwrap();
        let requests = [1, 2, 3].map(|n| request(session, n, &[&format!("u k{n}")]));
        let asked = requests.iter().map(|request| backend.acquire(request));
        for answer in join_all(asked).await {
            match session == due {
                true => assert!(matches!(answer, Ok(Acquired::Void)), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt),
            }
        }
    }
}

/// Those of numbers that are over, those of many long keys, of which everybody is told, and those of a dead session.
#[tokio::test]
async fn what_is_released_together_is_told_and_answered_alike() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let long = "x".repeat(1_000);
    let requests = (1..31).map(|n| request(session, n, &[&format!("u {n}{long}")]));
    let requests: Vec<_> = requests.collect();
    let asked = requests.iter().map(|request| backend.acquire(request));
    for answer in join_all(asked).await {
        assert!(matches!(answer, Ok(Acquired::Acquired(_))), "{answer:?}");
    }
    let mut retired = renewal(1);
    retired.retired = Ranges::of([3, 4]);
    assert!(backend.renew(session, &retired).await.unwrap().is_living());
    let watched = backend.watch(&requests[20].claims).await.unwrap();
    let released = requests
        .iter()
        .map(|it| backend.release(it.grant, &it.claims));
    for (request, stood) in requests.iter().zip(join_all(released).await) {
        let expected = match retired.retired.contains(request.grant.n) {
            true => Stood::Fallen,
            false => Stood::Held,
        };
        assert_eq!(stood.unwrap(), expected, "{}", request.grant);
    }
    tokio::time::timeout(Duration::from_secs(5), watched)
        .await
        .unwrap();
    // Those of a dead session, which has its records still.
    let dead = open(&backend, 2).await;
    let requests = [1, 2, 3].map(|n| request(dead, n, &[&format!("u k{n}")]));
    for request in &requests {
        granted(&backend, request).await;
    }
    backend.end(&[dead], End::Revoke).await.unwrap();
    let released = requests
        .iter()
        .map(|it| backend.release(it.grant, &it.claims));
    for stood in join_all(released).await {
        assert_eq!(stood.unwrap(), Stood::Fallen);
    }
}

#[tokio::test]
async fn a_sweep_looks_at_many_steps_in_few_scripts_and_passes_what_is_none() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    // The scripts are loaded.
    backend.sweep(Sweep::All, 1).await.unwrap();
    let mut steps = redis::cmd("ZADD");
    steps.arg(space.key("batches"));
    for n in 0..8_000 {
        steps.arg(0).arg(format!("{session}/{n}\nkey{n}"));
    }
    // None of these is a step of ours.
    steps.arg(0).arg("abc/1\nk").arg(0).arg("zz");
    space.raw::<()>(&mut steps).unwrap();
    let before = calls(&space);
    let swept = backend.sweep(Sweep::All, 10_000).await.unwrap();
    assert_eq!((swept.removed, swept.more), (0, false));
    // About a million bytes a script; the third looks for tombstones.
    assert_eq!(since(&before, &space)["evalsha"], 3);
    let left: (usize, usize) = (
        space
            .raw(redis::cmd("ZCARD").arg(space.key("batches")))
            .unwrap(),
        space
            .raw(redis::cmd("HLEN").arg(space.key("sessions")))
            .unwrap(),
    );
    assert_eq!(left, (8_002, 1));
}

#[tokio::test]
async fn tombstones_cost_a_sweep_nothing_until_they_are_old() {
    // Writes so many, which died so long ago, as `server/common.lua` says.
    const BURY: &str = r"local now = redis.call('TIME')[1] * 1000
        for i = 1, tonumber(ARGV[1]) do
            local id = string.format('%s%030x', ARGV[2], i)
            local ended = string.format('%.0f', now - ARGV[3])
            redis.call('HSET', KEYS[1], id, 'dead\n0\n\n0\n0\n0\n\n\n' .. ended .. '\n\n')
            redis.call('ZADD', KEYS[2], string.format('%.0f', ended + 86400000), id)
        end";
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    open(&backend, 1).await;
    backend.sweep(Sweep::All, 1).await.unwrap();
    let bury = |how_many: usize, first: &str, age: Duration| {
        let mut bury = redis::cmd("EVAL");
        bury.arg(BURY).arg(2);
        bury.arg(space.key("sessions")).arg(space.key("due"));
        bury.arg(how_many)
            .arg(first)
            .arg(age.as_millis().to_string());
        space.raw::<()>(&mut bury).unwrap();
    };
    let count = || -> usize {
        space
            .raw(redis::cmd("HLEN").arg(space.key("sessions")))
            .unwrap()
    };
    bury(200_000, "dd", Duration::ZERO);
    let before = calls(&space);
    let swept = backend.sweep(Sweep::All, 10_000).await.unwrap();
    assert_eq!((swept.removed, swept.more), (0, false));
    let expected = [
        ("evalsha", 2),
        ("hdel", 2),
        ("time", 2),
        ("zrangebylex", 1),
        ("zrangebyscore", 1),
    ];
    let expected = expected.map(|(command, calls)| (command.to_owned(), calls));
    assert_eq!(since(&before, &space), BTreeMap::from(expected));
    // Of those that are old as many go as may, whatever stands before them.
    bury(1_000, "aa", TOMBSTONE_KEPT);
    let step = format!("aa{:030x}/1\nk", 1);
    space
        .raw::<()>(
            redis::cmd("ZADD")
                .arg(space.key("batches"))
                .arg(0)
                .arg(step),
        )
        .unwrap();
    let mut swept = Vec::new();
    for _ in 0..4 {
        let Swept { removed, more, .. } = backend.sweep(Sweep::All, 400).await.unwrap();
        swept.push((removed, more));
    }
    assert_eq!(swept, [(400, true), (400, true), (200, false), (0, false)]);
    assert_eq!(count(), 200_001);
}

#[tokio::test]
async fn scripts_are_loaded_once() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let loads = || calls(&space).get("script|load").copied().unwrap_or(0);
    let backends = [space.connect().await, space.connect().await];
    let session = open(&backends[0], 1).await;
    for n in 1..=50 {
        let request = request(session, n, &["c k"]);
        let backend = &backends[usize::try_from(n % 2).unwrap()];
        granted(backend, &request).await;
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
    }
    assert_eq!(loads(), 4, "init, open, acquire and release");
}

#[tokio::test]
async fn a_server_that_was_emptied_is_noticed_and_tokens_rise() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let before = granted(&backend, &request(session, 1, &["c k"])).await;
    let created = |space: &Space| -> (String, u64) {
        let mut get = redis::cmd("HMGET");
        get.arg(space.key("meta")).arg("version").arg("created");
        space.raw(&mut get).unwrap()
    };
    let (_, first_created) = created(&space);
    let locks = Locks::builder(backend.clone())
        .ttl(Duration::from_secs(1))
        .build()
        .unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    space.raw::<()>(&mut redis::cmd("FLUSHALL")).unwrap();
    assert_eq!(
        backend.renew(session, &renewal(1)).await.unwrap(),
        Renewed::Dead
    );
    let void = backend
        .acquire(&request(session, 2, &["c k"]))
        .await
        .unwrap();
    assert_eq!(void, Acquired::Void);
    guard.lost().await;
    assert!(!guard.is_valid());
    let other = open(&backend, 2).await;
    let after = granted(&backend, &request(other, 1, &["c k"])).await;
    assert!(after > before);
    let (version, created) = created(&space);
    assert_eq!(version, "4", "it was made anew");
    assert!(created > first_created);
}

#[tokio::test]
async fn a_server_that_restarts_without_data_is_noticed_and_tokens_rise() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let before = granted(&backend, &request(session, 1, &["c k"])).await;
    let locks = Locks::builder(backend.clone());
    let locks = locks.ttl(Duration::from_secs(60)).build().unwrap();
    let guard = locks.lock("held").acquire().await.unwrap();
    let port = server.port().unwrap();
    drop(server);
    let unreachable = backend.renew(session, &renewal(1)).await.unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Indeterminate];
    assert!(kinds.contains(&unreachable.kind()), "{unreachable}");
    let kind = backend
        .renew(session, &renewal(2))
        .await
        .unwrap_err()
        .kind();
    assert_eq!(kind, ErrorKind::Unavailable, "nothing was sent");
    let _again = node_at(&port, &[]).await;
    assert_eq!(
        backend.renew(session, &renewal(3)).await.unwrap(),
        Renewed::Dead
    );
    // Long before its deadline the guard is told by whoever asks the store.
    assert!(guard.is_valid());
    assert!(!guard.confirm().await.unwrap());
    guard.lost().await;
    assert!(!guard.is_valid());
    let other = open(&backend, 2).await;
    assert!(granted(&backend, &request(other, 1, &["c k"])).await > before);
}

#[tokio::test]
async fn a_full_memory_takes_all_but_openings_and_grants() {
    let server = node(&[("maxmemory-policy", "noeviction")]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let memory = |limit: u32| {
        let mut set = redis::cmd("CONFIG");
        let set = set.arg("SET").arg("maxmemory").arg(limit);
        space.raw::<()>(set).unwrap();
    };
    let session = open(&backend, 1).await;
    let (alone, shared) = (request(session, 1, &["c a"]), request(session, 2, &["s b"]));
    let beside = request(session, 3, &["s b"]);
    for request in [&alone, &shared, &beside] {
        granted(&backend, request).await;
    }
    let registers = |seq| {
        let mut registers = renewal(seq);
        registers.intent = IntentChange::Put(Registered {
            token: FencingToken::new(1).unwrap(),
            intent: Intent::new("change").unwrap(),
        });
        registers
    };
    let (closed, revoked, left, due) = (
        open(&backend, 2).await,
        open(&backend, 3).await,
        open(&backend, 4).await,
        SessionId::new(5),
    );
    let label = Label::parse("").unwrap();
    backend
        .open(due, &label, Duration::from_secs(1))
        .await
        .unwrap();
    granted(&backend, &request(due, 1, &["c due"])).await;
    backend.renew(left, &registers(1)).await.unwrap();
    backend.end(&[left], End::Close).await.unwrap();
    let mut put = redis::cmd("HSET");
    put.arg(space.key("records"))
        .arg("odd")
        .arg("somebody else's");
    space.raw::<()>(&mut put).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;

    memory(1);
    let error = backend.acquire(&request(session, 4, &["c c"])).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = backend
        .open(SessionId::new(6), &label, Duration::from_secs(1))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    // Nobody gets a place in line, and is refused all the same.
    let waits = request(session, 5, &["c a"]).waiting();
    let refused = backend.acquire(&waits).await.unwrap();
    assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
    let refused = backend.acquire(&request(session, 6, &["c a"])).await;
    let Acquired::Busy(busy) = refused.unwrap() else {
        panic!("it is held");
    };
    assert_eq!(busy.first().holders.len(), 1, "{busy:?}");
    // Also a program that starts now can do the rest: an operator's, or the next stage of a deployment.
    let backend = space.connect().await;
    // Who holds something goes on, and whoever is gone goes.
    assert_eq!(
        backend.renew(session, &renewal(1)).await.unwrap(),
        Renewed::Living
    );
    assert_eq!(
        backend.renew(session, &registers(2)).await.unwrap(),
        Renewed::Living
    );
    assert!(backend.confirm(alone.grant, &alone.claims).await.unwrap());
    for (which, how) in [
        (closed, End::Close),
        (revoked, End::Revoke),
        (due, End::IfDue),
    ] {
        let states = backend.end(&[which], how).await.unwrap();
        assert_eq!(states[0].life, Life::Dead, "{how:?}");
    }
    assert_eq!(backend.sweep(Sweep::All, 100).await.unwrap().removed, 1);
    let adopted = backend
        .adopt(left, 0, session, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption();
    let number = adopted.unwrap().number;
    assert!(
        backend
            .settle(left, number, session, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    let [by, reason] = ["ops", "the memory is full"].map(|text| Label::parse(text).unwrap());
    let note = Note::new(NoteKind::Revoke, by, reason, std::time::UNIX_EPOCH);
    assert!(backend.note(left, &note).await.unwrap());
    let odd = Filter::Key(LockKey::parse("odd").unwrap());
    let odd = backend.records(&odd, None, 1).await.unwrap().items;
    assert!(backend.evict(&odd[0]).await.unwrap());
    for request in [&alone, &shared] {
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
    }
    memory(0);
    let page = backend
        .records(&Filter::Prefix(String::new()), None, 10)
        .await
        .unwrap();
    let keys: Vec<&str> = page
        .items
        .iter()
        .map(|record| record.key.as_str())
        .collect();
    assert_eq!(keys, ["b"]);
    assert_eq!(page.items[0].holders.len(), 1);
}

/// As managed services are: they hide what they call their own.
#[tokio::test]
async fn a_server_that_lacks_commands_is_used_and_promises_less() {
    for hidden in [
        &["CONFIG"][..],
        &["CONFIG", "INFO"],
        &["CONFIG", "INFO", "HELLO"],
    ] {
        let renamed: Vec<String> = hidden.iter().map(|command| format!("{command} ")).collect();
        let mut settings = vec![("appendonly", "yes"), ("appendfsync", "always")];
        settings.extend(
            renamed
                .iter()
                .map(|command| ("rename-command", command.as_str())),
        );
        let server = node(&settings).await;
        let space = Space::at(&Place::of(url(&server)));
        let backend = space.connect().await;
        let durability = backend.info().durability;
        assert!(!durability.crash && !durability.power_loss, "{hidden:?}");
        assert_eq!(durability.failover, !hidden.contains(&"INFO"), "{hidden:?}");
        let locks = Locks::builder(backend).build().unwrap();
        for key in ["k", "l"] {
            let guard = locks.lock(key).acquire().await.unwrap();
            assert!(guard.confirm().await.unwrap());
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
    }
}

#[tokio::test]
async fn servers_that_cannot_keep_locks_are_refused() {
    let evicts = node(&[("maxmemory-policy", "allkeys-lru")]).await;
    let error = RedisBackend::connect(RedisConfig::parse(&url(&evicts)).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &[]).await;
    let error = RedisBackend::connect(RedisConfig::parse(&url(&replica)).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_said() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let primary = node(&[]).await;
    let mut follow = redis::cmd("REPLICAOF");
    space
        .raw::<()>(follow.arg("127.0.0.1").arg(port(&primary)))
        .unwrap();
    let error = backend
        .acquire(&request(session, 1, &["c k"]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn what_the_server_promises_is_told() {
    let durability = |settings: &'static [(&str, &str)]| async move {
        let server = node(settings).await;
        let backend = Space::at(&Place::of(url(&server))).connect().await;
        let durability = backend.info().durability;
        (durability.crash, durability.power_loss, durability.failover)
    };
    assert_eq!(durability(&[]).await, (false, false, true));
    assert_eq!(
        durability(&[("appendonly", "yes")]).await,
        (false, false, true)
    );
    let always = &[("appendonly", "yes"), ("appendfsync", "always")];
    assert_eq!(durability(always).await, (true, true, true));
    let never = &[("appendonly", "yes"), ("appendfsync", "no")];
    assert_eq!(durability(never).await, (true, false, true));
}

#[tokio::test]
async fn a_user_without_rights_is_refused_before_anything_is_made() {
    let server = node(&[]).await;
    for (missing, refused) in [
        ("-zadd", true),
        ("-hset", true),
        ("-spublish", true),
        ("-evalsha", true),
        ("-info -config -cluster", false),
    ] {
        let place = support::servers::with_least_rights(&server, "pw").await;
        let space = Space::at(&place);
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER").arg("lockkeeper");
        missing.split(' ').for_each(|right| {
            set.arg(right);
        });
        space.raw::<()>(&mut set).unwrap();
        match RedisBackend::connect(space.config()).await {
            Err(error) => {
                assert!(refused, "{missing}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unauthorized, "{missing}: {error}");
                assert!(!format!("{error} {error:?}").contains("pw"), "{error:?}");
                let made: u32 = space
                    .raw(redis::cmd("EXISTS").arg(space.key("meta")))
                    .unwrap();
                assert_eq!(made, 0, "{missing}");
            }
            Ok(backend) => {
                assert!(!refused, "{missing}");
                let durability = backend.info().durability;
                assert!(!durability.crash && !durability.power_loss && !durability.failover);
            }
        }
    }
    let wrong = format!("redis://lockkeeper:secret@127.0.0.1:{}", port(&server));
    let error = RedisBackend::connect(RedisConfig::parse(&wrong).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_namespace_is_removed_and_its_neighbour_is_not() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c k", "w /a/b", "r /c"]);
    granted(&backend, &held).await;
    let intent = IntentChange::Put(Registered {
        token: FencingToken::new(1).unwrap(),
        intent: Intent::new("{}").unwrap(),
    });
    let mut renewal = renewal(1);
    renewal.intent = intent;
    backend.renew(session, &renewal).await.unwrap();
    let neighbour = format!(
        "redis://127.0.0.1:{}?namespace={}1",
        port(&server),
        space.namespace
    );
    let neighbour = RedisBackend::connect(RedisConfig::parse(&neighbour).unwrap())
        .await
        .unwrap();
    let other = open(&neighbour, 1).await;
    let others = request(other, 1, &["c k"]);
    granted(&neighbour, &others).await;
    let keys = || -> Vec<String> { space.raw(redis::cmd("KEYS").arg("*")).unwrap() };
    let of_ours = format!("{{{}}}:", space.namespace);
    let ours = keys()
        .iter()
        .filter(|key| key.starts_with(&of_ours))
        .count();
    assert_eq!(ours, 8, "{:?}", keys());
    for _ in 0..2 {
        RedisBackend::remove(space.config()).await.unwrap();
        assert!(
            !keys().iter().any(|key| key.starts_with(&of_ours)),
            "{:?}",
            keys()
        );
    }
    assert!(
        neighbour
            .confirm(others.grant, &others.claims)
            .await
            .unwrap()
    );
    let void = backend
        .acquire(&request(session, 2, &["c k"]))
        .await
        .unwrap();
    assert_eq!(void, Acquired::Void, "its locks are lost");
}

#[tokio::test]
async fn what_may_not_be_removed_stays() {
    let server = node(&[]).await;
    let place = support::servers::with_least_rights(&server, "pw").await;
    let space = Space::at(&place);
    // Whoever may not is told also where there is nothing.
    for _ in 0..2 {
        let error = RedisBackend::remove(space.config()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
        assert_eq!(error.operation(), Operation::Remove);
        space.connect().await;
    }
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("lockkeeper").arg("+unlink");
    space.raw::<()>(&mut set).unwrap();
    let mut version = redis::cmd("HSET");
    version.arg(space.key("meta")).arg("version");
    for another in ["1", "3", "5"] {
        space.raw::<()>(version.clone().arg(another)).unwrap();
        let error = RedisBackend::remove(space.config()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    space.raw::<()>(version.arg("4")).unwrap();
    RedisBackend::remove(space.config()).await.unwrap();
    let left: Vec<String> = space.raw(redis::cmd("KEYS").arg("*")).unwrap();
    assert_eq!(left, [""; 0]);
}

#[tokio::test]
async fn a_renewal_tells_what_it_says_to_be_over() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c k"]);
    granted(&backend, &held).await;
    let mut changed = backend.watch(&held.claims).await.unwrap();
    let moment = Duration::from_millis(300);
    backend.renew(session, &renewal(1)).await.unwrap();
    let sleeps = tokio::time::timeout(moment, &mut changed).await;
    assert!(sleeps.is_err(), "nothing is over");
    let retired = |seq| {
        let mut retired = renewal(seq);
        retired.retired = Ranges::new(vec![(1, 1)]).unwrap();
        retired
    };
    backend.renew(session, &retired(2)).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(10), changed).await;
    assert!(woken.is_ok(), "the grant is over");
    let mut changed = backend.watch(&held.claims).await.unwrap();
    backend.renew(session, &retired(3)).await.unwrap();
    let sleeps = tokio::time::timeout(moment, &mut changed).await;
    assert!(sleeps.is_err(), "it was over before");
}

#[tokio::test]
async fn no_secret_is_shown() {
    let config = RedisConfig::parse("redis://u:secret@127.0.0.1:1").unwrap();
    let error = RedisBackend::connect(config).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::Unavailable, Operation::Connect)
    );
    assert!(!format!("{error} {error:?}").contains("secret"));
    let space = Space::new();
    let backend: Arc<RedisBackend> = space.connect().await;
    assert!(format!("{backend:?}").contains(&space.namespace));
}
