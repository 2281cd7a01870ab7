//! [`main`]: the `main` of a store's trials.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Parser;
use lockcore::{LockBackend, LockKey};
use lockcore_conformance::{BoxError, Feature, Fixture, Space};
use lockcore_trial::faults::{Fault, ServerFault};
use lockcore_trial::history::SHOWS;
use lockcore_trial::processes::{self, Further, Plan, Run, Witness, report, run, run_beside};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::record::Record;
use super::table::{Cell, Kind, find};
use super::victim::Victim;
use super::{etcd, postgres, redis, sqlite};

/// The sessions of a run whose servers are struck. Half of the faults are shorter, the others are longer.
const TTL: Duration = Duration::from_secs(2);

/// Faults between two quiet times, and how much longer than what they have lost shows those are, counted in TTLs.
const BETWEEN: usize = 4;
const QUIET: u32 = 3;

/// How a run says that it has not seen enough.
const TOO_LITTLE: &str = "too little to judge";

#[derive(Parser)]
struct Args {
    /// The kind of fault, as the table has it.
    #[arg(long, value_parser = find)]
    fault: &'static Kind,
    /// How long faults go on.
    #[arg(long, value_name = "N", default_value_t = 100)]
    seconds: u64,
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    processes: usize,
    /// What chance follows from; a new one every time, if it is not given.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Writes the counts to a file.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Writes the history to a file, as lines.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs trials on one store, as the `main` of a test target with `harness = false`: with `--fault KIND`, one of a kind
/// of the table, on servers of its own where servers are struck; else those of the kit.
#[must_use]
pub fn main(store: &'static str, fixture: impl Fixture) -> ExitCode {
    let is_fault = |arg: OsString| arg.to_string_lossy().starts_with("--fault");
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    if !std::env::args_os().any(is_fault) {
        let tested = Arc::clone(&fixture);
        return processes::main_and(Shared(fixture), |seed| tests(store, &tested, seed));
    }
    if let Some(code) = processes::child(&*fixture) {
        return code;
    }
    match under_fault(store, &fixture, &Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// What the tests of a store run of the table: a few seconds of each.
const TESTED: [&str; 1] = ["server-killed"];
const SECONDS: u64 = 5;
/// Runs of a test that says too little each time.
const RUNS: usize = 3;

fn tests(store: &'static str, fixture: &Arc<dyn Fixture>, seed: u64) -> Vec<Further> {
    let kinds = TESTED.into_iter().filter_map(|name| find(name).ok());
    let made = kinds.filter(|kind| kind.cell(store).is_some_and(|cell| cell.is_made()));
    let test = |kind: &'static Kind| -> Further {
        let fixture = Arc::clone(fixture);
        let args = move || Args {
            fault: kind,
            seconds: SECONDS,
            processes: 4,
            seed: Some(seed),
            record: None,
            history: None,
        };
        let run = move || {
            let mut last = Ok(());
            for _ in 0..RUNS {
                last = under_fault(store, &fixture, &args());
                // A law that is broken is no chance.
                let is_chance = |what: &BoxError| what.to_string().starts_with(TOO_LITTLE);
                if !last.as_ref().is_err_and(is_chance) {
                    break;
                }
            }
            last
        };
        (kind.name.replace('-', "_"), Box::new(run))
    };
    made.map(test).collect()
}

fn under_fault(store: &str, fixture: &Arc<dyn Fixture>, args: &Args) -> Result<(), BoxError> {
    let kind = args.fault;
    let cell = kind.cell(store).ok_or("this store is not in the table")?;
    let may_break = match cell {
        Cell::Holds | Cell::Breaks(_) => cell.may_break(),
        Cell::Never(why) | Cell::NotMade(why) => {
            return Err(format!("{} is not made on {store}: {why}", kind.name).into());
        }
        Cell::Elsewhere(test) => {
            return Err(format!("{} on {store} is made by {test}", kind.name).into());
        }
        Cell::BreaksElsewhere(_, why) => {
            return Err(format!("no run makes {} on {store}: {why}", kind.name).into());
        }
    };
    let mut plan = Plan::new(args.seed.unwrap_or_else(rand::random));
    plan.processes = args.processes.max(1);
    plan.length = Duration::from_secs(args.seconds);
    plan.history.clone_from(&args.history);
    plan.unsure = cell.is_unsure();
    plan.may_break = may_break;
    plan.kill_only = kind.name == "kill";
    plan.also.requests = kind.faults.iter().any(|it| matches!(it, Fault::Request(_)));
    plan.also.network = kind.faults.iter().any(|it| matches!(it, Fault::Network(_)));
    if plan.also.network {
        let network = kind.faults.iter().filter_map(|fault| match fault {
            Fault::Network(fault) => Some(*fault),
            _ => None,
        });
        plan.network = network.collect();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let faults = of_servers(kind);
    let run = if faults.is_empty() {
        runtime.block_on(run(&**fixture, &plan))?
    } else {
        plan.ttl = Some(TTL);
        runtime.block_on(beside(store, kind, &faults, fixture, &plan))?
    };
    let met = kind.faults.iter().map(|fault| run.struck.of(*fault));
    let judged = report(&plan, &run);
    let judged = judged.and_then(|()| match met.min() {
        Some(0) => Err(format!("{TOO_LITTLE}: not every fault has met something").into()),
        _ => Ok(()),
    });
    if let Some(file) = &args.record {
        let record = record(&run, &plan, judged.is_err());
        fs::write(file, serde_json::to_vec(&record)?)?;
    }
    judged
}

fn of_servers(kind: &Kind) -> Vec<ServerFault> {
    let faults = kind.faults.iter().filter_map(|fault| match fault {
        Fault::Server(fault) => Some(*fault),
        _ => None,
    });
    faults.collect()
}

/// What came of a run, for the sums.
fn record(run: &Run, plan: &Plan, failed: bool) -> Record {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let mut record = Record {
        runs: 1,
        failed: failed.into(),
        seconds: run.length.as_secs(),
        events: count(run.report.events),
        guards: count(run.report.guards),
        refused: count(run.report.refused),
        adoptions: count(run.report.adoptions),
        ..Record::default()
    };
    for (fault, number) in run.struck.iter() {
        record.faults.insert(fault.to_string(), count(number));
    }
    for (law, number) in &run.report.judged {
        record.judged.insert(law.to_string(), count(*number));
    }
    for violation in &run.report.violations {
        *(record.violations.entry(violation.law.to_string())).or_default() += 1;
    }
    for (law, excused) in &run.report.excused {
        record.excused.insert(law.to_string(), count(excused.count));
    }
    if plan.kill_only {
        let millis = |times: &[Duration]| {
            let times = times.iter().map(Duration::as_millis);
            times
                .map(|it| u64::try_from(it).unwrap_or(u64::MAX))
                .collect()
        };
        record.takeovers_ms = millis(&run.takeovers.times);
        record.takeovers_behind_ms = millis(&run.takeovers.behind);
        record.takeovers_late = count(run.takeovers.late);
    }
    record
}

/// A run on servers of its own, while they are struck.
async fn beside(
    store: &str,
    kind: &'static Kind,
    faults: &[ServerFault],
    fixture: &Arc<dyn Fixture>,
    plan: &Plan,
) -> Result<Run, BoxError> {
    let namespace = format!("faults{:016x}", rand::random::<u64>());
    let of = store.to_owned();
    let start = move || -> Result<Box<dyn Victim>, String> {
        Ok(match &*of {
            "redis" => Box::new(redis::Redis::start(kind.name, &namespace)?),
            "postgres" => Box::new(postgres::Postgres::start(kind.name, &namespace)?),
            "etcd" => Box::new(etcd::Etcd::start(kind.name, &namespace)?),
            "sqlite" => Box::new(sqlite::Sqlite::start()?),
            other => return Err(format!("nobody strikes the servers of {other}")),
        })
    };
    let victim = spawn_blocking(start).await??;
    let deployed = Deployed {
        url: victim.url(),
        allowance: victim.allowance(),
        fixture: Arc::clone(fixture),
    };
    let victim = RefCell::new(Some(victim));
    let loses = !plan.may_break.is_empty();
    let quiet = loses.then_some(TTL * (SHOWS + QUIET));
    let run = run_beside(&deployed, plan, async |witness| {
        let taken = victim.take().ok_or("the servers are somebody else's")?;
        let taken = strike(taken, faults, plan, witness, quiet).await?;
        // They serve until the run is over.
        victim.replace(Some(taken));
        Ok(())
    });
    let run = Box::pin(run).await;
    spawn_blocking(move || drop(victim.into_inner())).await?;
    run
}

/// Strikes the servers again and again, for as long as the plan says. Where a fault may lose something, all is quiet after every
/// few of them: sessions begin then that no fault has met, of which everything is promised.
async fn strike(
    mut victim: Box<dyn Victim>,
    faults: &[ServerFault],
    plan: &Plan,
    witness: &Witness,
    quiet: Option<Duration>,
) -> Result<Box<dyn Victim>, BoxError> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(plan.seed);
    let until = Instant::now() + plan.length;
    let mut turns = faults.iter().copied().cycle().zip(1_usize..);
    while Instant::now() < until {
        let Some((fault, made)) = turns.next() else {
            break;
        };
        sleep(Duration::from_millis(rng.random_range(300..1_500))).await;
        match fault {
            ServerFault::ClockForward => witness.steps(3_600_000_000_000),
            ServerFault::ClockBack => witness.steps(-1_000_000_000),
            _ => {}
        }
        witness.begins(fault);
        victim = done(victim, move |victim| victim.begin(fault)).await?;
        if matches!(fault, ServerFault::ClockForward | ServerFault::ClockBack) {
            witness.steps(0);
        }
        let lasts = match rng.random() {
            true => rng.random_range(0..500),
            false => rng.random_range(2_000..3_000),
        };
        sleep(Duration::from_millis(lasts)).await;
        victim = done(victim, move |victim| victim.end(fault)).await?;
        witness.ends(fault);
        let is_last = Instant::now() >= until;
        if let Some(quiet) = quiet.filter(|_| is_last || made % BETWEEN == 0) {
            sleep(quiet).await;
        }
    }
    Ok(victim)
}

/// Does what blocks on a thread that may be blocked.
async fn done(
    mut victim: Box<dyn Victim>,
    what: impl FnOnce(&mut dyn Victim) -> Result<(), String> + Send + 'static,
) -> Result<Box<dyn Victim>, BoxError> {
    let work = move || what(&mut *victim).map(|()| victim);
    Ok(spawn_blocking(work).await??)
}

/// A fixture that several have.
struct Shared(Arc<dyn Fixture>);

#[async_trait]
impl Fixture for Shared {
    fn name(&self) -> String {
        self.0.name()
    }

    fn paused(&self) -> bool {
        self.0.paused()
    }

    fn lacks(&self) -> Vec<Feature> {
        self.0.lacks()
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        self.0.fresh().await
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        self.0.reopen(url).await
    }
}

/// A namespace on servers of a run's own.
struct Deployed {
    url: String,
    allowance: Duration,
    fixture: Arc<dyn Fixture>,
}

#[async_trait]
impl Fixture for Deployed {
    fn name(&self) -> String {
        self.fixture.name()
    }

    fn paused(&self) -> bool {
        false
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(Self {
            url: self.url.clone(),
            allowance: self.allowance,
            fixture: Arc::clone(&self.fixture),
        }))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        self.fixture.reopen(url).await
    }
}

#[async_trait]
impl Space for Deployed {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        self.reopen(&self.url).await
    }

    fn allowance(&self) -> Duration {
        self.allowance
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        Err(format!("nobody plants {key} here").into())
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }
}
