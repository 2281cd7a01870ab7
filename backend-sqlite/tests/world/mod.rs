//! SQLite files, as the kit sees them.

use std::sync::Arc;
use std::time::Duration;

use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, Space, World};
use lockcore_sqlite::{SqliteBackend, SqliteConfig};
use tempfile::TempDir;

pub(crate) struct Sqlite;

struct File(TempDir);

#[async_trait]
impl World for Sqlite {
    fn name(&self) -> String {
        "sqlite".into()
    }

    fn paused(&self) -> bool {
        false
    }

    fn processes(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(File(tempfile::tempdir()?)))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(SqliteBackend::connect(SqliteConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl Space for File {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Sqlite.reopen(&self.path()).await
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        SqliteBackend::remove(SqliteConfig::parse(&self.path())?).await?;
        Ok(true)
    }

    /// It ends with its last connection.
    async fn restart(&self) -> Result<bool, BoxError> {
        Ok(true)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        self.connect().await?;
        let file = rusqlite::Connection::open(self.0.path().join("locks.db"))?;
        file.busy_timeout(Duration::from_secs(5))?;
        file.execute(
            "INSERT INTO holders (key, session, n, m, want, since_ms) VALUES (?1, x'00', 1, 1, 'covet', 0)",
            [key.as_str()],
        )?;
        Ok(())
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let file = rusqlite::Connection::open(self.0.path().join("locks.db"))?;
        file.busy_timeout(Duration::from_secs(5))?;
        let aged = file.execute(
            "UPDATE sessions SET ended_ms = ended_ms - ?1 WHERE id = ?2 AND life <> 'living'",
            (i64::try_from(by.as_millis())?, session.get().to_be_bytes()),
        )?;
        assert_eq!(aged, 1, "the session has ended");
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(self.path())
    }
}

impl File {
    fn path(&self) -> String {
        format!("sqlite:{}", self.0.path().join("locks.db").display())
    }
}
