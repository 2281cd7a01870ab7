//! Connections that break or do not answer, and what whoever waits is told.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::poll;
use lockcore::backend::{
    Acquired, Adopt, Adopted, ClaimStore, Filter, Incarnation, Inspect, SessionStore, Sweep,
    Wakeups,
};
use lockcore::{ErrorKind, Grant, Label, LockKey, SessionId};
use support::servers::{node, signal, url};
use support::steps::{claim, granted, open, renewal, request};
use support::{Place, Space};

/// A program may look at something else before it goes on with a request that has begun to connect.
#[tokio::test]
async fn a_connection_is_made_by_whoever_is_polled() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    for polls in 1..=8 {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes");
        assert!(space.raw::<u32>(&mut kill).unwrap() >= 1);
        let noticed = backend.renew(session, &renewal(2 * polls)).await;
        assert!(noticed.is_err(), "{noticed:?}");
        let left = request(session, polls, &[&format!("c k{polls}")]);
        let mut left = pin!(backend.acquire(&left));
        for _ in 0..polls {
            if poll!(&mut left).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let renewal = renewal(2 * polls + 1);
        let renewed =
            tokio::time::timeout(Duration::from_secs(3), backend.renew(session, &renewal));
        let renewed = renewed
            .await
            .expect("it waits for nobody who is not polled");
        assert!(renewed.unwrap().is_living());
    }
}

#[tokio::test]
async fn no_answer_in_time_is_an_unknown_outcome() {
    let server = node(&[]).await;
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
    let server = node(&[]).await;
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

/// Whoever ends a session that is due wakes all who wait for it, whatever he came for.
#[tokio::test]
async fn a_death_on_the_way_is_told() {
    let space = Space::new();
    let backend = space.connect().await;
    let other = open(&backend, 1).await;
    let adopter = open(&backend, 2).await;
    granted(&backend, &request(other, 1, &["c held"])).await;
    let records = space.key("records");
    for (number, what) in [
        "confirm",
        "give up",
        "take",
        "in the way",
        "sweep",
        "sweep one",
        "sweep two",
        "sweep all",
        "acquire",
        "acquire beside",
        "evict",
        "evict what changed",
    ]
    .into_iter()
    .enumerate()
    {
        let dies = open(&backend, 10 + number as u128).await;
        let mut held = Vec::new();
        for (n, key) in (1..).zip(["c waited", "s shared", "c third"]) {
            held.push(request(dies, n, &[&format!("{key}-{number}")]));
            granted(&backend, &held[held.len() - 1]).await;
        }
        let shared = format!("shared-{number}");
        let mut get = redis::cmd("HGET");
        let line: String = space.raw(get.arg(&records).arg(&shared)).unwrap();
        let foreign = |text: &str| {
            let mut put = redis::cmd("HSET");
            let put = put
                .arg(&records)
                .arg(&shared)
                .arg(format!("{line}\n{text}"));
            space.raw::<()>(put).unwrap();
        };
        foreign("somebody else");
        let filter = Filter::Key(LockKey::parse(&shared).unwrap());
        let page = backend.records(&filter, None, 1).await.unwrap();

        let mut changed = backend.watch(&held[0].claims).await.unwrap();
        // Its lease ends.
        let sessions = space.key("sessions");
        let mut get = redis::cmd("HGET");
        let get = get.arg(&sessions).arg(dies.to_string());
        let record: String = space.raw(get).unwrap();
        let mut lines: Vec<&str> = record.split('\n').collect();
        lines[1] = "1";
        let mut put = redis::cmd("HSET");
        let put = put.arg(&sessions).arg(dies.to_string());
        space.raw::<()>(put.arg(lines.join("\n"))).unwrap();
        let sleeps = tokio::time::timeout(Duration::from_millis(20), &mut changed);
        assert!(sleeps.await.is_err(), "{what}: nobody has looked yet");
        let waited = held[0].claims[0].key();
        match what {
            "confirm" => {
                let confirmed = backend.confirm(held[0].grant, &held[0].claims).await;
                assert!(!confirmed.unwrap());
            }
            "give up" => {
                let adopted = backend
                    .adopt(dies, 0, adopter, Adopt::GiveUp, Incarnation::UNKNOWN)
                    .await
                    .map(Adopted::adoption);
                assert_eq!(adopted.unwrap(), None);
            }
            "take" => {
                let mine = request(other, 100, &[&format!("c {waited}")]);
                granted(&backend, &mine).await;
            }
            "in the way" => {
                let both = request(adopter, 100, &["c held", &format!("c {waited}")]);
                let answer = backend.acquire(&both).await.unwrap();
                assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
            }
            "sweep" => drop(backend.sweep(Sweep::Session(dies), 100).await.unwrap()),
            "sweep one" => drop(backend.sweep(Sweep::Session(dies), 1).await.unwrap()),
            "sweep two" => drop(backend.sweep(Sweep::Session(dies), 2).await.unwrap()),
            "sweep all" => drop(backend.sweep(Sweep::All, 1_000).await.unwrap()),
            "acquire" => {
                let answer = backend.acquire(&request(dies, 100, &["c free"])).await;
                assert_eq!(answer.unwrap(), Acquired::Void);
            }
            "acquire beside" => {
                let mine = request(
                    other,
                    101,
                    &[&format!("c other-{number}"), &format!("c {waited}")],
                );
                granted(&backend, &mine).await;
            }
            _ => {
                if what == "evict what changed" {
                    foreign("somebody new");
                }
                let evicted = backend.evict(&page.items[0]).await.unwrap();
                assert_eq!(evicted, what == "evict");
            }
        }
        let woken = tokio::time::timeout(Duration::from_secs(10), changed).await;
        assert!(woken.is_ok(), "{what}");
    }
}

#[tokio::test]
async fn who_connects_wakes_nobody() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c k"]);
    granted(&backend, &held).await;
    let mut changed = backend.watch(&held.claims).await.unwrap();
    let other = space.connect().await;
    let sleeps = tokio::time::timeout(Duration::from_millis(300), &mut changed).await;
    assert!(sleeps.is_err(), "nothing has happened");
    other.release(held.grant, &held.claims).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(10), changed).await;
    assert!(woken.is_ok(), "it was released");
}
