//! What somebody's old snapshot costs: a key that is acquired again and again, that key alone, and as long as it lasts.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod nodes;
mod support;

use std::time::Duration;

use lockcore::backend::{Acquire, Acquired, ClaimStore, SessionStore};
use lockcore::{Claim, Grant, Label, LockKey, OwnerId, SessionId, Want};
use lockcore_postgres::PostgresBackend;
use lockkeeper_servers::postgres;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use nodes::{config, raw, waited};

const SESSION: SessionId = SessionId::new(7);
/// So often the key is taken and given back, before it is looked how much an acquisition reads.
const PAIRS: u64 = 1_000;
/// What an acquisition may read besides.
const FEW: i64 = 8;

/// Takes the key and gives it back.
async fn pair(backend: &PostgresBackend, key: &str, n: u64) {
    let session = SESSION;
    let request = Acquire::new(
        Grant { session, n },
        OwnerId { session, m: n },
        vec![Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap()],
    );
    let acquired = backend.acquire(&request).await.unwrap();
    assert!(matches!(acquired, Acquired::Acquired(_)), "{acquired:?}");
    let released = backend.release(request.grant, &request.claims);
    released.await.unwrap();
}

/// Many pairs of the key `k`.
async fn pairs(backend: &PostgresBackend, n: &mut u64) {
    for _ in 0..PAIRS {
        *n += 1;
        pair(backend, "k", *n).await;
    }
}

/// How many entries of indexes one acquisition of the key reads, as the server counts them; it is not kept.
async fn read_by(by: &mut PgConnection, key: &str) -> i64 {
    // Within a transaction, nothing of it has been handed on.
    let counted = "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint FROM pg_index
                   WHERE indrelid = 'lockkeeper.holders'::regclass";
    let acquire = format!(
        "SELECT r_what FROM lockkeeper.acquire_one(
             decode('{SESSION}', 'hex'), 1000000, 1000000, '{key}', 'create', NULL, false, 0, false)"
    );
    let mut answers = Vec::new();
    for text in ["BEGIN", counted, &acquire, counted, "ROLLBACK"] {
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut *by).await;
        answers.extend(rows.unwrap());
    }
    assert_eq!(answers[1].get::<&str, _>(0), "acquired");
    answers[2].get::<i64, _>(0) - answers[0].get::<i64, _>(0)
}

#[tokio::test]
async fn an_old_snapshot_costs_one_entry_for_each_time_the_key_was_taken_until_it_ends() {
    // Whatever is tidied up, no vacuum does it.
    let server = waited(|| postgres::node(&[("autovacuum", "off")]).unwrap()).await;
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    let label = Label::parse("test").unwrap();
    let opened = backend.open(SESSION, &label, Duration::from_secs(600));
    opened.await.unwrap();
    let (mut by, mut reader) = (raw(&server).await, raw(&server).await);
    let mut n = 0;
    pairs(&backend, &mut n).await;
    let before = read_by(&mut by, "k").await;
    assert!(before <= FEW, "nobody keeps anything yet: {before}");

    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
    sqlx::raw_sql(snapshot).execute(&mut reader).await.unwrap();
    for times in 1..=3 {
        pairs(&backend, &mut n).await;
        let kept = i64::try_from(times * PAIRS).unwrap();
        let read = read_by(&mut by, "k").await;
        assert!((kept..=kept + FEW).contains(&read), "{kept}: {read}");
        for other in ["j", "k0", "l"] {
            let read = read_by(&mut by, other).await;
            assert!(read <= FEW, "{other}: {read}");
        }
    }

    sqlx::raw_sql("COMMIT").execute(&mut reader).await.unwrap();
    // The next acquisition finds that nobody needs them any more, and marks them in the index.
    n += 1;
    pair(&backend, "k", n).await;
    let after = read_by(&mut by, "k").await;
    assert!(after <= FEW, "the snapshot has ended: {after}");
}
