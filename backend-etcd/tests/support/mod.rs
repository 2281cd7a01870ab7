//! What the tests share: servers, fresh namespaces on them, and the servers' own view of those.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, DeleteOptions};
use lockcore::{LockBackend, LockKey, async_trait};
use lockcore_conformance::servers::etcd::ETCD_3_4;
use lockcore_conformance::{BoxError, World};
use lockcore_etcd::{EtcdBackend, EtcdConfig};

/// Where servers' programs are kept.
pub fn artefacts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("servers")
}

/// The server whose URL is in the environment, or one that is started.
pub fn given() -> String {
    static GIVEN: LazyLock<String> = LazyLock::new(|| {
        std::env::var("LOCKKEEPER_TEST_ETCD").unwrap_or_else(|_| {
            let server = ETCD_3_4.start(&artefacts()).expect("an etcd");
            Box::leak(Box::new(server))
                .url()
                .replacen("http", "etcd", 1)
        })
    });
    GIVEN.clone()
}

/// A driver's client that may do everything, on a server without users and certificates.
pub async fn client(url: &str) -> Client {
    let hosts = url.split("://").nth(1).unwrap_or_default();
    let hosts = hosts.split(['/', '?']).next().unwrap_or_default();
    let urls: Vec<String> = hosts
        .split(',')
        .map(|host| format!("http://{host}"))
        .collect();
    Client::connect(urls, Some(ConnectOptions::new()))
        .await
        .unwrap()
}

/// A fresh namespace.
pub struct Space {
    pub server: String,
    pub namespace: String,
}

impl Space {
    /// On the server of the tests.
    pub fn new() -> Self {
        Self::at(given())
    }

    pub fn at(server: String) -> Self {
        Self {
            server,
            namespace: format!("t{:x}", rand::random::<u64>()),
        }
    }

    pub fn url(&self) -> String {
        let sign = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{sign}namespace={}", self.server, self.namespace)
    }

    pub fn config(&self) -> EtcdConfig {
        EtcdConfig::parse(&self.url()).unwrap()
    }

    pub async fn connect(&self) -> Arc<EtcdBackend> {
        EtcdBackend::connect(self.config()).await.unwrap()
    }

    /// A key of the namespace, as it is stored.
    pub fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.namespace).into_bytes()
    }

    /// Removes everything of the namespace.
    pub async fn clear(&self) {
        let all = DeleteOptions::new().with_prefix();
        let mut client = client(&self.server).await;
        client.delete(self.key(""), Some(all)).await.unwrap();
    }
}

/// One server as the kit sees it.
pub struct Etcd;

#[async_trait]
impl World for Etcd {
    fn name(&self) -> String {
        "etcd".to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    fn processes(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn lockcore_conformance::Space>, BoxError> {
        Ok(Arc::new(Space::new()))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(EtcdBackend::connect(EtcdConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(EtcdBackend::connect(self.config()).await?)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn allowance(&self) -> Duration {
        // Whole seconds, and the half second in which the server looks for leases that have ended.
        Duration::from_millis(1_900)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        lockcore_conformance::Space::connect(self).await?;
        let stored = key.as_str().replace('/', "\u{1}");
        let name = self.key(&format!("lock/{stored}\0v2"));
        client(&self.server)
            .await
            .put(name, "{\"holder\":\"somebody\"}", None)
            .await?;
        Ok(())
    }

    fn url(&self) -> Option<String> {
        Some(Space::url(self))
    }
}
