//! Locks in a directory of files, for the processes of one machine: an example for authors of backends.
//!
//! It is small, it keeps every law of [`lockcore`]'s traits, and it is slow: one JSON file has all the locks of the
//! namespace, and every operation reads it, acts on it and writes it anew. For real locks on one machine there is
//! `lockcore-sqlite`.
//!
//! # What an author learns from it
//!
//! - **The rooms.** `directory.rs` is the way to the store and the only place where its errors become ours; `state.rs`
//!   is the stored shape; `rows.rs` hands it to the rules in [`lockcore::backend::rows`], which decide. A backend that
//!   talks to a server has more to say in `config.rs` and `error.rs`, and `server/` for what runs there.
//! - **What an action is.** A lock file keeps all other processes out; the state is read, changed, written to another
//!   file and renamed. A process that is killed at any point leaves the old state or the new one, and its lock goes
//!   with it. So each operation is one atomic step, and everything above it is plain code on a value.
//! - **Judging is writing.** Whoever meets a holder whose session is due ends that session first, in the same action.
//!   Nobody takes a session for dead because its time is over.
//! - **Certain and uncertain errors.** Before the rename nothing has happened: `Unavailable`. If the rename fails,
//!   nobody knows: `Indeterminate`. There are no retries here, they are the client's.
//! - **What is strange stays.** A holder that cannot be understood is kept byte for byte, and holds its key. A file
//!   that cannot be understood as a whole is an error for everybody, never an empty file.
//! - **The kit.** `tests/conformance.rs` runs all of it against this backend; `tests/broken.rs` breaks one line on
//!   purpose and shows what an author is told then.
//!
//! # What it promises
//!
//! Acknowledged grants survive the end of every process. Nothing is synced to the disk: after a loss of power the file
//! may be an older one or empty (an empty one is refused as damaged). All processes that held locks are gone then, and
//! tokens go on above the old ones as long as the wall clock does.
//!
//! A process that is *stopped* in the middle of an operation keeps everybody else out until it goes on or is killed;
//! they give up after five seconds, without effect.
//!
//! # Its clock
//!
//! The machine's wall clock, because it is the one that the standard library has for all processes: who sets it
//! forward ends sessions early, who sets it back lets dead holders keep their locks for longer. A real backend of one
//! machine takes the time since boot.
//!
//! # Its limits
//!
//! A local file system whose file locks and renames are those of one machine. 100 keys per step, since every one of
//! them is written again in each operation. Waiters poll every ten milliseconds.
//!
//! # Examples
//!
//! ```
//! use lockcore::{Attempt, Locks};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let one = Locks::builder(files_backend::FilesBackend::connect(directory).await?).build()?;
//! let other = Locks::builder(files_backend::FilesBackend::connect(directory).await?).build()?;
//! let guard = one.lock("reindex").acquire().await?;
//! assert!(matches!(other.lock("reindex").try_acquire().await?, Attempt::Busy(_)));
//! guard.release().await?;
//! assert!(matches!(other.lock("reindex").try_acquire().await?, Attempt::Acquired(_)));
//! # Ok(())
//! # }
//! ```

mod directory;
mod rows;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::Changed;
use lockcore::backend::rows::{Access, Act, Corrupt, RowStore, polled, ready};
use lockcore::{Claim, Durability, Error, ErrorKind, Info, Operation, Result};

use directory::Directory;
use state::State;

const NAME: &str = "files";
/// Files notify nobody, so waiters poll.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Locks in a directory of files.
///
/// # Cancel safety
///
/// Every operation runs on a thread of its own once it was polled: dropping the future leaves it done or not done, and
/// the caller does not know which.
#[derive(Debug, Clone)]
pub struct FilesBackend {
    directory: Arc<Directory>,
}

impl FilesBackend {
    /// The locks of this directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// The directory cannot be made or written, or has a state that cannot be understood.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty directory.
    pub async fn connect(directory: impl Into<PathBuf>) -> Result<Arc<Self>> {
        let path = directory.into();
        let directory = blocking(Operation::Connect, move || Directory::open(path)).await?;
        Ok(Arc::new(Self {
            directory: Arc::new(directory),
        }))
    }
}

/// Files block, so whatever touches them runs where that does no harm.
async fn blocking<T: Send + 'static>(
    operation: Operation,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = |error| {
        let what = "the operation's thread ended early";
        Error::new(ErrorKind::Indeterminate, NAME, operation, what).with_source(error)
    };
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

impl RowStore for FilesBackend {
    fn info(&self) -> Info {
        let mut info = Info::new(NAME, "this machine's wall clock");
        info.keys_per_batch = 100;
        info.poll = Some(POLL_EVERY);
        info.durability = Durability {
            crash: true,
            power_loss: false,
            failover: true,
        };
        info
    }

    async fn transact<A: Act>(&self, act: A) -> Result<A::Answer> {
        let directory = Arc::clone(&self.directory);
        let corrupt = |corrupt: Corrupt| corrupt.error(NAME, A::OPERATION);
        blocking(A::OPERATION, move || match act.access() {
            Access::Read => {
                let mut state = directory.read(A::OPERATION)?;
                ready(act.run(&mut state)).map_err(corrupt)
            }
            Access::Write | Access::Durable => {
                let act = |state: &mut State| ready(act.run(state)).map_err(corrupt);
                directory.update(A::OPERATION, act)
            }
        })
        .await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        polled(self, claims, POLL_EVERY).await
    }
}
