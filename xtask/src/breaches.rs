//! A copy of the workspace in which the client can break its rules, as `trial/breaches.txt` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::builds::root;

/// The program has a name of its own in the copy, since both are built in one directory: their dependencies are the same.
pub(crate) const PROGRAM: &str = "simulate-broken";

/// Lines of a file, and those that come instead.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    file: String,
    old: String,
    new: String,
}

/// Makes the copy, or brings it up to date, and says where it is.
pub(crate) fn copy() -> Result<PathBuf, String> {
    let to = root().join("target/broken/workspace");
    copy_folder(root(), &to, &changed()?)?;
    Ok(to)
}

/// Writes down which seed has shown the breach of which rule.
pub(crate) fn save(shown: &BTreeMap<&str, u64>) -> Result<(), String> {
    let path = root().join("trial/breaches.txt");
    let text = noted(&read(&path)?, shown);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn noted(text: &str, shown: &BTreeMap<&str, u64>) -> String {
    let line = |line: &str| {
        let parts = line.strip_prefix("= ").and_then(|rule| {
            let (name, rest) = rule.split_once(", ")?;
            let (seeds, what) = rest.split_once(": ")?;
            // Without what was noted before.
            let seeds = seeds.split(", ").next()?;
            Some((name, seeds, what, shown.get(name)?))
        });
        match parts {
            Some((name, seeds, what, seed)) => {
                format!("= {name}, {seeds}, {seed} shows it: {what}\n")
            }
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

/// The files that are changed, as they are then.
fn changed() -> Result<BTreeMap<PathBuf, String>, String> {
    let mut changed = BTreeMap::new();
    for change in parse(&read(&root().join("trial/breaches.txt"))?)? {
        let path = root().join(&change.file);
        let text = match changed.remove(&path) {
            Some(text) => text,
            None => read(&path)?,
        };
        changed.insert(path, change.apply(&text)?);
    }
    Ok(changed)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// All but what is built or begins with a dot. A file that is the same already is left alone, so that little is built; one
/// that is there no more goes.
fn copy_folder(from: &Path, to: &Path, changed: &BTreeMap<PathBuf, String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    let mut copied = BTreeSet::new();
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, name) = (entry.path(), entry.file_name());
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let to = match path.ends_with("trial/examples/simulate.rs") {
            true => to.join(PROGRAM).with_extension("rs"),
            false => to.join(name),
        };
        copied.insert(to.clone());
        if entry.file_type().map_err(failed)?.is_dir() {
            copy_folder(&path, &to, changed)?;
            continue;
        }
        let text = match changed.get(&path) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&path).map_err(failed)?,
        };
        if fs::read(&to).ok().as_ref() != Some(&text) {
            fs::write(&to, text).map_err(failed)?;
        }
    }
    let gone = |error: std::io::Error| format!("{}: {error}", to.display());
    for entry in fs::read_dir(to).map_err(gone)? {
        let entry = entry.map_err(gone)?;
        if copied.contains(&entry.path()) {
            continue;
        }
        match entry.file_type().map_err(gone)?.is_dir() {
            true => fs::remove_dir_all(entry.path()).map_err(gone)?,
            false => fs::remove_file(entry.path()).map_err(gone)?,
        }
    }
    Ok(())
}

/// The changes of all rules.
fn parse(text: &str) -> Result<Vec<Change>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut changes = Vec::new();
    for block in lines.split(|line| line.is_empty()) {
        if block.iter().all(|line| line.starts_with(['#', '='])) {
            continue;
        }
        let [file, lines @ ..] = block else { continue };
        let marked = |mark| {
            let lines = lines.iter().filter_map(|line| line.strip_prefix(mark));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let (old, new) = (marked('-'), marked('+'));
        if old.is_empty() || !lines.iter().all(|line| line.starts_with(['-', '+'])) {
            return Err(format!(
                "breaches.txt: {file}: this is no change: {lines:?}"
            ));
        }
        let file = (*file).to_owned();
        changes.push(Change { file, old, new });
    }
    Ok(changes)
}

impl Change {
    fn apply(&self, text: &str) -> Result<String, String> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let old: Vec<&str> = self.old.split_inclusive('\n').collect();
        let places = lines.windows(old.len()).enumerate();
        let places: Vec<usize> = places
            .filter_map(|(at, found)| (found == old).then_some(at))
            .collect();
        let [at] = places[..] else {
            return Err(format!(
                "breaches.txt: these lines stand in {} {} times and not once:\n{}",
                self.file,
                places.len(),
                self.old
            ));
        };
        let (before, behind) = (lines[..at].concat(), lines[at + old.len()..].concat());
        Ok([&before, &*self.new, &behind].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_replaces_lines_that_stand_there_once() {
        let text = "# head\n\n= Rule, 3 seeds: what it says.\n\na.rs\n-    one\n-    two\n+    three\n\nb.rs\n-one\n";
        let changes = parse(text).expect("two changes");
        assert_eq!(changes.len(), 2);
        assert_eq!(changes[0].file, "a.rs");
        let changed = changes[0].apply("zero\n    one\n    two\nfour\n");
        assert_eq!(changed.as_deref(), Ok("zero\n    three\nfour\n"));
        for missing in ["", "    two\n    one\n", "        one\n    two\n"] {
            assert!(changes[0].apply(missing).is_err(), "{missing:?}");
        }
        assert!(changes[1].apply("one\none\n").is_err(), "twice");
    }

    #[test]
    fn a_seed_that_shows_a_breach_takes_the_place_of_the_last() {
        let text = "# head\n= A, 3 seeds: what.\n= B, 4 seeds with crowds, 7 shows it: so: that.\n= C, 1 seeds: x\n";
        let noted = noted(text, &BTreeMap::from([("A", 1), ("B", 20)]));
        assert_eq!(
            noted,
            "# head\n= A, 3 seeds, 1 shows it: what.\n= B, 4 seeds with crowds, 20 shows it: so: that.\n= C, 1 seeds: x\n"
        );
    }

    #[test]
    fn a_copy_has_what_is_there_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let write = |path: &Path| {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, "text").expect("a file");
        };
        let copies = || copy_folder(&from, &to, &BTreeMap::new()).expect("a copy");
        for name in [
            "a.rs",
            "tests/one.rs",
            "old/b.rs",
            "target/built",
            ".git/head",
        ] {
            write(&from.join(name));
        }
        copies();
        fs::remove_file(from.join("tests/one.rs")).expect("it was there");
        fs::remove_dir_all(from.join("old")).expect("it was there");
        write(&from.join("tests/one/main.rs"));
        copies();
        let is_there = |name: &str| to.join(name).exists();
        assert!(is_there("a.rs") && is_there("tests/one/main.rs"));
        for gone in ["tests/one.rs", "old", "target", ".git"] {
            assert!(!is_there(gone), "{gone}");
        }
    }

    #[test]
    fn what_is_no_change_is_told() {
        for wrong in ["a.rs\n", "a.rs\n+one\n", "a.rs\n-one\ntwo\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_change_fits() {
        let changed = changed().expect("changes that fit");
        assert!(changed.len() > 5, "{:?}", changed.keys());
        // Else cargo takes what is built of the one for the other's.
        let version = |text: &str| {
            text.lines()
                .find(|line| line.starts_with("version"))
                .map(str::to_owned)
        };
        let manifest = root().join("Cargo.toml");
        assert_ne!(
            version(&changed[&manifest]),
            version(&read(&manifest).expect("it is there"))
        );
    }
}
