//! [`check`]: judges a history by all laws.

use std::collections::BTreeMap;
use std::fmt;

use super::border;
use super::conflicts;
use super::guards::Guards;
use super::index::{Keys, Pos};
use super::least;
pub use super::least::Subject;
use super::losses::{Excused, Excuses};
use super::recoveries::Recoveries;
use super::resources;
use super::store;
use super::{History, Law, What};

/// Laws that judge nothing in some runs of a few seconds: few waiters are met there.
pub const RARE: [Law; 3] = [Law::Waiting, Law::InTurn, Law::HandedOnForShort];

/// The number of violations kept for each law: the earliest.
const KEPT: usize = 20;

/// The result of a check.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// Events examined.
    pub events: usize,
    /// Guards handed out.
    pub guards: usize,
    /// Of these, those whose grant another task of their process has handed on.
    pub handed_on: usize,
    /// Attempts that got nothing.
    pub refused: usize,
    /// Adoptions.
    pub adoptions: usize,
    /// Writes that the resource that checks tokens has refused as stale.
    pub stale: usize,
    /// Writes lost by the resource that checks nothing, all of them explained.
    pub losses: usize,
    /// How many events each law has judged.
    pub judged: BTreeMap<Law, usize>,
    /// The violations, in the order of the history: the first of each law.
    pub violations: Vec<Violation>,
    /// Those that are no violations, because a fault explains them.
    pub excused: BTreeMap<Law, Excused>,
}

/// A broken law.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Violation {
    /// The law.
    pub law: Law,
    /// The number of the event that shows it, from 1; 0 if no single event does.
    pub event: usize,
    /// What is wrong.
    pub what: String,
    /// The subjects.
    pub about: Vec<Subject>,
    pub(super) at: Pos,
}

impl Violation {
    pub(super) fn new(law: Law, at: Pos, what: impl Into<String>) -> Self {
        Self {
            law,
            event: at.number,
            what: what.into(),
            about: Vec::new(),
            at,
        }
    }

    pub(super) fn about(mut self, about: impl IntoIterator<Item = Subject>) -> Self {
        self.about.extend(about);
        self
    }

    /// The events of the subjects, in order: `before` events before the one that shows the violation, which is marked,
    /// and `after` events after it. Times are in seconds from that event.
    #[must_use]
    pub fn around(&self, history: &History, before: usize, after: usize) -> String {
        least::around(self, history, before, after)
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

impl Report {
    /// The first violation of one of these laws.
    #[must_use]
    pub fn breach_of(&self, laws: &[Law]) -> Option<&Violation> {
        let mut violations = self.violations.iter();
        violations.find(|violation| laws.contains(&violation.law))
    }

    /// The laws that have judged fewer events than `least`. A run is no test of these.
    pub fn idle(&self, least: usize) -> impl Iterator<Item = (Law, usize)> {
        Law::JUDGED.into_iter().filter_map(move |law| {
            let judged = self.judged.get(&law).copied().unwrap_or(0);
            (judged < least).then_some((law, judged))
        })
    }

    /// The laws that have judged nothing, though they judge something in nearly every run of a few seconds: of a run with
    /// any of them nobody can say that every law held.
    pub fn unjudged(&self) -> impl Iterator<Item = Law> {
        let idle = self.idle(1).map(|(law, _)| law);
        idle.filter(|law| !RARE.contains(law))
    }

    /// The number of events that each law has judged, one line for each law. Laws with fewer than `least` are marked.
    #[must_use]
    pub fn table(&self, least: usize) -> String {
        let mut table = String::new();
        for law in Law::JUDGED {
            let judged = self.judged.get(&law).copied().unwrap_or(0);
            let idle = match judged < least {
                true => format!("  fewer than {least}: this run does not count for it"),
                false => String::new(),
            };
            table += &format!("{judged:9}  {law}{idle}\n");
        }
        table
    }
}

/// What the check has found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    excuses: Excuses,
    excused: BTreeMap<Law, Excused>,
    pub(super) violations: BTreeMap<Law, Vec<Violation>>,
    pub(super) judged: BTreeMap<Law, usize>,
}

impl Findings {
    pub(super) fn add(&mut self, violation: Violation) {
        // Else those that are excused would leave no room for others.
        if let Some(since) = self.excuses.excuse(&violation) {
            let excused = self.excused.entry(violation.law).or_default();
            excused.count += 1;
            excused.latest = excused.latest.max(since);
            return;
        }
        let same = self.violations.entry(violation.law).or_default();
        same.push(violation);
        // They are found key by key, not in the order of the history.
        if same.len() > 2 * KEPT {
            leave_earliest(same);
        }
    }

    fn earliest(mut self) -> Vec<Violation> {
        self.violations.values_mut().for_each(leave_earliest);
        let mut all: Vec<Violation> = self.violations.into_values().flatten().collect();
        all.sort_by_key(|violation| violation.at);
        all
    }

    /// The law has judged this many events that could have broken it.
    pub(super) fn judged(&mut self, law: Law, events: usize) {
        *self.judged.entry(law).or_default() += events;
    }
}

fn leave_earliest(violations: &mut Vec<Violation>) {
    violations.sort_by_key(|violation| violation.at);
    violations.truncate(KEPT);
}

/// Judges a history by the laws, in O(n log n) of the number of events.
#[must_use]
pub fn check(history: &History) -> Report {
    check_but(history, &[])
}

/// As [`check`], where a store does not promise these laws once a fault has met a server. Whatever is about a session that was
/// there before the fault was over may be broken; what is about later ones may not.
#[must_use]
pub fn check_but(history: &History, but: &[Law]) -> Report {
    let mut findings = Findings {
        excuses: Excuses::of(history, but),
        ..Findings::default()
    };
    let mut keys = Keys::default();
    let guards = Guards::of(history, &mut keys, &mut findings);
    let border = border::Border::of(history, &mut keys);
    let recoveries = Recoveries::of(history, &guards, &border, &mut findings);
    conflicts::check(&guards, &recoveries, &keys, &mut findings);
    let (stale, losses) = resources::check(history, &guards, &mut findings);
    store::check(history, &guards, &mut keys, &mut findings);
    border::check(&border, history, &guards, &keys, &mut findings);
    ends(history, &guards, &border, &mut findings);
    let mut report = Report {
        events: history.events.len(),
        guards: guards.guards.len(),
        handed_on: 0,
        refused: 0,
        adoptions: recoveries.adoptions.len(),
        stale,
        losses,
        judged: std::mem::take(&mut findings.judged),
        excused: std::mem::take(&mut findings.excused),
        violations: findings.earliest(),
    };
    for event in &history.events {
        match event.what {
            What::Refused { .. } => report.refused += 1,
            What::Granted { token, .. } if token.grant_and_pass().1 > 0 => report.handed_on += 1,
            _ => {}
        }
    }
    report
}

/// What the maker of the history found at its end.
fn ends(history: &History, guards: &Guards, border: &border::Border<'_>, findings: &mut Findings) {
    let held = |session| guards.failovers.hold(session);
    let mut came_to_its_end = false;
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        came_to_its_end |= matches!(event.what, What::ShutDown { .. } | What::Left { .. });
        if let What::Granted { .. } | What::Refused { .. } = event.what {
            findings.judged(Law::WaitingEnds, 1);
        }
        let (law, what, about) = match &event.what {
            // A change is its former adopter's, who knows nothing of it and may live for long.
            What::Stuck { .. } | What::NotToBeHad { .. } if held(None) => continue,
            What::Left { grant, .. } if held(Some(grant.session)) => continue,
            What::Stuck { attempt } => (
                Law::WaitingEnds,
                format!("attempt {attempt} still waits, long after the last fault"),
                Subject::Attempt(*attempt),
            ),
            What::NotToBeHad { key } => (
                Law::WaitingEnds,
                format!("{key} cannot be had, long after the last fault"),
                Subject::Key(key.clone()),
            ),
            What::ShutDown { done: false } => (
                Law::WaitingEnds,
                format!("process {} does not shut down", event.process),
                Subject::Process(event.process),
            ),
            What::Left { key, grant } => (
                left(history, border, *grant),
                format!("{key} is held by {grant}, of which no guard is left"),
                Subject::Grant(*grant),
            ),
            _ => continue,
        };
        findings.add(Violation::new(law, at, what).about([about]));
    }
    if came_to_its_end {
        let (joined, alone) = border.granted();
        findings.judged(Law::NothingKept, joined);
        findings.judged(Law::UnknownIsSettled, alone);
    }
}

/// The law that a remaining holder breaks; for an acquisition of several batches, that it keeps nothing.
fn left(history: &History, border: &border::Border<'_>, left: lockcore::Grant) -> Law {
    let stored = history.events.iter().any(|event| {
        matches!(&event.what, What::Stored(super::Stored::Acquire { grant, joined: true, .. }) if *grant == left)
    });
    if stored || border.is_joined(left) {
        Law::NothingKept
    } else {
        Law::UnknownIsSettled
    }
}
