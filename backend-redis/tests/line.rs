//! How the line of a key stands in Redis: what it leaves there, what it costs, and what stays in its way.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::collections::BTreeMap;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, End, Filter, Inspect, Opened, Past, Ranges, Renewed,
    SessionStore, Stood, Sweep, Wakeups,
};
use lockcore::limits::MAX_WAITERS;
use lockcore::{Busy, Claim, Label, LockKey, SessionId, Want};
use lockcore_redis::RedisBackend;
use support::servers::{node, url};
use support::steps::{claim, granted, open, renewal, request};
use support::{Place, Space};

fn waiting(session: SessionId, n: u64, claim: &str) -> Acquire {
    request(session, n, &[claim]).waiting()
}

async fn refused(backend: &RedisBackend, request: &Acquire) -> Busy {
    match backend.acquire(request).await.unwrap() {
        Acquired::Busy(busy) => busy,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// Those in the way who wait.
fn waiters(busy: &Busy) -> Vec<Past> {
    let holders = busy.first().holders.iter();
    holders
        .filter_map(|holder| {
            Some(Past {
                grant: holder.grant?,
                waiting: holder.waiting?,
            })
        })
        .collect()
}

/// A record without the last token.
fn record(space: &Space, key: &str) -> Vec<String> {
    let mut get = redis::cmd("HGET");
    let record: Option<String> = space.raw(get.arg(space.key("records")).arg(key)).unwrap();
    let lines = record.unwrap_or_default();
    lines.lines().map(str::to_owned).collect()
}

fn members(space: &Space, name: &str) -> Vec<String> {
    let mut all = redis::cmd("ZRANGE");
    space.raw(all.arg(space.key(name)).arg(0).arg(-1)).unwrap()
}

fn put(space: &Space, key: &str, record: &str) {
    let mut put = redis::cmd("HSET");
    put.arg(space.key("records")).arg(key).arg(record);
    space.raw::<()>(&mut put).unwrap();
}

#[tokio::test]
async fn who_waits_stands_behind_the_holders_and_leaves_nothing() {
    for (held, asked, set) in [
        ("s k", "u k", None),
        ("r /k", "w /k", Some("writes")),
        ("w /k", "r /k", Some("reads")),
    ] {
        let space = Space::new();
        let backend = space.connect().await;
        let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
        let key = &held[2..];
        let holds = request(one, 1, &[held]);
        granted(&backend, &holds).await;
        let first = waiting(two, 1, asked);
        refused(&backend, &first).await;
        let lines = record(&space, key);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let line = lines[1].strip_prefix(&format!("{}{two}/1/1/", &asked[..1]));
        assert_eq!(line.unwrap().split('/').count(), 3, "{lines:?}");
        let steps = [format!("{one}/1\n{key}"), format!("{two}/1\n\n{key}")];
        assert_eq!(members(&space, "batches"), steps);
        refused(&backend, &first).await;
        assert_eq!(record(&space, key), lines, "it keeps its place");
        // Whoever is granted beside a waiter stands before it.
        backend.release(holds.grant, &holds.claims).await.unwrap();
        assert_eq!(record(&space, key), lines[1..]);
        let writes = if key == "k" { "u k" } else { "w /k" };
        let second = waiting(one, 2, writes);
        refused(&backend, &second).await;
        granted(&backend, &first).await;
        let lines = record(&space, key);
        assert_eq!(lines.len(), 2);
        assert!(lines[0][1..].starts_with(&two.to_string()), "{lines:?}");
        let steps = [format!("{one}/2\n\n{key}"), format!("{two}/1\n{key}")];
        assert_eq!(members(&space, "batches"), steps);
        // What it waits for is not found where something else is given back.
        let stood = backend.release(second.grant, &[claim("u other")]).await;
        assert_eq!(stood.unwrap(), Stood::Absent);
        assert_eq!(members(&space, "batches"), steps);
        let stood = backend.release(first.grant, &first.claims).await.unwrap();
        assert_eq!(stood, Stood::Held);
        let stood = backend.release(second.grant, &second.claims).await.unwrap();
        assert_eq!(stood, Stood::Absent);
        assert_eq!(record(&space, key), [""; 0]);
        for name in ["batches", set.unwrap_or("writes")] {
            assert_eq!(members(&space, name), [""; 0], "{name}");
        }
    }
}

#[tokio::test]
async fn what_a_dead_session_waited_for_is_swept() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["c k", "w /k"])).await;
    for (n, asked) in [(1, "c k"), (2, "r /k"), (3, "w /k/l")] {
        refused(&backend, &waiting(two, n, asked)).await;
    }
    backend.end(&[two], End::Close).await.unwrap();
    // What is left of it is found before its id is used again.
    let mut forget = redis::cmd("HDEL");
    let forget = forget.arg(space.key("sessions")).arg(two.to_string());
    space.raw::<()>(forget).unwrap();
    let (label, ttl) = (
        Label::parse("again").unwrap(),
        std::time::Duration::from_secs(60),
    );
    assert_eq!(backend.open(two, &label, ttl).await.unwrap(), Opened::Used);
    assert_eq!(backend.sweep(Sweep::All, 100).await.unwrap().removed, 3);
    assert_eq!(members(&space, "batches").len(), 1);
    assert_eq!(members(&space, "writes"), ["/k"]);
    assert_eq!(members(&space, "reads"), [""; 0]);
    assert_eq!(record(&space, "k").len(), 1);
}

#[tokio::test]
async fn where_nobody_waits_it_costs_nothing() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let calls = || -> BTreeMap<String, u64> {
        let all: String = space.raw(redis::cmd("INFO").arg("commandstats")).unwrap();
        let calls = all.lines().filter_map(|line| {
            let (name, told) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let calls = told.split(',').next()?.parse().ok()?;
            // Those that ask.
            let ours = !["info", "hello", "client|setinfo"].contains(&name);
            ours.then(|| (name.to_owned(), calls))
        });
        calls.collect()
    };
    granted(&backend, &request(two, 1, &["s shared", "r /a"])).await;
    let mut n = 0;
    for claims in ["c k", "s shared", "w /b/c", "r /a/b"] {
        let mut told = Vec::new();
        // The first time the server is told the scripts.
        for waits in [false, false, true] {
            n += 1;
            let mut asked = request(one, n, &[claims]);
            asked.waits = waits;
            let before = calls();
            granted(&backend, &asked).await;
            backend.release(asked.grant, &asked.claims).await.unwrap();
            let after = calls().into_iter();
            let made = after.map(|(name, calls)| {
                let before = before.get(&name).copied().unwrap_or(0);
                (name, calls - before)
            });
            told.push(made.filter(|(_, calls)| *calls > 0).collect::<Vec<_>>());
        }
        assert_eq!(told[1], told[2], "{claims}");
        let scripts = told[2].iter().find(|(name, _)| name == "evalsha");
        assert_eq!(scripts.unwrap().1, 2, "{claims}: one script each");
    }
}

#[tokio::test]
async fn who_asks_together_waits_as_who_asks_alone() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let keys: Vec<String> = (0..20).map(|n| format!("c {n}")).collect();
    let held: Vec<&str> = keys.iter().map(String::as_str).collect();
    let held = request(one, 1, &held);
    granted(&backend, &held).await;
    let asked: Vec<Acquire> = (1..)
        .zip(&keys)
        .map(|(n, key)| waiting(two, n, key))
        .collect();
    let ask = || async { join_all(asked.iter().map(|asked| backend.acquire(asked))).await };
    for answer in ask().await {
        assert!(matches!(answer, Ok(Acquired::Busy(_))), "{answer:?}");
    }
    backend.release(held.grant, &held.claims).await.unwrap();
    for (n, key) in (2..).zip(&keys) {
        let busy = refused(&backend, &request(one, n, &[key])).await;
        assert_eq!(waiters(&busy).len(), 1, "{key}");
    }
    for answer in ask().await {
        assert!(matches!(answer, Ok(Acquired::Acquired(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn somebody_elses_record_keeps_out_who_waits_and_stays() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let other = open(&backend, 2).await;
    for (n, theirs) in (1..).zip(["", "\n", "{}", "a\n\nb", &format!("u{other}/1/1/5/6")]) {
        put(&space, "k", theirs);
        let asked = waiting(session, n, "u k");
        for _ in 0..2 {
            let busy = refused(&backend, &asked).await;
            assert_eq!(busy.first().holders[0].grant, None, "{theirs:?}");
        }
        backend.release(asked.grant, &asked.claims).await.unwrap();
        let mut get = redis::cmd("HGET");
        get.arg(space.key("records")).arg("k");
        let left: String = space.raw(&mut get).unwrap();
        let lines = |text: &str| -> Vec<String> {
            let lines = text.split('\n').filter(|line| !line.is_empty());
            lines.map(str::to_owned).collect()
        };
        assert_eq!(lines(&left), lines(theirs));
        let filter = Filter::Key(LockKey::parse("k").unwrap());
        let page = backend.records(&filter, None, 10).await.unwrap();
        assert!(backend.evict(&page.items[0]).await.unwrap(), "{theirs:?}");
    }
    // Also where it stands behind those who wait, of whom one makes room.
    let holds = request(other, 10, &["u k"]);
    granted(&backend, &holds).await;
    let (first, second) = (waiting(other, 11, "u k"), waiting(session, 12, "u k"));
    refused(&backend, &first).await;
    refused(&backend, &second).await;
    backend.release(holds.grant, &holds.claims).await.unwrap();
    let past = waiters(&refused(&backend, &second).await);
    assert!(past[0].waiting.may_go);
    let lines = record(&space, "k").join("\n");
    put(&space, "k", &format!("{lines}\nsomebody else"));
    refused(&backend, &first).await;
    refused(&backend, &second.clone().past(past)).await;
    assert_eq!(record(&space, "k").last().unwrap(), "somebody else");
}

/// What was granted since may be lost where a replica takes over, and what stood in line be there.
#[tokio::test]
async fn a_renewal_takes_no_waiter_for_a_grant() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["c k", "w /k"])).await;
    for (n, asked) in [(1, "c k"), (2, "r /k/l")] {
        let asked = waiting(two, n, asked);
        refused(&backend, &asked).await;
        let mut renewal = renewal(n);
        renewal.granted = Ranges::new(vec![(n, n)]).unwrap();
        let renewed = backend.renew(two, &renewal).await.unwrap();
        assert_eq!(renewed, Renewed::Forgotten, "{asked:?}");
    }
}

#[tokio::test]
async fn below_a_path_who_may_go_is_removed_and_who_keeps_one_out_passes_it() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let three = open(&backend, 3).await;
    // One that reads beside it puts the path into both sets.
    let reads = request(one, 1, &["r /a/b"]);
    granted(&backend, &reads).await;
    let waits = waiting(two, 1, "w /a/b");
    refused(&backend, &waits).await;
    // It waits for the session that asks.
    let again = waiting(one, 2, "r /a");
    let past = waiters(&refused(&backend, &again).await);
    assert!(past.len() == 1 && !past[0].waiting.may_go);
    granted(&backend, &again.clone().past(past)).await;
    let passed = |lines: Vec<String>| lines.iter().filter(|line| line.ends_with("/1")).count();
    assert_eq!(passed(record(&space, "/a/b")), 1);
    granted(&backend, &again).await;
    assert_eq!(
        passed(record(&space, "/a/b")),
        1,
        "sent again it passes nobody"
    );
    // Nobody keeps it out any more.
    backend.release(again.grant, &again.claims).await.unwrap();
    backend.release(reads.grant, &reads.claims).await.unwrap();
    let asked = waiting(three, 1, "w /a");
    let past = waiters(&refused(&backend, &asked).await);
    assert!(past.len() == 1 && past[0].waiting.may_go);
    assert_eq!(past[0].waiting.passed, 1);
    let changed = backend.watch(&[claim("w /a/b")]).await.unwrap();
    granted(&backend, &asked.past(past)).await;
    assert_eq!(record(&space, "/a/b"), [""; 0]);
    assert_eq!(members(&space, "writes"), ["/a"]);
    assert_eq!(members(&space, "batches"), [format!("{three}/1\n/a")]);
    let woken = tokio::time::timeout(std::time::Duration::from_secs(10), changed).await;
    assert!(woken.is_ok(), "who waited may ask anew");
}

#[tokio::test]
async fn a_refusal_by_who_waits_wakes_nobody() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let holds = request(one, 1, &["c k"]);
    granted(&backend, &holds).await;
    refused(&backend, &waiting(two, 1, "c k")).await;
    backend.release(holds.grant, &holds.claims).await.unwrap();
    let changed = backend.watch(&holds.claims).await.unwrap();
    refused(&backend, &waiting(one, 2, "c k")).await;
    // What is told is heard in order: behind all of it comes this.
    let other = request(one, 3, &["c other"]);
    granted(&backend, &other).await;
    let last = backend.watch(&other.claims).await.unwrap();
    backend.release(other.grant, &other.claims).await.unwrap();
    last.await;
    assert!(changed.now_or_never().is_none(), "nothing went");
}

#[tokio::test]
async fn so_many_stand_in_line_and_no_more() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["c k"])).await;
    let most = u64::try_from(MAX_WAITERS).unwrap();
    for n in 1..=most {
        refused(&backend, &waiting(two, n, "c k")).await;
    }
    let busy = refused(&backend, &waiting(two, most + 1, "c k")).await;
    assert!(busy.first().more);
    assert_eq!(record(&space, "k").len(), 1 + MAX_WAITERS);
    // Those that are over make room.
    let mut renewal = renewal(1);
    renewal.retired = Ranges::new(vec![(2, 20)]).unwrap();
    backend.renew(two, &renewal).await.unwrap();
    refused(&backend, &waiting(two, most + 1, "c k")).await;
    let lines = record(&space, "k");
    assert!(lines.last().unwrap().contains(&format!("/{}/", most + 1)));
    assert!(lines.len() <= 1 + MAX_WAITERS, "{}", lines.len());
    // Also those that stand so far behind that nobody has met them.
    let mut n = most + 1;
    while record(&space, "k").len() <= MAX_WAITERS {
        n += 1;
        refused(&backend, &waiting(two, n, "c k")).await;
    }
    renewal.seq += 1;
    renewal.retired = Ranges::new(vec![(2, 20), (900, 910)]).unwrap();
    let renewed = backend.renew(two, &renewal).await.unwrap();
    assert_eq!(renewed, Renewed::Living);
    // They are looked at now and then.
    for _ in 0..500 {
        refused(&backend, &waiting(two, n + 1, "c k")).await;
        let lines = record(&space, "k");
        if lines.last().unwrap().contains(&format!("/{}/", n + 1)) {
            return;
        }
    }
    panic!("there is no place for it");
}

#[tokio::test]
async fn whose_share_is_one_of_those_that_reach_a_limit_keeps_out_who_waits_for_it() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let share = |session, n| {
        let mut share = waiting(session, n, "s k");
        let limit = Some(2.try_into().unwrap());
        share.claims =
            vec![Claim::new(share.claims[0].key().clone(), Want::Share { limit }).unwrap()];
        share
    };
    let (first, second) = (share(one, 1), share(two, 1));
    granted(&backend, &first).await;
    granted(&backend, &second).await;
    for n in [2, 3] {
        refused(&backend, &share(two, n)).await;
    }
    backend.release(second.grant, &second.claims).await.unwrap();
    // The one may go; the other is kept out by that one and by the share of who asks.
    let asked = share(one, 2);
    let past = waiters(&refused(&backend, &asked).await);
    let may_go: Vec<bool> = past.iter().map(|past| past.waiting.may_go).collect();
    assert_eq!(may_go, [true, false]);
    granted(&backend, &asked.past(past)).await;
    let lines = record(&space, "k");
    assert_eq!(lines.len(), 3, "one was removed: {lines:?}");
    assert!(lines[2].ends_with("/1"), "one was passed: {lines:?}");
}

#[tokio::test]
async fn whose_session_only_waits_too_keeps_nobody_out() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let holds = request(two, 1, &["u k"]);
    granted(&backend, &holds).await;
    refused(&backend, &waiting(one, 1, "u k")).await;
    refused(&backend, &waiting(two, 2, "u k")).await;
    backend.release(holds.grant, &holds.claims).await.unwrap();
    // Of the owner that came first, who is not in its own way.
    let mut again = waiting(one, 2, "u k");
    again.owner.m = 1;
    let past = waiters(&refused(&backend, &again).await);
    assert!(past.len() == 1 && !past[0].waiting.may_go, "{past:?}");
    refused(&backend, &again.past(past)).await;
}

#[tokio::test]
async fn who_waits_on_a_path_that_is_read_and_written_is_listed_once() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["r /a/b", "r /a/c"])).await;
    granted(&backend, &request(two, 1, &["r /a/c"])).await;
    for n in 2..11 {
        refused(&backend, &waiting(two, n, "w /a/b")).await;
    }
    let filter = Filter::Key(LockKey::parse("/a").unwrap());
    let page = backend.records(&filter, None, 10).await.unwrap();
    let holders = &page.items[0].holders;
    let waiting: Vec<bool> = holders.iter().map(|it| it.waiting.is_some()).collect();
    let expected: Vec<bool> = (0..11).map(|at| at >= 2).collect();
    assert_eq!(waiting, expected, "{holders:?}");
}

/// Nobody else is served meanwhile, so that of those in turn so much is looked at and no more.
#[tokio::test]
async fn who_is_kept_out_in_turn_is_not_passed_where_that_takes_long_to_see() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let (many, last) = (open(&backend, 3).await, open(&backend, 4).await);
    granted(&backend, &request(one, 1, &["r /a/b/z"])).await;
    refused(&backend, &waiting(two, 1, "w /a/b")).await;
    refused(&backend, &waiting(last, 1, "r /a")).await;
    let asked = waiting(one, 2, "w /a/z");
    let past = waiters(&refused(&backend, &asked).await);
    assert!(past.len() == 1 && !past[0].waiting.may_go, "{past:?}");
    let passes = asked.clone().past(past);
    granted(&backend, &passes).await;
    backend.release(asked.grant, &asked.claims).await.unwrap();
    // They hold what they held before anybody waited.
    for n in 0..51 {
        let lines = (0..1_000).map(|key| {
            let key = format!("/a/b/{n:02}/{key:03}");
            (key, format!("r{many}/1/1/5"))
        });
        let (mut records, mut reads) = (redis::cmd("HSET"), redis::cmd("ZADD"));
        records.arg(space.key("records"));
        reads.arg(space.key("reads"));
        for (key, line) in lines {
            records.arg(&key).arg(line);
            reads.arg(0).arg(key);
        }
        space.raw::<()>(&mut records).unwrap();
        space.raw::<()>(&mut reads).unwrap();
    }
    let asked = waiting(one, 3, "w /a/z");
    let past = waiters(&refused(&backend, &asked).await);
    assert_eq!(past[0].waiting.passed, 1, "{past:?}");
    let busy = refused(&backend, &asked.past(past.clone())).await;
    assert_eq!(waiters(&busy), past);
}
