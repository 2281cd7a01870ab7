//! What the tests share: a server, fresh namespaces, and the server's own view of them.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lockcore::{LockBackend, LockKey, async_trait};
use lockcore_conformance::servers::{Server, redis as servers};
use lockcore_conformance::{BoxError, World};
use lockcore_redis::{RedisBackend, RedisConfig};

/// Where the server is of which the tests are; it ends with this process.
static URL: LazyLock<String> = LazyLock::new(|| match std::env::var("LOCKKEEPER_TEST_REDIS") {
    Ok(url) => url,
    Err(_) => {
        let server = servers::start().expect("a Redis server");
        url(Box::leak(Box::new(server)))
    }
});

/// A server's URL, as `redis://127.0.0.1:PORT`.
pub fn url(server: &Server) -> String {
    server.url().replacen("http", "redis", 1)
}

/// A fresh namespace. It is removed when it is dropped.
pub struct Space {
    /// Before the `?`, and what the options begin with.
    base: String,
    pub namespace: String,
}

impl Space {
    /// On the server of the tests.
    pub fn new() -> Self {
        Self::at(&URL)
    }

    /// On that server, whose URL may have options.
    pub fn at(url: &str) -> Self {
        Self {
            base: url.to_owned(),
            namespace: format!("t{:x}", rand::random::<u64>()),
        }
    }

    pub fn url(&self) -> String {
        let sign = if self.base.contains('?') { '&' } else { '?' };
        format!("{}{sign}namespace={}", self.base, self.namespace)
    }

    pub async fn connect(&self) -> Arc<RedisBackend> {
        let config = RedisConfig::parse(&self.url()).unwrap();
        RedisBackend::connect(config).await.unwrap()
    }

    pub fn key(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.namespace)
    }

    /// Asks the server itself, as somebody else might.
    pub fn raw<T: redis::FromRedisValue>(&self, command: &mut redis::Cmd) -> redis::RedisResult<T> {
        let host = self.base.split('?').next().unwrap_or_default();
        command.query(&mut redis::Client::open(host)?.get_connection()?)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let mut delete = redis::cmd("DEL");
        for name in [
            "records", "writes", "reads", "sessions", "intents", "steps", "meta",
        ] {
            delete.arg(self.key(name));
        }
        // The server may be gone by now.
        let _ = self.raw::<u32>(&mut delete);
    }
}

/// The server as the kit sees it.
pub struct Redis {
    pub name: String,
    pub url: String,
}

impl Redis {
    /// The server of the tests.
    pub fn given(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: URL.clone(),
        }
    }
}

#[async_trait]
impl World for Redis {
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
        Ok(Arc::new(Space::at(&self.url)))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(RedisBackend::connect(RedisConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(RedisBackend::connect(RedisConfig::parse(&Space::url(self))?).await?)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        lockcore_conformance::Space::connect(self).await?;
        let key = key.as_str();
        let stored = self.key("records");
        self.raw::<()>(
            redis::cmd("HSET")
                .arg(stored)
                .arg(key)
                .arg("v2 {\"holder\":\"somebody\"}"),
        )?;
        if key.starts_with('/') {
            self.raw::<()>(redis::cmd("ZADD").arg(self.key("writes")).arg(0).arg(key))?;
        }
        Ok(())
    }

    fn url(&self) -> Option<String> {
        Some(Space::url(self))
    }
}
