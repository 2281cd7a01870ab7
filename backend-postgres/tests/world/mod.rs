//! A PostgreSQL, whose URL is in the environment, as the kit sees it.

use std::sync::Arc;
use std::time::Duration;

use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, World};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use lockkeeper_servers::postgres;
use sqlx::Row as _;
use tokio::sync::OnceCell;

use crate::support;

pub(crate) struct Server {
    name: String,
    /// Started when the first namespace is made: not by the processes that the suite starts. It lasts as long as the
    /// process, so that its log can be shown at the end.
    pooler: Option<&'static OnceCell<lockkeeper_servers::Server>>,
}

struct Space {
    space: support::Space,
    url: String,
}

#[async_trait]
impl World for Server {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn paused(&self) -> bool {
        false
    }

    fn processes(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn lockcore_conformance::Space>, BoxError> {
        let space = support::Space::new().await;
        let url = match &self.pooler {
            None => space.url(),
            Some(pooler) => {
                let users = [(support::ROLE, support::PASSWORD)];
                let start = async || postgres::pgbouncer(&support::server(), &users);
                let pooler = pooler.get_or_try_init(start).await?;
                space.url_at(pooler.url()) + "&pooler=transaction"
            }
        };
        Ok(Arc::new(Space { space, url }))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(PostgresBackend::connect(PostgresConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(PostgresBackend::connect(PostgresConfig::parse(&self.url)?).await?)
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        let namespace = self.space.text("{ns}").replace('"', "");
        let owner = format!("{}?namespace={namespace}", support::server());
        PostgresBackend::remove(PostgresConfig::parse(&owner)?).await?;
        PostgresBackend::init(PostgresConfig::parse(&owner)?, &[support::ROLE]).await?;
        Ok(true)
    }

    /// What is no session and no grant the schema refuses. What it takes is a row whose want is of a newer version.
    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        let hex: String = key
            .as_str()
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let text = format!(
            "INSERT INTO {{ns}}.holders VALUES (convert_from(decode('{hex}', 'hex'), 'UTF8'),
             decode('00112233445566778899aabbccddeeff', 'hex'), 1, 1, 'lease', clock_timestamp())"
        );
        self.space.sql(&text).await;
        Ok(())
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let text = format!(
            "UPDATE {{ns}}.sessions SET ended = ended - interval '{} seconds'
             WHERE id = decode('{session}', 'hex') AND life <> 'living' RETURNING id",
            by.as_secs()
        );
        let aged = self.space.sql(&text).await;
        assert_eq!(aged.len(), 1, "the session has ended");
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }
}

impl Server {
    /// The server, by its version.
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let rows = runtime.block_on(support::sql("SHOW server_version"));
        let version: &str = rows[0].get(0);
        let number = version.split(' ').next().unwrap_or("unknown");
        Self {
            name: format!("postgres-{number}"),
            pooler: None,
        }
    }

    /// The same behind a PgBouncer in transaction mode.
    #[allow(dead_code, reason = "not every test program uses it")]
    pub(crate) fn pooled() -> Self {
        static POOLER: OnceCell<lockkeeper_servers::Server> = OnceCell::const_new();
        let direct = Self::new();
        Self {
            name: format!("pgbouncer-{}", direct.name),
            pooler: Some(&POOLER),
        }
    }
}
