//! [`Deployment`]: the store of a URL as the conformance kit sees it, with a namespace of its own for each case.

use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use lockcore_conformance::{BoxError, Fixture, Space};
use lockkeeper::{LockBackend, LockKey, Scratch, SessionId, async_trait};
use tokio::time::{Instant, timeout_at};

use crate::failure::chain;

/// So many namespaces are removed at once.
const REMOVED_AT_ONCE: usize = 8;

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

    /// Removes all namespaces for good, once nothing uses them any more: a late request may have made one anew. Goes on until
    /// none has been removed for `patience`. The failure is a text for people.
    pub(super) async fn remove_again(&self, patience: Duration) -> Result<(), String> {
        let ever = locked(&self.ever).clone();
        let remove = async |url: String| match lockkeeper::remove(&url).await {
            Ok(_) => Ok(()),
            Err(error) => Err(chain(&error)),
        };
        let gone = |name: &str| locked(&self.ever).retain(|it| it.0 != name);
        remove_each(ever, remove, gone, patience).await
    }

    /// Those of which it is not known that they are gone.
    pub(super) fn left(&self) -> Vec<String> {
        locked(&self.ever).iter().map(|it| it.0.clone()).collect()
    }
}

/// Removes namespaces by their names and URLs, some at once: each is a client of its own, and there may be hundreds.
async fn remove_each(
    those: Vec<(String, String)>,
    remove: impl AsyncFn(String) -> Result<(), String>,
    gone: impl Fn(&str),
    patience: Duration,
) -> Result<(), String> {
    let remove = &remove;
    let removals = those.into_iter();
    let removals = removals.map(|(name, url)| async move { (name, remove(url).await) });
    let mut removals = pin!(stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE));
    let (mut failed, mut until) = (Ok(()), Instant::now() + patience);
    loop {
        match timeout_at(until, removals.next()).await {
            Ok(Some((name, Ok(())))) => {
                gone(&name);
                until = Instant::now() + patience;
            }
            Ok(Some((_, Err(why)))) => failed = Err(why),
            Ok(None) => return failed,
            Err(_) => return failed.and(Err(format!("none was removed for {patience:?}"))),
        }
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
    use futures_util::poll;
    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Each case of the kit has made one.
    #[tokio::test]
    async fn hundreds_of_namespaces_are_removed_however_long_it_takes() {
        let those = |number: u32| (0..number).map(|n| (n.to_string(), n.to_string()));
        let patience = Duration::from_millis(500);
        let left = Mutex::new((0..200).map(|n| n.to_string()).collect::<Vec<_>>());
        let gone = |name: &str| locked(&left).retain(|it| it != name);
        let begun = Instant::now();
        let slow = async |_| {
            // It takes the store so long.
            sleep(Duration::from_millis(50)).await;
            Ok(())
        };
        let removed = remove_each(those(200).collect(), slow, gone, patience).await;
        assert_eq!(removed, Ok(()));
        assert!(begun.elapsed() > patience && locked(&left).is_empty());
        let dead = async |_| std::future::pending().await;
        let failed = remove_each(those(200).collect(), dead, gone, patience).await;
        assert_eq!(failed, Err("none was removed for 500ms".to_owned()));
        let refused = async |url: String| match &*url {
            "7" => Err("refused".to_owned()),
            _ => Ok(()),
        };
        let failed = remove_each(those(20).collect(), refused, gone, patience).await;
        assert_eq!(failed, Err("refused".to_owned()));
    }

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
        deployment.remove_again(PATIENCE).await.unwrap();
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
        deployment.remove_again(PATIENCE).await.unwrap();
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
