//! Running cases: one by one with [`check`], or all of them with [`main`] and [`suite`].

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

use crate::case::{Case, Failure, Layer};
use crate::journal::Journal;
use crate::world::World;

/// The environment variable with the seed of a run; without it, every run has a new one.
pub(crate) const SEED: &str = "LOCKCORE_CONFORMANCE_SEED";

/// Longest real time of a case: more than any that [`Case::run`] allows itself on a store with a short TTL, and far
/// more than it takes where time is paused.
const WATCHDOG: Duration = Duration::from_secs(300);
const WATCHDOG_PAUSED: Duration = Duration::from_secs(60);

/// Most cases mostly sleep or wait for the store, so more of them run at a time than there are processors.
const TRIALS_AT_A_TIME: usize = 16;

/// Runs every case on one store, as the `main` of a test target with `harness = false`.
///
/// Takes the arguments of `cargo test`: a filter, `--exact`, `--list`, `--test-threads`.
///
/// # Panics
///
/// Panics if the seed in the environment is no number.
#[must_use]
pub fn main(world: impl World) -> ExitCode {
    suite(vec![(Arc::new(world), crate::cases())])
}

/// Runs chosen cases on each of several stores, or of several configurations of one.
///
/// # Panics
///
/// As [`main`].
#[must_use]
pub fn suite(worlds: Vec<(Arc<dyn World>, Vec<Case>)>) -> ExitCode {
    if let Some(code) = crate::child::main(worlds.iter().map(|(world, _)| &**world)) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_A_TIME);
    let seed = run_seed();
    let mut trials = Vec::new();
    for (world, cases) in worlds {
        for case in cases {
            let name = format!("{}::{case}", world.name());
            if case.layer() == Layer::Processes && !world.processes() {
                if !arguments.list {
                    eprintln!("left out: {name}: other processes cannot reach this store");
                }
                continue;
            }
            let world = world.clone();
            let run = move || check(&case, &world, seed).map_err(|failure| Failed::from(&failure));
            trials.push(Trial::test(name, run));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run_seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => text.parse().expect("the seed is a decimal number"),
        Err(_) => rand::random(),
    }
}

/// Runs one case in a fresh space of the world, on a thread and a runtime of its own, and stops waiting for a thread
/// that is blocked for ever.
///
/// # Errors
///
/// The store does not pass the case, or no space could be made.
pub fn check(case: &Case, world: &Arc<dyn World>, seed: u64) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    let journal = Journal::default();
    let run = {
        let (case, world, journal) = (case.clone(), world.clone(), journal.clone());
        move || {
            // Whoever waits no longer has said why.
            let _ = sender.send(run_here(&case, &*world, seed, journal));
        }
    };
    let limit = if world.paused() {
        WATCHDOG_PAUSED
    } else {
        WATCHDOG
    };
    let thread = std::thread::Builder::new()
        .name(case.to_string())
        .spawn(run);
    let failed = |what: String| case.failure(what, seed, journal.shown());
    let thread = thread.map_err(|error| failed(format!("no thread for the case: {error}")))?;
    match receiver.recv_timeout(limit) {
        Ok(result) => {
            // It has sent its last word, so this takes no time.
            let _ = thread.join();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            journal.stop();
            Err(failed(format!(
                "never lets its thread go: not done within {limit:?} of real time"
            )))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(failed("the case's runtime panicked".to_owned()))
        }
    }
}

fn run_here(case: &Case, world: &dyn World, seed: u64, journal: Journal) -> Result<(), Failure> {
    let failed = |what: String| case.failure(what, seed, journal.shown());
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(world.paused())
        .build()
        .map_err(|error| failed(format!("no runtime for the case: {error}")))?;
    let result = runtime.block_on(async {
        let space = world
            .fresh()
            .await
            .map_err(|error| failed(format!("no space for the case: {error}")))?;
        case.run_noting(space, seed, journal.clone()).await
    });
    runtime.shutdown_background();
    result
}
