//! Running cases: one by one with [`check`], or all of them with [`main`] and [`suite`].

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

use crate::case::{Case, Failure, FailureKind, Notes};
use crate::fixture::{Feature, Fixture};
use crate::journal::Journal;
use crate::lateness::Lateness;
use crate::verdict::Judged;

/// The environment variable with the seed of a run. Without it, every run has a new seed.
pub(crate) const SEED: &str = "LOCKCORE_CONFORMANCE_SEED";

/// The environment variable that chooses the cases: `all`, or the `quick` set.
const SET: &str = "LOCKCORE_CONFORMANCE_SET";

/// The longest real time of a case: more than [`Case::run`] allows itself on a store with a short TTL, and far more
/// than it takes with paused time.
const WATCHDOG: Duration = Duration::from_secs(300);
const WATCHDOG_PAUSED: Duration = Duration::from_secs(60);

/// How often a case runs that is late or inconclusive each time.
const RUNS: usize = 5;

/// Cases mostly sleep or wait for the store, so more of them run at a time than there are processors.
const TRIALS_AT_A_TIME: usize = 16;

/// Runs every case on one store, as the `main` of a test target with `harness = false`.
///
/// Accepts the arguments of `cargo test`: a filter, `--exact`, `--list`, `--test-threads`. Reads the environment
/// variables `LOCKCORE_CONFORMANCE_SEED` and `LOCKCORE_CONFORMANCE_SET` (`all` or `quick`).
///
/// # Panics
///
/// Panics if the seed in the environment is not a number, or the set is neither `all` nor `quick`.
#[must_use]
pub fn main(fixture: impl Fixture) -> ExitCode {
    suite(vec![(Arc::new(fixture), crate::cases())])
}

/// Runs chosen cases on each of several stores, or of several configurations of one.
///
/// # Panics
///
/// As [`main`].
#[must_use]
pub fn suite(fixtures: Vec<(Arc<dyn Fixture>, Vec<Case>)>) -> ExitCode {
    if let Some(code) = crate::child::main(
        fixtures.iter().map(|(fixture, _)| &**fixture),
        Duration::ZERO,
        crate::client::run_child,
    ) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_A_TIME);
    let (seed, quick) = (run_seed(), quick_only());
    let mut trials = Vec::new();
    for (fixture, mut cases) in fixtures {
        if quick {
            let of = cases.len();
            cases.retain(crate::quick::has);
            eprintln!(
                "{SET}=quick: {} of {of} cases on {}",
                cases.len(),
                fixture.name()
            );
        }
        for case in cases {
            let name = format!("{}::{case}", fixture.name());
            let missing = case.needs().filter(|need| fixture.lacks().contains(need));
            let fixture = fixture.clone();
            let run = move || match missing {
                None => told(|| check(&case, &fixture, seed)).map_err(Failed::from),
                Some(missing) => lacks(&case, &fixture, seed, missing),
            };
            trials.push(Trial::test(name, run).with_ignored_flag(missing.is_some()));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether a case misses what the fixture says that it lacks.
fn lacks(
    case: &Case,
    fixture: &Arc<dyn Fixture>,
    seed: u64,
    missing: Feature,
) -> Result<(), Failed> {
    match check(case, fixture, seed) {
        Err(failure) if failure.kind == FailureKind::Lacking => Ok(()),
        Err(failure) => Err(failure.into()),
        Ok(()) => Err(format!("{missing:?} is there, and `Fixture::lacks` names it").into()),
    }
}

/// Runs a case until its result cannot be chance, and reports every run.
fn told(mut run: impl FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    for left in (1..RUNS).rev() {
        match run() {
            Err(failure) if failure.kind.may_be_chance() => {
                eprintln!("run again, at most {left} times: {failure}");
            }
            told => return told,
        }
    }
    run()
}

fn run_seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => text.parse().expect("the seed is a decimal number"),
        Err(_) => rand::random(),
    }
}

fn quick_only() -> bool {
    match std::env::var(SET).as_deref() {
        Ok("quick") => true,
        Ok("all") | Err(_) => false,
        Ok(other) => panic!("{SET} is \"all\" or \"quick\", and not {other:?}"),
    }
}

/// Runs one case in a fresh space of the fixture, on a thread and a runtime of its own. Stops waiting for a thread that
/// is blocked for ever.
///
/// # Errors
///
/// The store does not pass the case, or no space could be created: see [`FailureKind`](crate::FailureKind).
pub fn check(case: &Case, fixture: &Arc<dyn Fixture>, seed: u64) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    let notes = Notes {
        journal: Journal::default(),
        lateness: Lateness::measured(),
        paused: fixture.paused(),
        begun: Instant::now(),
    };
    let run = {
        let (case, fixture, notes) = (case.clone(), fixture.clone(), notes.clone());
        move || {
            // Whoever waits no longer has said why.
            let _ = sender.send(run_here(&case, &*fixture, seed, &notes));
        }
    };
    let watchdog = if fixture.paused() {
        WATCHDOG_PAUSED
    } else {
        WATCHDOG
    };
    let mut limit = watchdog;
    let thread = std::thread::Builder::new()
        .name(case.to_string())
        .spawn(run);
    let failed = |judged| case.failure(judged, seed, &notes);
    let thread = thread.map_err(|error| failed(no("thread", error)))?;
    loop {
        return match receiver.recv_timeout(limit.saturating_sub(notes.begun.elapsed())) {
            Ok(result) => {
                // It has sent its last word, so this takes no time.
                let _ = thread.join();
                result
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // The machine may have stood still: the case has that time besides.
                let wanted = watchdog + notes.lateness.since(notes.begun);
                if limit < wanted {
                    limit = wanted;
                    continue;
                }
                notes.journal.stop();
                let what =
                    format!("never lets its thread go: not done within {limit:?} of real time");
                Err(failed(Judged::Broken(None, what)))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let what = "the case's runtime panicked".to_owned();
                Err(failed(Judged::Broken(None, what)))
            }
        };
    }
}

/// The failure of something that a case needs in order to run.
fn no(what: &str, error: impl std::fmt::Display) -> Judged {
    Judged::Inconclusive(format!(
        "the machinery failed: no {what} for the case: {error}"
    ))
}

fn run_here(case: &Case, fixture: &dyn Fixture, seed: u64, notes: &Notes) -> Result<(), Failure> {
    let failed = |judged| case.failure(judged, seed, notes);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(fixture.paused())
        .build()
        .map_err(|error| failed(no("runtime", error)))?;
    let result = runtime.block_on(async {
        let space = fixture
            .fresh()
            .await
            .map_err(|error| failed(no("space", error)))?;
        case.run_noting(space, seed, notes).await
    });
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a case runs that ends so, one run after the other, and what is told in the end.
    fn runs(kinds: &[Option<FailureKind>]) -> (usize, Option<FailureKind>) {
        let case = &crate::cases()[0];
        let notes = Notes {
            journal: Journal::default(),
            lateness: Lateness::default(),
            paused: true,
            begun: Instant::now(),
        };
        let mut left = kinds.iter();
        let told = told(|| {
            let Some(kind) = left.next().expect("no run more") else {
                return Ok(());
            };
            let mut failure = case.failure(Judged::Inconclusive(String::new()), 1, &notes);
            failure.kind = *kind;
            Err(failure)
        });
        (
            kinds.len() - left.len(),
            told.err().map(|failure| failure.kind),
        )
    }

    #[test]
    fn what_may_be_chance_is_run_again_and_what_is_broken_is_not() {
        use FailureKind::{Broken, Inconclusive, Late};
        assert_eq!(runs(&[None]), (1, None));
        assert_eq!(runs(&[Some(Broken), None]), (1, Some(Broken)));
        assert_eq!(runs(&[Some(Late), Some(Inconclusive), None]), (3, None));
        assert_eq!(runs(&[Some(Late), Some(Broken), None]), (2, Some(Broken)));
        let mut chance = vec![Some(Inconclusive); RUNS - 1];
        chance.push(Some(Late));
        assert_eq!(runs(&chance), (RUNS, Some(Late)));
    }
}
