//! What the kit has to be told about a backend: how to make an empty space, and how to reach it again.

use std::sync::Arc;
use std::time::Duration;

use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, Feature, Fixture, Space};
use mariadb_backend::MariaDbBackend;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection};

/// In this variable is `mysql://USER:PASSWORD@HOST:PORT`, of an account that may create databases.
const SERVER: &str = "LOCKKEEPER_TEST_MARIADB";

pub(crate) struct Server;

struct Database {
    name: String,
}

/// Runs statements on the server.
async fn sql(text: String) -> Result<u64, BoxError> {
    let mut connection = MySqlConnection::connect(&server()).await?;
    let done = connection.execute(AssertSqlSafe(text)).await?;
    connection.close().await?;
    Ok(done.rows_affected())
}

fn server() -> String {
    std::env::var(SERVER).unwrap_or_else(|_| panic!("{SERVER} is not set: see CONTRIBUTING"))
}

#[async_trait]
impl Fixture for Server {
    fn name(&self) -> String {
        "mariadb".to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    fn lacks(&self) -> Vec<Feature> {
        vec![Feature::TurnWatch, Feature::Restart, Feature::Incarnation]
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        let name = format!("kit_{:032x}", rand::random::<u128>());
        sql(format!("CREATE DATABASE {name}")).await?;
        Ok(Arc::new(Database { name }))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(MariaDbBackend::connect(url).await?)
    }
}

impl Database {
    fn address(&self) -> String {
        format!("{}/{}", server(), self.name)
    }
}

#[async_trait]
impl Space for Database {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(MariaDbBackend::connect(&self.address()).await?)
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        let name = &self.name;
        sql(format!("DROP DATABASE {name}")).await?;
        sql(format!("CREATE DATABASE {name}")).await?;
        Ok(true)
    }

    /// A row whose want is of a newer version.
    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        let (name, key) = (&self.name, hex(key));
        sql(format!("INSERT INTO {name}.lockkeeper_holders VALUES (x'{key}', REPEAT('s', 16), 1, 1, 'lease', 0, NULL, NULL)"))
            .await?;
        Ok(())
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let (name, by) = (&self.name, by.as_micros());
        let text = format!(
            "UPDATE {name}.lockkeeper_sessions SET ended = ended - {by} WHERE id = x'{session}'"
        );
        assert_eq!(sql(text).await?, 1, "the session has ended");
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }
}

/// A key as the server's literal of bytes has it.
fn hex(key: &LockKey) -> String {
    key.as_str()
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
