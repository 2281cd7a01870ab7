//! Whether the index is what the journal says.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::BoxError;
use crate::files::{Files, Paths};
use crate::operation::{Change, Entry};

pub(crate) struct Verdict {
    finished: usize,
    recovered: usize,
    changed: usize,
    expected: usize,
    right: usize,
    misplaced: usize,
    missing: usize,
    undead: usize,
}

impl Verdict {
    pub(crate) fn is_exact(&self) -> bool {
        self.missing + self.misplaced + self.undead == 0
    }

    pub(crate) fn told(&self, worked: Duration) -> String {
        let a_second = |count: usize| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            f64::from(count) / worked.as_secs_f64()
        };
        format!(
            "{} operations finished ({:.1} a second, {:.0} documents a second), {} of them by somebody else from the \
             intent\n{} documents should be there: {} are where the journal says\nmissing: {}, in the wrong place: {}, \
             there although deleted: {}\n",
            self.finished,
            a_second(self.finished),
            a_second(self.changed),
            self.recovered,
            self.expected,
            self.right,
            self.missing,
            self.misplaced,
            self.undead,
        )
    }
}

/// Plays the journal in the order of the tokens, and compares.
pub(crate) async fn judge(folder: &Path, files: &Files) -> Result<Verdict, BoxError> {
    let beginning = fs::read_to_string(folder.join("beginning"))?;
    let numbered = beginning.lines().enumerate();
    let mut tree: BTreeMap<String, String> = numbered
        .map(|(id, path)| (path.to_owned(), id.to_string()))
        .collect();
    let mut entries = fs::read_to_string(folder.join("journal"))?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Entry>, _>>()?;
    // One that was killed between its journal and its release is in the journal twice.
    let mut seen = HashSet::new();
    entries.retain(|entry| seen.insert(entry.operation.id.clone()));
    entries.sort_by_key(|entry| entry.token);
    for entry in &entries {
        play(&mut tree, &entry.operation.id, &entry.operation.change);
    }
    let expected: Paths = tree.into_iter().map(|(path, id)| (id, path)).collect();
    let found = files.below("").await?;
    let both = expected
        .iter()
        .filter_map(|(id, path)| Some((path, found.get(id)?)));
    let right = both
        .clone()
        .filter(|(expected, found)| expected == found)
        .count();
    let there = both.count();
    Ok(Verdict {
        finished: entries.len(),
        recovered: entries.iter().filter(|entry| entry.recovered).count(),
        changed: entries.iter().map(|entry| entry.documents).sum(),
        expected: expected.len(),
        right,
        misplaced: there - right,
        missing: expected.len() - there,
        undead: found
            .keys()
            .filter(|id| !expected.contains_key(*id))
            .count(),
    })
}

fn play(tree: &mut BTreeMap<String, String>, id: &str, change: &Change) {
    match change {
        Change::Rename { from, to } => {
            let below = format!("{from}/");
            let here = |path: &&String| *path == from || path.starts_with(&below);
            let paths: Vec<String> = tree.keys().filter(here).cloned().collect();
            for path in paths {
                if let Some(id) = tree.remove(&path) {
                    tree.insert(format!("{to}{}", &path[from.len()..]), id);
                }
            }
        }
        Change::Add { path } => drop(tree.insert(path.clone(), id.to_owned())),
        Change::Delete { path } => drop(tree.remove(path)),
    }
}
