//! `lockkeeper verify`: whether the laws hold in a deployment of the user's.

mod deployment;
mod report;

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufWriter;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockcore_conformance::{Case, FailureKind, cases, quick};
use lockcore_trial::processes::{self, Plan};
use lockkeeper::{ConnectError, ErrorKind};
use tokio::sync::{mpsc, watch};

use crate::args::{CaseSet, Common, VerifyArgs};
use crate::failure::{Failure, chain, say, status, tell};
use crate::output::Output;
use crate::signals::Signals;
use crate::{runtime, store};
use deployment::{Deployment, Made, locked, remove};
use report::{Outcome, Report, Verdict};

/// How often a case runs that is late or inconclusive each time.
const RUNS: usize = 3;

/// What a case that was given up still does on other threads.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long it takes at most to remove what is left, and then the next one of all that were made.
const REMOVAL: Duration = Duration::from_secs(60);

/// Does the work of a process of a run, if this is one.
pub(crate) fn child() -> Option<ExitCode> {
    processes::child(&Deployment::new("", Made::default()))
}

/// Runs the cases, then the processes, and removes all namespaces, however it ends.
pub(crate) fn verify(common: &Common, args: &VerifyArgs) -> Result<u8, Failure> {
    let url = store::url(common)?;
    if url.starts_with("memory:") {
        return Err(Failure::usage(
            "memory: is a store of one process: give the --url of a store that others reach",
        ));
    }
    let history = args.history.as_ref().map(|path| {
        File::create(path).map_err(|error| {
            let path = path.display();
            Failure::usage(format!("--history {path} cannot be written: {error}"))
        })
    });
    let history = history.transpose()?;
    let begun = Instant::now();
    let chosen = match args.cases {
        CaseSet::All => cases(),
        CaseSet::Quick => quick(),
    };
    let mut report = Report {
        url: store::without_password(&url),
        seed: args.seed.unwrap_or_else(rand_seed),
        wanted: chosen.len(),
        known: cases().len(),
        ..Report::default()
    };
    let made = Made::default();
    let deployment = Arc::new(Deployment::new(&url, Arc::clone(&made)));
    let working = runtime()?;
    let done = working.block_on(async {
        let mut signals = Signals::listen()?;
        let signalled = |number: rustix::process::Signal| Failure::signal(number.as_raw());
        // Without the rights, or without a store, nothing is begun.
        report.store = tokio::select! {
            biased;
            number = signals.ending() => return Err(signalled(number)),
            reached = reached(&deployment) => reached?,
        };
        store::warn(common);
        tell(&format!(
            "verifying {} in namespaces of its own, lockkeeper-scratch-…, which are removed: {} cases, {} at a time, \
             then {} processes for {:?}; seed {}",
            report.store, report.wanted, args.jobs, args.processes, args.minutes, report.seed
        ));
        let (stop, stopped) = watch::channel(false);
        let mut results = begin(&deployment, chosen, args.jobs, report.seed, &stopped)?;
        let mut ended = None;
        loop {
            tokio::select! {
                biased;
                number = signals.ending() => {
                    if ended.replace(number).is_some() {
                        return Err(signalled(number));
                    }
                    stop.send_replace(true);
                }
                result = results.recv() => match result {
                    Some((name, outcome)) => drop(report.cases.insert(name, outcome)),
                    // All of them are done, or have given up, and have removed what was theirs.
                    None => break,
                },
            }
        }
        if let Some(number) = ended {
            return Err(signalled(number));
        }
        let mut plan = Plan::new(report.seed);
        plan.processes = args.processes.into();
        plan.length = args.minutes;
        let ran = tokio::select! {
            biased;
            number = signals.ending() => return Err(signalled(number)),
            // Its processes end with it.
            ran = processes::run(&*deployment, &plan) => ran,
        };
        match ran {
            Ok(run) => report.run = Some(run),
            Err(error) => report.no_run = Some(chain(&*error)),
        }
        if let (Some(file), Some(run)) = (history, &report.run)
            && let Err(error) = run.history.write_lines(BufWriter::new(file))
        {
            say(&format!("the history could not be written: {error}"));
        }
        Ok(())
    });
    // What was given up and is still under way in the background ends here.
    working.shutdown_background();
    let removing = async { tokio::time::timeout(REMOVAL, remove(&made, |_| true)).await };
    // What cannot be removed here is tried once more, and then it is said why not.
    let _ = runtime()?.block_on(removing);
    // Connections that are not used any more are no reason to leave something.
    locked(&made).clear();
    let again = runtime()?.block_on(deployment.remove_again(REMOVAL));
    if let Err(why) = again {
        say(&format!("a namespace could not be removed: {why}"));
    }
    report.left = deployment.left();
    report.took = begun.elapsed();
    if let Err(failure) = done {
        for name in &report.left {
            say(&format!(
                "the namespace {name} may be in the store still: remove it there"
            ));
        }
        return Err(failure);
    }
    let mut output = Output::new();
    match common.json {
        true => output.json(&report.json())?,
        false => report.write(&mut output)?,
    }
    output.finish()?;
    Ok(match report.verdict() {
        Verdict::Held => 0,
        Verdict::Broken => status::BROKEN,
        Verdict::Undecided => status::UNAVAILABLE,
    })
}

#[expect(clippy::cast_possible_truncation, reason = "any of its digits will do")]
#[expect(clippy::disallowed_methods, reason = "any number will do")]
fn rand_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64 ^ u64::from(std::process::id())
}

/// Makes a namespace, and says which store it is.
async fn reached(deployment: &Deployment) -> Result<&'static str, Failure> {
    let space = deployment.space().await;
    let space = space.map_err(|error| match error.downcast::<ConnectError>() {
        Ok(error) => match *error {
            ConnectError::Store(error) if error.kind() == ErrorKind::Unauthorized => Failure::new(
                status::UNAVAILABLE,
                format!(
                    "{}; it takes the rights to make and to remove namespaces lockkeeper-scratch-…",
                    chain(&error)
                ),
            ),
            error => error.into(),
        },
        Err(error) => Failure::new(status::UNAVAILABLE, chain(&*error)),
    })?;
    Ok(space.store())
}

/// Threads that run the cases, so many at a time; the results end when the last of them has ended.
fn begin(
    deployment: &Arc<Deployment>,
    chosen: Vec<Case>,
    jobs: u8,
    seed: u64,
    stopped: &watch::Receiver<bool>,
) -> Result<mpsc::UnboundedReceiver<(String, Outcome)>, Failure> {
    let queue = Arc::new(Mutex::new(VecDeque::from(chosen)));
    let (results, received) = mpsc::unbounded_channel();
    for _ in 0..jobs {
        let (queue, results) = (Arc::clone(&queue), results.clone());
        let (deployment, stopped) = (Arc::clone(deployment), stopped.clone());
        let work = move || {
            loop {
                let Some(case) = locked(&queue).pop_front() else {
                    return;
                };
                let Some(outcome) = told(&case, &deployment, seed, &stopped) else {
                    return;
                };
                // Whoever listens no longer has ended.
                let _ = results.send((case.to_string(), outcome));
            }
        };
        let thread = std::thread::Builder::new().spawn(work);
        thread.map_err(|error| Failure::new(status::UNAVAILABLE, format!("no thread: {error}")))?;
    }
    Ok(received)
}

/// Runs a case until its result cannot be chance; `None` if it was to stop.
fn told(
    case: &Case,
    deployment: &Deployment,
    seed: u64,
    stopped: &watch::Receiver<bool>,
) -> Option<Outcome> {
    let mut outcome = None;
    for _ in 0..RUNS {
        if *stopped.borrow() {
            return None;
        }
        outcome = Some(once(case, deployment, seed, stopped.clone())?);
        if !matches!(&outcome, Some(Outcome::Undecided(_) | Outcome::Failed(_))) {
            break;
        }
    }
    outcome
}

/// Runs a case in a namespace of its own, and removes that.
fn once(
    case: &Case,
    deployment: &Deployment,
    seed: u64,
    mut stopped: watch::Receiver<bool>,
) -> Option<Outcome> {
    let failed = |why: String| Some(Outcome::Failed(why));
    let running = match runtime() {
        Ok(running) => running,
        Err(failure) => return failed(failure.message().unwrap_or_default().to_owned()),
    };
    let (name, outcome) = running.block_on(async {
        let space = match deployment.space().await {
            Ok(space) => Arc::new(space),
            Err(error) => return (None, failed(chain(&*error))),
        };
        let (name, missing) = (space.name().to_owned(), space.missing());
        let result = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return (Some(name), None),
            result = case.run(space, seed) => result,
        };
        let missing = *locked(&missing);
        let outcome = match (missing, result) {
            // What else was tried there held; without it the case says nothing, or less.
            (Some(what), Ok(())) => Outcome::NotTried(what),
            (Some(what), Err(failure))
                if matches!(
                    failure.kind,
                    FailureKind::Inconclusive | FailureKind::Lacking
                ) =>
            {
                Outcome::NotTried(what)
            }
            (None, Ok(())) => Outcome::Passed,
            (None, Err(failure)) if failure.kind == FailureKind::Lacking => {
                Outcome::NotTried("what this store does not have")
            }
            (_, Err(failure)) if failure.kind == FailureKind::Broken => {
                Outcome::Broken(Box::new(failure))
            }
            (_, Err(failure)) => Outcome::Undecided(Box::new(failure)),
        };
        (Some(name), Some(outcome))
    });
    // First whatever it still does ends, then its namespace.
    running.shutdown_timeout(PATIENCE);
    let Some(name) = name else { return outcome };
    let removed = runtime().map(|runtime| {
        runtime.block_on(async {
            // What could not be removed is tried once more in the end.
            let made = deployment.made();
            let removal = remove(&made, |it| it.name() == name);
            let _ = tokio::time::timeout(REMOVAL, removal).await;
        });
    });
    match removed {
        Ok(()) => outcome,
        Err(failure) => failed(failure.message().unwrap_or_default().to_owned()),
    }
}
