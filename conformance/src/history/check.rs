//! [`check`]: a history against all laws.

use std::fmt;

use super::conflicts;
use super::guards::Guards;
use super::index::{Keys, Pos};
use super::recoveries::Recoveries;
use super::resources;
use super::store;
use super::{Event, History, Law, What};

/// Violations that are kept.
const KEPT: usize = 100;

/// What came of a check.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// Events looked at.
    pub events: usize,
    /// Guards handed out.
    pub guards: usize,
    /// Attempts that got nothing.
    pub refused: usize,
    /// Adoptions.
    pub adoptions: usize,
    /// Writes that the resource that checks tokens has refused as stale.
    pub stale: usize,
    /// Writes lost by the resource that checks nothing, all of them explained.
    pub losses: usize,
    /// What is wrong, in the order of the history.
    pub violations: Vec<Violation>,
}

/// A law that is broken.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Violation {
    /// Which law.
    pub law: Law,
    /// The number of the event where it shows, from 1; 0 if it is no single one.
    pub event: usize,
    /// What is wrong.
    pub what: String,
    at: Pos,
}

impl Violation {
    pub(super) fn new(law: Law, at: Pos, what: impl Into<String>) -> Self {
        Self {
            law,
            event: at.number,
            what: what.into(),
            at,
        }
    }

    /// The events around it, in order, the one where it shows marked.
    #[must_use]
    pub fn around(&self, history: &History, before: usize, after: usize) -> String {
        let shown = self.event.max(1) - 1;
        let from = shown.saturating_sub(before);
        let lines = history.events.iter().enumerate().skip(from);
        lines
            .take(shown - from + after + 1)
            .map(|(at, event)| {
                let mark = if at == shown { "=>" } else { "  " };
                format!("{mark} {:6} {}\n", at + 1, line(event))
            })
            .collect()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} (event {}, {:.3} s)",
            self.law,
            self.what,
            self.event,
            std::time::Duration::from_nanos(self.at.at).as_secs_f64()
        )
    }
}

fn line(event: &Event) -> String {
    let time = std::time::Duration::from_nanos(event.at).as_secs_f64();
    format!("{time:9.3} p{:<3} {:?}", event.process, event.what)
}

impl Report {
    /// The first thing that breaks one of these laws.
    #[must_use]
    pub fn breach_of(&self, laws: &[Law]) -> Option<&Violation> {
        let mut violations = self.violations.iter();
        violations.find(|violation| laws.contains(&violation.law))
    }
}

/// What is found on the way.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) violations: Vec<Violation>,
}

impl Findings {
    pub(super) fn add(&mut self, violation: Violation) {
        if self.violations.len() < KEPT {
            self.violations.push(violation);
        }
    }
}

/// Holds a history against the laws. The work is O(n log n) in the number of events.
#[must_use]
pub fn check(history: &History) -> Report {
    let mut findings = Findings::default();
    let mut keys = Keys::default();
    let guards = Guards::of(history, &mut keys, &mut findings);
    let recoveries = Recoveries::of(history, &guards, &mut findings);
    conflicts::check(&guards, &recoveries, &keys, &mut findings);
    let (stale, losses) = resources::check(history, &guards, &mut findings);
    store::check(history, &guards, &mut keys, &mut findings);
    ends(history, &mut findings);
    let mut report = Report {
        events: history.events.len(),
        guards: guards.guards.len(),
        refused: 0,
        adoptions: recoveries.adoptions.len(),
        stale,
        losses,
        violations: findings.violations,
    };
    for event in &history.events {
        report.refused += usize::from(matches!(event.what, What::Refused { .. }));
    }
    report.violations.sort_by_key(|violation| violation.at);
    report
}

/// What whoever made the history found at its end.
fn ends(history: &History, findings: &mut Findings) {
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        let (law, what) = match &event.what {
            What::Stuck { attempt } => (
                Law::WaitingEnds,
                format!("attempt {attempt} still waits, long after the last fault"),
            ),
            What::NotToBeHad { key } => (
                Law::WaitingEnds,
                format!("{key} cannot be had, long after the last fault"),
            ),
            What::ShutDown { done: false } => (
                Law::WaitingEnds,
                format!("process {} does not shut down", event.process),
            ),
            What::Left { key, grant } => (
                left(history, *grant),
                format!("{key} is held by {grant}, of which no guard is left"),
            ),
            _ => continue,
        };
        findings.add(Violation::new(law, at, what));
    }
}

/// Which law a holder breaks that is left: of an acquisition of several steps, that it keeps nothing.
fn left(history: &History, left: lockcore::Grant) -> Law {
    let joined = history.events.iter().any(|event| {
        matches!(&event.what, What::Stored(super::Stored::Acquire { grant, joined: true, .. }) if *grant == left)
    });
    if joined {
        Law::NothingKept
    } else {
        Law::UnknownIsSettled
    }
}
