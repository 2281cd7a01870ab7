//! An Elasticsearch or OpenSearch, whose URL is in the environment, as the kit sees it.

use std::sync::Arc;
use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, World};
use lockcore_es::{EsBackend, EsConfig};

use crate::support::{self, access::User};

pub(crate) struct Server {
    name: String,
}

struct Space(support::Space);

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
        Ok(Arc::new(Space(support::Space::new())))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(EsBackend::connect(EsConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(support::connect(&self.0).await)
    }

    fn allowance(&self) -> Duration {
        Duration::from_millis(1)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        // Who may use it may not remove it.
        let url = self.0.url_of(&User::given());
        EsBackend::remove(EsConfig::parse(&url)?).await?;
        Ok(true)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        self.connect().await?;
        let record = serde_json::json!({"holder": "somebody", "version": 2});
        self.0.put(key.as_str(), &record).await;
        Ok(())
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let id = format!("~session/{session}");
        let mut document = self.0.document(&id).await.ok_or("it has no record")?;
        let ended = document["ended"].as_u64().ok_or("it has not ended")?;
        document["ended"] = (ended - u64::try_from(by.as_millis())?).into();
        self.0.put(&id, &document).await;
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(self.0.url())
    }
}

impl Server {
    /// The server, by the name and version that it says.
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let (status, about) = runtime.block_on(support::raw(Method::Get, "/", String::new()));
        assert_eq!(status, 200, "the server says who it is: {about}");
        let version = &about["version"];
        let engine = version["distribution"].as_str().unwrap_or("elasticsearch");
        let number = version["number"].as_str().unwrap_or("unknown");
        Self {
            name: format!("{engine}-{number}"),
        }
    }
}
