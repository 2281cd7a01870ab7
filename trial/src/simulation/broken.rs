//! Clients that break one of their rules, and how many seeds it takes to find out.

use std::sync::atomic::{AtomicU64, Ordering};

use lockcore::sim::break_rule;

use super::{Plan, Run, run};

/// A rule of the client, or of the store, that the simulation depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// The number of seeds within which a breach of it must be found.
    pub seeds: u64,
    /// The seeds that need it. The others are not run.
    pub needed: Needed,
    /// The seed that has shown its breach last.
    pub shown_by: Option<u64>,
    /// Its text.
    pub text: &'static str,
}

/// The seeds that need a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needed {
    /// Any seed.
    Always,
    /// Seeds in which the store fails over.
    Failovers,
    /// Seeds with operators.
    Operators,
    /// Seeds with crowds.
    Crowds,
}

impl Needed {
    fn by(self, plan: &Plan) -> bool {
        match self {
            Self::Always => true,
            Self::Failovers => plan.failovers.is_some(),
            Self::Operators => plan.operators,
            Self::Crowds => plan.crowds,
        }
    }
}

/// How a broken rule was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Seeds that were run, including the one that shows it.
    pub seeds: u64,
    /// The one that shows it.
    pub seed: u64,
    /// The run that shows it.
    pub run: Run,
}

/// Every rule of `breaches.txt`.
///
/// # Panics
///
/// Panics if a line of the file is not of the form that its head describes.
pub fn rules() -> impl Iterator<Item = Rule> {
    let lines = include_str!("../../breaches.txt").lines();
    lines
        .filter_map(|line| line.strip_prefix("= "))
        .map(|line| {
            let (name, rest) = line.split_once(", ").expect("a rule has a name");
            let (seeds, text) = rest.split_once(": ").expect("a rule has seeds");
            let (seeds, of) = seeds.split_once(" seeds").expect("a rule has seeds");
            let seeds = seeds.parse().expect("seeds are a number");
            let (of, shown_by) = match of.split_once(", ") {
                Some((of, shown)) => {
                    let seed = shown.strip_suffix(" shows it");
                    let seed = seed.and_then(|seed| seed.parse().ok());
                    (of, Some(seed.expect("a seed shows it")))
                }
                None => (of, None),
            };
            let needed = match of {
                "" => Needed::Always,
                " with failovers" => Needed::Failovers,
                " with operators" => Needed::Operators,
                " with crowds" => Needed::Crowds,
                of => panic!("seeds{of}"),
            };
            Rule {
                name,
                seeds,
                needed,
                shown_by,
                text,
            }
        })
}

/// Runs a seed with clients that break the rule. They break it only in a build with its change.
#[must_use]
pub fn run_broken(rule: Rule, seed: u64) -> Run {
    break_rule(Some(rule.name));
    let run = run(seed);
    break_rule(None);
    run
}

/// Runs the seed that has shown a breach of the rule last. `None` if there is none, or if it shows it no more, because another
/// change has made another run of it.
///
/// # Panics
///
/// Panics if that seed shows a violation with all rules, too.
#[must_use]
pub fn find_again(rule: Rule) -> Option<Found> {
    let seed = rule.shown_by?;
    let run = run_broken(rule, seed);
    let seeds = 1;
    let shows = !run.report.violations.is_empty();
    shows.then(|| keeps_all(seed));
    shows.then_some(Found { seeds, seed, run })
}

/// With all rules the same seed has to show nothing: else what was found says nothing of the rule.
fn keeps_all(seed: u64) {
    let violations = run(seed).report.violations;
    assert!(
        violations.is_empty(),
        "seed {seed}, with all rules: {violations:?}"
    );
}

/// Runs seeds from the first one, with clients that break the rule, several at the same time, until one shows it.
/// Returns the first that does; `None` if none does within the stated number.
///
/// # Panics
///
/// Panics if a run does, or if that seed shows a violation with all rules, too.
#[must_use]
pub fn find(rule: Rule, first: u64, threads: usize) -> Option<Found> {
    let threads = threads.max(1);
    // The fewest with which it is known to show.
    let fewest = AtomicU64::new(rule.seeds + 1);
    let search = |thread: usize| {
        let own = (1..=rule.seeds).skip(thread).step_by(threads);
        let mut own = own.take_while(|seeds| *seeds < fewest.load(Ordering::Relaxed));
        own.find_map(|seeds| {
            let seed = first + seeds - 1;
            if !rule.needed.by(&Plan::of(seed)) {
                return None;
            }
            let run = run_broken(rule, seed);
            let shows = !run.report.violations.is_empty();
            shows.then(|| {
                fewest.fetch_min(seeds, Ordering::Relaxed);
                Found { seeds, seed, run }
            })
        })
    };
    std::thread::scope(|scope| {
        let search = &search;
        let searches: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || search(thread)))
            .collect();
        let found = searches
            .into_iter()
            .flat_map(|it| it.join().expect("a run panicked"));
        let found = found.min_by_key(|found| found.seeds);
        found.inspect(|found| keeps_all(found.seed))
    })
}
