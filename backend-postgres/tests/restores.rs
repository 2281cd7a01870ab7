//! What comes back is an older state, or another server: tokens rise all the same, and who has lost a lock is told.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod nodes;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockcore::{Attempt, FencingToken, Guard, LockBackend, Locks, LostReason, Released};
use lockcore_postgres::PostgresBackend;
use lockkeeper_servers::{Server, postgres};
use sqlx::{AssertSqlSafe, Row as _};
use tempfile::TempDir;

use nodes::{again, begun, config, raw, taken_over, waited};
use support::{PATIENCE, until};

/// A client that renews every 40 s, unless it is told another time to live.
async fn client(server: &Server, ttl: Duration) -> Locks {
    let backend = PostgresBackend::connect(config(server)).await.unwrap();
    let locks = Locks::builder(backend as Arc<dyn LockBackend>);
    locks.ttl(ttl).build().unwrap()
}

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(6);

async fn held(locks: &Locks, key: &str) -> Guard {
    let acquired = locks.lock(key).wait(PATIENCE).acquire().await;
    acquired.unwrap_or_else(|error| panic!("{key}: {error}"))
}

/// As many clients as usually begin at once, each with a token of its own.
async fn all_rise(server: &Server, last: FencingToken) {
    let clients = (0..8).map(|n| {
        let config = config(server);
        tokio::spawn(async move {
            let backend = PostgresBackend::connect(config).await.unwrap();
            let locks = Locks::builder(backend as Arc<dyn LockBackend>).build();
            held(&locks.unwrap(), &format!("first of {n}"))
                .await
                .token()
        })
    });
    let mut tokens = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        tokens.push(client.await.unwrap());
    }
    tokens.sort_unstable();
    assert!(tokens[0] > last, "{tokens:?} after {last}");
    assert!(tokens.windows(2).all(|two| two[0] < two[1]), "{tokens:?}");
}

async fn are_told(guards: &[&Guard]) {
    for guard in guards {
        let told = tokio::time::timeout(PATIENCE, guard.lost()).await;
        assert_eq!(told.expect("it is told"), LostReason::Forgotten);
        assert!(!guard.is_valid());
    }
}

async fn snapshot(data: &Path) -> TempDir {
    let data = data.to_owned();
    waited(move || postgres::snapshot_of(&data).unwrap()).await
}

/// The timeline of a new cluster is the first one, whatever that of the old one was.
#[tokio::test]
async fn tokens_rise_and_guards_stay_over_an_upgrade_after_promotions() {
    let (_data, server) = begun().await;
    let port = server.port().unwrap();
    let locks = client(&server, LONG).await;
    let kept = held(&locks, "kept").await;
    let (_first, server, ()) = taken_over(&port, server, async {}).await;
    let (second, server, ()) = taken_over(&port, server, async {}).await;
    let last = held(&locks, "last").await;
    assert!(last.token() > kept.token());
    let new = waited({
        let data = second.path().to_owned();
        move || postgres::upgraded(&data).unwrap()
    });
    let new = new.await;
    drop(server);
    let server = again(new.path(), &port).await;
    let next = held(&locks, "next").await;
    assert!(
        next.token() > last.token(),
        "{} after {}",
        next.token(),
        last.token()
    );
    assert_eq!(next.session(), kept.session());
    all_rise(&server, next.token()).await;
    for guard in [kept, last, next] {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

/// What is lost since the dump is told though no renewal is missing.
async fn restored_from_a_dump(beside: bool) {
    let (_data, server) = begun().await;
    let port = server.port().unwrap();
    let (ours, theirs) = (client(&server, LONG).await, client(&server, LONG).await);
    let kept = held(&ours, "kept").await;
    let url = server.url().to_owned();
    let dump = waited(move || postgres::dump_of(&url).unwrap()).await;
    let lost = held(&ours, "lost").await;
    let (_other, server) = if beside {
        drop(server);
        let other = waited(|| postgres::data().unwrap()).await;
        let server = again(other.path(), &port).await;
        (Some(other), server)
    } else {
        let drop = "DROP SCHEMA lockkeeper CASCADE";
        sqlx::raw_sql(drop)
            .execute(&mut raw(&server).await)
            .await
            .unwrap();
        (None, server)
    };
    let url = server.url().to_owned();
    waited(move || postgres::restore(&url, &dump).unwrap()).await;
    let again = held(&theirs, "lost").await;
    assert!(
        again.token() > lost.token(),
        "{} after {}",
        again.token(),
        lost.token()
    );
    let new = held(&ours, "new").await;
    assert_ne!(new.session(), kept.session());
    are_told(&[&kept, &lost]).await;
    all_rise(&server, new.token()).await;
    assert_eq!(lost.release().await.unwrap(), Released::NotHeld);
    assert!(again.confirm().await.unwrap());
}

#[tokio::test]
async fn a_dump_that_is_restored_into_another_server_is_told_and_tokens_rise() {
    restored_from_a_dump(true).await;
}

#[tokio::test]
async fn a_dump_that_is_restored_in_place_is_told_and_tokens_rise() {
    restored_from_a_dump(false).await;
}

/// The server is on the same timeline as before. That a renewal is missing is told, at the next one.
async fn restored_from_a_disk(in_place: bool) {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let locks = client(&server, SHORT).await;
    let kept = held(&locks, "kept").await;
    drop(server);
    let copy = snapshot(data.path()).await;
    let server = again(data.path(), &port).await;
    let renewals = async |server: &Server| {
        let id = kept.session();
        let text = format!("SELECT seq FROM lockkeeper.sessions WHERE id = decode('{id}', 'hex')");
        let row = sqlx::raw_sql(AssertSqlSafe(text))
            .fetch_one(&mut raw(server).await)
            .await;
        row.unwrap().get::<i64, _>(0)
    };
    let before = renewals(&server).await;
    until("it is renewed", async || {
        (renewals(&server).await > before).then_some(())
    })
    .await;
    let lost = held(&locks, "lost").await;
    drop(server);
    let (_moved, server) = if in_place {
        std::fs::remove_dir_all(data.path().join("data")).unwrap();
        std::fs::rename(copy.path().join("data"), data.path().join("data")).unwrap();
        let server = again(data.path(), &port).await;
        (copy, server)
    } else {
        let server = again(copy.path(), &port).await;
        (copy, server)
    };
    are_told(&[&kept, &lost]).await;
    let next = held(&client(&server, LONG).await, "lost").await;
    assert!(
        next.token() > lost.token(),
        "{} after {}",
        next.token(),
        lost.token()
    );
    all_rise(&server, next.token()).await;
}

#[tokio::test]
async fn a_disk_that_is_restored_in_place_is_told_by_the_missing_renewal_and_tokens_rise() {
    restored_from_a_disk(true).await;
}

#[tokio::test]
async fn a_disk_that_is_restored_beside_is_told_by_the_missing_renewal_and_tokens_rise() {
    restored_from_a_disk(false).await;
}

/// What is not told by itself, as long as no renewal is missing.
#[tokio::test]
async fn of_a_disk_that_is_restored_what_is_lost_since_the_last_renewal_is_told_when_it_is_asked() {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let (ours, theirs) = (client(&server, LONG).await, client(&server, LONG).await);
    let kept = held(&ours, "kept").await;
    drop(server);
    let copy = snapshot(data.path()).await;
    let server = again(data.path(), &port).await;
    let lost = held(&ours, "lost").await;
    drop(server);
    let _server = again(copy.path(), &port).await;
    let again = held(&theirs, "lost").await;
    assert!(
        again.token() > lost.token(),
        "{} after {}",
        again.token(),
        lost.token()
    );
    // The connection before is broken.
    let confirmed =
        async |guard: &Guard| until("it is confirmed", async || guard.confirm().await.ok()).await;
    assert!(confirmed(&kept).await);
    assert!(!confirmed(&lost).await);
    assert_eq!(lost.release().await.unwrap(), Released::NotHeld);
}

#[tokio::test]
async fn a_server_without_data_is_made_anew_with_greater_tokens_and_who_held_is_told() {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let locks = client(&server, SHORT).await;
    let lost = held(&locks, "k").await;
    drop((server, data));
    let empty = waited(|| postgres::data().unwrap()).await;
    let server = again(empty.path(), &port).await;
    // Whoever connects makes the namespace.
    let other = client(&server, LONG).await;
    let Attempt::Acquired(again) = other.lock("k").try_acquire().await.unwrap() else {
        panic!("nobody holds it there");
    };
    assert!(
        again.token() > lost.token(),
        "{} after {}",
        again.token(),
        lost.token()
    );
    let told = tokio::time::timeout(PATIENCE, lost.lost()).await;
    told.expect("it is told");
    assert!(held(&locks, "other").await.token() > again.token());
    assert_eq!(lost.release().await.unwrap(), Released::NotHeld);
    assert!(again.confirm().await.unwrap());
}

/// As on services that copy their storage and not what is logged, whose functions fail.
#[tokio::test]
async fn a_server_that_does_not_tell_its_timeline_grants_and_is_moved_to_when_it_does() {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let mut connection = raw(&server).await;
    let original = "SELECT pg_get_functiondef('pg_current_wal_insert_lsn'::regproc)";
    let original: String = sqlx::raw_sql(original)
        .fetch_one(&mut connection)
        .await
        .unwrap()
        .get(0);
    for fails in [
        "object_not_in_prerequisite_state",
        "feature_not_supported",
        "undefined_function",
    ] {
        let replaced = format!(
            "CREATE OR REPLACE FUNCTION pg_catalog.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'it cannot be executed here' USING ERRCODE = '{fails}'; END $$;
             DROP SCHEMA IF EXISTS lockkeeper CASCADE"
        );
        sqlx::raw_sql(AssertSqlSafe(replaced))
            .execute(&mut connection)
            .await
            .unwrap();
        let locks = client(&server, LONG).await;
        let (one, two) = (held(&locks, "one").await, held(&locks, "two").await);
        assert!(two.token() > one.token());
        assert_eq!(one.release().await.unwrap(), Released::Released);
        drop(two);
        // Else what it gives back stands in the way of the schema's end.
        assert!(locks.shutdown(LONG).await);
    }
    let locks = client(&server, LONG).await;
    let kept = held(&locks, "kept").await;
    sqlx::raw_sql(AssertSqlSafe(original))
        .execute(&mut connection)
        .await
        .unwrap();
    drop((connection, server));
    let _server = again(data.path(), &port).await;
    let next = held(&locks, "next").await;
    assert!(next.token() > kept.token());
    assert_eq!(next.session(), kept.session());
    assert!(kept.is_valid() && kept.confirm().await.unwrap());
    drop(next);
}
