//! A resource that checks the fencing token: the write of a holder that was paused for longer than its lease is refused.
//!
//! `cargo run -p lockkeeper-examples --bin fenced`, or with the value in Redis:
//! `cargo xtask with redis -- cargo run -p lockkeeper-examples --bin fenced`
//!
//! The resource remembers the greatest token that has written it, and one predicate refuses smaller ones. In SQL that is
//! a condition; for Redis it is a script, which comes with lockkeeper. The first holder stands still, as a process does
//! that is stopped or swapped out. The second one gets the lock meanwhile, with a greater token, and writes. Then the first
//! one goes on and writes without looking whether it still has the lock.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper::redis::FENCED_SET;
use lockkeeper::{FencingToken, Guard, Locks};
use redis::aio::MultiplexedConnection;
use rusqlite::Connection;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const TTL: Duration = Duration::from_secs(1);
/// One slot of a cluster has both.
const BALANCE: &str = "{account/1}:balance";
const TOKEN: &str = "{account/1}:token";

/// The resource: a row in a file, or a value in Redis.
enum Account {
    Row(Connection),
    Value(MultiplexedConnection),
}

impl Account {
    async fn open(url: &str, folder: &Path) -> Result<Self, BoxError> {
        if url.starts_with("redis") {
            let client = redis::Client::open(url.split('?').next().unwrap_or_default())?;
            let connection = client.get_multiplexed_async_connection().await?;
            return Ok(Self::Value(connection));
        }
        let db = Connection::open(folder.join("accounts.db"))?;
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL);
             INSERT OR IGNORE INTO account VALUES (1, 100, 0);",
        )?;
        Ok(Self::Row(db))
    }

    /// Writes the balance with the writer's token. Whether it was written: a later holder may have been here.
    async fn set_balance(&mut self, balance: i64, token: FencingToken) -> Result<bool, BoxError> {
        match self {
            Self::Row(db) => {
                let token = i64::try_from(token.get())?; // Below 2^63, always.
                let set =
                    "UPDATE account SET balance = ?1, token = ?2 WHERE id = 1 AND token <= ?2";
                Ok(db.execute(set, (balance, token))? == 1)
            }
            Self::Value(connection) => {
                let script = redis::Script::new(FENCED_SET);
                let mut write = script.key(BALANCE);
                write.key(TOKEN).arg(token.get()).arg(balance);
                Ok(write.invoke_async(connection).await?)
            }
        }
    }

    async fn balance(&mut self) -> Result<i64, BoxError> {
        match self {
            Self::Row(db) => {
                let get = "SELECT balance FROM account WHERE id = 1";
                Ok(db.query_row(get, [], |row| row.get(0))?)
            }
            Self::Value(connection) => {
                let mut get = redis::cmd("GET");
                Ok(get.arg(BALANCE).query_async(connection).await?)
            }
        }
    }
}

/// One of two programs that change the balance.
async fn start(url: &str, folder: &Path) -> Result<(Guard, Account), BoxError> {
    let locks = Locks::builder(lockkeeper::backend(url).await?);
    let guard = locks.ttl(TTL).build()?.documents(["account/1"]);
    Ok((guard.acquire().await?, Account::open(url, folder).await?))
}

/// Acquires, writes, stands still until the other one has written, and writes again.
#[tokio::main(flavor = "current_thread")]
async fn paused(
    url: &str,
    folder: &Path,
    holds: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
) -> Result<(), BoxError> {
    let (guard, mut account) = start(url, folder).await?;
    assert!(account.set_balance(110, guard.token()).await?);
    holds.send(())?;
    // The whole thread waits here: nothing is renewed.
    go_on.recv()?;
    let written = account.set_balance(120, guard.token()).await?;
    assert!(!written, "the write of the one that was paused");
    println!("token {} was refused", guard.token());
    assert!(!guard.is_valid(), "whoever looks is told");
    assert_eq!(account.balance().await?, 150);
    Ok(())
}

/// Waits for the lock, and writes.
#[tokio::main(flavor = "current_thread")]
async fn next(
    url: &str,
    folder: &Path,
    held: mpsc::Receiver<()>,
    written: mpsc::Sender<()>,
) -> Result<(), BoxError> {
    held.recv()?;
    let (guard, mut account) = start(url, folder).await?;
    assert!(account.set_balance(150, guard.token()).await?);
    println!("token {} has written 150", guard.token());
    written.send(())?;
    let _ = guard.release().await?;
    Ok(())
}

fn stale_writes_are_refused(url: Option<String>) -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let url = url.unwrap_or_else(|| format!("sqlite:{}", folder.join("locks.db").display()));
    let (holds, held) = mpsc::channel();
    let (written, go_on) = mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(|| paused(&url, folder, holds, go_on));
        let second = scope.spawn(|| next(&url, folder, held, written));
        let both = [first, second].map(|thread| thread.join().expect("what it asserts holds"));
        both.into_iter().collect()
    })
}

fn main() -> Result<(), BoxError> {
    stale_writes_are_refused(std::env::var("LOCKKEEPER_URL").ok())
}

#[test]
fn the_example_holds() {
    stale_writes_are_refused(None).unwrap();
}
