//! Locks in a MariaDB database: an example for authors of backends on a server with transactions.
//!
//! The rules are those of [`lockcore::backend::rows`]; this crate is a URL, a schema, and the rows. It keeps every law
//! of [`lockcore`]'s traits, and one transaction writes at a time.
//!
//! # What an author learns from it
//!
//! - **The rooms.** `rows.rs` has every statement, `record.rs` what a row means, `error.rs` what the driver's errors
//!   mean, `server/schema.sql` the tables.
//! - **What makes it serialisable.** Whoever writes locks the row of the last token first. So nothing that a
//!   transaction has read changes before its commit, and nobody needs to retry. A store with true serialisable
//!   transactions needs no such row, and has to run an act again when the server asks for it.
//! - **Whose clock.** The server's, asked after that lock is taken: time that a transaction waits is not before it.
//! - **Certain and uncertain errors.** Until the commit is sent nothing has happened: `Unavailable`. If the commit is
//!   not answered nobody knows: `Indeterminate`. There are no retries here, they are the client's.
//! - **Keys are bytes.** A collation takes `a`, `A` and `ä` for one.
//!
//! # What it promises
//!
//! Acknowledged grants survive the end of every process and of the server, and a loss of power where
//! `innodb_flush_log_at_trx_commit` is 1, the default. They do not survive a failover to a replica that is behind.
//!
//! # Its limits
//!
//! 1,000 keys per batch, in one statement. Waiters poll every 50 milliseconds. Whoever sets the server's clock forward
//! ends sessions early.
//!
//! # Examples
//!
//! ```no_run
//! use lockcore::Locks;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "mysql://app:secret@127.0.0.1:3306/app";
//! let locks = Locks::builder(mariadb_backend::MariaDbBackend::connect(url).await?).build()?;
//! let guard = locks.lock("reindex").acquire().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```

mod error;
mod record;
mod rows;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::Changed;
use lockcore::backend::rows::{Access, Act, RowStore, polled};
use lockcore::{Claim, Durability, Error, ErrorKind, Info, Operation, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};
use tokio::time::timeout;

use error::{Failure, Outcome};
use rows::Begun;

const NAME: &str = "mariadb";
const SCHEMA: &str = include_str!("../server/schema.sql");
/// The version of the stored shape, as the schema has it.
const VERSION: i32 = 3;
/// What the server says where there is no such table.
const NO_TABLE: u16 = 1146;
/// As many keys in one statement take some ten milliseconds.
const KEYS_PER_BATCH: usize = 1_000;
/// The server notifies nobody, so waiters poll.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// What an operation waits for before its commit, and then for the commit.
const TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTIONS: u32 = 8;

/// Locks in a MariaDB database.
///
/// # Cancel safety
///
/// Dropping the future of an operation leaves it done or not done, and the caller does not know which.
#[derive(Clone)]
pub struct MariaDbBackend {
    pool: MySqlPool,
}

impl MariaDbBackend {
    /// The locks of the database that the URL names, `mysql://USER:PASSWORD@HOST:PORT/DATABASE`; its tables are made if
    /// they are not there.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](ErrorKind::Config) for a URL that is none, or names no database that is there, and for tables of
    /// another version;
    /// [`Unauthorized`](ErrorKind::Unauthorized) for an account that may not use it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave some of the tables, empty.
    pub async fn connect(url: &str) -> Result<Arc<Self>> {
        let failed = |failure: Failure| failure.error(Operation::Connect);
        let options: MySqlConnectOptions = url.parse().map_err(|_: sqlx::Error| {
            // The driver's error may repeat the URL, and its password.
            let what = "the URL is not mysql://USER:PASSWORD@HOST:PORT/DATABASE";
            Error::new(ErrorKind::Config, NAME, Operation::Connect, what)
        })?;
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(TIMEOUT)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // What is read after the lock on the row of the tokens is what was committed last.
                    let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
                    connection.execute(isolation).await?;
                    connection
                        .execute("SET SESSION innodb_lock_wait_timeout = 3")
                        .await?;
                    Ok(())
                })
            })
            .connect_with(options)
            .await
            .map_err(|error| failed(error.into()))?;
        check_version(&pool).await?;
        for statement in SCHEMA
            .split("\n\n")
            .filter(|it| it.contains(" INTO ") || it.contains("CREATE"))
        {
            let done = pool.execute(AssertSqlSafe(statement)).await;
            done.map_err(|error| failed(error.into()))?;
        }
        Ok(Arc::new(Self { pool }))
    }

    /// One transaction. What is dropped here, whether it failed or is late, is rolled back.
    async fn transacted<A: Act>(&self, act: A) -> Result<A::Answer> {
        let late = |_| {
            let what = format!("no answer within {TIMEOUT:?}");
            Error::new(ErrorKind::Unavailable, NAME, A::OPERATION, what)
        };
        let ready = timeout(TIMEOUT, self.until_commit(&act))
            .await
            .map_err(late)?;
        let (begun, answer) = ready.map_err(|failure| failure.error(A::OPERATION))?;
        match timeout(TIMEOUT, begun.commit()).await {
            Ok(Ok(())) => Ok(answer),
            Ok(Err(error)) => Err(unknown(A::OPERATION).with_source(error)),
            Err(_) => Err(unknown(A::OPERATION)),
        }
    }

    async fn until_commit<A: Act>(&self, act: &A) -> Outcome<(Begun, A::Answer)> {
        let mut begun = match act.access() {
            Access::Read => Begun::reading(&self.pool).await?,
            Access::Write | Access::Durable => Begun::writing(&self.pool).await?,
        };
        let answer = act.run(&mut begun).await?;
        Ok((begun, answer))
    }
}

impl RowStore for MariaDbBackend {
    fn info(&self) -> Info {
        let mut info = Info::new(NAME, "the server's wall clock");
        info.keys_per_batch = KEYS_PER_BATCH;
        info.poll = Some(POLL_EVERY);
        info.durability = Durability {
            crash: true,
            power_loss: true,
            failover: false,
        };
        info
    }

    /// On a task of its own: it holds locks of the server, and its caller may look at something else before it goes on.
    async fn transact<A: Act>(&self, act: A) -> Result<A::Answer> {
        let own = self.clone();
        #[allow(
            clippy::disallowed_methods,
            reason = "the task is one transaction, which ends within its time-outs"
        )]
        let task = tokio::spawn(async move { own.transacted(act).await });
        let ended = task.await;
        ended.unwrap_or_else(|error| Err(unknown(A::OPERATION).with_source(error)))
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        polled(self, claims, POLL_EVERY).await
    }
}

/// Refuses tables of another version before anything is written.
async fn check_version(pool: &MySqlPool) -> Result<()> {
    let asked = sqlx::query_scalar("SELECT version FROM lockkeeper_tokens");
    let versions: Vec<i32> = match asked.fetch_all(pool).await {
        Ok(versions) => versions,
        Err(error) if error::number(&error) == Some(NO_TABLE) => return Ok(()),
        Err(error) => return Err(Failure::from(error).error(Operation::Connect)),
    };
    let Some(other) = versions.into_iter().find(|version| *version != VERSION) else {
        return Ok(());
    };
    let what = if other < VERSION {
        format!(
            "the tables are of version {other}, whose programs do not see who waits, and this one knows {VERSION}: \
             use another database, or drop the tables when nobody uses them any more"
        )
    } else {
        format!(
            "the tables are of version {other} and this program knows {VERSION}: update the program"
        )
    };
    Err(Error::new(
        ErrorKind::Config,
        NAME,
        Operation::Connect,
        what,
    ))
}

fn unknown(operation: Operation) -> Error {
    let what = "the commit was not answered";
    Error::new(ErrorKind::Indeterminate, NAME, operation, what)
}

impl fmt::Debug for MariaDbBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MariaDbBackend").finish_non_exhaustive()
    }
}
