//! The rows of sessions: of two requests at once the second sees what the first did, what may not be forgotten is
//! written before it is answered, and whoever frees something tells those who wait.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, ClaimStore, End, Incarnation, Inspect,
    IntentChange, Ranges, Registered, Renewal, Renewed, SessionStore, Stood, Sweep, Wakeups,
};
use lockcore::{
    Claim, ErrorKind, FencingToken, Grant, Intent, Label, Life, LockKey, OwnerId, SessionId, Want,
};
use lockcore_postgres::PostgresBackend;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use tokio::time::timeout;

use support::{Space, owner};

/// The stored number 0.
const ZERO: &str = "-9223372036854775808";
/// The stored number 1.
const ONE: &str = "-9223372036854775807";

fn literal(session: SessionId) -> String {
    format!("decode('{session}', 'hex')")
}

fn renewal(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}

async fn open(backend: &PostgresBackend) -> SessionId {
    let session = SessionId::new(rand::random());
    let label = Label::parse("").unwrap();
    let opened = backend.open(session, &label, Duration::from_secs(60));
    opened.await.unwrap();
    session
}

/// Takes these keys, one grant for each.
async fn take(backend: &PostgresBackend, session: SessionId, keys: &[&str]) -> Vec<Acquire> {
    let mut requests = Vec::new();
    for (n, key) in (1..).zip(keys) {
        let claim = Claim::new(LockKey::parse(*key).unwrap(), Want::Create).unwrap();
        let request = Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim]);
        let answer = backend.acquire(&request).await.unwrap();
        assert!(matches!(answer, Acquired::Acquired(_)), "{answer:?}");
        requests.push(request);
    }
    requests
}

/// Leaves an intent, and is closed.
async fn abandon(backend: &PostgresBackend) -> SessionId {
    let session = open(backend).await;
    let mut registers = renewal(1);
    registers.intent = IntentChange::Put(Registered {
        intent: Intent::new("change").unwrap(),
        token: FencingToken::new(1).unwrap(),
    });
    backend.renew(session, &registers).await.unwrap();
    backend.end(&[session], End::Close).await.unwrap();
    session
}

async fn let_expire(space: &Space, session: SessionId) {
    let id = literal(session);
    let expired = "expires = clock_timestamp() - interval '1 second'";
    let text = format!("UPDATE {{ns}}.sessions SET {expired} WHERE id = {id}");
    space.sql(&text).await;
}

async fn raw(connection: &mut PgConnection, text: String) -> Option<sqlx::postgres::PgRow> {
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection);
    rows.await.unwrap().pop()
}

/// Asks for the one in a transaction that is open while the other is asked for, and is committed as soon as that waits.
async fn behind<T: Send + 'static>(
    space: &Space,
    first: &str,
    then: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut transaction = owner().await;
    let begin = space.text(&format!("BEGIN; SELECT FROM {{ns}}.{first}"));
    raw(&mut transaction, begin).await;
    let own = raw(&mut transaction, "SELECT pg_backend_pid()".to_owned()).await;
    let own: i32 = own.unwrap().get(0);
    let then = tokio::spawn(then);
    let waits = format!("SELECT FROM pg_stat_activity WHERE {own} = ANY (pg_blocking_pids(pid))");
    support::until("somebody waits", async || {
        let waits = !support::sql(waits.clone()).await.is_empty();
        (waits || then.is_finished()).then_some(())
    })
    .await;
    raw(&mut transaction, "COMMIT".to_owned()).await;
    then.await.unwrap()
}

/// Whoever gets what it held has a smaller token than the one that was under way.
#[tokio::test]
async fn a_session_that_is_revoked_while_it_is_granted_more_is_granted_nothing() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    take(&backend, session, &["a"]).await;
    let claim = Claim::new(LockKey::parse("b").unwrap(), Want::Create).unwrap();
    let grant = Grant { session, n: 2 };
    let mut more = Acquire::new(grant, OwnerId { session, m: 1 }, vec![claim]);
    more.joined = true;
    // It has seen its session, and waits for a row that is never there.
    let mut transaction = owner().await;
    let (id, two) = (literal(session), i64::MIN + 2);
    let begin = space.text(&format!(
        "BEGIN; INSERT INTO {{ns}}.holders (key, session, n, m, want, since)
         VALUES ('b', {id}, {two}, {ONE}, 'create', now())"
    ));
    raw(&mut transaction, begin).await;
    let own = raw(&mut transaction, "SELECT pg_backend_pid()".to_owned()).await;
    let own: i32 = own.unwrap().get(0);
    let by = Arc::clone(&backend);
    let asked = tokio::spawn(async move { by.acquire(&more).await.unwrap() });
    let waits = format!("SELECT FROM pg_stat_activity WHERE {own} = ANY (pg_blocking_pids(pid))");
    support::until("it waits", async || {
        (!support::sql(waits.clone()).await.is_empty()).then_some(())
    })
    .await;
    backend.end(&[session], End::Revoke).await.unwrap();
    let other = open(&backend).await;
    take(&backend, other, &["a"]).await;
    raw(&mut transaction, "ROLLBACK".to_owned()).await;
    assert!(matches!(asked.await.unwrap(), Acquired::Void));
}

/// It has a place in line by then.
#[tokio::test]
async fn a_waiting_request_that_fails_after_it_was_refused_is_of_unknown_outcome() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (holds, waits) = (open(&backend).await, open(&backend).await);
    take(&backend, holds, &["k"]).await;
    let_expire(&space, holds).await;
    space
        .sql("ALTER FUNCTION {ns}.end_sessions RENAME TO no_more")
        .await;
    let claim = Claim::new(LockKey::parse("k").unwrap(), Want::Create).unwrap();
    let (grant, owner) = (
        Grant {
            session: waits,
            n: 1,
        },
        OwnerId {
            session: waits,
            m: 1,
        },
    );
    for stays in [true, false] {
        let request = Acquire::new(grant, owner, vec![claim.clone()]);
        let request = if stays { request.waiting() } else { request };
        let error = backend.acquire(&request).await.unwrap_err();
        let unknown = error.kind() == ErrorKind::Indeterminate;
        assert_eq!(unknown, stays, "{error}");
    }
}

/// Between the parts of a statement that is sent in several the program may stand still: its session's row is locked.
#[tokio::test]
async fn what_is_sent_in_parts_is_ended_where_the_program_stands_still() {
    let space = Space::new().await;
    space
        .sql(
            "CREATE TABLE {ns}.seen (setting text);
             CREATE FUNCTION {ns}.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO {ns}.seen VALUES (current_setting('idle_in_transaction_session_timeout'));
                 RETURN NEW;
             END $$;
             CREATE TRIGGER sees BEFORE INSERT ON {ns}.intents FOR EACH ROW EXECUTE FUNCTION {ns}.see()",
        )
        .await;
    let pool = sqlx::PgPool::connect_lazy_with(Space::driver_options());
    let backend = PostgresBackend::from_pool(pool, space.config().pooled());
    abandon(&backend.await.unwrap()).await;
    let seen = space.sql("SELECT setting FROM {ns}.seen").await;
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].get::<&str, _>(0), "20s");
}

/// As for who does not wait for standbys at all: a sweep would, for one that is away.
#[tokio::test]
async fn a_sweep_waits_for_no_standby_where_nothing_does() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    for call in [
        format!("sweep({}, 10)", literal(session)),
        "end_due()".to_owned(),
    ] {
        let_expire(&space, session).await;
        let mut connection = owner().await;
        let text = format!(
            "BEGIN; SET LOCAL synchronous_commit = local; SELECT {{ns}}.{call}; SHOW synchronous_commit"
        );
        let row = raw(&mut connection, space.text(&text)).await.unwrap();
        assert_eq!(row.get::<&str, _>(0), "local", "{call}");
    }
}

/// Whoever waits for what it held is told then, and nobody waits for the rest of the sweep.
#[tokio::test]
async fn a_sweep_ends_who_is_due_in_a_transaction_of_its_own() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let_expire(&space, session).await;
    let mut other = owner().await;
    let text = space.text("BEGIN; LOCK TABLE {ns}.holders IN ACCESS EXCLUSIVE MODE; SELECT 1");
    raw(&mut other, text).await.unwrap();
    let life = format!(
        "SELECT life FROM {{ns}}.sessions WHERE id = {}",
        literal(session)
    );
    let ended = async {
        while space.sql(&life).await[0].get::<&str, _>(0) != "dead" {
            // From one look to the next.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        swept = backend.sweep(Sweep::All, 10) => panic!("{swept:?}"),
        () = ended => {}
    }
}

/// It is granted by then.
#[tokio::test]
async fn a_granted_request_whose_session_cannot_be_looked_at_again_is_of_unknown_outcome() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    space
        .sql("ALTER FUNCTION {ns}.end_sessions RENAME TO no_more")
        .await;
    let claim = Claim::new(LockKey::parse("b").unwrap(), Want::Create).unwrap();
    let grant = Grant { session, n: 2 };
    let mut more = Acquire::new(grant, OwnerId { session, m: 1 }, vec![claim]);
    more.joined = true;
    let error = backend.acquire(&more).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(backend.confirm(grant, &more.claims).await.unwrap());
}

/// One row that somebody has spoilt does not hide the others.
#[tokio::test]
async fn a_session_that_cannot_be_understood_is_listed_as_such() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (spoilt, other) = (open(&backend).await, open(&backend).await);
    let (id, spoils) = (literal(spoilt), "label = E'two\\nlines'");
    let text = format!("UPDATE {{ns}}.sessions SET {spoils} WHERE id = {id}");
    space.sql(&text).await;
    let listed = backend.sessions(None, 10).await.unwrap().items;
    let label = |session| {
        let of = listed.iter().find(|state| state.session == session);
        of.map(|state| state.label.as_str())
    };
    assert_eq!(label(spoilt), Some("unreadable session record"));
    assert_eq!(label(other), Some(""));
}

/// Of one key and of several: they are released by functions of their own.
#[tokio::test]
async fn what_a_newer_version_has_written_is_not_released() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    for (n, keys) in [(1, &["a"][..]), (2, &["b", "c"])] {
        let key = |key: &&str| LockKey::parse(*key).unwrap();
        let claims = keys.iter().map(key);
        let claims: Vec<Claim> = claims
            .map(|key| Claim::new(key, Want::Create).unwrap())
            .collect();
        let request = Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims);
        let answer = backend.acquire(&request).await.unwrap();
        assert!(matches!(answer, Acquired::Acquired(_)), "{answer:?}");
        let one = keys[0];
        let changes = format!("UPDATE {{ns}}.holders SET want = 'later' WHERE key = '{one}'");
        space.sql(&changes).await;
        let released = backend.release(request.grant, &request.claims).await;
        assert_eq!(released.unwrap(), Stood::Absent, "{keys:?}");
        let left = space.sql("SELECT key FROM {ns}.holders ORDER BY key").await;
        let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
        assert_eq!(left.last().map(String::as_str), Some(one), "{left:?}");
        assert_eq!(left.len(), usize::try_from(n).unwrap(), "{left:?}");
    }
}

/// The later one sees the grant's row locked by the earlier one, as if somebody confirmed it.
#[tokio::test]
async fn what_a_renewal_has_retired_stays_so_behind_it() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    take(&backend, session, &["k"]).await;
    let id = literal(session);
    let mut confirms = owner().await;
    let locks = format!("BEGIN; SELECT FROM {{ns}}.sessions WHERE id = {id} FOR KEY SHARE");
    raw(&mut confirms, space.text(&locks)).await;
    let earlier =
        format!("renew({id}, {ONE}, {ZERO}, '{{[{ONE},{ONE}]}}', 'keep', 0, '', 0, '{{}}')");
    let later = Renewal::new(2, Ranges::of([1]), IntentChange::Keep);
    let renews = Arc::clone(&backend);
    let renewed = behind(&space, &earlier, async move {
        renews.renew(session, &later).await.unwrap()
    });
    assert!(renewed.await.is_living());
    let retired = format!("SELECT over @> {ONE} FROM {{ns}}.sessions WHERE id = {id}");
    let retired: bool = space.sql(&retired).await[0].get(0);
    assert!(retired, "who has been let in meanwhile holds it, too");
}

/// On a connection that sets no time for it.
#[tokio::test]
async fn no_release_waits_for_a_lock_until_its_client_has_gone() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    take(&backend, session, &["k"]).await;
    let mut locks = owner().await;
    let rows = space.text("BEGIN; SELECT FROM {ns}.holders FOR UPDATE");
    raw(&mut locks, rows).await;
    let id = literal(session);
    let waits = [
        "release_one({id}, {ONE}, 'k')",
        "release({id}, {ONE}, '{k}')",
    ];
    let waits = waits.map(|call| {
        let call = call.replace("{id}", &id).replace("{ONE}", ONE);
        let text = format!("SET lock_timeout = 0; SELECT {{ns}}.{call}");
        let text = text.replace("'{k}'", "ARRAY['k']");
        let text = space.text(&text);
        async move {
            let mut connection = owner().await;
            let released = sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut connection);
            let released = timeout(Duration::from_secs(20), released).await;
            let error = released.expect("it waits for some seconds").unwrap_err();
            error
                .as_database_error()
                .unwrap()
                .code()
                .unwrap()
                .into_owned()
        }
    });
    let [one, several] = waits;
    let (one, several) = tokio::join!(one, several);
    assert_eq!((one.as_str(), several.as_str()), ("55P03", "55P03"));
}

#[tokio::test]
async fn of_two_adopters_at_once_one_has_it() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let left = abandon(&backend).await;
    let (one, two) = (open(&backend).await, open(&backend).await);
    let first = format!(
        "adopt_within({}, {ZERO}, {}, 0)",
        literal(left),
        literal(one)
    );
    let second = Arc::clone(&backend);
    let second = async move {
        second
            .adopt(left, 0, two, Adopt::Take, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .adoption()
    };
    assert_eq!(behind(&space, &first, second).await, None);
    let state = &backend.end(&[left], End::IfDue).await.unwrap()[0];
    assert_eq!(state.adopter, Some(one));
}

#[tokio::test]
async fn what_is_being_given_up_is_not_settled() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let left = abandon(&backend).await;
    let adopter = open(&backend).await;
    let adopted = backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption();
    assert_eq!(adopted.unwrap().number, 1);
    let first = format!(
        "give_up_within({}, {ZERO}, {}, 0)",
        literal(left),
        literal(adopter)
    );
    let second = Arc::clone(&backend);
    let second = async move {
        second
            .settle(left, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    };
    assert!(!behind(&space, &first, second).await);
    let state = &backend.end(&[left], End::IfDue).await.unwrap()[0];
    assert_eq!((state.life, state.adoption), (Life::Abandoned, 2));
}

#[tokio::test]
async fn what_is_being_settled_is_not_discarded() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let left = abandon(&backend).await;
    let adopter = open(&backend).await;
    backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap();
    let first = format!(
        "settle_within({}, {ONE}, {}, 0)",
        literal(left),
        literal(adopter)
    );
    let second = Arc::clone(&backend);
    let second = async move { second.end(&[left], End::Discard).await.unwrap() };
    let state = &behind(&space, &first, second).await[0];
    assert_eq!((state.life, state.adoption), (Life::Dead, 1));
    assert!(
        backend
            .settle(left, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled(),
        "it stays settled"
    );
}

#[tokio::test]
async fn what_is_being_renewed_is_not_due() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let_expire(&space, session).await;
    let first = format!(
        "renew({}, {ONE}, {ZERO}, '{{}}', 'keep', 0, '', 0, '{{}}')",
        literal(session)
    );
    let second = Arc::clone(&backend);
    let second = async move { second.end(&[session], End::IfDue).await.unwrap() };
    let state = &behind(&space, &first, second).await[0];
    assert_eq!(state.life, Life::Living);
    let renewed = backend.renew(session, &renewal(2)).await.unwrap();
    assert_eq!(renewed, Renewed::Living);
}

#[tokio::test]
async fn what_is_being_renewed_is_not_due_for_a_sweep_of_all() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let_expire(&space, session).await;
    let first = format!(
        "renew({}, {ONE}, {ZERO}, '{{}}', 'keep', 0, '', 0, '{{}}')",
        literal(session)
    );
    let second = Arc::clone(&backend);
    let second = async move { second.sweep(Sweep::All, 100).await.unwrap() };
    behind(&space, &first, second).await;
    let renewed = backend.renew(session, &renewal(2)).await.unwrap();
    assert_eq!(renewed, Renewed::Living);
}

#[tokio::test]
async fn a_sweep_passes_by_what_somebody_has_locked() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    take(&backend, session, &["a", "b"]).await;
    backend.end(&[session], End::Close).await.unwrap();
    let mut transaction = owner().await;
    let lock = "BEGIN; SELECT FROM {ns}.holders WHERE key = 'a' FOR UPDATE";
    raw(&mut transaction, space.text(lock)).await;
    let sweep = || backend.sweep(Sweep::Session(session), 100);
    assert_eq!(sweep().await.unwrap().removed, 1);
    raw(&mut transaction, "COMMIT".to_owned()).await;
    assert_eq!(sweep().await.unwrap().removed, 1);
}

#[tokio::test]
async fn what_may_not_be_forgotten_is_written_before_it_is_answered() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (lives, adopter, dead) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    let (left, settled) = (abandon(&backend).await, abandon(&backend).await);
    take(&backend, lives, &["k"]).await;
    backend.end(&[dead], End::Close).await.unwrap();
    backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap();
    backend
        .adopt(settled, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap();
    assert!(
        backend
            .settle(settled, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    let [lives, adopter, dead, left, settled] = [lives, adopter, dead, left, settled].map(literal);
    // Who writes, or locks a row, has a number, and its commit waits for the disk and for the standbys.
    for (call, writes) in [
        (format!("end_sessions(ARRAY[{lives}], 'due')"), false),
        (
            format!("confirm({lives}, {ONE}, '{{k}}', '{{create}}')"),
            true,
        ),
        (format!("end_sessions(ARRAY[{dead}], 'due')"), true),
        (format!("end_sessions(ARRAY[{dead}], 'close')"), true),
        (format!("end_sessions(ARRAY[{left}], 'due')"), true),
        (format!("end_sessions(ARRAY[{left}], 'revoke')"), true),
        (format!("adopt_within({left}, {ZERO}, {adopter}, 0)"), true),
        (
            format!("settle_within({settled}, {ONE}, {adopter}, 0)"),
            true,
        ),
    ] {
        let mut connection = owner().await;
        let asked = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL";
        let text = space.text(&format!("BEGIN; SELECT FROM {{ns}}.{call}; {asked}"));
        let row = raw(&mut connection, text).await.unwrap();
        assert_eq!(row.get::<bool, _>(0), writes, "{call}");
    }
}

#[tokio::test]
async fn a_death_is_of_one_time_and_leaves_no_intent() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (dead, left) = (open(&backend).await, abandon(&backend).await);
    backend.end(&[dead], End::Close).await.unwrap();
    let stored = async |session| {
        let text = format!(
            "SELECT s::text FROM {{ns}}.sessions s WHERE id = {}",
            literal(session)
        );
        space.sql(&text).await[0].get::<String, _>(0)
    };
    for session in [dead, left] {
        let before = stored(session).await;
        for how in [End::IfDue, End::Close, End::Revoke] {
            backend.end(&[session], how).await.unwrap();
            assert_eq!(stored(session).await, before, "{how:?}");
        }
    }
    let before = stored(dead).await;
    backend.end(&[dead], End::Discard).await.unwrap();
    assert_eq!(stored(dead).await, before);
    let intents = async || space.sql("SELECT FROM {ns}.intents").await.len();
    assert_eq!(intents().await, 1);
    let state = &backend.end(&[left], End::Discard).await.unwrap()[0];
    assert_eq!((state.life, intents().await), (Life::Dead, 0));
    let (settled, adopter) = (abandon(&backend).await, open(&backend).await);
    let take = backend.adopt(settled, 0, adopter, Adopt::Take, Incarnation::UNKNOWN);
    assert_eq!(take.await.unwrap().adoption().unwrap().number, 1);
    assert_eq!(intents().await, 1);
    assert!(
        backend
            .settle(settled, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    assert_eq!(intents().await, 0);
    let dated = "SELECT FROM {ns}.sessions WHERE life = 'dead' AND ended <= clock_timestamp()";
    assert_eq!(space.sql(dated).await.len(), 3);
}

#[tokio::test]
async fn a_session_that_was_never_opened_is_ended_by_two_at_once() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let never = SessionId::new(rand::random());
    let first = format!("end_sessions(ARRAY[{}], 'due')", literal(never));
    let second = Arc::clone(&backend);
    let second = async move { second.end(&[never], End::IfDue).await.unwrap() };
    let state = &behind(&space, &first, second).await[0];
    assert_eq!((state.session, state.life), (never, Life::Dead));
}

#[tokio::test]
async fn a_session_that_is_due_is_not_confirmed() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let held = take(&backend, session, &["k"]).await.remove(0);
    let_expire(&space, session).await;
    assert!(!backend.confirm(held.grant, &held.claims).await.unwrap());
    let renewed = backend.renew(session, &renewal(1)).await.unwrap();
    assert_eq!(
        renewed,
        Renewed::Dead,
        "whoever is told so is told for good"
    );
}

#[tokio::test]
async fn a_settlement_sent_again_changes_nothing() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (left, adopter) = (abandon(&backend).await, open(&backend).await);
    backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap();
    assert!(
        backend
            .settle(left, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    let stored = async || -> Vec<String> {
        let rows = space.sql("SELECT s::text FROM {ns}.sessions s ORDER BY id");
        rows.await.iter().map(|row| row.get(0)).collect()
    };
    let before = stored().await;
    assert!(
        backend
            .settle(left, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    assert_eq!(stored().await, before);
}

#[tokio::test]
async fn a_session_that_lives_is_not_settled_whatever_its_row_says() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (session, adopter) = (open(&backend).await, open(&backend).await);
    let [id, by] = [session, adopter].map(literal);
    let text =
        format!("UPDATE {{ns}}.sessions SET adoption = {ONE}, adopter = {by} WHERE id = {id}");
    space.sql(&text).await;
    assert!(
        !backend
            .settle(session, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    let state = &backend.end(&[session], End::IfDue).await.unwrap()[0];
    assert_eq!(state.life, Life::Living);
}

#[tokio::test]
async fn behind_the_last_adoption_number_there_is_none() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (left, adopter) = (abandon(&backend).await, open(&backend).await);
    let [id, by] = [left, adopter].map(literal);
    let last = "9223372036854775807";
    let text = format!("UPDATE {{ns}}.sessions SET adoption = {last} WHERE id = {id}");
    space.sql(&text).await;
    let adopted = format!("SELECT FROM {{ns}}.adopt_within({id}, {last}, {by}, 0)");
    assert!(space.sql(&adopted).await.is_empty());
}

#[tokio::test]
async fn an_intent_that_is_gone_is_told() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let left = abandon(&backend).await;
    let adopter = open(&backend).await;
    space.sql("DELETE FROM {ns}.intents").await;
    let error = backend
        .adopt(left, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .map(Adopted::adoption);
    assert_eq!(error.unwrap_err().kind(), lockcore::ErrorKind::Corrupt);
    let state = &backend.end(&[left], End::IfDue).await.unwrap()[0];
    assert_eq!((state.adoption, state.adopter), (0, None));
}

async fn is_told(what: &str, changed: Changed) {
    let told = timeout(Duration::from_secs(10), changed).await;
    assert!(told.is_ok(), "{what}");
}

async fn sleeps(what: &str, changed: &mut Changed) {
    let slept = timeout(Duration::from_millis(300), changed).await;
    assert!(slept.is_err(), "{what}");
}

#[tokio::test]
async fn a_death_on_the_way_is_told() {
    let space = Space::new().await;
    let backend = space.connect().await;
    for what in ["sweep", "sweep all"] {
        let session = open(&backend).await;
        let held = take(&backend, session, &[what]).await;
        let mut changed = backend.watch(&held[0].claims).await.unwrap();
        let_expire(&space, session).await;
        sleeps(what, &mut changed).await;
        let which = match what {
            "sweep" => Sweep::Session(session),
            _ => Sweep::All,
        };
        backend.sweep(which, 100).await.unwrap();
        is_told(what, changed).await;
    }
}

#[tokio::test]
async fn a_look_at_a_session_tells_nobody_unless_it_has_none() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let held = take(&backend, session, &["k"]).await;
    let mut changed = backend.watch(&held[0].claims).await.unwrap();
    backend.end(&[session], End::IfDue).await.unwrap();
    sleeps("it lives", &mut changed).await;
    // Somebody has removed the row; it is dead from now on.
    let text = format!(
        "DELETE FROM {{ns}}.sessions WHERE id = {}",
        literal(session)
    );
    space.sql(&text).await;
    backend.end(&[session], End::IfDue).await.unwrap();
    is_told("it has no row", changed).await;
}

#[tokio::test]
async fn a_renewal_tells_what_it_says_to_be_over() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let held = take(&backend, session, &["k"]).await;
    let mut changed = backend.watch(&held[0].claims).await.unwrap();
    backend.renew(session, &renewal(1)).await.unwrap();
    sleeps("nothing is over", &mut changed).await;
    let retired = |seq| {
        let mut retired = renewal(seq);
        retired.retired = Ranges::new(vec![(1, 1)]).unwrap();
        retired
    };
    backend.renew(session, &retired(2)).await.unwrap();
    is_told("the grant is over", changed).await;
    let mut changed = backend.watch(&held[0].claims).await.unwrap();
    backend.renew(session, &retired(3)).await.unwrap();
    sleeps("it was over before", &mut changed).await;
}

/// Each renewal says what was released since the one before: whoever released it has told that.
#[tokio::test]
async fn a_renewal_tells_nobody_of_what_was_released() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let held = take(&backend, session, &["released", "held"]).await;
    let [released, held] = &held[..] else {
        unreachable!()
    };
    backend
        .release(released.grant, &released.claims)
        .await
        .unwrap();
    let mut changed = backend.watch(&held.claims).await.unwrap();
    let mut retires = renewal(1);
    retires.retired = Ranges::of([released.grant.n]);
    backend.renew(session, &retires).await.unwrap();
    sleeps("nothing is free that was not", &mut changed).await;
}
