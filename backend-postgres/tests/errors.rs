//! What the server can do to a request, and what becomes of it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{Acquire, Acquired, ClaimStore, Inspect, SessionStore};
use lockcore::{
    Claim, ErrorKind, Grant, Label, LockBackend, LockKey, Locks, OwnerId, Result, SessionId, Want,
};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use support::{Space, owner};

fn request(session: SessionId, n: u64, keys: &[&str]) -> Acquire {
    let claim = |key: &&str| Claim::new(LockKey::parse(*key).unwrap(), Want::Upsert).unwrap();
    Acquire::new(
        Grant { session, n },
        OwnerId { session, m: n },
        keys.iter().map(claim).collect(),
    )
}

async fn session(backend: &PostgresBackend) -> SessionId {
    let session = SessionId::new(rand::random());
    let label = Label::parse("test").unwrap();
    backend
        .open(session, &label, Duration::from_secs(60))
        .await
        .unwrap();
    session
}

/// A backend on connections with this setting.
async fn with_setting(space: &Space, name: &str, value: &str) -> Result<Arc<PostgresBackend>> {
    let options = Space::driver_options().options([(name, value)]);
    let pool = PgPoolOptions::new().connect_lazy_with(options);
    PostgresBackend::from_pool(pool, space.config()).await
}

/// A transaction that holds the latches of these keys, and its backend process.
async fn latched(space: &Space, keys: &[&str]) -> PgConnection {
    let mut connection = owner().await;
    latch(space, &mut connection, "BEGIN", &[]).await;
    latch(space, &mut connection, "", keys).await;
    connection
}

async fn latch(space: &Space, connection: &mut PgConnection, first: &str, keys: &[&str]) {
    let latches = keys.iter().map(|key| {
        space.text(&format!(
            "SELECT pg_advisory_xact_lock({{ns}}.latch('{key}'))"
        ))
    });
    let text = [first.to_owned()]
        .into_iter()
        .chain(latches)
        .collect::<Vec<_>>()
        .join(";");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(connection)
        .await
        .unwrap();
}

/// The server's process that waits for a latch which that connection holds.
async fn waiting(behind: &mut PgConnection) -> i32 {
    let own = "SELECT pg_backend_pid()";
    let own: i32 = sqlx::raw_sql(own)
        .fetch_one(&mut *behind)
        .await
        .unwrap()
        .get(0);
    let text =
        format!("SELECT pid FROM pg_stat_activity WHERE {own} = ANY (pg_blocking_pids(pid))");
    support::until("somebody waits", async || {
        let rows = support::sql(text.clone()).await;
        rows.first().map(|row| row.get(0))
    })
    .await
}

/// What becomes of an acquisition that waits for a latch, when this is done to its process at the server.
async fn interrupted(what: &str) -> (ErrorKind, usize) {
    let space = Space::new().await;
    let backend = space.connect().await;
    let request = request(session(&backend).await, 1, &["k"]);
    let mut holding = latched(&space, &["k"]).await;
    let asking = tokio::spawn({
        let (backend, request) = (Arc::clone(&backend), request.clone());
        async move { backend.acquire(&request).await }
    });
    let pid = waiting(&mut holding).await;
    support::sql(format!("SELECT {what}({pid})")).await;
    let error = asking.await.unwrap().unwrap_err();
    holding.close().await.unwrap();
    let key = LockKey::parse("k").unwrap();
    let held = backend
        .records(&lockcore::backend::Filter::Key(key), None, 10)
        .await
        .unwrap();
    // The next request goes through, by another connection.
    let answer = backend.acquire(&request).await.unwrap();
    assert!(matches!(answer, Acquired::Acquired(_)));
    (error.kind(), held.items.len())
}

#[tokio::test]
async fn a_terminated_connection_is_an_unknown_outcome() {
    assert_eq!(
        interrupted("pg_terminate_backend").await,
        (ErrorKind::Indeterminate, 0)
    );
}

#[tokio::test]
async fn a_cancelled_statement_had_no_effect() {
    assert_eq!(
        interrupted("pg_cancel_backend").await,
        (ErrorKind::Unavailable, 0)
    );
}

#[tokio::test]
async fn a_latch_that_is_never_free_is_waited_for_for_some_seconds() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let request = request(session(&backend).await, 1, &["k"]);
    let holding = latched(&space, &["k"]).await;
    let error = backend.acquire(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(holding);
}

#[tokio::test]
async fn a_deadlock_with_somebody_elses_locks_had_no_effect() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = session(&backend).await;
    let row = space.sql("SELECT {ns}.latch('a') < {ns}.latch('b')").await;
    // Latches are taken in order of their numbers.
    let (first, last) = if row[0].get(0) {
        ("a", "b")
    } else {
        ("b", "a")
    };
    let mut holding = latched(&space, &[last]).await;
    let asking = tokio::spawn({
        let (backend, request) = (Arc::clone(&backend), request(session, 1, &["a", "b"]));
        async move { backend.acquire(&request).await }
    });
    waiting(&mut holding).await;
    latch(
        &space,
        &mut holding,
        "SET LOCAL deadlock_timeout = '1h'",
        &[first],
    )
    .await;
    let error = asking.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("deadlock"), "{error}");
}

/// None of our transactions can meet one. What the server rolls back for other reasons, a trigger of somebody else, say,
/// is told in the same way.
#[tokio::test]
async fn a_serialization_failure_had_no_effect_and_who_waits_asks_again() {
    let space = Space::new().await;
    space
        .sql(
            "CREATE SEQUENCE {ns}.failures;
             CREATE FUNCTION {ns}.fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM nextval('{ns}.failures');
                 RAISE EXCEPTION 'not now' USING ERRCODE = 'serialization_failure';
             END $$;
             CREATE TRIGGER fail AFTER INSERT ON {ns}.holders FOR EACH ROW EXECUTE FUNCTION {ns}.fail()",
        )
        .await;
    let backend = space.connect().await;
    for keys in [&["k"][..], &["a", "b"]] {
        let request = request(session(&backend).await, 1, keys);
        let error = backend.acquire(&request).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("serialize"), "{error}");
    }
    let locks = Locks::builder(backend).build().unwrap();
    let waits = locks.documents(["k"]).acquire();
    let mends = async {
        support::until("it fails again", async || {
            let rows = space.sql("SELECT last_value FROM {ns}.failures").await;
            (rows[0].get::<i64, _>(0) > 2).then_some(())
        })
        .await;
        space.sql("DROP TRIGGER fail ON {ns}.holders").await;
    };
    let (guard, ()) = tokio::join!(waits, mends);
    let rows = space.sql("SELECT count(*) FROM {ns}.holders").await;
    assert_eq!(rows[0].get::<i64, _>(0), 1);
    drop(guard.unwrap());
}

#[tokio::test]
async fn a_late_answer_is_an_unknown_outcome() {
    let space = Space::new().await;
    let url = space.url().replace("timeout_ms=20000", "timeout_ms=2000");
    let backend = PostgresBackend::connect(PostgresConfig::parse(&url).unwrap())
        .await
        .unwrap();
    let request = request(session(&backend).await, 1, &["k"]);
    // By itself, the server gives up before that.
    space
        .sql("ALTER FUNCTION {ns}.acquire_one SET lock_timeout = '1min'")
        .await;
    let holding = latched(&space, &["k"]).await;
    let error = backend.acquire(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    drop(holding);
    // Sent again it is the same grant, whatever has become of the first one.
    let answer = backend.acquire(&request).await.unwrap();
    assert!(matches!(answer, Acquired::Acquired(_)));
}

#[tokio::test]
async fn a_read_only_transaction_is_told() {
    let space = Space::new().await;
    let backend = with_setting(&space, "default_transaction_read_only", "on").await;
    let error = backend.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[tokio::test]
async fn another_isolation_is_told() {
    let space = Space::new().await;
    for isolation in ["repeatable read", "serializable"] {
        let backend = with_setting(&space, "default_transaction_isolation", isolation).await;
        let error = backend.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("READ COMMITTED"), "{error}");
    }
    let id = "decode('00000000000000000000000000000007', 'hex')";
    for call in [
        format!("begin_session({id}, '', 30000)"),
        format!("acquire({id}, 1, 1, '{{k}}', '{{create}}', '{{NULL}}', false, 0, false, '{{}}')"),
        format!("acquire_one({id}, 2, 2, 'k', 'create', NULL, false, 0, false)"),
        format!("acquire_many({id}, '{{3}}', '{{3}}', '{{k}}', '{{create}}', 0)"),
        format!("renew({id}, 1, -9223372036854775807 - 1, '{{}}', 'keep', 0, '', 0, '{{}}')"),
        format!("confirm({id}, 1, '{{k}}', '{{create}}')"),
        format!("end_sessions(ARRAY[{id}], 'close')"),
        format!("adopt_within({id}, 1, NULL, 0)"),
        format!("give_up_within({id}, 1, NULL, 0)"),
        format!("settle_within({id}, 1, {id}, 0)"),
        format!("note({id}, 'ask//1/a/b')"),
        format!("release({id}, 1, '{{k}}')"),
        format!("release_one({id}, 2, 'k')"),
        format!("release_many({id}, '{{3}}', '{{k}}')"),
        format!("sweep({id}, 1)"),
        "end_due()".to_owned(),
        "sweep_page('', 1)".to_owned(),
        "forget(1)".to_owned(),
        "evict('k', '')".to_owned(),
        "watch('{1}', 'c', 1, '{k}')".to_owned(),
        "unwatch('{1}')".to_owned(),
    ] {
        let mut connection = owner().await;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
        let text = space.text(&format!("{begin}; SELECT FROM {{ns}}.{call}"));
        let answer = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection);
        let error = answer.await.expect_err(&call);
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("LK001"), "{call}: {error}");
    }
}

/// The setting is not heeded where something is granted.
#[tokio::test]
async fn commits_that_do_not_wait_are_made_to() {
    let space = Space::new().await;
    let backend = with_setting(&space, "synchronous_commit", "off")
        .await
        .unwrap();
    assert!(backend.info().durability.crash);
    let request = request(session(&backend).await, 1, &["k"]);
    assert!(matches!(
        backend.acquire(&request).await.unwrap(),
        Acquired::Acquired(_)
    ));
    // In the middle of a transaction it can be seen which of them wait.
    let lives = format!("decode('{}', 'hex')", request.grant.session);
    let id = "decode('00000000000000000000000000000007', 'hex')";
    for (call, setting) in [
        (format!("begin_session({id}, '', 30000)"), "on"),
        (
            format!(
                "acquire({id}, 1, 1, '{{k2}}', '{{create}}', '{{NULL}}', false, 0, false, '{{}}')"
            ),
            "on",
        ),
        (
            format!("acquire_one({id}, 2, 2, 'k3', 'create', NULL, false, 0, false)"),
            "on",
        ),
        (
            format!("acquire_many({id}, '{{3}}', '{{3}}', '{{k4}}', '{{create}}', 0)"),
            "on",
        ),
        (
            format!("renew({id}, 1, -9223372036854775807 - 1, '{{}}', 'keep', 0, '', 0, '{{}}')"),
            "on",
        ),
        (format!("end_sessions(ARRAY[{id}], 'close')"), "on"),
        (format!("adopt_within({id}, 1, NULL, 0)"), "on"),
        (format!("give_up_within({id}, 1, NULL, 0)"), "on"),
        (format!("settle_within({id}, 1, {id}, 0)"), "on"),
        (format!("note({id}, 'ask//1/a/b')"), "on"),
        (
            format!("acquire_one({lives}, 5, 5, 'k', 'create', NULL, false, 0, false)"),
            "on",
        ),
        // Only a place is written.
        (
            format!("acquire_one({lives}, 5, 5, 'k', 'create', NULL, false, 0, true)"),
            "off",
        ),
        ("evict('k2', '')".to_owned(), "on"),
        ("end_due()".to_owned(), "on"),
        ("sweep_page('', 10)".to_owned(), "on"),
        ("forget(10)".to_owned(), "on"),
        (format!("release({id}, 1, '{{k2}}')"), "off"),
        (format!("release_one({id}, 2, 'k3')"), "off"),
        (format!("release_many({id}, '{{3}}', '{{k4}}')"), "off"),
    ] {
        let mut connection = owner().await;
        let text = space.text(&format!(
            "SET synchronous_commit = off; BEGIN; SELECT FROM {{ns}}.{call}; SHOW synchronous_commit"
        ));
        let rows = sqlx::raw_sql(AssertSqlSafe(text))
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let now: &str = rows.last().unwrap().get(0);
        assert_eq!(now, setting, "{call}");
        sqlx::raw_sql("COMMIT")
            .execute(&mut connection)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_namespace_that_is_gone_is_told() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let request = request(session(&backend).await, 1, &["k"]);
    backend.acquire(&request).await.unwrap();
    space.sql("DROP SCHEMA {ns} CASCADE").await;
    let error = backend.acquire(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn nobody_listens_and_somebody_else_pretends_to() {
    // A server that cannot be reached at all.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let url = format!("postgres://me:geheim@127.0.0.1:{port}/d?timeout_ms=300");
    let config = PostgresConfig::parse(&url).unwrap();
    // It takes the connection and says nothing.
    let error = PostgresBackend::connect(config.clone())
        .await
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(socket);
    let error = PostgresBackend::connect(config).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(!format!("{error:?}").contains("geheim"));
}
