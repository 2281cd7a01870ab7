//! The backend itself: connecting, and its properties.

use std::sync::Arc;

use lockcore::backend::Changed;
use lockcore::backend::rows::{Access, Act, Looking, RowStore};
use lockcore::limits::{MAX_TTL, MIN_TTL};
use lockcore::{Claim, Durability, Error, Info, Operation};

use crate::config::SqliteConfig;
use crate::error::{NAME, Outcome};
use crate::thread::{Thread, Worker};

/// About as many keys as are taken or released in ten milliseconds, during which other processes wait.
const KEYS_PER_BATCH: usize = 2_000;

/// Locks in an SQLite file, for the processes of one machine.
///
/// Its operations are those of lockcore's traits. Dropping the future of an operation does not stop it: it is finished,
/// and its answer is lost. Dropping the backend closes the file once everything asked before is done.
///
/// # Examples
///
/// ```
/// use lockcore::LockBackend;
/// use lockcore_sqlite::{SqliteBackend, SqliteConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("locks.db");
/// let backend = SqliteBackend::connect(SqliteConfig::new(path)).await?;
/// assert_eq!(backend.info().name, "sqlite");
/// # Ok(())
/// # }
/// ```
pub struct SqliteBackend {
    thread: Thread,
    info: Info,
}

impl SqliteBackend {
    /// Opens the file. Creates it if it does not exist. Several processes may do so at once.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config), before anything is written: the path names a directory or lies
    /// in none; the file is no database, belongs to something else, is of a newer version or may not be written; or the
    /// file system is a network file system. Of other kinds as in every operation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty file of locks.
    pub async fn connect(config: SqliteConfig) -> Result<Arc<Self>, Error> {
        let mut info = Info::new(NAME, CLOCK);
        info.keys_per_batch = KEYS_PER_BATCH;
        info.poll = Some(crate::wakeups::POLL_EVERY);
        (info.min_ttl, info.max_ttl) = (MIN_TTL, MAX_TTL);
        info.durability = Durability {
            crash: true,
            power_loss: config.is_full(),
            failover: true,
        };
        let backend = Self {
            thread: Thread::start(config).await?,
            info,
        };
        backend
            .call(Operation::Connect, |worker| worker.file.open())
            .await?;
        Ok(Arc::new(backend))
    }

    /// Removes the file with everything in it, its log and the index of the log. A holder of a lock in it loses the
    /// lock at its next renewal and is not asked. End all users first, because their later requests would recreate the
    /// file. A file that does not exist is no error. The caller needs the right to write the directory.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A file that is not of this library is not removed; an empty one is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub async fn remove(config: SqliteConfig) -> Result<(), Error> {
        let thread = Thread::start(config).await?;
        let remove = |worker: &mut Worker| worker.file.remove();
        thread.call(Operation::Remove, remove).await
    }

    /// The cheapest transaction that this file and this thread can do, with one row written, as a baseline for
    /// benchmarks. The first call creates a table for it.
    ///
    /// # Errors
    ///
    /// As every operation.
    #[doc(hidden)]
    pub async fn bare_transaction(&self) -> Result<(), Error> {
        self.call(Operation::Inspect, |worker| worker.file.bare())
            .await
    }

    /// The way to the thread and back, without any work there: the part of every operation that the file does not
    /// cause.
    ///
    /// # Errors
    ///
    /// As every operation.
    #[doc(hidden)]
    pub async fn bare_hop(&self) -> Result<(), Error> {
        self.call(Operation::Inspect, |_| Ok(())).await
    }

    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Worker) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Error> {
        self.thread.call(operation, work).await
    }
}

#[cfg(target_os = "linux")]
const CLOCK: &str = "the machine's time since boot";
#[cfg(not(target_os = "linux"))]
const CLOCK: &str = "the machine's wall clock";

impl RowStore for SqliteBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    async fn transact<A: Act>(&self, act: A) -> Result<A::Answer, Error> {
        match act.access() {
            Access::Read => {
                let act = move |worker: &mut Worker| worker.file.act(&act);
                self.call(A::OPERATION, act).await
            }
            Access::Write | Access::Durable => self.thread.act(act).await,
        }
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed, Error> {
        let looking = Looking {
            claims: claims.to_vec(),
            most: crate::wakeups::FOLLOWED,
        };
        let woken = self
            .call(Operation::Watch, move |worker| {
                let seen = worker.file.act(&looking)?;
                Ok(worker.watchers.add(seen))
            })
            .await?;
        // The thread has ended if it drops its end: then a look may be worth it, too.
        Ok(Box::pin(async move {
            let _ = woken.await;
        }))
    }
}

impl std::fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteBackend").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockcore::backend::{
        Acquire, Adopt, ClaimStore as _, End, Incarnation, IntentChange, Ranges, Registered,
        Renewal, SessionStore as _,
    };
    use lockcore::{FencingToken, Grant, Intent, Label, LockKey, OwnerId, SessionId, Want};

    use super::*;
    use crate::Synchronous;

    const NORMAL: i64 = 1;
    const FULL: i64 = 2;

    async fn last(backend: &SqliteBackend) -> i64 {
        let ask = backend.call(Operation::Inspect, |worker| Ok(worker.file.synchronous()));
        ask.await.unwrap()
    }

    /// What the commits of each operation waited for.
    async fn commits(synchronous: Synchronous) -> Vec<i64> {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db")).synchronous(synchronous);
        let backend = SqliteBackend::connect(config).await.unwrap();
        let (one, two) = (SessionId::new(1), SessionId::new(2));
        let put = IntentChange::Put(Registered {
            token: FencingToken::new(1).unwrap(),
            intent: Intent::new("x").unwrap(),
        });
        let mut seen = Vec::new();
        for id in [one, two] {
            let label = Label::parse("").unwrap();
            backend
                .open(id, &label, Duration::from_secs(30))
                .await
                .unwrap();
        }
        seen.push(last(&backend).await);
        let changes = [IntentChange::Keep, put.clone(), IntentChange::Drop, put];
        for (seq, intent) in (1..).zip(changes) {
            let retired = Ranges::EMPTY;
            let renewal = Renewal::new(seq, retired, intent);
            for id in [one, two] {
                backend.renew(id, &renewal).await.unwrap();
            }
            seen.push(last(&backend).await);
        }
        backend.end(&[one, two], End::Close).await.unwrap();
        seen.push(last(&backend).await);
        backend.end(&[two], End::Discard).await.unwrap();
        seen.push(last(&backend).await);
        let any = Incarnation::UNKNOWN;
        let adopted = backend.adopt(one, 0, two, Adopt::Take, any).await;
        assert!(adopted.unwrap().adoption().is_some());
        seen.push(last(&backend).await);
        let settled = backend.settle(one, 1, two, any).await;
        assert!(settled.unwrap().is_settled());
        seen.push(last(&backend).await);
        seen
    }

    #[tokio::test]
    async fn what_is_said_about_an_intent_waits_for_the_disk() {
        assert_eq!(
            commits(Synchronous::Normal).await,
            // open, keep, put, drop, put, close, discard, adopt, settle
            [NORMAL, NORMAL, FULL, FULL, FULL, NORMAL, FULL, NORMAL, FULL]
        );
        assert_eq!(commits(Synchronous::Full).await, [FULL; 9]);
    }

    /// What a reader costs that does not end: the log is not written back, and one day the disk is full.
    #[tokio::test]
    async fn while_a_reader_does_not_end_the_log_grows_to_a_bound_and_what_is_held_stays_held() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        let backend = SqliteBackend::connect(SqliteConfig::new(&path))
            .await
            .unwrap();
        let session = SessionId::new(1);
        let label = Label::parse("").unwrap();
        let ttl = Duration::from_secs(600);
        backend.open(session, &label, ttl).await.unwrap();
        let request = |n, key: &str| {
            let claims = vec![Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap()];
            Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims)
        };
        let held = request(1, "held");
        backend.acquire(&held).await.unwrap();
        let reader = rusqlite::Connection::open(&path).unwrap();
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM sessions")
            .unwrap();
        let mut n = 1;
        let refused = loop {
            n += 1;
            assert!(n < 100_000, "it grows without bound");
            let request = request(n, "other");
            match backend.acquire(&request).await {
                Ok(_) => backend
                    .release(request.grant, &request.claims)
                    .await
                    .unwrap(),
                Err(error) => break error,
            };
        };
        assert_eq!(refused.kind(), lockcore::ErrorKind::Unavailable);
        assert!(refused.to_string().contains("fuser"), "{refused}");
        let opened = backend.open(SessionId::new(2), &label, ttl).await;
        assert!(opened.is_err(), "{opened:?}");
        // What is held is kept, and given back.
        let renewal = |seq| Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep);
        assert!(
            backend
                .renew(session, &renewal(1))
                .await
                .unwrap()
                .is_living()
        );
        assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
        drop(reader);
        // Also if nobody has a session, and so nobody writes.
        let opened = backend.open(SessionId::new(2), &label, ttl).await;
        assert!(opened.is_ok(), "{opened:?}");
        backend.acquire(&request(n + 1, "other")).await.unwrap();
        let log = std::fs::metadata(directory.path().join("locks.db-wal")).unwrap();
        assert!(log.len() < 4 << 20, "{}", log.len());
    }
}
