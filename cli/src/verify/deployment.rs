//! [`Deployment`]: the store of a URL as the conformance kit sees it, with a namespace of its own for each case.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockcore_conformance::{BoxError, Fixture, Space};
use lockkeeper::{LockBackend, LockKey, Scratch, SessionId, async_trait};

/// The store of a URL.
pub(super) struct Deployment {
    url: String,
    made: Made,
    /// All that were ever made: the names, and the URLs.
    ever: Mutex<Vec<(String, String)>>,
}

/// The namespaces that are not removed yet.
pub(super) type Made = Arc<Mutex<Vec<Arc<Scratch>>>>;

/// What a case wanted and cannot have here.
pub(super) type Missing = Arc<Mutex<Option<&'static str>>>;

pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deployment {
    pub(super) fn new(url: &str, made: Made) -> Self {
        Self {
            url: url.to_owned(),
            made,
            ever: Mutex::default(),
        }
    }

    pub(super) fn made(&self) -> Made {
        Arc::clone(&self.made)
    }

    /// A new namespace, for one case.
    pub(super) async fn space(&self) -> Result<Own, Box<dyn Error + Send + Sync>> {
        // Whoever is interrupted meanwhile, or has no answer, leaves it, too.
        let made = Scratch::announced(&self.url, |name, url| {
            locked(&self.ever).push((name.to_owned(), url.to_owned()));
        });
        let scratch = Arc::new(made.await?);
        locked(&self.made).push(Arc::clone(&scratch));
        Ok(Own {
            scratch,
            missing: Missing::default(),
        })
    }

    /// Removes all namespaces for good, once nothing uses them any more: a late request may have made one anew.
    pub(super) async fn remove_again(&self) -> Result<(), lockkeeper::ConnectError> {
        let mut failed = Ok(());
        let ever = locked(&self.ever).clone();
        for (name, url) in ever {
            match lockkeeper::remove(&url).await {
                Ok(_) => locked(&self.ever).retain(|it| it.0 != name),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Those of which it is not known that they are gone.
    pub(super) fn left(&self) -> Vec<String> {
        locked(&self.ever).iter().map(|it| it.0.clone()).collect()
    }
}

/// Removes all namespaces that are left. First end everything that uses them. Those that could not be removed stay in the
/// list.
pub(super) async fn remove(
    made: &Made,
    those: impl Fn(&Scratch) -> bool,
) -> Result<(), lockkeeper::Error> {
    let all: Vec<Arc<Scratch>> = locked(made)
        .iter()
        .filter(|it| those(it))
        .cloned()
        .collect();
    let mut failed = Ok(());
    for scratch in all {
        match scratch.remove().await {
            Ok(()) => locked(made).retain(|it| it.name() != scratch.name()),
            Err(error) => failed = Err(error),
        }
    }
    failed
}

#[async_trait]
impl Fixture for Deployment {
    fn name(&self) -> String {
        "verify".to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(self.space().await?))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(lockkeeper::backend(url).await?)
    }
}

/// A namespace of its own.
pub(super) struct Own {
    scratch: Arc<Scratch>,
    missing: Missing,
}

impl Own {
    pub(super) fn missing(&self) -> Missing {
        Arc::clone(&self.missing)
    }

    pub(super) fn name(&self) -> &str {
        self.scratch.name()
    }

    pub(super) fn store(&self) -> &'static str {
        self.scratch.backend().info().name
    }

    fn misses(&self, what: &'static str) {
        locked(&self.missing).get_or_insert(what);
    }
}

#[async_trait]
impl Space for Own {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(lockkeeper::backend(self.scratch.url()).await?)
    }

    /// What the kit allows for each store in its own tests.
    fn allowance(&self) -> Duration {
        let ms = match self.store() {
            // Whole seconds, and the half second in which the server looks for leases that have ended.
            "etcd" => 1_900,
            "postgres" => 20,
            "elasticsearch" => 1 + clock_skew(self.scratch.url()),
            _ => 1,
        };
        Duration::from_millis(ms)
    }

    async fn plant(&self, _: &LockKey) -> Result<(), BoxError> {
        let what = "a record of somebody else: this command writes none into a store";
        self.misses(what);
        Err(what.into())
    }

    async fn age(&self, _: SessionId, _: Duration) -> Result<bool, BoxError> {
        self.misses("a session that ended a day ago: this command does not move clocks");
        Ok(false)
    }

    async fn restart(&self) -> Result<bool, BoxError> {
        self.misses("a restart of the store: others use it");
        Ok(false)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        lockkeeper::remove(self.scratch.url()).await?;
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(self.scratch.url().to_owned())
    }
}

/// How much later than its lease a session is due on Elasticsearch and OpenSearch: the option of the URL, or its default.
fn clock_skew(url: &str) -> u64 {
    let mut options = url.split(['?', '&']);
    let given = options.find_map(|option| option.strip_prefix("clock_skew_ms="));
    given.and_then(|ms| ms.parse().ok()).unwrap_or(1_000)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn what_a_late_request_has_made_anew_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let deployment = Deployment::new(&url, Made::default());
        let files = || folder.path().read_dir().unwrap().count();
        let space = deployment.space().await.unwrap();
        let late = space.connect().await.unwrap();
        remove(&deployment.made(), |_| true).await.unwrap();
        assert_eq!(files(), 0);
        let _ = late.sessions(None, 1).await;
        assert_ne!(files(), 0, "it is made anew");
        assert_eq!(deployment.left().len(), 1);
        drop(late);
        deployment.remove_again().await.unwrap();
        assert_eq!(files(), 0);
        assert_eq!(deployment.left(), [""; 0]);
    }

    #[tokio::test]
    async fn what_somebody_was_interrupted_in_making_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let deployment = Deployment::new(&url, Made::default());
        {
            let mut making = pin!(deployment.space());
            while deployment.left().is_empty() {
                assert!(poll!(&mut making).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(deployment.left().len(), 1);
        deployment.remove_again().await.unwrap();
        assert_eq!(deployment.left(), [""; 0]);
        // Where none can be made there is nothing to remove.
        let nowhere = Deployment::new("sqlite:/nowhere/locks.db", Made::default());
        assert!(nowhere.space().await.is_err());
        assert_eq!(nowhere.left(), [""; 0]);
    }

    #[test]
    fn the_clock_skew_is_that_of_the_url() {
        assert_eq!(clock_skew("elasticsearch://h"), 1_000);
        assert_eq!(
            clock_skew("opensearchs://h?namespace=x&clock_skew_ms=250&ca=/f"),
            250
        );
    }
}
