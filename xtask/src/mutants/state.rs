//! What came of each mutant so far: a file that grows by a line for each, and is read when a run goes on. What other
//! machines have found is in a second file, which is committed, and only written on purpose.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What came of a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The server does not take it.
    Unviable,
    /// By this case; `program case`.
    Killed(String),
    /// The tests were not done in time.
    Stuck,
    /// All cases passed, perhaps after some that failed only once.
    Survived(Vec<String>),
}

/// A mutant that was tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Tried {
    /// Of its part's text as it is changed.
    pub(super) id: u64,
    /// The function or the file, without its ending.
    #[serde(alias = "file")]
    pub(super) part: String,
    pub(super) line: usize,
    pub(super) by: String,
    pub(super) outcome: Outcome,
    pub(super) ms: u64,
    /// Of the test programs.
    #[serde(default)]
    pub(super) tests: u64,
}

/// A test program that passed as it is.
#[derive(Debug, Serialize, Deserialize)]
struct Unchanged {
    program: u64,
    took_ms: u64,
}

#[derive(Debug)]
pub(super) struct State {
    path: PathBuf,
    file: File,
    /// The last word about each mutant.
    tried: HashMap<u64, Tried>,
    /// How long the programs took that have passed.
    unchanged: HashMap<u64, Duration>,
}

/// The same for the same bytes, in one version of the compiler.
pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl State {
    /// The state in that file, beside what the file of other machines says.
    pub(super) fn open(path: &Path, saved: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)
            .map_err(failed)?;
        let text = fs::read_to_string(path).map_err(failed)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // The last run was ended while it wrote.
            file.write_all(b"\n").map_err(failed)?;
        }
        let elsewhere = match fs::read_to_string(saved) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| format!("{}: {error}", saved.display()))?,
        };
        let lines = elsewhere
            .lines()
            .chain(text.lines())
            .filter_map(|line| serde_json::from_str(line).ok());
        let tried = lines.map(|tried: Tried| (tried.id, tried)).collect();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let unchanged = lines.map(|it: Unchanged| (it.program, Duration::from_millis(it.took_ms)));
        Ok(Self {
            path: path.to_owned(),
            file,
            tried,
            unchanged: unchanged.collect(),
        })
    }

    /// Writes what is known of these mutants to the file of other machines.
    pub(super) fn save(&self, saved: &Path, ids: impl Iterator<Item = u64>) -> Result<(), String> {
        let mut text = String::new();
        for tried in ids.filter_map(|id| self.tried.get(&id)) {
            text += &serde_json::to_string(tried).map_err(|error| error.to_string())?;
            text.push('\n');
        }
        fs::write(saved, text).map_err(|error| format!("{}: {error}", saved.display()))
    }

    pub(super) fn get(&self, id: u64) -> Option<&Tried> {
        self.tried.get(&id)
    }

    pub(super) fn put(&mut self, tried: Tried) -> Result<(), String> {
        self.write(&tried)?;
        self.tried.insert(tried.id, tried);
        Ok(())
    }

    /// How long that program took, if it has passed as it is.
    pub(super) fn unchanged(&self, program: u64) -> Option<Duration> {
        self.unchanged.get(&program).copied()
    }

    pub(super) fn put_unchanged(&mut self, program: u64, took: Duration) -> Result<(), String> {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.unchanged.insert(program, took);
        self.write(&Unchanged { program, took_ms })
    }

    fn write(&mut self, what: &impl Serialize) -> Result<(), String> {
        let line = serde_json::to_string(what).map_err(|error| error.to_string())? + "\n";
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Those of a program, so that who kills most of this part's mutants, then of all, comes first. What has killed
    /// nothing yet keeps its order. Says how many have killed one of
    /// this part.
    pub(super) fn order(&self, program: &str, part: &str, cases: &mut [&str]) -> usize {
        let mut kills: HashMap<&str, (u32, u32)> = HashMap::new();
        for tried in self.tried.values() {
            let Outcome::Killed(by) = &tried.outcome else {
                continue;
            };
            if let Some((of, case)) = by.split_once(' ')
                && of == program
            {
                let (here, all) = kills.entry(case).or_default();
                *here += u32::from(tried.part == part);
                *all += 1;
            }
        }
        cases.sort_by_key(|case| {
            let (here, all) = kills.get(case).copied().unwrap_or_default();
            std::cmp::Reverse((here, all))
        });
        let here = |case: &&&str| kills.get(**case).is_some_and(|(here, _)| *here > 0);
        cases.iter().filter(here).count()
    }
}
