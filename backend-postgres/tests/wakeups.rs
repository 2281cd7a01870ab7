//! The rows by which a process is told: one for each key, kept while somebody waits in turns, gone afterwards.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::time::Duration;

use lockcore::backend::{Changed, ClaimStore, End, SessionStore, Wakeups};
use lockcore::{Claim, Grant, Label, LockKey, LockPath, SessionId, Want};
use lockcore_postgres::PostgresBackend;
use sqlx::Row as _;
use tokio::time::timeout;

use support::{PATIENCE, Space, until};

fn claim(key: &str) -> [Claim; 1] {
    [match LockPath::parse(key) {
        Ok(path) => Claim::write(path),
        Err(_) => Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap(),
    }]
}

/// A release of what is not held tells as every other one does.
async fn release(backend: &PostgresBackend, key: &str) {
    let session = SessionId::new(rand::random());
    let grant = Grant { session, n: 1 };
    // A connection of a runtime that has ended fails at the first answer that is not there yet.
    let released = async || backend.release(grant, &claim(key)).await.ok();
    until("it is released", released).await;
}

async fn is_told(watch: Changed) {
    timeout(PATIENCE, watch).await.expect("it is told");
}

/// The numbers of the rows.
async fn rows(space: &Space) -> Vec<i64> {
    let rows = space.sql("SELECT id FROM {ns}.waiters ORDER BY id").await;
    rows.iter().map(|row| row.get(0)).collect()
}

async fn no_row_is_left(space: &Space) {
    let none = async || rows(space).await.is_empty().then_some(());
    until("the rows are gone", none).await;
}

/// Its connection is driven by the runtime that it was made in, which its client may outlive.
#[tokio::test]
async fn who_listens_in_a_runtime_that_ends_goes_on_in_another() {
    // A runtime that only connects has never run what listens.
    for watches in [true, false] {
        goes_on_in_another(watches).await;
    }
}

async fn goes_on_in_another(watches: bool) {
    let space = Space::new().await;
    let config = space.config();
    let elsewhere = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let backend = PostgresBackend::connect(config).await.unwrap();
            let watch = match watches {
                true => Some(backend.watch(&claim("k")).await.unwrap()),
                false => None,
            };
            (backend, watch)
        })
    });
    let (backend, watch) = elsewhere.await.unwrap();
    if let Some(watch) = watch {
        is_told(watch).await;
    }
    let again = async || backend.watch(&claim("k")).await.ok();
    let watch = until("somebody listens again", again).await;
    release(&backend, "k").await;
    is_told(watch).await;
    no_row_is_left(&space).await;
}

#[tokio::test]
async fn a_key_has_one_row_which_stays_while_some_wait_in_turns_and_goes_afterwards() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (first, second) = (
        backend.watch(&claim("k")).await.unwrap(),
        backend.watch(&claim("k")).await.unwrap(),
    );
    let one = rows(&space).await;
    assert_eq!(one.len(), 1);
    release(&backend, "k").await;
    is_told(first).await;
    is_told(second).await;
    let third = backend.watch(&claim("k")).await.unwrap();
    assert_eq!(rows(&space).await, one, "the same row");
    release(&backend, "k").await;
    is_told(third).await;
    no_row_is_left(&space).await;
    let fourth = backend.watch(&claim("k")).await.unwrap();
    assert_ne!(
        rows(&space).await,
        one,
        "a row that is gone does not come back"
    );
    release(&backend, "k").await;
    is_told(fourth).await;
}

#[tokio::test]
async fn only_who_waits_for_the_key_is_told() {
    let space = Space::new().await;
    let (backend, other) = (space.connect().await, space.connect().await);
    let mut watches = Vec::new();
    for key in ["k", "/a", "/a/b/c", "/a0"] {
        watches.push(backend.watch(&claim(key)).await.unwrap());
    }
    let last = backend.watch(&claim("last")).await.unwrap();
    release(&other, "/a/b").await;
    release(&other, "last").await;
    // What is told arrives in the order of the commits.
    is_told(last).await;
    let mut told = Vec::new();
    for watch in watches {
        told.push(timeout(Duration::ZERO, watch).await.is_ok());
    }
    assert_eq!(told, [false, true, true, false]);
}

#[tokio::test]
async fn who_listens_anew_has_new_rows() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let watch = backend.watch(&claim("k")).await.unwrap();
    let before = rows(&space).await;
    space
        .sql("SELECT pg_terminate_backend(pid) FROM {ns}.waiters")
        .await;
    // What is said meanwhile does not arrive.
    is_told(watch).await;
    let again = async || backend.watch(&claim("k")).await.ok();
    let watch = until("somebody listens again", again).await;
    let after = rows(&space).await;
    assert!(after.iter().any(|id| !before.contains(id)), "{after:?}");
    release(&backend, "k").await;
    is_told(watch).await;
    no_row_is_left(&space).await;
}

#[tokio::test]
async fn a_row_that_came_late_goes_when_it_is_told() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let watch = backend.watch(&claim("k")).await.unwrap();
    let before = rows(&space).await;
    space
        .sql(
            "INSERT INTO {ns}.waiters
             SELECT n, late.key, channel, pid FROM {ns}.waiters, (VALUES (1, 'k'), (2, 'late')) late (n, key)",
        )
        .await;
    release(&backend, "k").await;
    release(&backend, "late").await;
    is_told(watch).await;
    let watch = backend.watch(&claim("k")).await.unwrap();
    let only_its_own = async || (rows(&space).await == before).then_some(());
    until("the late rows are gone", only_its_own).await;
    drop(watch);
}

#[tokio::test]
async fn a_watch_over_a_session_needs_no_row_and_is_told_when_the_connection_breaks() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = SessionId::new(rand::random());
    let label = Label::parse("holds").unwrap();
    backend.open(session, &label, PATIENCE).await.unwrap();
    let news = backend.watch_session(session).await.unwrap();
    assert!(rows(&space).await.is_empty());
    // A row says whose connection it is.
    let waits = backend.watch(&claim("k")).await.unwrap();
    space
        .sql("SELECT pg_terminate_backend(pid) FROM {ns}.waiters")
        .await;
    is_told(waits).await;
    is_told(news).await;
    let stands = async || backend.watch_session(session).await.ok();
    let news = until("somebody listens again", stands).await;
    backend.end(&[session], End::Revoke).await.unwrap();
    is_told(news).await;
}
