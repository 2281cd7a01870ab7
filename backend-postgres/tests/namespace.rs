//! The namespace's schema: made once, kept apart from others, and who may do what with it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::time::{Duration, UNIX_EPOCH};

use lockcore::backend::{
    Acquire, Acquired, ClaimStore, IntentChange, Namespace, Ranges, Renewal, SessionStore,
};
use lockcore::{
    Claim, ErrorKind, FencingToken, Grant, Label, LockBackend, LockKey, Note, NoteKind, Operation,
    OwnerId, SessionId, Want,
};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use support::{ROLE, Space, owner, server, server_for_role, sql, until};

fn unused() -> Namespace {
    Namespace::parse(&format!("test-{:016x}", rand::random::<u64>())).unwrap()
}

fn config(namespace: &Namespace) -> PostgresConfig {
    PostgresConfig::parse(&server())
        .unwrap()
        .namespace(namespace.clone())
}

async fn drop_schema(namespace: &Namespace) {
    sql(format!("DROP SCHEMA IF EXISTS \"{namespace}\" CASCADE")).await;
}

async fn refused(config: PostgresConfig, kind: ErrorKind, says: &str) {
    let error = PostgresBackend::connect(config)
        .await
        .expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

async fn grant(backend: &PostgresBackend) -> FencingToken {
    let session = SessionId::new(rand::random());
    let label = Label::parse("test").unwrap();
    backend
        .open(session, &label, Duration::from_secs(30))
        .await
        .unwrap();
    let request = Acquire::new(
        Grant { session, n: 1 },
        OwnerId { session, m: 1 },
        vec![Claim::new(LockKey::parse("k").unwrap(), Want::Create).unwrap()],
    );
    match backend.acquire(&request).await.unwrap() {
        Acquired::Acquired(token) => {
            backend
                .release(request.grant, &request.claims)
                .await
                .unwrap();
            token
        }
        answer => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn several_processes_make_it_at_once() {
    let namespace = unused();
    let all = (0..8).map(|_| tokio::spawn(PostgresBackend::connect(config(&namespace))));
    for one in all.collect::<Vec<_>>() {
        grant(&one.await.unwrap().unwrap()).await;
    }
    drop_schema(&namespace).await;
}

#[tokio::test]
async fn a_schema_with_something_else_is_refused_and_an_empty_one_is_used() {
    let namespace = unused();
    sql(format!("CREATE SCHEMA \"{namespace}\"")).await;
    for (kind, made) in [
        ("TABLE", "x ()"),
        ("DOMAIN", "x AS text"),
        ("FUNCTION", "x() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    ] {
        sql(format!("CREATE {kind} \"{namespace}\".{made}")).await;
        refused(
            config(&namespace),
            ErrorKind::Config,
            "holds something else",
        )
        .await;
        sql(format!("DROP {kind} \"{namespace}\".x")).await;
    }
    grant(&PostgresBackend::connect(config(&namespace)).await.unwrap()).await;
    drop_schema(&namespace).await;
}

/// A function of ours has the same name.
#[tokio::test]
async fn a_schema_of_another_program_is_not_removed() {
    let namespace = unused();
    sql(format!(
        "CREATE SCHEMA \"{namespace}\";
         CREATE FUNCTION \"{namespace}\".about() RETURNS text LANGUAGE sql AS $$SELECT 'theirs'$$;
         CREATE TABLE \"{namespace}\".theirs ()"
    ))
    .await;
    let removed = PostgresBackend::remove(config(&namespace)).await;
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Config);
    refused(
        config(&namespace),
        ErrorKind::Config,
        "holds something else",
    )
    .await;
    sql(format!("SELECT FROM \"{namespace}\".theirs")).await;
    drop_schema(&namespace).await;
}

#[tokio::test]
async fn a_newer_version_is_refused() {
    let space = Space::new().await;
    space.sql("UPDATE {ns}.meta SET version = 4").await;
    refused(space.config(), ErrorKind::Config, "update the program").await;
}

/// Makes it look like one of version 2, whose programs take whoever waits for a holder.
const VERSION_2: &str = "UPDATE {ns}.meta SET version = 2;
                         ALTER FUNCTION {ns}.begin_session(bytea, text, bigint) RENAME TO open_session;
                         COMMENT ON FUNCTION {ns}.about() IS 'lockkeeper 0.1.0 0'";

#[tokio::test]
async fn an_older_version_is_refused_and_not_changed() {
    let space = Space::new().await;
    let living = space.connect().await;
    let namespace = Namespace::parse(&space.namespace).unwrap();
    space.sql(VERSION_2).await;
    let before = functions(&space.namespace).await;
    // By who may change it, and by who may only use it.
    for config in [config(&namespace), space.config()] {
        refused(config, ErrorKind::Config, "use another namespace").await;
    }
    let error = PostgresBackend::init(config(&namespace), &[ROLE]).await;
    let error = error.expect_err("it is refused");
    assert!(error.to_string().contains("version 2"), "{error}");
    assert_eq!(functions(&space.namespace).await, before);
    let about = "SELECT m.version, obj_description('{ns}.about()'::regprocedure) FROM {ns}.meta m";
    let rows = space.sql(about).await;
    assert_eq!(rows[0].get::<i32, _>(0), 2);
    assert_eq!(rows[0].get::<&str, _>(1), "lockkeeper 0.1.0 0");
    // Nor is it used by who was connected before a program of that version made it anew.
    let label = Label::parse("test").unwrap();
    let opened = living.open(SessionId::new(9), &label, Duration::from_secs(30));
    let error = opened.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("another version"), "{error}");
    PostgresBackend::remove(config(&namespace)).await.unwrap();
    grant(&PostgresBackend::connect(config(&namespace)).await.unwrap()).await;
}

/// Of each function its name, its owner, and a sum of what it says.
async fn functions(namespace: &str) -> Vec<(String, String, String)> {
    let text = format!(
        "SELECT proname::text, pg_get_userbyid(proowner)::text, md5(prosrc || coalesce(proconfig::text, ''))
         FROM pg_proc WHERE pronamespace = '\"{namespace}\"'::regnamespace ORDER BY proname, pronargs"
    );
    let rows = sql(text).await;
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

/// As a program left it that had not all of them yet.
const OLDER: &str =
    "CREATE OR REPLACE FUNCTION {ns}.tell_owner(p_session bytea) RETURNS void LANGUAGE sql AS
                     'SELECT'; COMMENT ON FUNCTION {ns}.about() IS ";

#[tokio::test]
async fn functions_of_an_older_program_are_replaced_by_who_may_while_others_use_them() {
    let space = Space::new().await;
    let namespace = Namespace::parse(&space.namespace).unwrap();
    let ours = functions(&space.namespace).await;
    let living = space.connect().await;
    let session = SessionId::new(7);
    let label = Label::parse("").unwrap();
    let opened = living.open(session, &label, Duration::from_secs(60));
    opened.await.unwrap();
    let mut seq = 0;
    let note = Note::new(NoteKind::Revoke, label.clone(), label.clone(), UNIX_EPOCH);
    for older in ["NULL", "'something'", "'lockkeeper 0.0.1 0'"] {
        let drop = "; DROP FUNCTION {ns}.note(bytea, text)";
        space.sql(&format!("{OLDER}{older}{drop}")).await;
        let says = "PostgresBackend::init";
        refused(space.config(), ErrorKind::Unauthorized, says).await;
        let all = (0..4).map(|_| tokio::spawn(PostgresBackend::connect(config(&namespace))));
        let all: Vec<_> = all.collect();
        let at_once = async {
            for one in all {
                grant(&one.await.unwrap().unwrap()).await;
            }
        };
        let meanwhile = async {
            loop {
                seq += 1;
                let renewal = Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep);
                let renewed = living.renew(session, &renewal).await;
                assert!(renewed.unwrap().is_living(), "{older}");
            }
        };
        tokio::select! {
            () = at_once => {}
            () = meanwhile => {}
        }
        assert_eq!(functions(&space.namespace).await, ours, "{older}");
        // Who could call them can call those that are new, too.
        assert!(living.note(session, &note).await.unwrap(), "{older}");
        grant(&living).await;
        space.connect().await;
    }
}

#[tokio::test]
async fn functions_are_left_as_they_are_by_who_may_not_and_by_an_older_program() {
    let space = Space::new().await;
    let namespace = Namespace::parse(&space.namespace).unwrap();
    space.sql(&format!("{OLDER}NULL")).await;
    let older = functions(&space.namespace).await;
    // Nothing is missing that it calls.
    grant(&*space.connect().await).await;
    assert_eq!(functions(&space.namespace).await, older);
    space.sql(&format!("{OLDER}'lockkeeper 999.0.0 0'")).await;
    grant(&PostgresBackend::connect(config(&namespace)).await.unwrap()).await;
    assert_eq!(functions(&space.namespace).await, older);
}

/// Programs make them one after the other.
const ONE_AT_A_TIME: i64 = 0x6c6f_636b_6b65_6570;

/// Both have seen those of a third one, and the other one was first.
#[tokio::test]
async fn functions_of_a_newer_program_stay_that_came_meanwhile() {
    let space = Space::new().await;
    let namespace = Namespace::parse(&space.namespace).unwrap();
    let said = "SELECT obj_description('{ns}.about()'::regprocedure, 'pg_proc')";
    let said = async || -> String { space.sql(said).await[0].get(0) };
    let ours = said().await;
    for (other, then) in [
        ("lockkeeper 0.0.2 0", ours.as_str()),
        ("lockkeeper 999.0.0 0", "lockkeeper 999.0.0 0"),
    ] {
        space.sql(&format!("{OLDER}'lockkeeper 0.0.1 0'")).await;
        let mut first = owner().await;
        let begins = format!("BEGIN; SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})");
        let begins = sqlx::raw_sql(AssertSqlSafe(begins));
        begins.execute(&mut first).await.unwrap();
        let name = format!("waits_{:016x}", rand::random::<u64>());
        let and = if server().contains('?') { '&' } else { '?' };
        let url = format!("{}{and}application_name={name}", server());
        let waiting = PostgresConfig::parse(&url).unwrap();
        let waiting = waiting.namespace(namespace.clone());
        let waiting = tokio::spawn(PostgresBackend::connect(waiting));
        let waits = format!(
            "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE a.application_name = '{name}' AND l.locktype = 'advisory' AND NOT l.granted"
        );
        until("it waits for the first one", async || {
            (!sql(waits.as_str()).await.is_empty()).then_some(())
        })
        .await;
        let replaced = space.text(&format!("{OLDER}'{other}'; COMMIT"));
        let replaced = sqlx::raw_sql(AssertSqlSafe(replaced));
        replaced.execute(&mut first).await.unwrap();
        grant(&waiting.await.unwrap().unwrap()).await;
        assert_eq!(said().await, then);
    }
}

#[tokio::test]
async fn functions_stay_their_owners_whoever_replaces_them() {
    let (namespace, maker) = (unused(), format!("maker_{:016x}", rand::random::<u64>()));
    let on_database = |what: &str| {
        format!("DO $$ BEGIN EXECUTE format('{what}', current_database(), '{maker}'); END $$")
    };
    sql(format!("CREATE ROLE {maker} LOGIN PASSWORD 'x'")).await;
    sql(on_database("GRANT CREATE ON DATABASE %I TO %I")).await;
    let url = server_for_role().replace(
        &format!("{ROLE}:{}", support::PASSWORD),
        &format!("{maker}:x"),
    );
    let theirs = PostgresConfig::parse(&url).unwrap();
    let theirs = theirs.namespace(namespace.clone());
    PostgresBackend::connect(theirs).await.unwrap();
    let made = functions(namespace.as_str()).await;
    assert!(made.iter().all(|(_, owner, _)| *owner == maker));
    let text = format!("{OLDER}NULL; DROP FUNCTION {{ns}}.note(bytea, text)");
    sql(text.replace("{ns}", &format!("\"{namespace}\""))).await;
    grant(&PostgresBackend::connect(config(&namespace)).await.unwrap()).await;
    assert_eq!(functions(namespace.as_str()).await, made);
    drop_schema(&namespace).await;
    sql(on_database("REVOKE CREATE ON DATABASE %I FROM %I")).await;
    sql(format!("DROP ROLE {maker}")).await;
}

#[tokio::test]
async fn a_name_of_the_servers_own_is_refused() {
    let namespace = Namespace::parse("pg_locks").unwrap();
    refused(config(&namespace), ErrorKind::Config, "begin with pg_").await;
}

#[tokio::test]
async fn a_database_that_is_not_in_utf_8_is_refused() {
    let name = format!("ascii_{:016x}", rand::random::<u64>());
    sql(format!(
        "CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0"
    ))
    .await;
    let url = server();
    let (address, _) = url.rsplit_once('/').unwrap();
    let config = PostgresConfig::parse(&format!("{address}/{name}")).unwrap();
    refused(config, ErrorKind::Config, "ENCODING 'UTF8'").await;
    sql(format!("DROP DATABASE {name}")).await;
}

#[tokio::test]
async fn tokens_rise_when_it_is_made_anew() {
    let namespace = unused();
    let mut last = None;
    for _ in 0..3 {
        let backend = PostgresBackend::connect(config(&namespace)).await.unwrap();
        for _ in 0..3 {
            let token = Some(grant(&backend).await);
            assert!(token > last, "{token:?} after {last:?}");
            last = token;
        }
        drop_schema(&namespace).await;
    }
}

#[tokio::test]
async fn a_namespace_is_removed_and_its_neighbour_is_not() {
    let namespace = unused();
    let neighbour = Namespace::parse(&format!("{namespace}_")).unwrap();
    let backend = PostgresBackend::connect(config(&namespace)).await.unwrap();
    let other = PostgresBackend::connect(config(&neighbour)).await.unwrap();
    grant(&backend).await;
    let schemas = async || {
        let text =
            format!("SELECT nspname::text FROM pg_namespace WHERE nspname LIKE '{namespace}%'");
        let rows = sql(text).await;
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    assert_eq!(schemas().await.len(), 2);
    for _ in 0..2 {
        PostgresBackend::remove(config(&namespace)).await.unwrap();
        assert_eq!(schemas().await, [neighbour.as_str()]);
    }
    let label = Label::parse("").unwrap();
    let opened = backend.open(SessionId::new(7), &label, Duration::from_secs(30));
    opened.await.expect_err("it is gone");
    grant(&other).await;
    PostgresBackend::remove(config(&neighbour)).await.unwrap();
}

#[tokio::test]
async fn what_may_not_be_removed_stays() {
    let space = Space::new().await;
    let error = PostgresBackend::remove(space.config()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    assert_eq!(error.operation(), Operation::Remove);
    grant(space.connect().await.as_ref()).await;

    // Somebody reads a table of it.
    let mut reader = owner().await;
    let text = space.text("BEGIN; SELECT FROM {ns}.meta");
    let text = sqlx::AssertSqlSafe(text);
    sqlx::raw_sql(text).execute(&mut reader).await.unwrap();
    let namespace = Namespace::parse(&space.namespace).unwrap();
    let impatient = config(&namespace).timeout(Duration::from_secs(2));
    let error = PostgresBackend::remove(impatient).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    reader.close().await.unwrap();
    grant(space.connect().await.as_ref()).await;

    let other = unused();
    sql(format!(
        "CREATE SCHEMA \"{other}\"; CREATE TABLE \"{other}\".x ()"
    ))
    .await;
    let error = PostgresBackend::remove(config(&other)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    sql(format!("SELECT * FROM \"{other}\".x")).await;
    drop_schema(&other).await;
}

#[tokio::test]
async fn a_vacuum_takes_no_table_from_its_users_to_make_it_shorter() {
    let space = Space::new().await;
    let length = async || {
        let rows = space.sql("SELECT pg_relation_size('{ns}.holders')").await;
        rows[0].get::<i64, _>(0)
    };
    space
        .sql(
            "INSERT INTO {ns}.holders
             SELECT 'k' || n, decode(repeat('00', 16), 'hex'), n, 1, 'create', now() FROM generate_series(1, 10000) n",
        )
        .await;
    let full = length().await;
    assert!(full > 100 * 8_192, "{full}");
    space.sql("DELETE FROM {ns}.holders").await;
    space.sql("VACUUM {ns}.holders").await;
    assert_eq!(length().await, full);
}

#[tokio::test]
async fn two_namespaces_do_not_meet() {
    let (one, two) = (Space::new().await, Space::new().await);
    let (one, two) = (one.connect().await, two.connect().await);
    for backend in [&one, &two] {
        let session = SessionId::new(7);
        let label = Label::parse("").unwrap();
        backend
            .open(session, &label, Duration::from_secs(30))
            .await
            .unwrap();
        let request = Acquire::new(
            Grant { session, n: 1 },
            OwnerId { session, m: 1 },
            vec![Claim::new(LockKey::parse("k").unwrap(), Want::Create).unwrap()],
        );
        let answer = backend.acquire(&request).await.unwrap();
        assert!(matches!(answer, Acquired::Acquired(_)));
    }
}

#[tokio::test]
async fn a_role_without_rights_makes_and_uses_nothing() {
    let space = Space::new().await;
    let namespace = unused();
    let role = PostgresConfig::parse(&server_for_role()).unwrap();
    refused(
        role.namespace(namespace.clone()),
        ErrorKind::Unauthorized,
        "PostgresBackend::init",
    )
    .await;
    let stranger = format!("stranger_{:016x}", rand::random::<u64>());
    sql(format!("CREATE ROLE {stranger} LOGIN PASSWORD 'x'")).await;
    let url = space.url().replace(
        &format!("{ROLE}:{}", support::PASSWORD),
        &format!("{stranger}:x"),
    );
    refused(
        PostgresConfig::parse(&url).unwrap(),
        ErrorKind::Unauthorized,
        "a right is missing",
    )
    .await;
    sql(format!("DROP ROLE {stranger}")).await;
}

#[tokio::test]
async fn the_least_rights_open_no_table() {
    let space = Space::new().await;
    let mut connection = PgConnection::connect(&server_for_role()).await.unwrap();
    for statement in [
        "SELECT * FROM {ns}.holders",
        "INSERT INTO {ns}.sessions DEFAULT VALUES",
        "UPDATE {ns}.meta SET version = 0",
        "DELETE FROM {ns}.intents",
        "TRUNCATE {ns}.waiters",
        "SELECT nextval('{ns}.token')",
        "SELECT setval('{ns}.token', 1)",
        "SELECT {ns}.next_token()",
        "SELECT {ns}.wake_all()",
        "SELECT {ns}.wake('{}')",
        "SELECT {ns}.sweep_session('', 1)",
        "DROP SCHEMA {ns} CASCADE",
        "CREATE TABLE {ns}.x ()",
    ] {
        let text = sqlx::AssertSqlSafe(space.text(statement));
        let error = sqlx::raw_sql(text)
            .execute(&mut connection)
            .await
            .unwrap_err();
        let code = error
            .as_database_error()
            .and_then(|error| error.code())
            .unwrap();
        assert_eq!(code, "42501", "{statement}: {error}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_repeated() {
    let url = server_for_role().replace(support::PASSWORD, "verkehrt");
    let error = PostgresBackend::connect(PostgresConfig::parse(&url).unwrap()).await;
    let error = error.expect_err("nobody is let in");
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    assert!(!format!("{error} {error:?}").contains("verkehrt"));
}

#[tokio::test]
async fn what_the_settings_promise_is_told() {
    let space = Space::new().await;
    let info = space.connect().await.info();
    let mut connection = owner().await;
    let setting = async |connection: &mut PgConnection, name: &str| -> String {
        let text = sqlx::AssertSqlSafe(format!("SHOW {name}"));
        sqlx::raw_sql(text)
            .fetch_one(connection)
            .await
            .unwrap()
            .get(0)
    };
    assert!(info.durability.crash);
    assert_eq!(
        info.durability.power_loss,
        setting(&mut connection, "fsync").await == "on"
    );
    assert!(info.poll.is_none() && info.atomic);
    assert!(info.keys_per_batch <= 1_000);
}
