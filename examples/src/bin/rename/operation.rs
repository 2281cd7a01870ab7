//! The operations, each of which may be carried out again from any point of it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::BoxError;
use crate::files::{Files, Paths};

/// What a process is about to do: its intent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Unique; the id of a file that it adds.
    pub(crate) id: String,
    pub(crate) change: Change,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// Everything at or below `from` goes to `to`.
    Rename { from: String, to: String },
    /// A file that was not there.
    Add { path: String },
    /// One file goes.
    Delete { path: String },
}

/// A finished operation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Of the guard under which it began.
    pub(crate) token: u64,
    pub(crate) operation: Operation,
    /// Documents that it changed, as far as whoever finished it can tell.
    pub(crate) documents: usize,
    /// By somebody else, from the intent.
    pub(crate) recovered: bool,
}

impl Operation {
    /// Says that something may be changed from now on. What has not begun needs nobody to finish it.
    pub(crate) fn begin(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(format!("begun-{}", self.id)), "")
    }

    pub(crate) fn has_begun(&self, folder: &Path) -> bool {
        folder.join(format!("begun-{}", self.id)).exists()
    }

    /// Does it, or what is left of it. How many documents that were.
    pub(crate) async fn carry_out(&self, files: &Files, token: u64) -> Result<usize, BoxError> {
        match &self.change {
            Change::Rename { from, to } => {
                let below = files.below(from).await?;
                files.rename(&moves(below, from, to), token).await?;
                let left = files.below(from).await?;
                if let Some(left) = left.values().next() {
                    return Err(format!("{left} came to {from} under a lock").into());
                }
                Ok(files.below(to).await?.len())
            }
            Change::Add { path } => files.add(&self.id, path, token).await.map(|()| 1),
            Change::Delete { path } => {
                let there = files.below(path).await?;
                files.delete(&there, token).await?;
                Ok(there.len())
            }
        }
    }

    /// Does it as somebody who believes to be alone.
    pub(crate) async fn carry_out_alone(&self, files: &Files) -> Result<usize, BoxError> {
        match &self.change {
            Change::Rename { from, to } => {
                let moves = moves(files.below(from).await?, from, to);
                files.overwrite(&moves).await?;
                Ok(moves.len())
            }
            _ => self.carry_out(files, 0).await,
        }
    }

    /// Writes to the journal that it is finished; one line in one write.
    pub(crate) fn record(
        &self,
        folder: &Path,
        token: u64,
        documents: usize,
        recovered: bool,
    ) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Entry {
            token,
            operation: self.clone(),
            documents,
            recovered,
        })?;
        line.push(b'\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("journal"))?
            .write_all(&line)
    }
}

fn moves(files: Paths, from: &str, to: &str) -> Vec<(String, String, String)> {
    let moved = |(id, path): (String, String)| {
        let target = format!("{to}{}", &path[from.len()..]);
        (id, path, target)
    };
    files.into_iter().map(moved).collect()
}
