//! A resource that checks the fencing token: a write that comes late is refused.

use lockkeeper::{FencingToken, Released};
use rusqlite::Connection;

use crate::BoxError;

/// Whether it was written: a later holder may have been here.
fn write(db: &Connection, balance: i64, token: FencingToken) -> Result<bool, BoxError> {
    let token = i64::try_from(token.get())?; // Below 2^63, always.
    let set = "UPDATE account SET balance = ?1, token = ?2 WHERE token <= ?2";
    Ok(db.execute(set, (balance, token))? == 1)
}

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    // The resource, anywhere: it has a column for the greatest token that has written it.
    let db = Connection::open_in_memory()?;
    db.execute_batch(
        "CREATE TABLE account (balance INTEGER NOT NULL, token INTEGER NOT NULL);
         INSERT INTO account VALUES (100, 0);",
    )?;

    let locks = lockkeeper::connect(url).await?;
    let guard = locks.lock("account/1").acquire().await?;
    let late = guard.token();
    assert!(write(&db, 110, late)?);
    // A program that is stopped here loses its lock when its lease ends. `fenced` shows that; this one gives it back.
    assert_eq!(guard.release().await?, Released::Released);

    let next = locks.lock("account/1").acquire().await?;
    assert!(write(&db, 150, next.token())?);

    // The first one goes on, and writes without looking.
    assert!(!write(&db, 120, late)?);
    println!("after token {}, token {late} is refused", next.token());
    assert_eq!(next.release().await?, Released::Released);
    Ok(())
}
