//! [`Scratch`]: a temporary namespace.

use std::fmt;
use std::sync::Arc;

use lockcore::{Error, ErrorKind, LockBackend, Operation};

use crate::store::Store;
use crate::{ConnectError, url};

/// The prefix of all their names.
const NAME: &str = "lockkeeper-scratch-";

/// A temporary namespace with a random name, for measurements and tests in a store that others use. It starts empty.
/// [`remove`](Self::remove) deletes it with everything in it, and can delete nothing else.
///
/// Its name is `lockkeeper-scratch-` and 16 hexadecimal digits. If the process dies before it removes the namespace,
/// the namespace stays. An operator finds it by its name and removes it with the store's own tools:
///
/// | store | what stays |
/// |---|---|
/// | SQLite | the file `PATH.lockkeeper-scratch-…` beside the one of the URL, with `-wal` and `-shm` |
/// | Redis | keys that begin with `{lockkeeper-scratch-…}:`, seven at most |
/// | PostgreSQL | the schema `lockkeeper-scratch-…` |
/// | Elasticsearch, OpenSearch | the index `lockkeeper-scratch-…-TIME` with its alias; it is hidden |
/// | etcd | keys that begin with `lockkeeper-scratch-…/` |
/// | memory | nothing |
///
/// A scratch namespace needs more rights than an existing one: the rights to create and to remove a namespace of that
/// name (see `remove` of each backend). If the right to remove is missing, [`new`](Self::new) fails before it creates
/// anything.
///
/// `Debug` shows no password.
///
/// # Examples
///
/// ```
/// use lockkeeper::{Locks, Scratch};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("locks.db").display().to_string();
/// # let url = format!("sqlite:{path}");
/// let scratch = Scratch::new(&url).await?;                 // "sqlite:locks.db"
/// let locks = Locks::builder(scratch.backend()).build()?;
/// locks.lock("reindex").acquire().await?.release().await?;
/// locks.shutdown(std::time::Duration::from_secs(5)).await;
/// # assert!(std::path::Path::new(&format!("{path}.{}", scratch.name())).exists());
/// scratch.remove().await?;
/// assert_eq!(folder.path().read_dir()?.count(), 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "it stays in the store until it is removed"]
pub struct Scratch {
    name: String,
    url: String,
    store: Store,
    backend: Arc<dyn LockBackend>,
}

impl Scratch {
    /// Creates one in the store of that URL. It does not touch the namespace, or the file, that the URL names. The
    /// other options of the URL apply.
    ///
    /// # Errors
    ///
    /// As [`backend`](crate::backend()), and if the rights to create or to remove a namespace are missing. If the store
    /// does not answer, an empty namespace may remain.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the namespace, of which [`announced`](Self::announced) tells the URL.
    pub async fn new(url: &str) -> Result<Self, ConnectError> {
        Self::announced(url, |_, _| {}).await
    }

    /// The same, and tells its name and its [URL](Self::url) just before anything is created. Whoever drops the future then, or
    /// has an error, gives that URL to [`remove`](crate::remove()): a request may have been executed late.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the namespace.
    pub async fn announced(
        url: &str,
        announce: impl FnOnce(&str, &str),
    ) -> Result<Self, ConnectError> {
        // What is wrong with it is told of the URL as it was given.
        Store::parse(url)?;
        let name = format!("{NAME}{:016x}", random()?);
        let url = url::in_namespace(url, &name);
        let store = Store::parse(&url)?;
        // There is nothing to remove: this asks whether we may.
        store.clone().remove().await?;
        announce(&name, &url);
        let backend = match store.clone().connect().await {
            Ok(backend) => backend,
            Err(error) => {
                // It may have been made all the same.
                let _ = store.remove().await;
                return Err(error.into());
            }
        };
        Ok(Self {
            name,
            url,
            store,
            backend,
        })
    }

    /// The name of the namespace. For an SQLite file: the end of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL with which other processes connect to the same namespace. It contains the password of the original URL.
    /// With `memory:`, every process gets a store of its own.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The connected store, for [`Locks::builder`](lockcore::Locks::builder).
    #[must_use]
    pub fn backend(&self) -> Arc<dyn LockBackend> {
        Arc::clone(&self.backend)
    }

    /// Removes the namespace with everything in it. First shut down all clients and end all processes that use it:
    /// later requests may create something again. After an error, call it again. It is no error if the namespace is
    /// gone.
    ///
    /// # Errors
    ///
    /// Those of every operation. All or part of the namespace may remain.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves all of it, a part, or nothing. Call it again.
    pub async fn remove(&self) -> Result<(), Error> {
        // Behind what this process has asked of an SQLite file before, which would be made anew. How it ends is no matter.
        let _ = self.backend.sessions(None, 1).await;
        self.store.clone().remove().await
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| {
        let what = "the system has no random numbers";
        Error::new(ErrorKind::Unavailable, "scratch", Operation::Connect, what).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what a URL names is removed: none may be without the name.
    #[test]
    fn the_namespace_is_in_every_url() {
        let urls: &[&str] = &[
            #[cfg(feature = "elasticsearch")]
            "elasticsearch://a,b?namespace=mine&replicas=0",
            #[cfg(feature = "etcd")]
            "etcds://u:p@h:1/?txn_ops=100&namespace=mine",
            #[cfg(feature = "postgres")]
            "postgres://u:p@h/d?namespace=mine&pooler=transaction",
            #[cfg(feature = "redis")]
            "redis://:p@h/3",
            #[cfg(feature = "sqlite")]
            "sqlite:mine?synchronous=full",
        ];
        for url in urls {
            let name = format!("{NAME}0");
            let store = Store::parse(&url::in_namespace(url, &name)).unwrap();
            let shown = format!("{store:?}");
            assert!(shown.contains(&name), "{shown}");
        }
    }

    #[tokio::test]
    async fn memory_is_shared_by_its_clients_and_bad_urls_are_told() {
        let scratch = Scratch::new("memory:").await.unwrap();
        let locks = || lockcore::Locks::builder(scratch.backend()).build().unwrap();
        let (one, two) = (locks(), locks());
        let _guard = one.lock("k").acquire().await.unwrap();
        let busy = two.lock("k").try_acquire().await.unwrap();
        assert!(matches!(busy, lockcore::Attempt::Busy(_)));
        scratch.remove().await.unwrap();
        let error = Scratch::new("memory:x").await.unwrap_err();
        assert!(matches!(error, ConnectError::MemoryTakesNothing));
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_file_is_removed_and_its_neighbours_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let url = format!("sqlite:{}", path.display());
        let locks = crate::connect(&url).await.unwrap();
        let guard = locks.lock("k").acquire().await.unwrap();
        let scratch = Scratch::new(&url).await.unwrap();
        let other = Scratch::new(&url).await.unwrap();
        let locks = crate::connect(scratch.url()).await.unwrap();
        drop(locks.lock("k").acquire().await.unwrap());
        locks.shutdown(std::time::Duration::from_secs(5)).await;
        for _ in 0..2 {
            scratch.remove().await.unwrap();
        }
        let left = folder.path().read_dir().unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        let of = |name: &str| {
            let its = left
                .iter()
                .filter(|file| file.to_str().unwrap().contains(name));
            its.count()
        };
        assert_eq!((of(scratch.name()), of(other.name())), (0, 3), "{left:?}");
        assert!(guard.confirm().await.unwrap());
        other.remove().await.unwrap();
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_was_asked_before_makes_no_file_anew() {
        use futures_util::FutureExt as _;
        use lockcore::{Label, SessionId};

        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let scratch = Scratch::new(&url).await.unwrap();
        let backend = scratch.backend();
        let label = Label::parse("asked before").unwrap();
        let ttl = std::time::Duration::from_secs(30);
        for n in 0..500 {
            // Asked, and dropped at once, unless the file was so fast.
            let _ = backend.open(SessionId::new(n), &label, ttl).now_or_never();
        }
        let mut last = backend.open(SessionId::new(500), &label, ttl);
        let answered = (&mut last).now_or_never();
        scratch.remove().await.unwrap();
        match answered {
            Some(answer) => answer.unwrap(),
            None => last.await.unwrap(),
        };
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn nothing_is_made_where_nothing_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/locks.db");
        let url = format!("sqlite:{}", path.display());
        let error = Scratch::new(&url).await.unwrap_err();
        assert!(error.to_string().contains("make it first"), "{error}");
    }
}
