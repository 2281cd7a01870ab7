//! What the kit has to be told about a backend: how to make an empty space, and how to reach it again.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use files_backend::FilesBackend;
use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, Feature, Fixture, Space};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Files {
    /// The backend itself, or something around it.
    pub(crate) wrap: fn(Arc<FilesBackend>) -> Arc<dyn LockBackend>,
}

#[async_trait]
impl Fixture for Files {
    fn name(&self) -> String {
        "files".to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    fn lacks(&self) -> Vec<Feature> {
        vec![Feature::TurnWatch, Feature::Incarnation]
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(Directory {
            path: tempfile::tempdir()?,
            wrap: self.wrap,
        }))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok((self.wrap)(FilesBackend::connect(url).await?))
    }
}

struct Directory {
    path: TempDir,
    wrap: fn(Arc<FilesBackend>) -> Arc<dyn LockBackend>,
}

#[async_trait]
impl Space for Directory {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok((self.wrap)(FilesBackend::connect(self.path.path()).await?))
    }

    fn allowance(&self) -> Duration {
        Duration::ZERO
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        fs::remove_dir_all(self.path.path())?;
        fs::create_dir(self.path.path())?;
        Ok(true)
    }

    /// Each process reads the files anew.
    async fn restart(&self) -> Result<bool, BoxError> {
        Ok(true)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        // A holder of a later version.
        let planted = json!([{ "holder": "somebody", "version": 2 }]);
        change(self.path.path(), |state| {
            state["records"][key.as_str()] = planted;
        })
    }

    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        change(self.path.path(), |state| {
            let ended = &mut state["sessions"][session.to_string()]["row"]["ended"]["secs"];
            *ended = ended.as_u64().map(|ended| ended - by.as_secs()).into();
        })?;
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        self.path.path().to_str().map(str::to_owned)
    }
}

/// Changes what is stored.
fn change(directory: &Path, how: impl FnOnce(&mut Value)) -> Result<(), BoxError> {
    let lock = File::open(directory.join("lock"))?;
    lock.lock()?;
    let (file, new) = (directory.join("state.json"), directory.join("planted.json"));
    let mut state: Value = match fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(_) => json!({
            "format": 4, "token": 0, "sessions": {}, "records": {},
        }),
    };
    how(&mut state);
    fs::write(&new, state.to_string())?;
    Ok(fs::rename(&new, &file)?)
}
