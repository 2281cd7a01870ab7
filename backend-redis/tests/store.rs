//! What is particular to Redis: what somebody else writes there, what the server forgets, refuses and loses.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockcore::{
    Acquire, Acquired, Claim, ClaimStore, End, ErrorKind, FencingToken, Filter, Grant, Inspect,
    Intent, IntentChange, Label, Life, LockBackend, LockKey, Locks, Opened, Operation, OwnerId,
    Ranges, Registered, Released, Renewal, Renewed, SessionId, SessionStore, Sweep, Wakeups, Want,
};
use lockcore_conformance::servers::redis::node;
use lockcore_redis::{RedisBackend, RedisConfig};
use support::servers::{port, replica_of, signal, url};
use support::{Place, Space};

async fn open(backend: &RedisBackend, number: u128) -> SessionId {
    let session = SessionId::new(number);
    let label = Label::parse("test").unwrap();
    let opened = backend.open(session, &label, Duration::from_secs(30)).await;
    assert_eq!(opened.unwrap(), Opened::Opened);
    session
}

/// `c k`, `u k`, `s k`, `w /p`, `r /p`.
fn claim(text: &str) -> Claim {
    let (want, key) = text.split_once(' ').unwrap();
    let want = match want {
        "c" => Want::Create,
        "u" => Want::Upsert,
        "s" => Want::Share { limit: None },
        "w" => Want::Write,
        _ => Want::Read,
    };
    Claim::new(LockKey::parse(key).unwrap(), want).unwrap()
}

fn request(session: SessionId, n: u64, claims: &[&str]) -> Acquire {
    Acquire {
        grant: Grant { session, n },
        owner: OwnerId { session, m: n },
        claims: claims.iter().map(|text| claim(text)).collect(),
        joined: false,
    }
}

async fn granted(backend: &RedisBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{request:?}: {other:?}"),
    }
}

async fn kind_of_acquire(backend: &RedisBackend, request: &Acquire) -> ErrorKind {
    backend.acquire(request).await.unwrap_err().kind()
}

fn renewal(seq: u64) -> Renewal {
    Renewal {
        seq,
        over: Ranges::EMPTY,
        intent: IntentChange::Keep,
    }
}

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
        backend.settle(one, 1).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    backend.sweep(Sweep::All, 100).await.unwrap();
    let page = backend
        .records(&Filter::Prefix("k".into()), None, 10)
        .await
        .unwrap();
    assert!(backend.evict(&page.items[0]).await.unwrap());
    granted(&backend, &request(two, 2, &["c k"])).await;
}

#[tokio::test]
async fn a_script_that_fails_half_way_leaves_nothing() {
    for (name, claim) in [
        ("steps", "c k"),
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
        ("steps", "s k", ["s k", "c free"]),
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
            all.retain(|(key, _)| !key.is_empty());
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
    let (steps, aside) = (space.key("steps"), space.key("aside"));
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
    let registers = Renewal {
        intent: IntentChange::Put(Registered {
            intent: Intent::new("change").unwrap(),
            token: FencingToken::new(1).unwrap(),
        }),
        ..renewal(1)
    };
    let error = backend.renew(session, &registers).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(state(), before);
    space.raw::<()>(redis::cmd("DEL").arg(&intents)).unwrap();
    assert_eq!(
        backend.renew(session, &registers).await.unwrap(),
        Renewed::Living
    );
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let server = node(&[]).unwrap();
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

#[tokio::test]
async fn scripts_are_loaded_once() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let loads = || -> usize {
        let info: String = space.raw(redis::cmd("INFO").arg("commandstats")).unwrap();
        let calls = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_script|load:calls="));
        let calls = calls.and_then(|calls| calls.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
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
async fn a_namespace_of_another_version_is_refused() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let mut set = redis::cmd("HSET");
    space
        .raw::<()>(set.arg(space.key("meta")).arg("version").arg("2"))
        .unwrap();
    let error = RedisBackend::connect(space.config()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    // Who was connected before notices it by the counter, which another version has elsewhere.
    let mut drop = redis::cmd("HDEL");
    space
        .raw::<()>(drop.arg(space.key("records")).arg(""))
        .unwrap();
    assert_eq!(
        kind_of_acquire(&backend, &request(session, 1, &["c k"])).await,
        ErrorKind::Corrupt
    );
}

#[tokio::test]
async fn a_counter_that_is_broken_is_said() {
    for broken in ["x", "-1", "9007199254740993", "1e300"] {
        let space = Space::new();
        let backend = space.connect().await;
        let session = open(&backend, 1).await;
        let mut set = redis::cmd("HSET");
        space
            .raw::<()>(set.arg(space.key("records")).arg("").arg(broken))
            .unwrap();
        let kind = kind_of_acquire(&backend, &request(session, 1, &["c k"])).await;
        assert_eq!(kind, ErrorKind::Corrupt, "{broken}");
    }
}

#[tokio::test]
async fn tokens_are_exact_and_rise_beyond_the_clock() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let mut set = redis::cmd("HSET");
    // Where floating-point numbers as text would be rounded.
    space
        .raw::<()>(
            set.arg(space.key("records"))
                .arg("")
                .arg("9007199254740000"),
        )
        .unwrap();
    for n in 1..=20 {
        let token = granted(&backend, &request(session, n, &[&format!("c {n}")])).await;
        assert_eq!(token.get(), 9_007_199_254_740_000 + n);
    }
}

#[tokio::test]
async fn a_server_that_was_emptied_is_noticed_and_tokens_rise() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let before = granted(&backend, &request(session, 1, &["c k"])).await;
    let locks = Locks::builder(backend.clone())
        .ttl(Duration::from_secs(1))
        .build()
        .unwrap();
    let guard = locks.global("held").acquire().await.unwrap();
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
    let mut get = redis::cmd("HMGET");
    get.arg(space.key("meta")).arg("version").arg("created");
    let (version, created): (String, u64) = space.raw(&mut get).unwrap();
    assert_eq!(version, "1", "it was made anew");
    assert!(created > before.get());
}

#[tokio::test]
async fn a_server_that_restarts_without_data_is_noticed_and_tokens_rise() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let before = granted(&backend, &request(session, 1, &["c k"])).await;
    let locks = Locks::builder(backend.clone());
    let locks = locks.ttl(Duration::from_secs(60)).build().unwrap();
    let guard = locks.global("held").acquire().await.unwrap();
    let port = port(&server).to_string();
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
    let _again = node(&[("port", &port)]).unwrap();
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
async fn a_full_memory_takes_releases_and_no_grants() {
    let server = node(&[("maxmemory-policy", "noeviction")]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let (alone, shared) = (request(session, 1, &["c a"]), request(session, 2, &["s b"]));
    let beside = request(session, 3, &["s b"]);
    for request in [&alone, &shared, &beside] {
        granted(&backend, request).await;
    }
    space
        .raw::<()>(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1"))
        .unwrap();
    let error = backend
        .acquire(&request(session, 4, &["c c"]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for request in [&alone, &shared] {
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
    }
    space
        .raw::<()>(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("0"))
        .unwrap();
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

#[tokio::test]
async fn servers_that_cannot_keep_locks_are_refused() {
    let evicts = node(&[("maxmemory-policy", "allkeys-lru")]).unwrap();
    let error = RedisBackend::connect(RedisConfig::parse(&url(&evicts)).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let primary = node(&[]).unwrap();
    let replica = replica_of(&primary, &[]);
    let error = RedisBackend::connect(RedisConfig::parse(&url(&replica)).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_said() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let primary = node(&[]).unwrap();
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
    let survives = |settings: &'static [(&str, &str)]| async move {
        let server = node(settings).unwrap();
        let backend = Space::at(&Place::of(url(&server))).connect().await;
        let survives = backend.info().survives;
        (survives.crash, survives.power_loss, survives.failover)
    };
    assert_eq!(survives(&[]).await, (false, false, true));
    assert_eq!(
        survives(&[("appendonly", "yes")]).await,
        (false, false, true)
    );
    let always = &[("appendonly", "yes"), ("appendfsync", "always")];
    assert_eq!(survives(always).await, (true, true, true));
    let never = &[("appendonly", "yes"), ("appendfsync", "no")];
    assert_eq!(survives(never).await, (true, false, true));
}

#[tokio::test]
async fn a_user_without_rights_is_refused_before_anything_is_made() {
    let server = node(&[]).unwrap();
    for (missing, refused) in [
        ("-zadd", true),
        ("-hset", true),
        ("-spublish", true),
        ("-evalsha", true),
        ("-info -config -cluster", false),
    ] {
        let place = support::servers::with_least_rights(&server, "pw");
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
                let survives = backend.info().survives;
                assert!(!survives.crash && !survives.power_loss && !survives.failover);
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
async fn no_answer_in_time_is_an_unknown_outcome() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(format!("{}/?timeout_ms=300", url(&server))));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    // From then on the server knows the script.
    granted(&backend, &request(session, 9, &["c other"])).await;
    signal(&server, rustix::process::Signal::STOP);
    let since = Instant::now();
    let first = backend
        .acquire(&request(session, 1, &["c k"]))
        .await
        .unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Indeterminate, "{first}");
    let second = backend
        .acquire(&request(session, 2, &["c k"]))
        .await
        .unwrap_err();
    assert_eq!(
        second.kind(),
        ErrorKind::Unavailable,
        "no connection: {second}"
    );
    assert!(since.elapsed() < Duration::from_secs(5));
    signal(&server, rustix::process::Signal::CONT);
    // What was sent is done late.
    let record = || async {
        let filter = Filter::Key(LockKey::parse("k").unwrap());
        backend.records(&filter, None, 1).await.ok()?.items.pop()
    };
    let since = Instant::now();
    while record().await.is_none() {
        assert!(since.elapsed() < Duration::from_secs(10), "it was sent");
        tokio::task::yield_now().await;
    }
    backend
        .release(Grant { session, n: 1 }, &[claim("c k")])
        .await
        .unwrap();
    granted(&backend, &request(session, 3, &["c k"])).await;
}

#[tokio::test]
async fn a_subscription_that_breaks_wakes_and_is_made_again() {
    let server = node(&[]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c k"]);
    granted(&backend, &held).await;
    let within = |changed| tokio::time::timeout(Duration::from_secs(10), changed);
    for _ in 0..3 {
        let changed = backend.watch(&held.claims).await.unwrap();
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("PUBSUB");
        assert_eq!(
            space.raw::<u32>(&mut kill).unwrap(),
            1,
            "one subscription for all watches"
        );
        within(changed).await.expect("news");
    }
    let changed = backend.watch(&held.claims).await.unwrap();
    backend.release(held.grant, &held.claims).await.unwrap();
    within(changed).await.expect("a release is told");
}

#[tokio::test]
async fn who_waits_looks_again_when_the_holder_is_due() {
    let space = Space::new();
    let backend = space.connect().await;
    let (dies, waits) = (SessionId::new(1), open(&backend, 2).await);
    let label = Label::parse("").unwrap();
    backend
        .open(dies, &label, Duration::from_secs(1))
        .await
        .unwrap();
    let held = request(dies, 1, &["c k"]);
    granted(&backend, &held).await;
    let since = Instant::now();
    let changed = backend.watch(&held.claims).await.unwrap();
    assert!(matches!(
        backend.acquire(&request(waits, 1, &["c k"])).await,
        Ok(Acquired::Busy(_))
    ));
    tokio::time::timeout(Duration::from_secs(10), changed)
        .await
        .expect("it is due");
    assert!(since.elapsed() >= Duration::from_millis(900));
    granted(&backend, &request(waits, 2, &["c k"])).await;
}

#[tokio::test]
async fn nobody_is_held_up_by_a_large_acquisition() {
    const IDS: u32 = 100_000;
    /// As one script they would take several times as long, and a step takes a few milliseconds.
    const LONGEST_US: &str = "50000";
    let server = node(&[("slowlog-log-slower-than", LONGEST_US)]).unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let locks = Locks::builder(backend.clone()).build().unwrap();
    let ids = (0..IDS).map(|n| format!("document-{n}"));
    let guard = locks.documents(ids).acquire().await.unwrap();
    let held: u32 = space
        .raw(redis::cmd("HLEN").arg(space.key("records")))
        .unwrap();
    assert_eq!(held, IDS + 1);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(locks.shutdown(Duration::from_secs(60)).await, "it is swept");
    let left: u32 = space
        .raw(redis::cmd("HLEN").arg(space.key("records")))
        .unwrap();
    assert_eq!(left, 1, "only the last token");
    let slow: u32 = space.raw(redis::cmd("SLOWLOG").arg("LEN")).unwrap();
    assert_eq!(slow, 0, "nothing took longer than {LONGEST_US} µs");
}

#[tokio::test]
async fn much_that_does_not_count_is_removed_before_a_path_is_taken() {
    let space = Space::new();
    let backend = space.connect().await;
    let (dies, takes) = (open(&backend, 1).await, open(&backend, 2).await);
    for n in 0..6 {
        let claims: Vec<String> = (0..900).map(|key| format!("w /a/{n}/{key:03}")).collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        granted(&backend, &request(dies, n + 1, &claims)).await;
    }
    backend.end(&[dies], End::Close).await.unwrap();
    granted(&backend, &request(takes, 1, &["w /a"])).await;
    let left: Vec<u32> = ["records", "writes"]
        .map(|name| {
            let command = if name == "records" { "HLEN" } else { "ZCARD" };
            space.raw(redis::cmd(command).arg(space.key(name))).unwrap()
        })
        .into();
    assert_eq!(
        left,
        [2, 1],
        "beside the last token, what was in the way and did not count is gone"
    );
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
    for name in ["writes", "reads", "steps", "intents"] {
        let there: u32 = space
            .raw(redis::cmd("EXISTS").arg(space.key(name)))
            .unwrap();
        assert_eq!(there, 0, "{name}");
    }
}

#[tokio::test]
async fn pages_are_whole_however_large_they_are() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    for n in 0..3 {
        let claims: Vec<String> = (0..500).map(|key| format!("c k*{n}-{key:03}")).collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        granted(&backend, &request(session, n + 1, &claims)).await;
    }
    granted(&backend, &request(session, 9, &["c other"])).await;
    for filter in [Filter::Prefix("k*".into()), Filter::Session(session)] {
        let all = if filter == Filter::Session(session) {
            1_501
        } else {
            1_500
        };
        for limit in [7, 400, 5_000] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = backend
                    .records(&filter, after.as_deref(), limit)
                    .await
                    .unwrap();
                assert!(page.items.len() <= limit);
                seen.extend(page.items.into_iter().map(|record| record.key));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), all, "{filter:?}, {limit} at a time");
        }
    }
    for after in ["", "x", "1", "-1:a"] {
        let page = backend
            .records(&Filter::Session(session), Some(after), 1)
            .await;
        assert_eq!(page.unwrap_err().kind(), ErrorKind::Config, "{after:?}");
    }
}

#[tokio::test]
async fn namespaces_and_databases_do_not_meet() {
    let server = node(&[]).unwrap();
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
