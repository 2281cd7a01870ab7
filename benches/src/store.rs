//! The store that is measured.

use std::sync::Arc;

use lockkeeper::{LockBackend, Locks};
use tempfile::TempDir;

/// A store by its URL; an SQLite file of its own where none is given.
pub(crate) struct Store {
    url: String,
    _folder: Option<TempDir>,
}

impl Store {
    pub(crate) fn new(url: Option<String>) -> Self {
        if let Some(url) = url {
            return Self { url, _folder: None };
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Self {
            url,
            _folder: Some(folder),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Which store it is.
    pub(crate) fn scheme(&self) -> &str {
        self.url.split(':').next().unwrap_or_default()
    }

    pub(crate) async fn locks(&self) -> Locks {
        locks(&self.url).await
    }
}

pub(crate) async fn backend(url: &str) -> Arc<dyn LockBackend> {
    let backend = lockkeeper::backend(url).await;
    backend.unwrap_or_else(|error| panic!("the store cannot be used: {error}"))
}

pub(crate) async fn locks(url: &str) -> Locks {
    Locks::builder(backend(url).await)
        .build()
        .expect("the defaults can be used")
}
