//! [`Journal`]: every request and every answer of a case, in order.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockcore::SessionId;

/// Lines that are kept.
const KEPT: usize = 400;

#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    written: usize,
    /// Nobody waits for the case any more.
    stopped: bool,
    /// Short names of sessions, so that a person can read the lines.
    names: Vec<(String, String)>,
}

/// A request that was written down; its answer goes beside it where nothing came in between.
#[must_use]
pub(crate) struct Entry {
    at: usize,
    what: String,
}

impl Journal {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the session a short name, unless it has one.
    pub(crate) fn name(&self, session: SessionId) {
        let mut lines = self.lines();
        if lines.names.iter().any(|(id, _)| *id == session.to_string()) {
            return;
        }
        let name = format!("s{}", lines.names.len() + 1);
        lines.names.push((session.to_string(), name));
    }

    pub(crate) fn note(&self, line: impl Into<String>) {
        let mut lines = self.lines();
        lines.written += 1;
        lines.kept.push_back(line.into());
        if lines.kept.len() > KEPT {
            lines.kept.pop_front();
        }
    }

    pub(crate) fn request(&self, what: String) -> Entry {
        self.note(what.clone());
        Entry {
            at: self.lines().written,
            what,
        }
    }

    pub(crate) fn answer(&self, entry: Entry, answer: &str) {
        let mut lines = self.lines();
        if lines.written == entry.at {
            if let Some(line) = lines.kept.back_mut() {
                let _ = write!(line, " = {answer}");
            }
        } else {
            drop(lines);
            self.note(format!("… {} = {answer}", entry.what));
        }
    }

    /// Nobody waits for the case any more: its requests are not sent, so that it does not go on for ever.
    pub(crate) fn stop(&self) {
        self.lines().stopped = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lines().stopped
    }

    /// How many lines were ever written.
    pub(crate) fn written(&self) -> usize {
        self.lines().written
    }

    pub(crate) fn shown(&self) -> Vec<String> {
        let lines = self.lines();
        let mut shown = Vec::with_capacity(lines.kept.len() + 1);
        if lines.written > lines.kept.len() {
            shown.push(format!(
                "({} events before)",
                lines.written - lines.kept.len()
            ));
        }
        for line in &lines.kept {
            let mut line = line.clone();
            for (id, name) in &lines.names {
                if line.contains(id.as_str()) {
                    line = line.replace(id.as_str(), name);
                }
            }
            shown.push(line);
        }
        shown
    }
}
