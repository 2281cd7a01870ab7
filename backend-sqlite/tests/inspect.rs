//! `Inspect` and `Wakeups` on a file.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::time::{Duration, Instant};

use lockcore::backend::{
    Changed, End, Filter, Inspect, IntentChange, Page, Record, SessionStore, Wakeups,
};
use lockcore::{LockKey, Mode};
use lockcore_sqlite::SqliteBackend;
use support::*;

fn keys(page: &Page<Record>) -> Vec<&str> {
    page.items
        .iter()
        .map(|record| record.key.as_str())
        .collect()
}

async fn all(backend: &SqliteBackend, filter: Filter, limit: usize) -> Vec<String> {
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = backend
            .records(&filter, after.as_deref(), limit)
            .await
            .unwrap();
        assert!(page.items.len() <= limit);
        seen.extend(keys(&page).into_iter().map(str::to_owned));
        after = page.next;
        if after.is_none() {
            return seen;
        }
    }
}

#[tokio::test]
async fn records_are_listed_by_key_with_those_below() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, one, 1, &["read /a"]).await;
    granted(&backend, two, 1, &["read /a/b/c", "read /a/d"]).await;
    granted(&backend, two, 2, &["write /a!"]).await;
    let by_key = async |key| {
        let filter = Filter::Key(LockKey::parse(key).unwrap());
        backend.records(&filter, None, 9).await.unwrap().items
    };
    let records = by_key("/a").await;
    let modes: Vec<_> = records[0]
        .holders
        .iter()
        .map(|h| (h.grant, h.mode))
        .collect();
    assert_eq!(
        modes,
        [
            (Some(grant(one, 1)), Mode::S),
            (Some(grant(two, 1)), Mode::IS)
        ]
    );
    assert!(
        records[0]
            .holders
            .iter()
            .all(|holder| holder.key.as_str() == "/a")
    );
    assert!(records[0].version.is_empty() && !records[0].more);
    assert_eq!(by_key("/a/b").await[0].holders[0].mode, Mode::IS);
    assert!(by_key("/a/b/c/d").await.is_empty());
    backend.end(&[two], End::Close).await.unwrap();
    assert!(by_key("/a/b").await.is_empty(), "the dead are not listed");
}

#[tokio::test]
async fn records_are_listed_by_prefix_and_by_session_page_by_page() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(
        &backend,
        one,
        1,
        &["share a%", "share a_b", "share a:b", "share b"],
    )
    .await;
    granted(&backend, one, 2, &["share a%", "share c"]).await;
    granted(&backend, two, 1, &["share a_b", "share ab"]).await;
    granted(&backend, two, 2, &["share a0"]).await;
    renew(&backend, two, 1, "2-2", IntentChange::Keep).await;
    for limit in [1, 2, 9] {
        let prefix = |text: &str| Filter::Prefix(text.into());
        let listed = all(&backend, prefix(""), limit).await;
        assert_eq!(
            listed,
            ["a%", "a:b", "a_b", "ab", "b", "c"],
            "over is not listed"
        );
        let listed = all(&backend, prefix("a"), limit).await;
        assert_eq!(listed, ["a%", "a:b", "a_b", "ab"]);
        assert_eq!(all(&backend, prefix("a%"), limit).await, ["a%"]);
        assert_eq!(all(&backend, prefix("zz"), limit).await, [""; 0]);
        let listed = all(&backend, Filter::Session(one), limit).await;
        assert_eq!(listed, ["a%", "a:b", "a_b", "b", "c"], "each key once");
        let listed = all(&backend, Filter::Session(two), limit).await;
        assert_eq!(listed, ["a_b", "ab"]);
    }
    let odd = backend.records(&Filter::Session(one), Some("odd"), 9).await;
    assert!(odd.is_err());
}

async fn wakes_within(changed: Changed, limit: Duration) -> bool {
    tokio::time::timeout(limit, changed).await.is_ok()
}

/// A watch that has stood for some looks, so that only what comes now can wake it.
async fn standing_watch(backend: &SqliteBackend, asked: &str) -> Changed {
    let changed = backend.watch(&claims(&[asked])).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    changed
}

const SOON: Duration = Duration::from_secs(2);
const A_WHILE: Duration = Duration::from_millis(60);

#[tokio::test]
async fn a_watch_wakes_on_what_frees_a_claim_here_and_elsewhere() {
    let space = Space::new();
    let (here, there) = (space.connect().await, space.connect().await);
    for by in [&here, &there] {
        let number = if std::sync::Arc::ptr_eq(by, &here) {
            1
        } else {
            100
        };
        let (one, two) = (open(by, number).await, open(by, number + 1).await);
        granted(by, one, 1, &["upsert k", "write /a/b"]).await;
        for (n, asked) in [(2, "create k"), (3, "write /a"), (4, "read /a/b/c")] {
            let watch = standing_watch(&here, asked).await;
            release(by, one, n - 1, &["upsert k", "write /a/b"]).await;
            assert!(wakes_within(watch, SOON).await, "{asked} after a release");
            granted(by, one, n, &["upsert k", "write /a/b"]).await;
        }
        let watch = standing_watch(&here, "share k").await;
        renew(by, one, 1, "4-4", IntentChange::Keep).await;
        assert!(wakes_within(watch, SOON).await, "after it was over");
        granted(by, one, 5, &["upsert k"]).await;
        let watch = standing_watch(&here, "share k").await;
        by.end(&[one], End::Close).await.unwrap();
        assert!(wakes_within(watch, SOON).await, "after a death");
        granted(by, two, 1, &["upsert k"]).await;
        renew(by, two, 1, "", intent("x")).await;
        by.end(&[two], End::Close).await.unwrap();
        let watch = standing_watch(&here, "share k").await;
        by.end(&[two], End::Discard).await.unwrap();
        assert!(wakes_within(watch, SOON).await, "after it was discarded");
    }
}

#[tokio::test]
async fn a_watch_sleeps_while_nothing_is_freed() {
    let space = Space::new();
    let (here, there) = (space.connect().await, space.connect().await);
    let (one, two) = (open(&here, 1).await, open(&there, 2).await);
    granted(&here, one, 1, &["upsert k", "upsert l"]).await;
    let mut watch = here.watch(&claims(&["create k"])).await.unwrap();
    release(&here, one, 1, &["upsert l"]).await;
    granted(&there, two, 1, &["upsert m"]).await;
    release(&there, two, 1, &["upsert m"]).await;
    renew(&here, one, 1, "", IntentChange::Keep).await;
    assert!(
        tokio::time::timeout(A_WHILE, &mut watch).await.is_err(),
        "other keys are no news"
    );
    release(&here, one, 1, &["upsert k"]).await;
    assert!(wakes_within(watch, SOON).await);
    let free = here.watch(&claims(&["create k"])).await.unwrap();
    assert!(wakes_within(free, SOON).await, "nobody is in the way");
}

#[tokio::test]
async fn a_watch_wakes_when_a_lease_runs_out() {
    let space = Space::new();
    let (here, there) = (space.connect().await, space.connect().await);
    let session = id(1);
    let label = lockcore::Label::parse("").unwrap();
    there
        .open(session, &label, Duration::from_secs(1))
        .await
        .unwrap();
    granted(&there, session, 1, &["upsert k"]).await;
    let began = Instant::now();
    let watch = here.watch(&claims(&["upsert k"])).await.unwrap();
    assert!(wakes_within(watch, Duration::from_secs(5)).await);
    assert!(began.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn a_watch_wakes_when_the_file_is_removed() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["upsert k"]).await;
    let watch = standing_watch(&backend, "upsert k").await;
    std::fs::remove_file(&space.path).unwrap();
    // Another operation comes upon the new file before the next look does.
    assert!(backend.sessions(None, 1).await.unwrap().items.is_empty());
    assert!(wakes_within(watch, SOON).await);
}
