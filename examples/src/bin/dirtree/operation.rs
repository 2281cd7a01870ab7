//! The operations, each of which may be carried out again from any point of it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::layout::{files_below, place};

/// What a process is about to do: its intent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Unique.
    pub(crate) id: String,
    pub(crate) change: Change,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    /// Everything at or below `from` goes to `to`.
    Rename { from: String, to: String },
    /// Everything at or below `path` goes.
    Delete { path: String },
}

/// A finished operation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Of the guard under which it began.
    pub(crate) token: u64,
    pub(crate) operation: Operation,
}

impl Operation {
    /// Does it, or what is left of it.
    pub(crate) fn carry_out(&self, folder: &Path) -> io::Result<()> {
        match &self.change {
            Change::Rename { from, to } => {
                for path in files_below(folder, from)?.into_keys() {
                    let target = place(folder, &format!("{to}{}", &path[from.len()..]));
                    fs::create_dir_all(target.parent().unwrap_or(folder))?;
                    ignore_missing(fs::rename(place(folder, &path), target))?;
                }
                remove_folders(&place(folder, from))
            }
            Change::Delete { path } => {
                for path in files_below(folder, path)?.into_keys() {
                    ignore_missing(fs::remove_file(place(folder, &path)))?;
                }
                remove_folders(&place(folder, path))
            }
        }
    }

    /// Writes to the journal that it is finished; one line in one write.
    pub(crate) fn record(&self, folder: &Path, token: u64) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Entry {
            token,
            operation: self.clone(),
        })?;
        line.push(b'\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("journal"))?
            .write_all(&line)
    }
}

/// Somebody else, without locks, or this operation before it was killed, has done it.
fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes folders that have become empty.
fn remove_folders(place: &Path) -> io::Result<()> {
    if !place.is_dir() {
        return Ok(());
    }
    let Ok(entries) = fs::read_dir(place) else {
        return Ok(());
    };
    for entry in entries.filter_map(Result::ok) {
        remove_folders(&entry.path())?;
    }
    // One that is not empty has got something from somebody who takes no locks.
    match fs::remove_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        result => ignore_missing(result),
    }
}
