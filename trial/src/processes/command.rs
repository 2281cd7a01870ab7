//! [`main`]: the `main` of a test target.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

use super::{Also, Breach, Plan, Run, Takeovers, cost, run};
use crate::faults::rerouted;
use crate::history::{Excused, History, Report, What, check};
use lockcore_conformance::Law;
use lockcore_conformance::{BoxError, Fixture};

/// Processes of a run of the tests.
const PROCESSES: usize = 6;

/// How long the tests last, counted in the shortest TTL of the store.
const LENGTH: u32 = 5;
/// How long they look for what is broken on purpose, counted so, too.
const LONGEST: u32 = 60;

/// What a run has to have seen to say anything; a few seconds on a slow store are several times that.
const GUARDS: usize = 20;
const SIGNALS: usize = 3;

/// Fewer events than that say nothing of a law: of a long run, and of one of the tests.
const JUDGED: usize = 1_000;
const JUDGED_IN_TESTS: usize = 100;

/// Runs of a test that says too little each time.
const RUNS: usize = 3;

/// All of the tests at once: they mostly sleep.
const TRIALS_AT_A_TIME: usize = 8;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    test: Arguments,
    /// One run in place of the tests: how long faults go on.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "seconds")]
    processes: usize,
    /// What chance follows from; a new one every time, if it is not given.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Sends nothing but SIGKILL, and holds the takeover times against their bound.
    #[arg(long, requires = "seconds")]
    kill_only: bool,
    /// What else goes wrong: `network`, `requests`, or both with a comma between them.
    #[arg(
        long,
        value_name = "WHAT",
        requires = "seconds",
        conflicts_with = "kill_only"
    )]
    also: Option<Also>,
    /// Writes the history to a file, as lines.
    #[arg(long, value_name = "FILE", requires = "seconds")]
    history: Option<PathBuf>,
    /// Checks a history that was kept, and runs nothing.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Measures what it costs to write a history, and runs nothing else.
    #[arg(long)]
    cost: bool,
    /// Something that is broken on purpose in the one run.
    #[arg(long, value_name = "NAME", requires = "seconds", value_parser = breach)]
    breach: Option<Breach>,
}

/// Runs trials on one store, as the `main` of a test target with `harness = false`.
///
/// Without `--seconds` it takes the arguments of `cargo test` and runs a few seconds of each kind.
#[must_use]
pub fn main(fixture: impl Fixture) -> ExitCode {
    main_and(fixture, |_| Vec::new())
}

/// A test of a store's own that runs beside those of [`main`]: its name behind the store's, and what it does.
pub type Further = (
    String,
    Box<dyn FnOnce() -> Result<(), BoxError> + Send + 'static>,
);

/// As [`main`], with tests of a store's own, which are given the seed.
#[must_use]
pub fn main_and(fixture: impl Fixture, further: impl FnOnce(u64) -> Vec<Further>) -> ExitCode {
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    if let Some(code) = super::child(&*fixture) {
        return code;
    }
    let mut args = Args::parse();
    if let Some(file) = &args.check {
        return told(kept(file));
    }
    if args.cost {
        return told(cost::measured(&*fixture));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    let Some(seconds) = args.seconds else {
        args.test.test_threads.get_or_insert(TRIALS_AT_A_TIME);
        let mut trials = trials(&fixture, seed);
        for (name, test) in further(seed) {
            let name = format!("{}::trial::{name}", fixture.name());
            let test = move || test().map_err(|what| Failed::from(what.to_string()));
            trials.push(Trial::test(name, test));
        }
        return libtest_mimic::run(&args.test, trials).exit_code();
    };
    let plan = Plan {
        processes: args.processes.max(1),
        length: Duration::from_secs(seconds),
        kill_only: args.kill_only,
        breach: args.breach,
        also: args.also.unwrap_or_default(),
        history: args.history,
        ..Plan::new(seed)
    };
    let done = blocking(&*fixture, &plan).and_then(|run| report(&plan, &run));
    told(done)
}

fn told(done: Result<(), BoxError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// Holds a kept history against the laws.
fn kept(file: &Path) -> Result<(), BoxError> {
    let mut history = History {
        real_time: true,
        ..History::default()
    };
    history.read_lines(BufReader::new(File::open(file)?))?;
    let report = check(&history);
    println!(
        "{} events, {} guards, {} violations",
        report.events,
        report.guards,
        report.violations.len()
    );
    print!("{}", report.table(JUDGED));
    keeps(&history, &report)
}

fn keeps(history: &History, report: &Report) -> Result<(), BoxError> {
    let Some(first) = report.violations.first() else {
        return Ok(());
    };
    let all: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    let around = first.around(history, 40, 5);
    Err(format!("{}\n{around}", all.join("\n")).into())
}

fn blocking(fixture: &dyn Fixture, plan: &Plan) -> Result<Run, BoxError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(fixture, plan))
}

/// What `cargo test` runs: the laws under all faults, the takeover times, and everything that is broken on purpose.
fn trials(fixture: &Arc<dyn Fixture>, seed: u64) -> Vec<Trial> {
    let networked = is_networked(&**fixture);
    let trial = |name: String, test: fn(&dyn Fixture, Plan) -> Result<(), BoxError>, plan: Plan| {
        let fixture = Arc::clone(fixture);
        let name = format!("{}::trial::{name}", fixture.name());
        Trial::test(name, move || {
            test(&*fixture, plan).map_err(|what| Failed::from(what.to_string()))
        })
    };
    let plan = |kill_only, breach| Plan {
        processes: PROCESSES,
        kill_only,
        breach,
        ..Plan::new(seed)
    };
    let mut trials = vec![
        trial(
            "killed_stopped_and_continued".to_owned(),
            keeps_the_laws,
            plan(false, None),
        ),
        trial("killed".to_owned(), keeps_the_laws, plan(true, None)),
    ];
    for (name, network, requests) in [("network", true, false), ("requests", false, true)] {
        let also = Also { network, requests };
        if networked || !network {
            let plan = Plan {
                also,
                ..plan(false, None)
            };
            trials.push(trial(name.to_owned(), keeps_the_laws, plan));
        }
    }
    for breach in Breach::ALL {
        let name = format!("finds_{breach:?}").to_lowercase();
        let trial = trial(name, finds, plan(false, Some(breach)));
        trials.push(trial.with_ignored_flag(!breach.is_usual()));
    }
    trials
}

/// What is broken by that name, as in the names of the tests.
fn breach(name: &str) -> Result<Breach, String> {
    let named = |breach: &Breach| format!("{breach:?}").eq_ignore_ascii_case(name);
    let found = Breach::ALL.into_iter().find(named);
    found.ok_or_else(|| format!("no breach of that name; known are {:?}", Breach::ALL))
}

/// Whether there is a network to the store on which something can go wrong. Where the store does not answer, the trial
/// says so.
fn is_networked(fixture: &dyn Fixture) -> bool {
    let runtime = Builder::new_current_thread().enable_all().build();
    let Ok(Ok(space)) = runtime.map(|runtime| runtime.block_on(fixture.fresh())) else {
        return true;
    };
    let through = |_: &str| Ok::<u16, ()>(1);
    space
        .url()
        .is_some_and(|url| matches!(rerouted(&url, through), Ok(Some(_))))
}

/// Everything takes as long as sessions live.
fn shortest_ttl(fixture: &dyn Fixture) -> Result<Duration, BoxError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Ok(fixture.fresh().await?.connect().await?.info().min_ttl) })
}

/// A run that says too little, or in which the dead were replaced late, may be chance on a busy machine: there is another
/// one. A law that is broken is none.
fn keeps_the_laws(fixture: &dyn Fixture, mut plan: Plan) -> Result<(), BoxError> {
    plan.length = shortest_ttl(fixture)? * LENGTH;
    let kept = || {
        let run = blocking(fixture, &plan)?;
        print!(
            "{}\n{}",
            summary(&plan, &run),
            run.report.table(JUDGED_IN_TESTS)
        );
        keeps(&run.history, &run.report)?;
        Ok::<_, BoxError>(says_enough(&plan, &run))
    };
    for left in (1..RUNS).rev() {
        match kept()? {
            Err(what) => println!("run again, at most {left} times: {what}"),
            Ok(()) => return Ok(()),
        }
    }
    kept()?
}

fn finds(fixture: &dyn Fixture, mut plan: Plan) -> Result<(), BoxError> {
    let at_the_end = plan.breach.is_some_and(Breach::shows_at_the_end);
    plan.length = shortest_ttl(fixture)? * if at_the_end { LENGTH } else { LONGEST };
    let laws = plan.breach.map_or(plan.until_found, Breach::laws);
    let run = blocking(fixture, &plan)?;
    if !at_the_end {
        killed_are_written_down(&run.history)?;
    }
    let Some(first) = run.report.breach_of(laws) else {
        let others: Vec<String> = run
            .report
            .violations
            .iter()
            .map(ToString::to_string)
            .collect();
        let what = format!(
            "none of {laws:?} was found: {}\n{}",
            summary(&plan, &run),
            others.join("\n")
        );
        return Err(what.into());
    };
    let around = first.around(&run.history, 12, 2);
    println!("{:?}: {first}\n{around}", plan.breach);
    Ok(())
}

/// Nobody ends by itself in a run that is broken off. Whose end is missing in the history, its last line may be torn.
fn killed_are_written_down(history: &History) -> Result<(), BoxError> {
    let killed: HashSet<u32> = (history.events.iter())
        .filter(|event| event.what == What::Killed)
        .map(|event| event.process)
        .collect();
    let mut working = history.events.iter().map(|event| event.process);
    match working.find(|process| *process != 0 && !killed.contains(process)) {
        Some(process) => {
            Err(format!("nobody has written down the end of process {process}").into())
        }
        None => Ok(()),
    }
}

fn summary(plan: &Plan, run: &Run) -> String {
    let report = &run.report;
    let takeovers = if plan.kill_only {
        format!(
            "\n{}, woken up to {} ms late",
            run.takeovers,
            run.late.as_millis()
        )
    } else {
        String::new()
    };
    format!(
        "seed {}, {} processes, {} s: {}; {} events, {} guards ({} handed on), {} refusals, {} adoptions, \
         {} stale writes refused, {} unfenced writes lost (explained), {} violations{takeovers}",
        plan.seed,
        plan.processes,
        run.length.as_secs(),
        run.struck,
        report.events,
        report.guards,
        report.handed_on,
        report.refused,
        report.adoptions,
        report.stale,
        report.losses,
        report.violations.len(),
    )
}

/// Prints what came of a run, and judges it.
///
/// # Errors
///
/// A law is broken, too little happened to say anything, or, in a run with SIGKILL only, the dead are not replaced in time.
pub fn report(plan: &Plan, run: &Run) -> Result<(), BoxError> {
    if let Some(file) = &plan.history {
        run.history
            .write_lines(BufWriter::new(File::create(file)?))?;
    }
    print!("{}\n{}", summary(plan, run), run.report.table(JUDGED));
    for (law, excused) in &run.report.excused {
        let Excused { count, latest, .. } = excused;
        println!("not promised: {law}, {count} times, until {latest:?} after a fault");
    }
    keeps(&run.history, &run.report)?;
    says_enough(plan, run)
}

/// Wrong, if nothing happened, or the dead are not replaced in time.
fn says_enough(plan: &Plan, run: &Run) -> Result<(), BoxError> {
    let struck = &run.struck;
    for (what, count, least) in [
        ("guards", run.report.guards, GUARDS),
        ("signals", struck.of_processes(), SIGNALS),
        (
            "faults of the network",
            struck.of_network(),
            if plan.also.network { SIGNALS } else { 0 },
        ),
        (
            "faults of requests",
            struck.of_requests(),
            if plan.also.requests { SIGNALS } else { 0 },
        ),
    ] {
        if count < least {
            return Err(format!("too little to judge: {count} {what} of {least}").into());
        }
    }
    let idle: Vec<Law> = run.report.unjudged().collect();
    if !idle.is_empty() {
        return Err(format!("too little to judge: nothing by the laws {idle:?}").into());
    }
    if !plan.kill_only {
        return Ok(());
    }
    let Takeovers {
        times,
        behind,
        late,
        ..
    } = &run.takeovers;
    let all = times.len() + behind.len();
    // Of fewer than a hundred a single one would decide: more than half, then.
    let may_be_late = if all < 100 {
        all.saturating_sub(1) / 2
    } else {
        all / 100
    };
    if times.is_empty() {
        Err("nobody took over anything".into())
    } else if *late > may_be_late {
        Err(format!("{late} of {all} takeovers were later than their limit").into())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Report};
    use crate::processes::Struck;

    #[test]
    fn what_else_goes_wrong_is_read() {
        for (text, network, requests) in [
            ("network", true, false),
            ("requests", false, true),
            ("network,requests", true, true),
        ] {
            assert_eq!(text.parse(), Ok(Also { network, requests }), "{text}");
        }
        for text in ["", "networks", "network,", "network requests"] {
            text.parse::<Also>().unwrap_err();
        }
    }

    #[test]
    fn a_run_without_the_faults_of_its_plan_is_not_judged() {
        use crate::faults::{Fault, NetworkFault, ProcessFault, RequestFault};
        let report = Report {
            guards: GUARDS,
            judged: Report::default().unjudged().map(|law| (law, 1)).collect(),
            ..Report::default()
        };
        let mut run = Run {
            history: History::default(),
            report,
            struck: Struck::default(),
            length: Duration::ZERO,
            takeovers: Takeovers::default(),
            late: Duration::ZERO,
        };
        let mut plan = Plan::new(1);
        plan.also = Also {
            network: true,
            requests: true,
        };
        for (fault, missing) in [
            (Fault::Process(ProcessFault::Stopped), "signals"),
            (
                Fault::Network(NetworkFault::AnswersHeld),
                "faults of the network",
            ),
            (Fault::Request(RequestFault::Lost), "faults of requests"),
        ] {
            let said = says_enough(&plan, &run).unwrap_err().to_string();
            assert!(said.contains(missing), "{said}");
            for _ in 0..SIGNALS {
                run.struck.add(fault);
            }
        }
        says_enough(&plan, &run).unwrap();
        run.report.judged.remove(&Law::OneAdopter);
        let said = says_enough(&plan, &run).unwrap_err().to_string();
        assert!(said.contains("nothing by the laws"), "{said}");
    }
}
