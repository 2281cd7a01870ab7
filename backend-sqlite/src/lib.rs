//! Locks in an SQLite file: the backend of lockkeeper for one machine, many processes and no server.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every operation is done in a transaction that begins with the file's write lock, so
//! a step of any number of claims is taken whole or not at all, and there is one order of all grants. What the tasks of a
//! process ask while the file is busy shares the next transaction (group commit): up to 64 operations, and none begins in
//! it after 2 ms. If that transaction fails without effect, each is done in one of its own. Acknowledged
//! grants survive the end of every process. They survive a loss of power if the file is opened with
//! `?synchronous=full`; otherwise the last ones may be undone by it, but then nobody who held them is left, the tokens
//! go on above the old ones, and everything about an intent waits for the disk in any case. There is no other copy
//! that could take over.
//!
//! The file is made with mode 0600, and so are its log and index (`-wal`, `-shm`), which belong beside it. Whoever may
//! write the file may break every lock in it.
//!
//! # Its clock
//!
//! The machine's time since boot, which nobody sets and which goes on while the machine sleeps, together with the name
//! of the boot: after a restart every session is due at once. Processes that do not see the same time since boot (Linux
//! time namespaces) must not share a file. On systems that are not Linux it is the wall clock, and who sets it forward
//! ends sessions early.
//!
//! # Its limits
//!
//! - The file is on a local disk. Network file systems are refused where their type tells; one behind FUSE does not.
//! - A transaction waits for other processes up to the timeout ([`SqliteConfig::timeout`]) and then fails without
//!   effect, as [`Unavailable`](lockcore::ErrorKind::Unavailable).
//! - Nobody is told of a release in another process: while somebody waits, the writer thread looks every two to three
//!   milliseconds, without taking the write lock.
//! - A file that is removed or replaced takes its sessions with it: the next operation of each process goes to the new
//!   one, and renewals there are answered `Dead`. Remove the log and the index with it; a file put in their place while
//!   they are still there is damaged by SQLite.
//! - To write or read a path, everybody who holds something below it is looked at, one after the other. Paths below
//!   which their owner holds more than 50,000 others are refused as over a limit.
//! - A record that cannot be understood is held and never changed. A key that is no key cannot be listed; a session
//!   whose record is unreadable lives, and what it holds goes by [`evict`](lockcore::backend::Inspect::evict).
//! - Unix only.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//!
//! use lockcore::backend::{Acquire, Acquired, ClaimStore, SessionStore};
//! use lockcore::{Claim, Grant, Label, LockKey, OwnerId, SessionId, Want};
//! use lockcore_sqlite::{SqliteBackend, SqliteConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", directory.path().join("locks.db").display());
//! let backend = SqliteBackend::connect(SqliteConfig::parse(&url)?).await?;
//! let session = SessionId::new(7);
//! backend.open(session, &Label::parse("example")?, Duration::from_secs(30)).await?;
//! let claims = vec![Claim::new(LockKey::parse("reindex")?, Want::Create).unwrap()];
//! let request = Acquire::new(Grant { session, n: 1 }, OwnerId { session, m: 1 }, claims);
//! assert!(matches!(backend.acquire(&request).await?, Acquired::Acquired(_)));
//! backend.release(request.grant, &request.claims).await?;
//! # Ok(())
//! # }
//! ```

#[cfg(not(unix))]
compile_error!("lockcore-sqlite needs Unix: it tells files apart by device and inode");

mod backend;
mod clock;
mod config;
mod error;
mod file;
mod open;
mod record;
mod rows;
mod sql;
mod thread;
mod transaction;
mod wakeups;

pub use backend::SqliteBackend;
pub use config::{SqliteConfig, Synchronous};
