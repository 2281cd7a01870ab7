//! Locks in an SQLite file: the backend of lockkeeper for many processes of one machine, without a server.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every operation runs in a transaction that begins with the file's write lock. So
//! a batch of any number of claims is taken whole or not at all, and all grants have one order. Operations that the
//! tasks of a process ask for while the file is busy share the next transaction (group commit): up to 64, and none
//! begins in it after 2 ms. If that transaction fails without effect, each operation is repeated in one of its own.
//!
//! Acknowledged grants survive the end of every process. They survive a loss of power if the file is opened with
//! `?synchronous=full`. Otherwise a loss of power may undo the last grants; but then their holders are gone too, the
//! tokens continue above the old ones, and everything about an intent waits for the disk in any case. There is no other
//! copy that could take over.
//!
//! The file is created with mode 0600, and so are its log and index (`-wal`, `-shm`), which belong beside it. Any
//! process that may write the file can break every lock in it.
//!
//! # Its clock
//!
//! The machine's time since boot, together with the name of the boot. Nobody can set this clock, and it runs while the
//! machine sleeps. After a restart of the machine the wall clock says what is left of a lease; where that is more than
//! its TTL, the session is due at once. Processes that do not see the same time since boot
//! (Linux time namespaces) must not share a file. On other systems than Linux the clock is the wall clock; setting it
//! forward ends sessions early, and setting it back keeps the locks of dead processes for longer.
//!
//! # Its limits
//!
//! - The file is on a local disk. Network file systems are refused if their type is recognised; one behind FUSE is not.
//! - A transaction waits for other processes up to the timeout ([`SqliteConfig::timeout`]). Then it fails without
//!   effect, as [`Unavailable`](lockcore::ErrorKind::Unavailable).
//! - No process is notified of a release in another one. While a task waits, the writer thread polls every two to three
//!   milliseconds, without taking the write lock.
//! - A reader that does not end (a stopped process, an open transaction in a shell) keeps the log from being written
//!   back. From 1 GiB on nothing more is acquired, and the error says why; held locks are still renewed and released.
//! - A file that is removed or replaced takes its sessions with it: the next operation of each process goes to the new
//!   file, and renewals there are answered `Dead`. Remove the log and the index together with the file: SQLite damages
//!   a file put in their place while they still exist.
//! - To write or read a path, every holder below it is read, one after the other. Paths below which their owner holds
//!   more than 50,000 others are refused as over a limit.
//! - A record that cannot be understood is held and never changed. A key that is not valid cannot be listed. A session
//!   whose record is unreadable lives; [`evict`](lockcore::backend::Inspect::evict) frees what it holds.
//! - On Windows the file and its companions have the rights that their directory gives, and an empty file beside it
//!   (`-turn`), which is locked while the file is opened, stays. A file that a process has open cannot be removed.
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

#[cfg(not(any(unix, windows)))]
compile_error!(
    "lockcore-sqlite needs Unix or Windows: it tells files apart by their numbers on their disks"
);

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
