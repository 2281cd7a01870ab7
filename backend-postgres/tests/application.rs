//! Locks beside the application's own rows: a stale holder's write is refused, by its token or with its transaction.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use lockcore::backend::{Acquire, Acquired, ClaimStore, End, SessionStore};
use lockcore::{
    Claim, ErrorKind, FencingToken, Grant, Label, LockKey, Locks, Note, NoteKind, OwnerId,
    Released, SessionId, Want,
};
use lockcore_postgres::PostgresBackend;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use support::{ROLE, Space};

/// An account with 100, in the namespace's schema only because that is removed in the end.
struct Bank {
    space: Space,
    pool: PgPool,
}

impl Bank {
    async fn new() -> Self {
        let space = Space::new().await;
        space
            .sql(&format!(
                "CREATE TABLE {{ns}}.account (id integer, balance bigint, token bigint);
                 INSERT INTO {{ns}}.account VALUES (1, 100, 0);
                 GRANT SELECT, UPDATE ON {{ns}}.account TO {ROLE}"
            ))
            .await;
        let pool = PgPoolOptions::new().connect_lazy_with(Space::driver_options());
        Self { space, pool }
    }

    /// A client of the locks that uses the application's pool.
    async fn client(&self) -> (Arc<PostgresBackend>, Locks) {
        let backend = PostgresBackend::from_pool(self.pool.clone(), self.space.config()).await;
        let backend = backend.unwrap();
        let locks = Locks::builder(backend.clone())
            .ttl(Duration::from_secs(2))
            .build();
        (backend, locks.unwrap())
    }

    fn text(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(self.space.text(text))
    }

    async fn balance(&self) -> i64 {
        let rows = self.space.sql("SELECT balance FROM {ns}.account").await;
        rows[0].get(0)
    }

    /// Whether it was written: a later holder may have been here.
    async fn set_balance(&self, balance: i64, token: FencingToken) -> bool {
        let text = self
            .text("UPDATE {ns}.account SET balance = $1, token = $2 WHERE id = 1 AND token <= $2");
        let token = i64::try_from(token.get()).unwrap();
        let done = sqlx::query(text)
            .bind(balance)
            .bind(token)
            .execute(&self.pool)
            .await;
        done.unwrap().rows_affected() == 1
    }
}

#[tokio::test]
async fn a_stale_write_is_refused_by_its_token() {
    let bank = Bank::new().await;
    let ((backend, first), (_, second)) = (bank.client().await, bank.client().await);
    let stale = first.documents(["account/1"]).acquire().await.unwrap();
    assert!(bank.set_balance(110, stale.token()).await);
    // An operator breaks the lock; its holder does not know it yet.
    backend.end(&[stale.session()], End::Revoke).await.unwrap();
    let holder = second.documents(["account/1"]).acquire().await.unwrap();
    assert!(bank.set_balance(150, holder.token()).await);
    assert!(
        !bank.set_balance(120, stale.token()).await,
        "the stale one's"
    );
    assert_eq!(bank.balance().await, 150);
}

#[tokio::test]
async fn a_transaction_is_committed_only_while_the_lock_is_held() {
    let bank = Bank::new().await;
    let ((backend, first), (_, second)) = (bank.client().await, bank.client().await);
    let guard = first.tree().write("/accounts/1").acquire().await.unwrap();
    let add = "UPDATE {ns}.account SET balance = balance + 10 WHERE id = 1";

    let mut transaction = bank.pool.begin().await.unwrap();
    sqlx::query(bank.text(add))
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert!(
        backend
            .confirm_in(&mut transaction, guard.grants())
            .await
            .unwrap()
    );
    // While it is open nobody can break the lock, and nobody else has it.
    let error = backend
        .end(&[guard.session()], End::Revoke)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let busy = second.tree().read("/accounts").try_acquire().await.unwrap();
    assert!(matches!(busy, lockcore::Attempt::Busy(_)));
    transaction.commit().await.unwrap();
    assert_eq!(bank.balance().await, 110);

    backend.end(&[guard.session()], End::Revoke).await.unwrap();
    let mut transaction = bank.pool.begin().await.unwrap();
    sqlx::query(bank.text(add))
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert!(
        !backend
            .confirm_in(&mut transaction, guard.grants())
            .await
            .unwrap()
    );
    transaction.rollback().await.unwrap();
    assert_eq!(bank.balance().await, 110, "the stale one's");
}

/// Somebody else has the key of each guard; the store was asked nothing since, or the guard knows.
#[tokio::test]
async fn a_guard_that_was_given_back_confirms_nothing() {
    let bank = Bank::new().await;
    let (backend, locks) = bank.client().await;
    let (_, other) = bank.client().await;
    let held = locks.documents(["held"]).acquire().await.unwrap();
    let dropped = locks.documents(["dropped"]).acquire().await.unwrap();
    let stale = dropped.held();
    drop(dropped);
    let ttl = Duration::from_secs(1);
    let brief = lockcore::Locks::builder(backend.clone()).ttl(ttl).build();
    let brief = brief.unwrap();
    let limited = brief.documents(["limited"]);
    let limited = limited.max_hold(Duration::from_millis(100));
    let limited = limited.acquire().await.unwrap();
    let revoked = locks.lock("revoked").own_session().acquire().await.unwrap();
    let session = revoked.session();
    backend.end(&[session], End::Revoke).await.unwrap();
    assert!(!revoked.confirm().await.unwrap());
    let keys = ["dropped", "limited"];
    let _others = other.documents(keys).acquire().await.unwrap();
    let _others = other.lock("revoked").acquire().await.unwrap();
    for gone in [&stale, &*limited, &*revoked] {
        assert!(gone.grants().count() > 0, "a store is asked of it");
        for first in [true, false] {
            let both = [&*held, gone].into_iter().flat_map(|it| it.grants());
            let alone = gone.grants();
            let mut transaction = bank.pool.begin().await.unwrap();
            let confirmed = match first {
                true => backend.confirm_in(&mut transaction, alone).await,
                false => backend.confirm_in(&mut transaction, both).await,
            };
            assert!(!confirmed.unwrap());
            transaction.rollback().await.unwrap();
        }
    }
    let mut transaction = bank.pool.begin().await.unwrap();
    let nothing = backend.confirm_in(&mut transaction, []).await;
    assert!(!nothing.unwrap(), "nothing is held");
}

#[tokio::test]
async fn a_grant_is_not_released_before_the_transaction_that_confirmed_it_ends() {
    let bank = Bank::new().await;
    let (backend, locks) = bank.client().await;
    for keys in [&["one"][..], &["one", "two"]] {
        let guard = locks.documents(keys).acquire().await.unwrap();
        let mut transaction = bank.pool.begin().await.unwrap();
        let confirmed = backend.confirm_in(&mut transaction, guard.grants()).await;
        assert!(confirmed.unwrap());
        let mut released = Box::pin(guard.release());
        let early = tokio::time::timeout(Duration::from_millis(300), &mut released).await;
        assert!(early.is_err(), "{early:?}");
        transaction.commit().await.unwrap();
        assert_eq!(released.await.unwrap(), Released::Released);
    }
}

/// Whoever is told to give a lock up retires its grant with the next renewal.
#[tokio::test]
async fn a_grant_that_is_confirmed_is_not_retired_before_the_transaction_ends() {
    let bank = Bank::new().await;
    let ((backend, first), (_, second)) = (bank.client().await, bank.client().await);
    let others = first.documents(["other"]).acquire().await.unwrap();
    for keys in [&["one"][..], &["one", "two"]] {
        let guard = first.documents(keys).acquire().await.unwrap();
        let mut transaction = bank.pool.begin().await.unwrap();
        let confirmed = backend.confirm_in(&mut transaction, guard.grants()).await;
        assert!(confirmed.unwrap());
        let beside = first.documents(["beside"]).acquire().await.unwrap();
        for held in [&guard, &beside] {
            let [by, why] = ["ops", "why"].map(|text| Label::parse(text).unwrap());
            let n = held.numbers().next().unwrap();
            let note = Note::new(NoteKind::Evict, by, why, UNIX_EPOCH).about(n);
            assert!(backend.note(held.session(), &note).await.unwrap());
            held.lost().await;
        }
        // What nobody has confirmed is free, and what is confirmed is not.
        let free = second.documents(["beside"]).wait(Duration::from_secs(10));
        assert_eq!(
            free.acquire().await.unwrap().release().await.unwrap(),
            Released::Released
        );
        let until = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < until {
            let busy = second.documents(keys).try_acquire().await.unwrap();
            assert!(
                matches!(busy, lockcore::Attempt::Busy(_)),
                "it is confirmed"
            );
            // From one look to the next; the session is renewed meanwhile.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        transaction.commit().await.unwrap();
        let next = second.documents(keys).wait(Duration::from_secs(10));
        let next = next.acquire().await.expect("the next renewal retires it");
        assert_eq!(next.release().await.unwrap(), Released::Released);
    }
    assert!(others.confirm().await.unwrap());
}

/// The next task of the process would have it while the transaction of the one before is open.
#[tokio::test]
async fn a_grant_that_was_confirmed_is_handed_to_nobody() {
    let bank = Bank::new().await;
    let (backend, locks) = bank.client().await;
    let guard = locks.documents(["k"]).acquire().await.unwrap();
    let mut transaction = bank.pool.begin().await.unwrap();
    let confirmed = backend.confirm_in(&mut transaction, guard.grants()).await;
    assert!(confirmed.unwrap());
    let next = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.documents(["k"]).acquire().await })
    };
    let mut released = Box::pin(guard.release());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut released).await;
    assert!(early.is_err(), "{early:?}");
    assert!(!next.is_finished());
    transaction.commit().await.unwrap();
    assert_eq!(released.await.unwrap(), Released::Released);
    let next = next.await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn an_open_transaction_does_not_stop_renewals() {
    let bank = Bank::new().await;
    let (backend, locks) = bank.client().await;
    let guard = locks.documents(["a", "b"]).acquire().await.unwrap();
    let mut transaction = bank.pool.begin().await.unwrap();
    assert!(
        backend
            .confirm_in(&mut transaction, guard.grants())
            .await
            .unwrap()
    );
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        assert!(guard.is_valid(), "it is renewed");
        // From one look to the next.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    transaction.commit().await.unwrap();
    assert!(guard.confirm().await.unwrap());
}

#[tokio::test]
async fn a_session_that_is_due_lives_as_long_as_the_transaction() {
    let bank = Bank::new().await;
    let (backend, _) = bank.client().await;
    let label = Label::parse("").unwrap();
    let request = |session| {
        Acquire::new(
            Grant { session, n: 1 },
            OwnerId { session, m: 1 },
            vec![Claim::new(LockKey::parse("k").unwrap(), Want::Create).unwrap()],
        )
    };
    let (slow, other) = (SessionId::new(1), SessionId::new(2));
    backend
        .open(slow, &label, Duration::from_secs(1))
        .await
        .unwrap();
    backend
        .open(other, &label, Duration::from_secs(60))
        .await
        .unwrap();
    let (slow, other) = (request(slow), request(other));
    assert!(matches!(
        backend.acquire(&slow).await.unwrap(),
        Acquired::Acquired(_)
    ));
    let mut transaction = bank.pool.begin().await.unwrap();
    let grants = [(slow.grant, &slow.claims[..])];
    assert!(backend.confirm_in(&mut transaction, grants).await.unwrap());
    // Longer than the TTL by the server's clock: the session is due.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let answer = backend.acquire(&other).await.unwrap();
    assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
    transaction.commit().await.unwrap();
    let answer = backend.acquire(&other).await.unwrap();
    assert!(matches!(answer, Acquired::Acquired(_)), "{answer:?}");
}

#[tokio::test]
async fn a_transaction_of_another_isolation_is_refused() {
    let bank = Bank::new().await;
    let (backend, locks) = bank.client().await;
    let guard = locks.lock("g").acquire().await.unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    let mut transaction = bank.pool.begin_with(begin).await.unwrap();
    let confirmed = backend.confirm_in(&mut transaction, guard.grants()).await;
    assert_eq!(confirmed.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn no_lock_keeps_a_connection_of_the_pool_nor_leaves_an_advisory_lock_on_it() {
    let bank = Bank::new().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(Space::driver_options());
    let backend = PostgresBackend::from_pool(pool.clone(), bank.space.config()).await;
    let backend = backend.unwrap();
    let locks = Locks::builder(backend).build().unwrap();
    let ((_, other), latches) = (bank.client().await, "SELECT {ns}.latch('held')");
    let latch: i64 = bank.space.sql(latches).await[0].get(0);

    let held = locks.documents(["held"]).acquire().await.unwrap();
    let tree = locks.tree().write("/a/b").acquire().await.unwrap();
    // One who waits keeps none either, nor one who was refused.
    let waits = other.documents(["held"]).acquire();
    let looks = async {
        let busy = locks.lock("g").try_acquire().await.unwrap();
        assert!(matches!(busy, lockcore::Attempt::Acquired(_)));
        let busy = locks.documents(["held"]).try_acquire().await.unwrap();
        assert!(matches!(busy, lockcore::Attempt::Busy(_)));
        // Nor one who has given up while the server works on it.
        let mut holding = support::owner().await;
        let begin =
            format!("BEGIN; SELECT pg_advisory_xact_lock({latch}); SELECT pg_backend_pid()");
        let begun = sqlx::raw_sql(AssertSqlSafe(begin)).fetch_all(&mut holding);
        let pid: i32 = begun.await.unwrap().last().unwrap().get(0);
        let gives_up = {
            let locks = locks.clone();
            tokio::spawn(async move { locks.documents(["held"]).try_acquire().await })
        };
        support::until("it waits for the latch", async || {
            let waiting =
                format!("SELECT FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))");
            (!support::sql(waiting).await.is_empty()).then_some(())
        })
        .await;
        gives_up.abort();
        let end = sqlx::raw_sql("ROLLBACK").execute(&mut holding);
        end.await.unwrap();
        let mut only = pool.acquire().await.expect("nobody keeps it");
        let left =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        let row = sqlx::raw_sql(left).fetch_one(&mut *only).await.unwrap();
        assert_eq!(row.get::<i64, _>(0), 0);
        drop(only);
        assert!(held.is_valid() && tree.is_valid());
        held.release().await.unwrap()
    };
    let (waited, _) = tokio::join!(waits, looks);
    drop(waited.unwrap());
}
