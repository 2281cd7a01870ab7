//! The open file, and the transactions on it: begun at once or not at all, on the file that the path names now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockcore::backend::rows::{Access, Act, ready};
use lockcore::{ErrorKind, Operation};
use rusqlite::Connection;

use crate::clock::Clock;
use crate::config::SqliteConfig;
use crate::error::{Failure, Outcome, Phase};
use crate::open::{self, Identity};
use crate::sql;
use crate::transaction::{Freed, Transaction};

/// How often a file may be replaced while one transaction begins.
const REPLACED_AT_MOST: usize = 3;

/// While the log is longer, nothing more is acquired. It grows while a reader keeps an old state of the file, by some 16 KiB
/// for a lock that is taken and given back.
const LOG_AT_MOST: u64 = if cfg!(test) { 8 << 20 } else { 1 << 30 };
/// Every so many acquisitions it is looked at.
const BETWEEN_LOOKS: u32 = 64;

/// The file, open or to be opened by the next transaction. It lives on the writer thread.
pub(crate) struct File {
    path: PathBuf,
    /// Every commit waits for the disk.
    full: bool,
    clock: Clock,
    deadline: Deadline,
    open: Option<Open>,
    /// What was open before, if the path names something else by now.
    left: Option<Identity>,
    /// What transactions may have freed since this was taken.
    freed: Freed,
    /// How many acquisitions there were since the log was looked at; none, if it was too long then.
    asked: u32,
    #[cfg(test)]
    pub(crate) begun: usize,
}

struct Open {
    conn: Connection,
    identity: Identity,
    /// What `PRAGMA synchronous` is set to.
    full: bool,
    has_bare_table: bool,
}

/// Until when the running operation waits for other processes.
#[derive(Clone)]
pub(crate) struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    pub(crate) fn set(&self, deadline: Instant) {
        self.replace(deadline);
    }

    /// Sets it, and says what it was.
    fn replace(&self, deadline: Instant) -> Instant {
        std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            deadline,
        )
    }

    /// Sleeps for a moment; `false` once the time is up. SQLite's own back-off doubles its sleep up to 100 ms, so that
    /// whoever has waited long is overtaken by whoever has just come.
    pub(crate) fn pause(&self) -> bool {
        let deadline = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(rand::random_range(100..300)));
        true
    }
}

impl File {
    pub(crate) fn new(config: &SqliteConfig) -> Outcome<Self> {
        let clock = Clock::new().map_err(|error| {
            Failure::File(
                "the name of the machine's boot cannot be read: mount /proc".into(),
                error,
            )
        })?;
        // Absolute, so that a change of the working directory is no change of the file, and so that SQLite does not
        // take a name such as file:x for something else.
        let path = std::path::absolute(config.path())
            .map_err(|error| Failure::File("the path cannot be used".into(), error))?;
        Ok(Self {
            path,
            full: config.is_full(),
            clock,
            deadline: Deadline(Arc::new(Mutex::new(Instant::now() + config.limit()))),
            open: None,
            left: None,
            freed: Freed::default(),
            asked: 0,
            #[cfg(test)]
            begun: 0,
        })
    }

    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// One act in a transaction of its own. One that reads waits for nobody; a durable one's commit waits for the disk.
    pub(crate) fn act<A: Act>(&mut self, act: &A) -> Outcome<A::Answer> {
        self.check(A::OPERATION)?;
        self.transact(act.access(), |transaction| ready(act.run(transaction)))
    }

    /// All of it, or nothing, in one transaction.
    pub(crate) fn transact<T>(
        &mut self,
        access: Access,
        work: impl FnOnce(&mut Transaction<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.begin(access)?;
        #[cfg(test)]
        {
            self.begun += 1;
        }
        let open = self.open.as_mut().expect("begin has opened it");
        let mut transaction = Transaction::new(&mut open.conn, &self.clock, &mut self.freed);
        let outcome = work(&mut transaction).and_then(|answer| {
            execute(&open.conn, sql::COMMIT).map_err(at_commit)?;
            Ok(answer)
        });
        if outcome.is_err() && execute_unless_over(&open.conn, sql::ROLLBACK).is_err() {
            self.close();
        }
        outcome
    }

    /// Whether a commit for that waits for the disk.
    pub(crate) fn waits_for_disk(&self, access: Access) -> bool {
        self.full || access == Access::Durable
    }

    /// Whether such an operation may be taken on.
    pub(crate) fn check(&mut self, operation: Operation) -> Outcome<()> {
        match operation {
            Operation::Open | Operation::Acquire => self.check_log(),
            _ => Ok(()),
        }
    }

    /// Whether something more may be taken on.
    fn check_log(&mut self) -> Outcome<()> {
        let Some(open) = self.open.as_ref().filter(|_| self.asked == 0) else {
            self.asked = (self.asked + 1) % BETWEEN_LOOKS;
            return Ok(());
        };
        if open.identity.log_bytes() > LOG_AT_MOST {
            // Who writes has the log written back, and who is refused writes nothing. It waits for nobody.
            let deadline = self.deadline.replace(Instant::now());
            let written_back = open.conn.query_row(sql::TRUNCATE_LOG, [], |_| Ok(()));
            self.deadline.set(deadline);
            written_back?;
        }
        if open.identity.log_bytes() > LOG_AT_MOST {
            let what = "somebody reads the file and does not end, so that its log grows (the file that ends in -wal): end who \
                        has it open and does not use it, as fuser shows them";
            return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
        }
        self.asked = 1;
        Ok(())
    }

    /// Opens the file, if it is not open.
    pub(crate) fn open(&mut self) -> Outcome<()> {
        self.begin(Access::Read)?;
        let open = self.open.as_ref().expect("begin has opened it");
        execute(&open.conn, sql::COMMIT).map_err(at_commit)
    }

    /// What transactions may have freed since this was last asked.
    pub(crate) fn take_freed(&mut self) -> Freed {
        std::mem::take(&mut self.freed)
    }

    /// Removes the file with everything in it.
    pub(crate) fn remove(&self) -> Outcome<()> {
        open::remove_all(&self.path, &self.deadline).map_err(Failure::while_opening)
    }

    /// The cheapest transaction of this kind, for comparison: no look at the path, one row. The first one makes the
    /// table for it.
    pub(crate) fn bare(&mut self) -> Outcome<()> {
        let full = self.full;
        if !self.opened(full)?.has_bare_table {
            execute(&self.opened(full)?.conn, sql::BARE_TABLE)?;
        }
        let open = self.open.as_mut().expect("it was opened above");
        open.has_bare_table = true;
        execute(&open.conn, sql::BEGIN)?;
        execute(&open.conn, sql::BARE_WRITE)?;
        execute(&open.conn, sql::COMMIT).map_err(at_commit)
    }

    #[cfg(test)]
    pub(crate) fn batch(&mut self, statements: &str) {
        let conn = &self.open.as_ref().unwrap().conn;
        conn.execute_batch(statements).unwrap();
    }

    /// What `PRAGMA synchronous` was for the last transaction.
    #[cfg(test)]
    pub(crate) fn synchronous(&mut self) -> i64 {
        let conn = &self.open.as_ref().unwrap().conn;
        conn.pragma_query_value(None, "synchronous", |row| row.get(0))
            .unwrap()
    }

    /// The time since boot.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether another connection has committed since the last call, or the path names another file by now.
    pub(crate) fn changed(&mut self, seen: &mut i64) -> Outcome<bool> {
        let Some(open) = &self.open else {
            return Ok(true);
        };
        let mut version = open.conn.prepare_cached("PRAGMA data_version")?;
        let version: i64 = version.query_row([], |row| row.get(0))?;
        let moved = !open.identity.is_at(&self.path);
        Ok(std::mem::replace(seen, version) != version || moved)
    }

    /// Begins a transaction on the file that the path names.
    fn begin(&mut self, access: Access) -> Outcome<()> {
        for _ in 0..REPLACED_AT_MOST {
            let full = self.waits_for_disk(access);
            let conn = &self.opened(full)?.conn;
            let begin = match access {
                Access::Write | Access::Durable => sql::BEGIN,
                Access::Read => sql::BEGIN_READ,
            };
            if let Err(failure) = execute(conn, begin) {
                if !is_busy(&failure) {
                    self.close();
                }
                return Err(failure);
            }
            let open = self.open.as_ref().expect("it was opened above");
            // Looked at under the lock: a file that was replaced before has lost its sessions.
            if open.identity.is_at(&self.path) {
                return Ok(());
            }
            self.close();
        }
        Err(Failure::Found(
            ErrorKind::Unavailable,
            "the file is replaced again and again".into(),
        ))
    }

    fn opened(&mut self, full: bool) -> Outcome<&Open> {
        if self.open.is_none() {
            let (conn, identity) = open::open(&self.path, self.left.as_ref(), &self.deadline)
                .map_err(Failure::while_opening)?;
            self.left = None;
            self.freed.any = true;
            self.open = Some(Open {
                conn,
                identity,
                full: true,
                has_bare_table: false,
            });
        }
        let open = self.open.as_mut().expect("it was opened above");
        if open.full != full {
            let level = if full { "FULL" } else { "NORMAL" };
            open.conn.pragma_update(None, "synchronous", level)?;
            open.full = full;
        }
        Ok(open)
    }

    /// Leaves the file; the next transaction opens the one that the path names then.
    fn close(&mut self) {
        self.left = self.open.take().map(|open| open.identity);
    }
}

fn execute(conn: &Connection, statement: &str) -> Outcome<()> {
    conn.prepare_cached(statement)?.execute([])?;
    Ok(())
}

fn execute_unless_over(conn: &Connection, statement: &str) -> Outcome<()> {
    if conn.is_autocommit() {
        return Ok(());
    }
    execute(conn, statement)
}

fn at_commit(failure: Failure) -> Failure {
    match failure {
        Failure::Sqlite(_, error) => Failure::Sqlite(Phase::Commit, error),
        other => other,
    }
}

fn is_busy(failure: &Failure) -> bool {
    matches!(failure, Failure::Sqlite(_, error)
        if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy))
}

#[cfg(test)]
mod tests {
    use rusqlite::{StatementStatus, params};

    use super::*;

    #[test]
    fn no_statement_is_planned_anew_for_other_values() {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db"));
        let mut file = File::new(&config).unwrap();
        file.open().unwrap();
        let conn = &file.open.as_ref().unwrap().conn;
        let mut statement = conn.prepare(sql::HOLDERS_ON_KEY).unwrap();
        for most in 1..4 {
            let values = params!["k", [0_u8; 0], i64::MIN, None::<&str>, most];
            assert!(statement.query(values).unwrap().next().unwrap().is_none());
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
