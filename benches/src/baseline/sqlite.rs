//! Bare transactions on a file of the same folder.

use std::sync::Arc;

use async_trait::async_trait;
use lockcore_sqlite::{SqliteBackend, SqliteConfig};
use rusqlite::{Connection, params};

use lockkeeper_workloads::{Failure, Granted, Lock, id};

/// Keys of a step of the backend.
const STEP: u32 = 2_000;

pub(crate) struct Baseline {
    backend: Arc<SqliteBackend>,
    rows: Connection,
    _folder: tempfile::TempDir,
}

impl Baseline {
    pub(crate) async fn new(url: &str) -> Self {
        let config = SqliteConfig::parse(url).expect("it is the URL of a file");
        let backend = SqliteBackend::connect(config)
            .await
            .expect("the file can be made");
        let full = url.contains("synchronous=full");
        let path = url
            .trim_start_matches("sqlite:")
            .split('?')
            .next()
            .unwrap_or_default();
        let beside = std::path::Path::new(path).parent();
        let folder = tempfile::tempdir_in(beside.expect("a file is in a folder"))
            .expect("a temporary folder");
        let rows = Connection::open(folder.path().join("baseline.db")).expect("a database");
        rows.pragma_update(None, "journal_mode", "WAL")
            .expect("it has a WAL");
        rows.pragma_update(None, "synchronous", if full { "FULL" } else { "NORMAL" })
            .expect("a setting");
        rows.execute_batch("CREATE TABLE rows (id TEXT PRIMARY KEY, record BLOB) WITHOUT ROWID")
            .expect("a table");
        Self {
            backend,
            rows,
            _folder: folder,
        }
    }

    /// Runs a statement for the document of every number below `count`.
    fn each(&mut self, count: u32, statement: &str) {
        for from in (0..count).step_by(STEP as usize) {
            let transaction = self.rows.transaction().expect("nobody else is there");
            let mut prepared = transaction.prepare_cached(statement).expect("it is SQL");
            for n in from..count.min(from + STEP) {
                prepared.execute(params![id(n)]).expect("it is written");
            }
            drop(prepared);
            transaction.commit().expect("it is written");
        }
    }
}

struct Pair(Arc<SqliteBackend>);

#[async_trait]
impl Lock for Pair {
    async fn turn(&self, _: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        self.0.bare_transaction().await?;
        granted().over().await;
        self.0.bare_transaction().await?;
        Ok(())
    }
}

#[async_trait]
impl super::Baseline for Baseline {
    async fn server(&mut self) -> String {
        let setting = self
            .rows
            .pragma_query_value(None, "synchronous", |row| row.get(0));
        let synchronous: i64 = setting.expect("a setting");
        let synchronous =
            ["OFF", "NORMAL", "FULL"][usize::try_from(synchronous).unwrap_or(2).min(2)];
        format!(
            "SQLite {}, WAL, synchronous {synchronous}",
            rusqlite::version()
        )
    }

    fn pair_is(&self) -> &'static str {
        "two bare transactions through the same kind of thread"
    }

    fn pair(&self) -> Arc<dyn Lock> {
        Arc::new(Pair(Arc::clone(&self.backend)))
    }

    fn many_is(&self) -> &'static str {
        "a row for each, 2,000 in a transaction; as many deletes"
    }

    async fn put(&mut self, count: u32) {
        self.each(count, "INSERT INTO rows VALUES (?1, zeroblob(64))");
    }

    async fn remove(&mut self, count: u32) {
        self.each(count, "DELETE FROM rows WHERE id = ?1");
    }
}
