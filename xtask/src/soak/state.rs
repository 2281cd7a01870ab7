//! What was done, kept in a file after every step.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// How a part came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Passed,
    Failed(String),
    /// The time was over before it came to its end; nothing failed until then.
    NotFinished,
    /// It cannot run here, and why.
    NotRun(String),
}

/// What came of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    /// What was run.
    pub(super) ran: String,
    pub(super) outcome: Outcome,
    /// It had all the time that it can use.
    pub(super) whole: bool,
    pub(super) minutes: f64,
}

/// What is known of a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    /// When it ended last, in seconds since 1970, on whatever commit.
    pub(super) last: Option<u64>,
    /// How long it took, of a part that always takes the same; on whatever commit.
    pub(super) took_minutes: Option<f64>,
    /// How many of its steps are done, on this commit.
    pub(super) steps: u64,
    /// What came of it on this commit.
    pub(super) done: Option<Done>,
}

impl Known {
    /// Forgets what was done.
    pub(super) fn begin_anew(&mut self) {
        self.steps = 0;
        self.done = None;
    }
}

/// Everything that is known.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) commit: String,
    pub(super) parts: BTreeMap<String, Known>,
    #[serde(skip)]
    file: PathBuf,
}

impl State {
    /// Reads the file, if there is one. What was done on another commit is forgotten, but for when, and how long it took.
    pub(super) fn read(file: &Path, commit: &str) -> Result<Self, String> {
        let mut state = match fs::read(file) {
            Ok(json) => serde_json::from_slice(&json)
                .map_err(|error| format!("{}: {error}; remove it", file.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        file.clone_into(&mut state.file);
        if state.commit != commit {
            commit.clone_into(&mut state.commit);
            state.parts.values_mut().for_each(Known::begin_anew);
        }
        Ok(state)
    }

    pub(super) fn of(&mut self, part: &str) -> &mut Known {
        self.parts.entry(part.to_owned()).or_default()
    }

    /// Whether there is nothing to add to a part on this commit.
    pub(super) fn is_complete(&self, part: &str) -> bool {
        let done = self.parts.get(part).and_then(|known| known.done.as_ref());
        done.is_some_and(|done| done.whole && done.outcome == Outcome::Passed)
    }

    /// Writes the file in one step: one that was ended meanwhile finds the old one.
    pub(super) fn keep(&self) -> Result<(), String> {
        let json = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let new = self.file.with_extension("new");
        fs::write(&new, json)
            .and_then(|()| fs::rename(&new, &self.file))
            .map_err(|error| format!("{}: {error}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(whole: bool, outcome: Outcome) -> Option<Done> {
        Some(Done {
            ran: "all of it".to_owned(),
            outcome,
            whole,
            minutes: 2.0,
        })
    }

    #[test]
    fn another_commit_starts_anew_and_the_same_one_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let mut state = State::read(&file, "one").unwrap();
        *state.of("seeds") = Known {
            last: Some(17),
            took_minutes: Some(2.0),
            steps: 3,
            done: done(true, Outcome::Passed),
        };
        state.keep().unwrap();
        let same = State::read(&file, "one").unwrap();
        assert_eq!(same, state);
        assert!(same.is_complete("seeds"));
        let mut other = State::read(&file, "two").unwrap();
        assert!(!other.is_complete("seeds"));
        let known = Known {
            last: Some(17),
            took_minutes: Some(2.0),
            ..Known::default()
        };
        assert_eq!(*other.of("seeds"), known);
    }

    #[test]
    fn complete_is_only_what_passed_as_a_whole() {
        let mut state = State::default();
        assert!(!state.is_complete("part"));
        for (whole, outcome, complete) in [
            (true, Outcome::Passed, true),
            (false, Outcome::Passed, false),
            (true, Outcome::Failed("so".to_owned()), false),
            (true, Outcome::NotFinished, false),
            (true, Outcome::NotRun("no tool".to_owned()), false),
        ] {
            state.of("part").done = done(whole, outcome.clone());
            assert_eq!(state.is_complete("part"), complete, "{outcome:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        fs::write(&file, "{").unwrap();
        assert!(State::read(&file, "one").is_err());
    }
}
