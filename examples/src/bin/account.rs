//! A lock beside the program's own rows in one PostgreSQL database: what is written with a stale lock is refused.
//!
//! `cargo xtask with postgres -- cargo run -p lockkeeper-examples --bin account`, or `LOCKKEEPER_URL=postgres://…` of a
//! user who may make schemas and tables.
//!
//! In two ways. The row remembers the greatest token that has written it, and a predicate refuses smaller ones: that asks
//! nothing of the locks' store, and so works wherever the row is. Or the transaction confirms the lock itself: nobody
//! can take it until the transaction ends, so that what it writes is committed only while the lock is held.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lockcore_postgres::{PostgresBackend, PostgresConfig};
use lockkeeper::{FencingToken, Guard, Locks};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

type BoxError = Box<dyn Error + Send + Sync>;

/// The shortest TTL, so that a pause is soon too long.
const TTL: Duration = Duration::from_secs(1);

/// Writes the balance with the writer's token. Whether it was written: a later holder may have been here.
async fn set_balance(pool: &PgPool, balance: i64, token: FencingToken) -> Result<bool, BoxError> {
    let update = "UPDATE pg_temp.account SET balance = $1, token = $2 WHERE id = 1 AND token <= $2";
    let done = sqlx::query(update)
        .bind(balance)
        .bind(i64::try_from(token.get())?) // Below 2^63, always.
        .execute(pool)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Adds to the balance in a transaction that holds only if the lock does. Whether it was committed.
async fn add(
    pool: &PgPool,
    backend: &PostgresBackend,
    guard: &Guard,
    amount: i64,
) -> Result<bool, BoxError> {
    let mut transaction = pool.begin().await?;
    sqlx::query("UPDATE pg_temp.account SET balance = balance + $1 WHERE id = 1")
        .bind(amount)
        .execute(&mut *transaction)
        .await?;
    if !backend.confirm_in(&mut transaction, guard.grants()).await? {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.commit().await?;
    Ok(true)
}

async fn balance(pool: &PgPool) -> Result<i64, BoxError> {
    let row = sqlx::query_scalar("SELECT balance FROM pg_temp.account WHERE id = 1");
    Ok(row.fetch_one(pool).await?)
}

/// A program of its own, as far as locks are concerned: it has a session of its own.
fn client(backend: &Arc<PostgresBackend>) -> Result<Locks, BoxError> {
    Ok(Locks::builder(backend.clone()).ttl(TTL).build()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("LOCKKEEPER_URL").map_err(|_| "LOCKKEEPER_URL is not set")?;
    let config = PostgresConfig::parse(&url)?;
    let address = url.split('?').next().unwrap_or_default();
    // One connection, because the table is to be gone with it. The locks have connections of their own.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect(address)
        .await?;
    let table = "CREATE TEMP TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL, token bigint NOT NULL)";
    sqlx::query(table).execute(&pool).await?;
    sqlx::query("INSERT INTO account VALUES (1, 100, 0)")
        .execute(&pool)
        .await?;
    let backend = PostgresBackend::connect(config).await?;

    let (first, second) = (client(&backend)?, client(&backend)?);
    let paused = first.documents(["account/1"]).acquire().await?;
    assert!(set_balance(&pool, 110, paused.token()).await?);
    assert!(add(&pool, &backend, &paused, 10).await?);
    assert_eq!(balance(&pool).await?, 120);

    // Nothing of this program runs meanwhile, not even what renews.
    std::thread::sleep(TTL * 2);
    let holder = second.documents(["account/1"]).acquire().await?;
    assert!(set_balance(&pool, 150, holder.token()).await?);
    assert!(
        !set_balance(&pool, 130, paused.token()).await?,
        "the write of the one that was paused"
    );
    assert!(
        !add(&pool, &backend, &paused, 10).await?,
        "the transaction of the one that was paused"
    );
    assert!(add(&pool, &backend, &holder, 1).await?);
    assert_eq!(balance(&pool).await?, 151);
    println!(
        "token {} was refused after token {}: the balance is 151",
        paused.token(),
        holder.token()
    );
    let _ = holder.release().await?;
    Ok(())
}
