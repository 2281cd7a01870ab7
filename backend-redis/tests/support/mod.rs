//! What the tests share: servers, fresh namespaces on them, and the servers' own view of those.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

pub mod servers;
pub mod steps;

use std::sync::Arc;
use std::time::Duration;

use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, Feature, Fixture};
use lockcore_redis::{RedisBackend, RedisConfig};
use redis::RedisResult;

/// A fresh namespace. It is removed when it is dropped.
pub struct Space {
    place: Place,
    pub namespace: String,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub struct Place {
    /// By the backend; it may have options.
    pub url: String,
    /// By who may do anything, without options.
    pub admin: String,
}

impl Place {
    pub fn of(url: impl Into<String>) -> Self {
        let url = url.into();
        let admin = url.split('?').next().unwrap_or_default().to_owned();
        Self { url, admin }
    }
}

impl Space {
    /// On the server of the tests.
    pub fn new() -> Self {
        Self::at(&servers::given())
    }

    pub fn at(place: &Place) -> Self {
        Self {
            place: place.clone(),
            namespace: format!("t{:x}", rand::random::<u64>()),
        }
    }

    /// The same namespace, reached in another way.
    pub fn moved_to(&self, place: &Place) -> Self {
        Self {
            place: place.clone(),
            namespace: self.namespace.clone(),
        }
    }

    pub fn url(&self) -> String {
        let url = &self.place.url;
        let sign = if url.contains('?') { '&' } else { '?' };
        format!("{url}{sign}namespace={}", self.namespace)
    }

    pub fn config(&self) -> RedisConfig {
        RedisConfig::parse(&self.url()).unwrap()
    }

    pub async fn connect(&self) -> Arc<RedisBackend> {
        RedisBackend::connect(self.config()).await.unwrap()
    }

    pub fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.namespace)
    }

    /// Asks the server itself, as somebody else might; of a cluster the node that has the namespace.
    pub fn raw<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> RedisResult<T> {
        let ask = |url: &str, command: &redis::Cmd| -> RedisResult<T> {
            command.query(&mut redis::Client::open(url)?.get_connection()?)
        };
        // Of several hosts any will do.
        let one = self.place.admin.split(',').next().unwrap_or_default();
        match ask(one, command) {
            Err(error) => match error.redirect_node() {
                Some((node, _)) => ask(&format!("redis://{node}"), command),
                None => Err(error),
            },
            answered => answered,
        }
    }
}

impl Space {
    /// Everything of the namespace; the right to remove it is not among the least.
    fn remove(&self) -> RedisResult<u32> {
        let mut delete = redis::cmd("DEL");
        for name in [
            "records", "writes", "reads", "sessions", "intents", "batches", "meta",
        ] {
            delete.arg(self.key(name));
        }
        self.raw(&mut delete)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // The server may be gone by now.
        let _ = self.remove();
    }
}

/// Starts one at the first call: a child process of the suite does not call it.
pub type Deployment = fn() -> Place;

/// A deployment as the kit sees it.
pub struct Redis {
    pub name: &'static str,
    pub place: Deployment,
}

#[async_trait]
impl Fixture for Redis {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    fn lacks(&self) -> Vec<Feature> {
        vec![Feature::TurnWatch, Feature::Restart]
    }

    async fn fresh(&self) -> Result<Arc<dyn lockcore_conformance::Space>, BoxError> {
        // It may have to be started.
        let place = tokio::task::spawn_blocking(self.place).await?;
        Ok(Arc::new(Space::at(&place)))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(RedisBackend::connect(RedisConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(RedisBackend::connect(self.config()).await?)
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        self.remove()?;
        Ok(true)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        lockcore_conformance::Space::connect(self).await?;
        let key = key.as_str();
        let mut put = redis::cmd("HSET");
        put.arg(self.key("records")).arg(key);
        self.raw::<()>(put.arg("v2 {\"holder\":\"somebody\"}"))?;
        if key.starts_with('/') {
            self.raw::<()>(redis::cmd("ZADD").arg(self.key("writes")).arg(0).arg(key))?;
        }
        Ok(())
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let (key, id) = (self.key("sessions"), session.to_string());
        let record: String = self.raw(redis::cmd("HGET").arg(&key).arg(&id))?;
        let mut lines: Vec<&str> = record.split('\n').collect();
        // The ninth line, as `server/common.lua` says.
        let ended = lines[8].parse::<u128>()? - by.as_millis();
        let ended = ended.to_string();
        lines[8] = &ended;
        self.raw::<()>(redis::cmd("HSET").arg(&key).arg(&id).arg(lines.join("\n")))?;
        let due = self.key("due");
        if self
            .raw::<Option<u128>>(redis::cmd("ZSCORE").arg(&due).arg(&id))?
            .is_some()
        {
            let by = -i64::try_from(by.as_millis())?;
            self.raw::<()>(redis::cmd("ZINCRBY").arg(&due).arg(by).arg(&id))?;
        }
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(Space::url(self))
    }
}
