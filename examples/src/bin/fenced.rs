//! A resource that checks the fencing token: the write of a holder that was paused too long is refused.
//!
//! `cargo run -p lockkeeper-examples --bin fenced`
//!
//! The resource is a row in a database. It remembers the greatest token that has written it, and one predicate refuses
//! smaller ones. Whoever holds the lock now has a greater token than whoever held it before, so a stale holder that
//! does not know of its loss changes nothing.

use std::time::Duration;

use lockkeeper::{FencingToken, LockBackend as _, Locks, MemoryBackend};
use rusqlite::Connection;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Writes the balance with the writer's token. Whether it was written: a later holder may have been here.
fn set_balance(
    db: &Connection,
    id: u32,
    balance: i64,
    token: FencingToken,
) -> Result<bool, BoxError> {
    let token = i64::try_from(token.get())?; // Below 2^63, always.
    let written = db.execute(
        "UPDATE account SET balance = ?1, token = ?2 WHERE id = ?3 AND token <= ?2",
        (balance, token, id),
    )?;
    Ok(written == 1)
}

async fn stale_writes_are_refused() -> Result<(), BoxError> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL);
         INSERT INTO account VALUES (1, 100, 0);",
    )?;
    // A store whose clock this program can move stands for a pause that is longer than the TTL.
    let store = MemoryBackend::new();
    println!("locks are kept in {}", store.info().name);
    let (first, second) = (
        Locks::builder(store.clone()).build()?,
        Locks::builder(store.clone()).build()?,
    );

    let paused = first.documents(["account/1"]).acquire().await?;
    assert!(set_balance(&db, 1, 110, paused.token())?);
    store.advance(Duration::from_secs(60)); // It notices nothing of this.

    let holder = second.documents(["account/1"]).acquire().await?;
    assert!(set_balance(&db, 1, 150, holder.token())?);

    assert!(
        !set_balance(&db, 1, 120, paused.token())?,
        "the write of the one that was paused"
    );
    let balance: i64 = db.query_row("SELECT balance FROM account WHERE id = 1", [], |row| {
        row.get(0)
    })?;
    assert_eq!(balance, 150);
    println!(
        "token {} was refused after token {}: the balance is {balance}",
        paused.token(),
        holder.token()
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    stale_writes_are_refused().await
}

#[tokio::test]
async fn the_example_holds() {
    stale_writes_are_refused().await.unwrap();
}
