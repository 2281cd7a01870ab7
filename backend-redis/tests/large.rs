//! Much at once: large steps, large pages, and much that stands in the way.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::time::Duration;

use lockcore::backend::{
    Acquired, ClaimStore, End, Filter, Inspect, IntentChange, Ranges, Renewal, SessionStore, Sweep,
};
use lockcore::{ErrorKind, LockKey, Locks, Released};
use lockkeeper_servers::Server;
use support::servers::{node, url};
use support::steps::{granted, open, request};
use support::{Place, Space};

#[tokio::test]
async fn a_step_of_deep_paths_meets_whoever_holds_above_one_of_them() {
    // With their ancestors 6,000 records, of which a script reads 4,000 at a time.
    let wanted: Vec<String> = (0..1_000).map(|n| format!("w /{n:03}/a/b/c/d/e")).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    for (n, above) in (1..).zip(["w /000", "w /666/a/b", "w /999/a/b/c/d"]) {
        let held = request(one, n, &[above]);
        granted(&backend, &held).await;
        let Acquired::Busy(busy) = backend.acquire(&request(two, n, &wanted)).await.unwrap() else {
            panic!("{above} is held");
        };
        assert_eq!(busy.first().holders[0].grant, Some(held.grant), "{above}");
        backend.release(held.grant, &held.claims).await.unwrap();
    }
    granted(&backend, &request(two, 4, &wanted)).await;
}

/// A server that keeps every command with its time, for `commands`.
async fn timed() -> (Server, Space) {
    let all = [
        ("slowlog-log-slower-than", "0"),
        ("slowlog-max-len", "100000"),
    ];
    let server = node(&all).await;
    let space = Space::at(&Place::of(url(&server)));
    (server, space)
}

/// The time of each command since then, in microseconds.
fn commands(space: &Space) -> Vec<u64> {
    /// Number, second, microseconds, arguments, client, its name.
    type Command = (u64, u64, u64, Vec<String>, String, String);
    let commands: Vec<Command> = space.raw(redis::cmd("SLOWLOG").arg("GET").arg(-1)).unwrap();
    commands.iter().map(|command| command.2).collect()
}

#[tokio::test]
async fn nobody_is_held_up_by_many_who_have_held_one_key() {
    const SHARES: u64 = 1_500;
    let (_server, space) = timed().await;
    let backend = space.connect().await;
    let dies = open(&backend, 1).await;
    for n in 0..SHARES {
        granted(&backend, &request(dies, n + 1, &["s k"])).await;
    }
    let reset = || space.raw::<()>(redis::cmd("SLOWLOG").arg("RESET")).unwrap();
    reset();
    let held = Filter::Session(dies);
    assert_eq!(
        backend.records(&held, None, 10).await.unwrap().items.len(),
        1
    );
    let listed = *commands(&space).iter().max().unwrap();
    backend.end(&[dies], End::Close).await.unwrap();
    reset();
    let mut removed = 0;
    loop {
        let swept = backend.sweep(Sweep::All, 700).await.unwrap();
        assert!(swept.removed <= 700, "{}", swept.removed);
        removed += swept.removed;
        if !swept.more {
            break;
        }
    }
    let swept = *commands(&space).iter().max().unwrap();
    assert_eq!(removed, usize::try_from(SHARES).unwrap());
    let left: u32 = space
        .raw(redis::cmd("ZCARD").arg(space.key("batches")))
        .unwrap();
    assert_eq!(left, 0);
    // Each reading the whole record for every share of it, they take seconds.
    for (what, longest) in [("the list", listed), ("a sweep", swept)] {
        assert!(longest < 300_000, "{what} took {longest} µs");
    }
}

#[tokio::test]
async fn nobody_is_held_up_by_a_session_that_has_given_back_every_other_grant() {
    const GRANTS: u64 = 3_000;
    let (_server, space) = timed().await;
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    for n in 1..=GRANTS {
        granted(&backend, &request(session, n, &[&format!("c {n}")])).await;
    }
    let over = Ranges::of((1..=GRANTS).step_by(2));
    let renewal = Renewal::new(1, over, IntentChange::Keep);
    backend.renew(session, &renewal).await.unwrap();
    space.raw::<()>(redis::cmd("SLOWLOG").arg("RESET")).unwrap();
    let (mut removed, mut more) = (0, true);
    while more {
        let swept = backend.sweep(Sweep::All, 1_000).await.unwrap();
        (removed, more) = (removed + swept.removed, swept.more);
    }
    let longest = *commands(&space).iter().max().unwrap();
    assert_eq!(removed, 1_500);
    // Each of these goes through half of the ranges where they are not searched.
    assert!(longest < 300_000, "a sweep took {longest} µs");
    for n in 1..=GRANTS {
        let held = request(session, n, &[&format!("c {n}")]);
        let held = backend.confirm(held.grant, &held.claims).await.unwrap();
        assert_eq!(held, n % 2 == 0, "{n}");
    }
}

#[tokio::test]
async fn nobody_is_held_up_by_a_large_acquisition() {
    const IDS: u32 = 100_000;
    let (_server, space) = timed().await;
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
    let times = commands(&space);
    let (longest, together): (u64, u64) = (*times.iter().max().unwrap(), times.iter().sum());
    // As one script each, acquiring and sweeping would take about half of it; a machine that stops for a moment adds to one.
    assert!(
        longest < together / 5,
        "one of {} commands took {longest} of {together} µs",
        times.len()
    );
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

/// A script serves nobody else meanwhile, so that it looks at so much and no more.
#[tokio::test]
async fn who_holds_very_much_below_a_path_is_refused_that_path() {
    let space = Space::new();
    let backend = space.connect().await;
    let (holds, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let owned = |n, claims: &[&str]| {
        let mut request = request(holds, n, claims);
        request.owner.m = 1;
        request
    };
    for n in 0..50 {
        let claims: Vec<String> = (0..1_000).map(|key| format!("w /a/{n}/{key:03}")).collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        granted(&backend, &owned(n + 1, &claims)).await;
    }
    let takes_all = owned(51, &["w /a"]);
    granted(&backend, &takes_all).await;
    backend
        .release(takes_all.grant, &takes_all.claims)
        .await
        .unwrap();
    granted(&backend, &owned(52, &["w /a/one more"])).await;
    let error = backend.acquire(&owned(53, &["w /a"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(error.to_string().contains("hold the path above"), "{error}");
    // Nothing is written, and a part of it can be had.
    let filter = Filter::Key(LockKey::parse("/a/49").unwrap());
    assert!(
        !backend
            .records(&filter, None, 1)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    granted(&backend, &owned(54, &["w /a/49"])).await;
    // So it is where each is held twice.
    for n in 0..50 {
        let claims: Vec<String> = (0..1_000).map(|key| format!("w /a/{n}/{key:03}")).collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        granted(&backend, &owned(n + 101, &claims)).await;
    }
    let error = backend.acquire(&owned(200, &["w /a"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    // Somebody else is refused by the first that he meets.
    let busy = backend.acquire(&request(other, 1, &["w /a"])).await;
    assert!(matches!(busy, Ok(Acquired::Busy(_))), "{busy:?}");
}

/// Of what others hold some is listed, and all the rest is in the way as well.
#[tokio::test]
async fn who_asks_for_many_paths_that_others_hold_below_is_refused_as_busy() {
    let space = Space::new();
    let backend = space.connect().await;
    let (holds, other) = (open(&backend, 1).await, open(&backend, 2).await);
    for n in 0..64 {
        let place = format!("/a/{}/{}", n / 4, n % 4);
        let claims: Vec<String> = (0..1_000)
            .map(|key| format!("w {place}/{key:03}"))
            .collect();
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        granted(&backend, &request(holds, n + 1, &claims)).await;
    }
    let all: Vec<String> = (0..16).map(|n| format!("w /a/{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let busy = match backend.acquire(&request(other, 1, &all)).await {
        Ok(Acquired::Busy(busy)) => busy,
        told => panic!("{told:?}"),
    };
    assert_eq!(busy.refused().len(), 16);
    let listed = busy
        .refused()
        .iter()
        .all(|it| it.more && !it.holders.is_empty());
    assert!(listed, "{busy:?}");
    // So is who asks for each of them, and the one above.
    let busy = backend.acquire(&request(other, 2, &["w /a"])).await;
    assert!(matches!(busy, Ok(Acquired::Busy(_))), "{busy:?}");
}

#[tokio::test]
async fn a_sweep_of_many_goes_on_where_a_script_has_ended() {
    let space = Space::new();
    let backend = space.connect().await;
    let (first, lives, last) = (
        open(&backend, 1).await,
        open(&backend, 2).await,
        open(&backend, 3).await,
    );
    // Each step is as much as one script removes.
    for session in [first, lives, last] {
        for n in 1..=3 {
            let names: Vec<String> = (0..1_000)
                .map(|at| format!("c {session} {n} {at}"))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            granted(&backend, &request(session, n, &names)).await;
        }
    }
    backend.end(&[first, last], End::Close).await.unwrap();
    let steps = || -> u32 {
        space
            .raw(redis::cmd("ZCARD").arg(space.key("batches")))
            .unwrap()
    };
    let swept = backend.sweep(Sweep::Session(first), 10_000).await.unwrap();
    assert_eq!((swept.removed, swept.more, steps()), (3_000, false, 6));
    // It passes those of the living one.
    let swept = backend.sweep(Sweep::All, 10_000).await.unwrap();
    assert_eq!((swept.removed, swept.more, steps()), (3_000, false, 3));
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
