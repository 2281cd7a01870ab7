//! [`Journal`]: every request and every answer of a case, in order, and when they were.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockcore::SessionId;
use tokio::time::Instant as Moment;

/// Lines that are kept.
const KEPT: usize = 400;

#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    kept: VecDeque<(Duration, String)>,
    written: usize,
    /// When the first line was written, as the case sees time.
    begun: Option<Moment>,
    /// Nobody waits for the case any more.
    stopped: bool,
    /// Short names of sessions, so that a person can read the lines.
    names: Vec<(String, String)>,
    /// Since when requests are under way, by their lines.
    under_way: BTreeMap<usize, Instant>,
    /// The longest that one took that is over.
    slowest: Duration,
}

/// A request that was written down; its answer goes beside it where nothing came in between.
#[must_use]
pub(crate) struct Entry {
    journal: Journal,
    at: usize,
    sent: Moment,
    what: String,
}

impl Entry {
    pub(crate) fn answer(self, answer: &str) {
        let mut lines = self.journal.lines();
        let took = self.sent.elapsed().as_millis();
        if lines.written == self.at {
            if let Some((_, line)) = lines.kept.back_mut() {
                let _ = write!(line, " = {answer} ({took} ms)");
            }
        } else {
            drop(lines);
            self.journal
                .note(format!("… {} = {answer} ({took} ms)", self.what));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut lines = self.journal.lines();
        if let Some(since) = lines.under_way.remove(&self.at) {
            lines.slowest = lines.slowest.max(since.elapsed());
        }
    }
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
        let now = Moment::now();
        let since = now.saturating_duration_since(*lines.begun.get_or_insert(now));
        lines.written += 1;
        lines.kept.push_back((since, line.into()));
        if lines.kept.len() > KEPT {
            lines.kept.pop_front();
        }
    }

    pub(crate) fn request(&self, what: String) -> Entry {
        self.note(what.clone());
        let mut lines = self.lines();
        let at = lines.written;
        lines.under_way.insert(at, Instant::now());
        drop(lines);
        Entry {
            journal: self.clone(),
            at,
            sent: Moment::now(),
            what,
        }
    }

    /// The longest that a request took, or has taken until now.
    pub(crate) fn slowest(&self) -> Duration {
        let lines = self.lines();
        let under_way = lines.under_way.values().map(Instant::elapsed);
        under_way.fold(lines.slowest, Duration::max)
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
        for (since, line) in &lines.kept {
            let mut line = format!("{:7.3} s  {line}", since.as_secs_f64());
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
