//! What `lockkeeper verify` has found, for people and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use lockcore_conformance::{Failure, Law};
use lockcore_trial::history::Report as Judged;
use lockcore_trial::processes::Run;
use serde::Serialize;

use crate::failure::{Failure as Stop, one_line};
use crate::output::Output;

/// A law that has judged fewer events than this says little: see CONTRIBUTING.md.
const ENOUGH: usize = 1_000;

/// A run with fewer guards says nothing.
const GUARDS: usize = 20;

/// What no run of this command tries.
const NEVER: [&str; 4] = [
    "a failover, a restore and a loss of power of the store",
    "faults of the network between a client and the store",
    "clocks that differ or are set",
    "what a store of this version does with the data of another version",
];

/// How a case has ended.
pub(super) enum Outcome {
    Passed,
    /// A law is broken.
    Broken(Box<Failure>),
    /// The store did not answer in time, or the machine was late, three times.
    Undecided(Box<Failure>),
    /// The namespace could not be made or removed.
    Failed(String),
    /// The case needs something that this command does not do.
    NotTried(&'static str),
}

/// What was found.
#[derive(Default)]
pub(super) struct Report {
    pub(super) store: &'static str,
    pub(super) url: String,
    pub(super) seed: u64,
    pub(super) took: Duration,
    /// The cases that were to run.
    pub(super) wanted: usize,
    /// All cases of the kit.
    pub(super) known: usize,
    pub(super) cases: BTreeMap<String, Outcome>,
    pub(super) run: Option<Run>,
    /// Why there is no run.
    pub(super) no_run: Option<String>,
    /// Namespaces that could not be removed.
    pub(super) left: Vec<String>,
}

/// What all of it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Every law held.
    Held,
    /// A law is broken.
    Broken,
    /// No law is seen broken, and not all was tried that was to be.
    Undecided,
}

impl Report {
    pub(super) fn verdict(&self) -> Verdict {
        self.with(self.run.as_ref().map(|run| &run.report))
    }

    /// The verdict, with what a run of processes has found.
    fn with(&self, run: Option<&Judged>) -> Verdict {
        let mut cases = self.cases.values();
        let broken = |case: &Outcome| matches!(case, Outcome::Broken(_));
        let open = |case: &Outcome| matches!(case, Outcome::Undecided(_) | Outcome::Failed(_));
        if cases.any(broken) || run.is_some_and(|report| !report.violations.is_empty()) {
            return Verdict::Broken;
        }
        let told = run.is_some_and(|it| it.guards >= GUARDS && it.unjudged().next().is_none());
        let all = self.cases.len() == self.wanted && !self.cases.values().any(open);
        match told && all && self.left.is_empty() {
            true => Verdict::Held,
            false => Verdict::Undecided,
        }
    }

    fn passed(&self) -> usize {
        let passed = |case: &&Outcome| matches!(case, Outcome::Passed);
        self.cases.values().filter(passed).count()
    }

    /// The cases that were not tried, by what is missing.
    fn not_tried(&self) -> BTreeMap<&'static str, Vec<&str>> {
        let mut missing: BTreeMap<&'static str, Vec<&str>> = BTreeMap::new();
        for (name, outcome) in &self.cases {
            if let Outcome::NotTried(what) = outcome {
                missing.entry(what).or_default().push(name);
            }
        }
        missing
    }

    pub(super) fn write(&self, output: &mut Output) -> Result<(), Stop> {
        output.line(&format!(
            "cases: {} of {} passed, of {} that the kit has",
            self.passed(),
            self.wanted,
            self.known
        ))?;
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed | Outcome::NotTried(_) => {}
                Outcome::Failed(why) => {
                    output.line(&format!("undecided: {name}: {}", one_line(why)))?;
                }
                Outcome::Broken(failure) | Outcome::Undecided(failure) => {
                    // It names its law, and has all that is needed to look into it.
                    output.line(failure.to_string().trim_end())?;
                }
            }
        }
        match (&self.run, &self.no_run) {
            (Some(run), _) => write_run(run, output)?,
            (None, why) => {
                let why = why.as_deref().unwrap_or("they did not run");
                output.line(&format!("processes: undecided: {}", one_line(why)))?;
            }
        }
        output.line("not tried:")?;
        for (what, cases) in self.not_tried() {
            output.line(&format!("  {what} ({} cases)", cases.len()))?;
        }
        if self.wanted < self.known {
            let left = self.known - self.wanted;
            output.line(&format!("  {left} further cases: see --cases all"))?;
        }
        for what in NEVER {
            output.line(&format!("  {what}"))?;
        }
        for name in &self.left {
            output.line(&format!(
                "the namespace {name} may be in the store still: remove it there"
            ))?;
        }
        let took = humantime::format_duration(Duration::from_secs(self.took.as_secs()));
        let idle = (self.run.as_ref()).map_or(0, |run| run.report.idle(1).count());
        let verdict = match self.verdict() {
            Verdict::Held if idle == 0 => "every law held".to_owned(),
            Verdict::Held => format!("every law held, of which {idle} judged nothing"),
            Verdict::Broken => "a law is broken".to_owned(),
            Verdict::Undecided => "no law is seen broken, but not all could be tried".to_owned(),
        };
        output.line(&format!(
            "{verdict}: {}, seed {}, {took}",
            self.store, self.seed
        ))
    }

    pub(super) fn json(&self) -> impl Serialize {
        let case = |(name, outcome): (&String, &Outcome)| match outcome {
            Outcome::Passed | Outcome::NotTried(_) => None,
            Outcome::Failed(why) => Some(CaseJson {
                case: name.clone(),
                law: None,
                what: why.clone(),
                events: Vec::new(),
            }),
            Outcome::Broken(failure) | Outcome::Undecided(failure) => Some(CaseJson {
                case: name.clone(),
                law: Some(failure.law.as_str()),
                what: failure.what.clone(),
                events: failure.events.clone(),
            }),
        };
        let (broken, undecided): (Vec<_>, Vec<_>) = self
            .cases
            .iter()
            .filter_map(|it| Some((case(it)?, matches!(it.1, Outcome::Broken(_)))))
            .partition(|(_, broken)| *broken);
        let alone = |cases: Vec<(CaseJson, bool)>| cases.into_iter().map(|it| it.0).collect();
        let not_tried = self.not_tried().into_iter();
        ReportJson {
            verdict: self.verdict(),
            store: self.store,
            url: self.url.clone(),
            seed: self.seed.to_string(),
            seconds: self.took.as_secs_f64(),
            cases: CasesJson {
                known: self.known,
                wanted: self.wanted,
                passed: self.passed(),
                broken: alone(broken),
                undecided: alone(undecided),
            },
            processes: self.run.as_ref().map(RunJson::new),
            processes_failed: self.no_run.clone(),
            not_tried: not_tried
                .map(|(what, cases)| (what.to_owned(), cases.len()))
                .chain(NEVER.map(|what| (what.to_owned(), 0)))
                .map(|(what, cases)| MissingJson { what, cases })
                .collect(),
            left: self.left.clone(),
        }
    }
}

fn write_run(run: &Run, output: &mut Output) -> Result<(), Stop> {
    let report = &run.report;
    output.line(&format!(
        "processes: {} s, {}: {} events, {} guards, {} refusals, {} adoptions, {} violations",
        run.length.as_secs(),
        run.struck,
        report.events,
        report.guards,
        report.refused,
        report.adoptions,
        report.violations.len()
    ))?;
    if report.guards < GUARDS {
        output.line(&format!(
            "undecided: fewer than {GUARDS} guards: give more --minutes"
        ))?;
    }
    for law in report.unjudged() {
        output.line(&format!(
            "undecided: nothing to judge was met: {law}: give more --minutes"
        ))?;
    }
    for law in Law::JUDGED {
        let judged = report.judged.get(&law).copied().unwrap_or(0);
        let few = match judged < ENOUGH {
            true => format!(" (fewer than {ENOUGH}: more --minutes say more)"),
            false => String::new(),
        };
        output.line(&format!("{judged:>10}  {law}{few}"))?;
    }
    for violation in &report.violations {
        output.line(&format!("broken: {violation}"))?;
        output.line(violation.around(&run.history, 40, 5).trim_end())?;
    }
    Ok(())
}

#[derive(Serialize)]
struct ReportJson {
    verdict: Verdict,
    store: &'static str,
    url: String,
    /// A decimal number; too large for a number of JSON.
    seed: String,
    seconds: f64,
    cases: CasesJson,
    processes: Option<RunJson>,
    processes_failed: Option<String>,
    not_tried: Vec<MissingJson>,
    /// Namespaces that could not be removed.
    left: Vec<String>,
}

#[derive(Serialize)]
struct CasesJson {
    known: usize,
    wanted: usize,
    passed: usize,
    broken: Vec<CaseJson>,
    undecided: Vec<CaseJson>,
}

#[derive(Serialize)]
struct CaseJson {
    case: String,
    law: Option<&'static str>,
    what: String,
    events: Vec<String>,
}

#[derive(Serialize)]
struct MissingJson {
    what: String,
    /// The cases that need it; 0 for what no case tries.
    cases: usize,
}

#[derive(Serialize)]
struct RunJson {
    seconds: f64,
    faults: String,
    events: usize,
    guards: usize,
    refusals: usize,
    adoptions: usize,
    /// How many events each law has judged.
    judged: BTreeMap<&'static str, usize>,
    violations: Vec<ViolationJson>,
}

#[derive(Serialize)]
struct ViolationJson {
    law: &'static str,
    what: String,
    events: String,
}

impl RunJson {
    fn new(run: &Run) -> Self {
        let report = &run.report;
        let judged = |law: Law| (law.as_str(), report.judged.get(&law).copied().unwrap_or(0));
        let violations = report.violations.iter();
        Self {
            seconds: run.length.as_secs_f64(),
            faults: run.struck.to_string(),
            events: report.events,
            guards: report.guards,
            refusals: report.refused,
            adoptions: report.adoptions,
            judged: Law::JUDGED.into_iter().map(judged).collect(),
            violations: violations
                .map(|violation| ViolationJson {
                    law: violation.law.as_str(),
                    what: violation.what.clone(),
                    events: violation.around(&run.history, 40, 5),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use lockcore_conformance::{BoxError, FailureKind, Space, cases};
    use lockkeeper::{LockBackend, async_trait};

    use super::*;

    /// A store that cannot be reached, or breaks when it is asked again.
    struct Bad {
        panics: bool,
        asked: AtomicBool,
    }

    #[async_trait]
    impl Space for Bad {
        async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
            let again = self.asked.swap(true, Ordering::Relaxed);
            assert!(!(self.panics && again), "it breaks");
            Err("nobody is there".into())
        }

        fn allowance(&self) -> Duration {
            Duration::ZERO
        }

        fn url(&self) -> Option<String> {
            None
        }

        async fn plant(&self, _: &lockkeeper::LockKey) -> Result<(), BoxError> {
            Err("nobody is there".into())
        }
    }

    fn failure(panics: bool) -> Box<Failure> {
        let case = &cases()[0];
        let runtime = crate::runtime().unwrap();
        let asked = AtomicBool::new(false);
        let failed = runtime.block_on(case.run(Arc::new(Bad { panics, asked }), 1));
        Box::new(failed.unwrap_err())
    }

    fn broken() -> Outcome {
        let failure = failure(true);
        assert_eq!(failure.kind, FailureKind::Broken, "{failure}");
        Outcome::Broken(failure)
    }

    fn undecided() -> Outcome {
        let failure = failure(false);
        assert_eq!(failure.kind, FailureKind::Inconclusive, "{failure}");
        Outcome::Undecided(failure)
    }

    fn report(outcomes: impl IntoIterator<Item = Outcome>) -> Report {
        let mut report = Report::default();
        for (n, outcome) in outcomes.into_iter().enumerate() {
            report.cases.insert(format!("case {n}"), outcome);
        }
        report.wanted = report.cases.len();
        report
    }

    /// A run in which each law has judged something.
    fn ran(guards: usize) -> Judged {
        let mut judged = Judged::default();
        judged.guards = guards;
        judged.judged = Law::JUDGED.map(|law| (law, 1)).into();
        judged
    }

    #[test]
    fn every_law_held_where_all_passed_and_processes_saw_enough() {
        let all = [Outcome::Passed, Outcome::NotTried("a restart")];
        assert_eq!(report(all).with(Some(&ran(GUARDS))), Verdict::Held);
    }

    #[test]
    fn a_broken_case_counts_whatever_else_there_is() {
        for other in [Outcome::Passed, undecided()] {
            let report = report([other, broken()]);
            assert_eq!(report.with(Some(&ran(GUARDS))), Verdict::Broken);
            assert_eq!(report.with(None), Verdict::Broken);
            assert_eq!(report.verdict(), Verdict::Broken);
        }
        let mut report = report([broken()]);
        report.wanted = 9;
        report.left.push("lockkeeper-scratch-0".to_owned());
        assert_eq!(report.with(Some(&ran(GUARDS))), Verdict::Broken);
    }

    #[test]
    fn what_is_missing_leaves_it_undecided() {
        let enough = ran(GUARDS);
        let undecided_of = |report: &Report| report.with(Some(&enough)) == Verdict::Undecided;
        for open in [undecided(), Outcome::Failed("no namespace".to_owned())] {
            assert!(undecided_of(&report([Outcome::Passed, open])));
        }
        let mut few = report([Outcome::Passed]);
        few.wanted = 2;
        assert!(undecided_of(&few), "a case did not run");
        let mut left = report([Outcome::Passed]);
        left.left.push("lockkeeper-scratch-0".to_owned());
        assert!(undecided_of(&left), "a namespace is left");
        let passed = report([Outcome::Passed]);
        assert_eq!(passed.with(None), Verdict::Undecided, "no processes");
        assert_eq!(passed.verdict(), Verdict::Undecided);
        assert_eq!(passed.with(Some(&ran(GUARDS - 1))), Verdict::Undecided);
        let mut idle = ran(GUARDS);
        idle.judged.remove(&Law::OneAdopter);
        assert_eq!(
            passed.with(Some(&idle)),
            Verdict::Undecided,
            "a law is idle"
        );
    }
}
