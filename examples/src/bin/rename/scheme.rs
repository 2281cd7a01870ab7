//! The book's three schemes: what an operation locks under each of them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use lockkeeper::{Guard, LockBackend, Locks};

use crate::files::{Files, parent};
use crate::operation::{Change, Operation};
use crate::worker::Finish;
use crate::{BoxError, Options};

/// How long after its death a process holds its locks.
pub(crate) const TTL: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// No locks at all.
    None,
    /// One lock for everything.
    Global,
    /// One lock for each document that is changed, and for each directory.
    Document,
    /// Locks on paths.
    Tree,
}

impl Scheme {
    pub(crate) const ALL: [Scheme; 4] =
        [Scheme::None, Scheme::Global, Scheme::Document, Scheme::Tree];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Scheme::None => "none",
            Scheme::Global => "global",
            Scheme::Document => "document",
            Scheme::Tree => "tree",
        }
    }

    /// Waits for what the operation changes. `None` if that was something else when it was locked.
    pub(crate) async fn lock(
        self,
        locks: &Locks,
        files: &Files,
        operation: &Operation,
    ) -> Result<Option<Guard>, BoxError> {
        let guard = match self {
            Scheme::None => return Err("there is no lock".into()),
            Scheme::Global => locks.lock("files").intent(operation)?.acquire().await?,
            Scheme::Document => {
                let Some(ids) = documents(files, operation).await? else {
                    return Ok(None);
                };
                let guard = locks.documents(&ids).intent(operation)?.acquire().await?;
                if documents(files, operation).await? != Some(ids) {
                    // Files came or went before they were locked. Nothing has begun.
                    let _ = guard.release().await?;
                    return Ok(None);
                }
                guard
            }
            Scheme::Tree => {
                let tree = match &operation.change {
                    Change::Rename { from, to } => locks.tree().write(from).write(to),
                    Change::Add { path } | Change::Delete { path } => locks.tree().write(path),
                };
                tree.intent(operation)?.acquire().await?
            }
        };
        Ok(Some(guard))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Every document that the operation changes, and every directory that comes, goes, or gets or loses a file of its own:
/// a document that is yet to come has no lock, and whoever adds it meets the lock of its directory. `None` if nothing
/// can be added to where it should go, because that is no directory any more.
async fn documents(
    files: &Files,
    operation: &Operation,
) -> Result<Option<BTreeSet<String>>, BoxError> {
    let directory = |path: &str| format!("directory {path}");
    let target = match &operation.change {
        Change::Rename { to, .. } => Some(parent(to)),
        Change::Add { path } => Some(parent(path)),
        Change::Delete { .. } => None,
    };
    let mut ids = BTreeSet::new();
    if let Some(target) = target {
        if !files.is_directory(target).await? {
            return Ok(None);
        }
        ids.insert(directory(target));
    }
    match &operation.change {
        Change::Rename { from, to } => {
            ids.extend([parent(from), from, to].map(directory));
            for (id, path) in files.below(from).await? {
                let mut above = parent(&path);
                while above.len() > from.len() && ids.insert(directory(above)) {
                    above = parent(above);
                }
                ids.insert(id);
            }
        }
        Change::Add { .. } => drop(ids.insert(operation.id.clone())),
        Change::Delete { path } => {
            ids.insert(directory(parent(path)));
            ids.extend(files.below(path).await?.into_keys());
        }
    }
    Ok(Some(ids))
}

fn locks_url(options: &Options) -> String {
    let mark = if options.url.contains('?') { '&' } else { '?' };
    let url = options.url.trim_end_matches('/');
    let slash = if mark == '?' { "/" } else { "" };
    format!(
        "{url}{slash}{mark}namespace={}-locks&replicas=0&clock_skew_ms=0",
        options.index
    )
}

/// Removes the index of the locks.
pub(crate) async fn remove_locks(options: &Options) -> Result<(), BoxError> {
    if options.scheme == Some(Scheme::None) {
        return Ok(());
    }
    let mut options = options.clone();
    options.index = format!("{}-locks", options.index);
    Files::new(&options)?.remove().await
}

/// A client whose locks are in an index beside the files.
pub(crate) async fn locks(folder: &Path, options: &Options) -> Result<Locks, BoxError> {
    let backend: Arc<dyn LockBackend> = lockkeeper::backend(&locks_url(options)).await?;
    let finish = Finish {
        folder: folder.to_owned(),
        files: Files::new(options)?,
    };
    Ok(Locks::builder(backend).ttl(TTL).recovery(finish).build()?)
}
