//! Whether the tree is what the journal says.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::path::Path;

use crate::BoxError;
use crate::layout::files_below;
use crate::operation::{Change, Entry};

pub(crate) struct Verdict {
    finished: usize,
    recovered: usize,
    scans: usize,
    failed: usize,
    expected: usize,
    right: usize,
    missing: usize,
    misplaced: usize,
    undead: usize,
}

impl Verdict {
    pub(crate) fn is_exact(&self) -> bool {
        self.missing + self.misplaced + self.undead + self.failed == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} operations finished, {} of them by somebody else from the intent; {} scans, {} operations failed",
            self.finished, self.recovered, self.scans, self.failed
        )?;
        writeln!(
            f,
            "{} files should be there: {} are where the journal says",
            self.expected, self.right
        )?;
        writeln!(
            f,
            "missing: {}, in the wrong place: {}, there although deleted: {}",
            self.missing, self.misplaced, self.undead
        )
    }
}

/// Plays the journal in the order of the tokens, and compares.
pub(crate) fn judge(folder: &Path) -> Result<Verdict, BoxError> {
    let beginning = fs::read_to_string(folder.join("beginning"))?;
    let mut tree: BTreeMap<String, String> = beginning
        .lines()
        .map(|path| (path.to_owned(), path.to_owned()))
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
        play(&mut tree, &entry.operation.change);
    }
    let found = files_below(folder, "")?;
    let places = |tree: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        tree.iter()
            .map(|(path, began)| (began.clone(), path.clone()))
            .collect()
    };
    let (expected, found) = (places(&tree), places(&found));
    let count = |prefix: &str| -> Result<usize, BoxError> {
        let names = fs::read_dir(folder)?
            .filter_map(Result::ok)
            .map(|entry| entry.file_name());
        Ok(names
            .filter(|name| name.to_string_lossy().starts_with(prefix))
            .count())
    };
    let keys = |places: &BTreeMap<String, String>| places.keys().cloned().collect::<BTreeSet<_>>();
    let both = expected
        .iter()
        .filter_map(|(began, path)| Some((path, found.get(began)?)));
    let (right, misplaced) = both.fold((0, 0), |(right, misplaced), (expected, found)| {
        match expected == found {
            true => (right + 1, misplaced),
            false => (right, misplaced + 1),
        }
    });
    Ok(Verdict {
        finished: entries.len(),
        recovered: count("recovered-")?,
        scans: count("scanned-")?,
        failed: count("failed-")?,
        expected: expected.len(),
        right,
        missing: keys(&expected).difference(&keys(&found)).count(),
        misplaced,
        undead: keys(&found).difference(&keys(&expected)).count(),
    })
}

fn play(tree: &mut BTreeMap<String, String>, change: &Change) {
    let at_or_below = |tree: &BTreeMap<String, String>, top: &str| -> Vec<String> {
        let below = format!("{top}/");
        tree.keys()
            .filter(|path| *path == top || path.starts_with(&below))
            .cloned()
            .collect()
    };
    match change {
        Change::Rename { from, to } => {
            for path in at_or_below(tree, from) {
                if let Some(began) = tree.remove(&path) {
                    tree.insert(format!("{to}{}", &path[from.len()..]), began);
                }
            }
        }
        Change::Delete { path } => {
            for path in at_or_below(tree, path) {
                tree.remove(&path);
            }
        }
    }
}
