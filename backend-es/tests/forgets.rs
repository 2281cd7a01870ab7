//! An index that forgets what it has acknowledged, under living clients: who is told what, and tokens that rise all the
//! same. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::time::{Duration, Instant};

use elasticsearch::http::Method;
use lockcore::backend::{Acquired, ClaimStore, Opened, SessionStore};
use lockcore::limits::MAX_RENEWAL_INTERVAL;
use lockcore::{Guard, Label, Locks, LostReason, Released};
use serde_json::{Value, json};
use support::{Space, connect, granted, id, raw, request};
use tokio::time::timeout;

/// Longer than a test takes, or a slow machine would end the session that it looks at: whoever is told before is told by
/// a renewal, which comes every 10 s.
const TTL: Duration = Duration::from_secs(90);
/// Longest until something that a renewal brings.
const TOLD: Duration = Duration::from_secs(45);

async fn client(space: &Space) -> Locks {
    let locks = Locks::builder(connect(space).await);
    locks.ttl(TTL).build().unwrap()
}

async fn hold(locks: &Locks, key: &str) -> Guard {
    let waits = locks.lock(key).wait(TOLD);
    waits.acquire().await.unwrap()
}

/// Why the guard is lost, long before its deadline.
async fn told(guard: &Guard) -> LostReason {
    let told = timeout(TOLD, guard.lost()).await;
    told.expect("a renewal comes every 10 s")
}

/// Several that the store has of one session, of every kind: one key, a path with what is above it, and many documents.
async fn hold_several(locks: &Locks, name: &str) -> Vec<Guard> {
    let many = (0..600).map(|n| format!("{name}-{n}"));
    vec![
        hold(locks, name).await,
        locks
            .tree()
            .write(format!("/{name}/b"))
            .acquire()
            .await
            .unwrap(),
        locks.documents(many).acquire().await.unwrap(),
    ]
}

async fn ask(method: Method, path: &str, body: Value) -> Value {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let (status, answer) = raw(method, path, body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// The index behind the alias.
async fn index(space: &Space) -> String {
    let about = ask(Method::Get, &format!("/{}", space.namespace), Value::Null).await;
    about.as_object().unwrap().keys().next().unwrap().clone()
}

/// Loses the primary, and gives its part to what the node has, or to an empty one.
async fn force(space: &Space, how: &str) {
    let index = index(space).await;
    let nodes = ask(Method::Get, "/_nodes/_local", Value::Null).await;
    let nodes = nodes["nodes"].as_object().unwrap();
    let node = nodes.values().next().unwrap()["name"].clone();
    let of = |more: Value| {
        let mut command = json!({"index": &index, "shard": 0, "node": node});
        for (name, value) in more.as_object().unwrap() {
            command[name] = value.clone();
        }
        command
    };
    let commands = json!({"commands": [
        {"cancel": of(json!({"allow_primary": true}))},
        {how: of(json!({"accept_data_loss": true}))},
    ]});
    ask(Method::Post, "/_cluster/reroute", commands).await;
    let health = format!("/_cluster/health/{index}?wait_for_status=green&timeout=30s");
    ask(Method::Get, &health, Value::Null).await;
}

/// Every document, as it is now.
async fn documents(space: &Space) -> Vec<(String, Value)> {
    let of = |action: &str| format!("/{}/{action}", space.namespace);
    ask(Method::Post, &of("_refresh"), Value::Null).await;
    let all = json!({"size": 10_000, "query": {"match_all": {}}});
    let found = ask(Method::Post, &of("_search"), all).await;
    let hits = found["hits"]["hits"].as_array().unwrap().iter();
    let document = |hit: &Value| {
        (
            hit["_id"].as_str().unwrap().to_owned(),
            hit["_source"].clone(),
        )
    };
    hits.map(document).collect()
}

/// A primary with these documents and no others takes over, as a copy does that was stopped when it had them.
async fn force_stale(space: &Space, had: &[(String, Value)]) {
    force(space, "allocate_empty_primary").await;
    let had = had.iter().map(|(id, document)| (id.as_str(), document));
    space.put_all(had).await;
}

#[tokio::test]
async fn what_an_empty_primary_grants_is_greater_and_who_held_something_is_told() {
    let space = Space::new();
    let (locks, others) = (client(&space).await, client(&space).await);
    let held = hold(&locks, "k").await;
    let mut last = hold(&others, "other").await;
    for n in 0..50 {
        last = hold(&others, &format!("k{n}")).await;
    }
    let greatest = last.token().max(held.token());
    force(&space, "allocate_empty_primary").await;
    // Who connects now, who was connected, and who held something.
    let new = hold(&client(&space).await, "k").await;
    assert!(new.token() > greatest, "{} after {greatest}", new.token());
    let more = hold(&others, "later").await;
    assert!(
        more.token() > new.token(),
        "{} after {}",
        more.token(),
        new.token()
    );
    for guard in [&held, &last] {
        assert_ne!(told(guard).await, LostReason::Deadline);
    }
    assert_eq!(held.release().await.unwrap(), Released::NotHeld);
    assert!(new.confirm().await.unwrap() && more.confirm().await.unwrap());
    let again = hold(&locks, "again").await;
    assert!(again.token() > more.token());
    // Once more: what was begun anew is lost, too.
    force(&space, "allocate_empty_primary").await;
    let newer = hold(&client(&space).await, "k").await;
    assert!(
        newer.token() > again.token(),
        "{} after {}",
        newer.token(),
        again.token()
    );
}

#[tokio::test]
async fn who_asks_an_empty_primary_hears_of_it_at_once() {
    let space = Space::new();
    let locks = client(&space).await;
    let held = hold(&locks, "k").await;
    force(&space, "allocate_empty_primary").await;
    let new = hold(&locks, "new").await;
    assert!(!held.is_valid(), "the same session would have both");
    assert!(new.token() > held.token() && new.confirm().await.unwrap());
}

#[tokio::test]
async fn what_a_stale_primary_has_lost_is_told_and_the_rest_stays() {
    // A renewal that is acknowledged between the copy and its use is lost, too, and its session with it.
    let mut slow = Vec::new();
    while slow.len() < 5 {
        let space = Space::new();
        let begun = Instant::now();
        let (loses, keeps) = (client(&space).await, client(&space).await);
        let early = hold(&loses, "early").await;
        let kept = hold_several(&keeps, "kept").await;
        let had = documents(&space).await;
        let lost = hold(&loses, "k").await;
        force_stale(&space, &had).await;
        if begun.elapsed() > MAX_RENEWAL_INTERVAL {
            slow.push(begun.elapsed());
            continue;
        }
        let theirs = hold(&client(&space).await, "k").await;
        assert!(
            theirs.token() > lost.token(),
            "{} after {}",
            theirs.token(),
            lost.token()
        );
        let reasons = (told(&early).await, told(&lost).await);
        assert_eq!(reasons, (LostReason::Forgotten, LostReason::Forgotten));
        let more = hold(&keeps, "more").await;
        assert_eq!(more.session(), kept[0].session());
        for guard in kept.iter().chain([&more, &theirs]) {
            assert!(guard.is_valid() && guard.confirm().await.unwrap());
        }
        return;
    }
    panic!("the server takes longer than a renewal: {slow:?}");
}

/// A part of a guard's records is not the guard.
#[tokio::test]
async fn what_has_lost_a_part_is_lost() {
    for missing in ["part-7", "/part"] {
        let space = Space::new();
        let locks = client(&space).await;
        let held = hold_several(&locks, "part").await;
        let mut had = documents(&space).await;
        let whole = had.len();
        had.retain(|(id, _)| id != missing);
        assert_eq!(had.len(), whole - 1);
        force_stale(&space, &had).await;
        for guard in &held {
            assert_eq!(told(guard).await, LostReason::Forgotten, "{missing}");
        }
    }
}

/// As after every failover.
#[tokio::test]
async fn a_primary_that_has_everything_loses_no_guard() {
    let space = Space::new();
    let (locks, others) = (client(&space).await, client(&space).await);
    let mut held = hold_several(&locks, "k").await;
    held.push(hold(&others, "other").await);
    let greatest = held.iter().map(|guard| guard.token()).max().unwrap();
    force(&space, "allocate_stale_primary").await;
    let more = hold(&others, "more").await;
    assert!(more.token() > greatest, "{} after {greatest}", more.token());
    // Their renewals have met it.
    let lost = async || {
        for guard in &held {
            guard.lost().await;
        }
    };
    timeout(Duration::from_secs(15), lost()).await.unwrap_err();
    for guard in held.iter().chain([&more]) {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
    }
    let again = hold(&locks, "again").await;
    assert!(again.token() > more.token());
    assert_eq!(again.session(), held[0].session());
    for guard in held {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// One of many records is there already, so that some are made by one request and this one is entered by the next.
#[tokio::test]
async fn who_asks_another_primary_for_many_leaves_nothing() {
    let space = Space::new();
    let backend = connect(&space).await;
    let label = Label::parse("of the one before").unwrap();
    let opened = backend.open(id(1), &label, TTL).await.unwrap();
    let Opened::Opened(before) = opened else {
        panic!("{opened:?}");
    };
    let held = request(id(1), 1, &["upsert k0"]);
    granted(&backend, &held).await;
    let locks = async || {
        let mut documents = documents(&space).await;
        documents.retain(|(id, _)| !id.starts_with('~'));
        documents
    };
    let had = locks().await;
    force(&space, "allocate_stale_primary").await;
    let many: Vec<String> = (0..40).map(|n| format!("upsert k{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut many = request(id(1), 2, &many).within(before);
    many.owner = held.owner;
    assert_eq!(backend.acquire(&many).await.unwrap(), Acquired::Moved);
    assert_eq!(locks().await, had);
}

/// A snapshot of the namespace's index, which is removed in the end.
struct Snapshot {
    repository: String,
    index: String,
}

impl Snapshot {
    async fn take(space: &Space) -> Self {
        let repository = format!("/_snapshot/{}", space.namespace);
        let folder = json!({"type": "fs", "settings": {"location": space.namespace}});
        ask(Method::Put, &repository, folder).await;
        let index = index(space).await;
        let only = json!({"indices": index, "include_global_state": false});
        let path = format!("{repository}/taken?wait_for_completion=true");
        ask(Method::Put, &path, only).await;
        Self { repository, index }
    }

    /// In place of the index, which is removed, or over it.
    async fn restore(&self, retired: bool) {
        if retired {
            ask(
                Method::Post,
                &format!("/{}/_close", self.index),
                Value::Null,
            )
            .await;
        } else {
            ask(Method::Delete, &format!("/{}", self.index), Value::Null).await;
        }
        let only = json!({"indices": self.index, "include_global_state": false});
        let path = format!(
            "{}/taken/_restore?wait_for_completion=true",
            self.repository
        );
        ask(Method::Post, &path, only).await;
    }

    async fn remove(self) {
        ask(
            Method::Delete,
            &format!("{}/taken", self.repository),
            Value::Null,
        )
        .await;
        ask(Method::Delete, &self.repository, Value::Null).await;
    }
}

#[tokio::test]
async fn what_is_removed_and_restored_is_told_from_itself() {
    is_told_from_itself(false).await;
}

#[tokio::test]
async fn what_is_restored_over_itself_is_told_from_itself() {
    is_told_from_itself(true).await;
}

async fn is_told_from_itself(retired: bool) {
    let space = Space::new();
    let (loses, quiet) = (client(&space).await, client(&space).await);
    let early = hold(&loses, "early").await;
    let kept = hold_several(&quiet, "kept").await;
    let snapshot = Snapshot::take(&space).await;
    let mut lost = hold(&loses, "k").await;
    for n in 0..50 {
        lost = hold(&loses, &format!("k{n}")).await;
    }
    snapshot.restore(retired).await;
    // Who has heard nothing since, who has, and who connects now.
    let theirs = hold(&quiet, "k49").await;
    assert!(
        theirs.token() > lost.token(),
        "{} after {}",
        theirs.token(),
        lost.token()
    );
    let new = hold(&client(&space).await, "k").await;
    assert!(new.token() > theirs.token());
    let reasons = (told(&early).await, told(&lost).await);
    assert_eq!(reasons, (LostReason::Forgotten, LostReason::Forgotten));
    let again = hold(&loses, "again").await;
    assert!(again.token() > new.token());
    for guard in kept.iter().chain([&theirs, &new, &again]) {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
    }
    // It may happen again, from the same snapshot.
    snapshot.restore(retired).await;
    let newer = hold(&client(&space).await, "k").await;
    assert!(
        newer.token() > again.token(),
        "{} after {}",
        newer.token(),
        again.token()
    );
    snapshot.remove().await;
}
