//! What a soak consists of.

use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper_servers::faults::STORES as STORES_UNDER_FAULTS;

use crate::fuzz;
use crate::plan::{PLAN, Scope};
use crate::stores::{self, STORES, Store};

/// One of them.
pub(super) struct Part {
    pub(super) name: String,
    /// What is built first, by cargo; nothing where the commands do that themselves, or share it with the tests.
    pub(super) build: Vec<String>,
    /// Less time than this is too little, without the build. Of a part that always takes the same it is an estimate, until
    /// it has run once.
    pub(super) least: Duration,
    /// More time than this is of no use.
    pub(super) full: Duration,
    pub(super) work: Work,
    /// Why it cannot run here, if that is so.
    pub(super) missing: Option<String>,
}

/// The commands of a part.
pub(super) enum Work {
    /// Commands that always do the same.
    Fixed(Vec<Vec<String>>),
    /// Commands that are told their time.
    Timed(Box<dyn Fn(Duration) -> Vec<Vec<String>>>),
    /// So many commands, by their numbers from 0, as many as there is time for. The next time goes on behind them.
    Steps(u64, Box<dyn Fn(u64) -> Vec<String>>),
}

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

/// Seeds of the simulation, and so many in one command. The first five hundred are in every test run.
const SEEDS: u64 = 50_000;
const SEEDS_AT_ONCE: u64 = 1_000;
const FIRST_SEED: u64 = 501;
/// Faults of a cluster, and what one takes, with the processes that work meanwhile.
const FAULTS: u64 = 36;
const LEAST_FAULTS: u64 = 7;
const FAULT: Duration = Duration::from_secs(30);
/// The engines of which there are clusters, and what their other tests take.
const ENGINES: [&str; 4] = [
    "elasticsearch-9",
    "elasticsearch-7",
    "opensearch-2",
    "opensearch-3",
];
const ENGINE: Duration = minutes(5);

/// The stores whose servers' code is changed.
const MUTATED: [&str; 4] = ["redis", "postgres", "elasticsearch", "sqlite"];

/// All of them; `xtask` is this program.
pub(super) fn all(xtask: &str) -> Vec<Part> {
    let mut parts = vec![
        day(),
        disk(),
        features(),
        simulation(xtask),
        broken(xtask),
        model(xtask),
    ];
    parts.extend(trials(xtask));
    parts.extend(faults(xtask));
    parts.extend(breaches(xtask));
    parts.extend(ENGINES.map(|engine| cluster("lockcore-es", engine, Some(engine))));
    parts.push(cluster("lockcore-etcd", "etcd", None));
    parts.push(fuzzing(xtask));
    parts.extend(mutants(xtask));
    parts.extend(kits(xtask));
    parts
}

fn command(program: &str, args: &[&str]) -> Vec<String> {
    let all = [program].into_iter().chain(args.iter().copied());
    all.map(str::to_owned).collect()
}

/// Each store's feature alone, without the tests and whatever else asks for features of what we depend on: as a program
/// outside builds it.
fn features() -> Part {
    let stores = [
        "sqlite",
        "elasticsearch",
        "aws",
        "etcd",
        "postgres",
        "redis",
    ];
    let check = |package: &str, what: &str, feature: &str| {
        let args = ["check", "--package", package, what, "--no-default-features"];
        command("cargo", &[&args[..], &["--features", feature]].concat())
    };
    let checks = stores.iter().flat_map(|feature| {
        [
            check("lockkeeper", "--lib", feature),
            check("lockkeeper-cli", "--bins", feature),
        ]
    });
    Part {
        name: "features".to_owned(),
        build: Vec::new(),
        least: minutes(5),
        full: minutes(5),
        work: Work::Fixed(checks.collect()),
        missing: None,
    }
}

/// What a simulation of more seeds finds.
fn simulation(xtask: &str) -> Part {
    let xtask = xtask.to_owned();
    let seeds = move |step: u64| {
        let from = FIRST_SEED + step * SEEDS_AT_ONCE;
        let seeds = format!("{from}..{}", from + SEEDS_AT_ONCE);
        command(&xtask, &["simulate", "--seeds", &seeds, "--threads", "2"])
    };
    Part {
        name: "simulation".to_owned(),
        build: Vec::new(),
        least: minutes(3),
        full: minutes(60),
        work: Work::Steps(SEEDS / SEEDS_AT_ONCE, Box::new(seeds)),
        missing: None,
    }
}

/// Whether it notices every broken rule of the client.
fn broken(xtask: &str) -> Part {
    // From the first seed on, whichever has shown it last.
    let broken = command(xtask, &["simulate", "--broken", "--first=0"]);
    Part {
        name: "simulation, broken".to_owned(),
        build: Vec::new(),
        least: minutes(5),
        full: minutes(5),
        work: Work::Fixed(vec![broken]),
        missing: None,
    }
}

/// The models of the protocol, as deep as the memory goes.
fn model(xtask: &str) -> Part {
    Part {
        name: "model".to_owned(),
        build: Vec::new(),
        least: minutes(20),
        full: minutes(20),
        work: Work::Fixed(vec![command(xtask, &["model", "--deep"])]),
        missing: None,
    }
}

/// More than a day of a service with ten intents a second, on the reference store's clock.
fn day() -> Part {
    ignored("day", "lockcore")
}

/// A disk that is full, and one that loses what was not synced, as the servers' runs have it.
fn disk() -> Part {
    ignored("disk", "lockkeeper-servers")
}

/// The tests of a crate that are not among the usual ones.
fn ignored(name: &str, package: &str) -> Part {
    let package = format!("--package={package}");
    let test = ["test", "--release", &package, "--lib"];
    let test = |args: &[&str]| command("cargo", &[&test, args].concat());
    Part {
        name: name.to_owned(),
        build: test(&["--no-run"]),
        least: minutes(2),
        full: minutes(2),
        work: Work::Fixed(vec![test(&["--", "--ignored", "--nocapture"])]),
        missing: None,
    }
}

/// Processes on each store that are killed, stopped and continued, while the network goes wrong, too; then while single
/// requests do besides; then some that are only killed, which measures how long their locks wait.
fn trials(xtask: &str) -> Vec<Part> {
    let stores = STORES.iter().filter(|store| store.trial);
    let part = |store: &'static Store| {
        let name = store.name;
        let (network, requests) = match store.servers {
            Some(_) => (&["--also", "network"][..], "network,requests"),
            None => (&[][..], "requests"),
        };
        let xtask = xtask.to_owned();
        let trial = move |time: Duration| {
            let seconds = |part: u32| (time * part / 4).as_secs().max(1).to_string();
            let (most, rest) = (seconds(2), seconds(1));
            let trial = ["trial", "--store", name, "--processes", "10", "--seconds"];
            let network = [&trial[..], &[&most], network].concat();
            let requests = [&trial[..], &[&rest, "--also", requests]].concat();
            let kill_only = [&trial[..], &[&rest, "--kill-only"]].concat();
            [network, requests, kill_only]
                .map(|args| command(&xtask, &args))
                .into()
        };
        Part {
            name: format!("trial {name}"),
            build: build(store.package, "trial"),
            least: minutes(2),
            full: minutes(40),
            work: Work::Timed(Box::new(trial)),
            missing: None,
        }
    };
    stores.map(part).collect()
}

/// Every kind of fault on each store, first what has run least.
fn faults(xtask: &str) -> Vec<Part> {
    let part = |name: &'static str| {
        let xtask = xtask.to_owned();
        let run = move |time: Duration| {
            let minutes = (time.as_secs() / 60).max(1).to_string();
            let args = ["soak", "--store", name, "--minutes", &minutes];
            vec![command(&xtask, &args)]
        };
        Part {
            name: format!("faults {name}"),
            build: stores::find(name).map_or(Vec::new(), |store| build(store.package, "trial")),
            least: minutes(4),
            full: minutes(60),
            work: Work::Timed(Box::new(run)),
            missing: None,
        }
    };
    STORES_UNDER_FAULTS.map(part).into()
}

/// Trials in which one law after the other is broken on purpose, on the stores on which the tests break only some.
fn breaches(xtask: &str) -> Vec<Part> {
    let stores = STORES
        .iter()
        .filter(|store| store.trial && store.servers.is_some());
    let part = |store: &'static Store| {
        let trial = ["trial", "--store", store.name, "--ignored"];
        Part {
            name: format!("breaches {}", store.name),
            build: build(store.package, "trial"),
            least: minutes(6),
            full: minutes(6),
            work: Work::Fixed(vec![command(xtask, &trial)]),
            missing: None,
        }
    };
    stores.map(part).collect()
}

/// Processes on a cluster whose nodes are killed, stopped, paused and cut off; then the tests with the nodes of an engine.
fn cluster(package: &str, name: &str, engine: Option<&'static str>) -> Part {
    let run = format!("--package={package}");
    let tests = engine.map_or(Duration::ZERO, |_| ENGINE);
    let commands = move |time: Duration| {
        let time = time.saturating_sub(tests);
        let faults = (time.as_secs() / FAULT.as_secs()).clamp(LEAST_FAULTS, FAULTS);
        let test = ["test", "--release", &run, "--test=cluster", "--"];
        let faults = faults.to_string();
        let faults = ["--faults", &faults];
        let Some(engine) = engine else {
            return vec![command("cargo", &[&test[..], &faults].concat())];
        };
        let engine = ["--engine", engine];
        let tests = [&test[..], &engine, &["--include-ignored"]].concat();
        let faults = [&test[..], &engine, &faults].concat();
        vec![command("cargo", &faults), command("cargo", &tests)]
    };
    let time = |faults| tests + FAULT * u32::try_from(faults).unwrap_or(u32::MAX);
    Part {
        name: format!("cluster {name}"),
        build: build(package, "cluster"),
        least: time(LEAST_FAULTS),
        full: time(FAULTS),
        work: Work::Timed(Box::new(commands)),
        missing: None,
    }
}

/// Every case on each server on which the tests have only a part of them.
fn kits(xtask: &str) -> impl Iterator<Item = Part> {
    let more = |place: &&crate::plan::Place| place.rows.iter().any(|row| row.scope == Scope::Soak);
    PLAN.iter().filter(more).map(move |place| {
        let store = stores::find_server(place.name).ok().map(|(store, _)| store);
        let given = store
            .and_then(|store| store.servers.as_ref())
            .filter(|servers| servers.given());
        Part {
            name: format!("kit {}", place.name),
            build: store.map_or(Vec::new(), kit_build),
            least: minutes(8),
            full: minutes(8),
            work: Work::Fixed(vec![command(xtask, &["test", "--soak", place.name])]),
            missing: given.map(|servers| format!("{} names another server", servers.variable)),
        }
    })
}

/// What builds the kit of a store, as the tests do.
fn kit_build(store: &Store) -> Vec<String> {
    command(
        "cargo",
        &["test", "--no-run", "--test=*", &store.selected()],
    )
}

fn fuzzing(xtask: &str) -> Part {
    let targets = fuzz::targets().unwrap_or_default().len().max(1);
    let targets = u32::try_from(targets).unwrap_or(u32::MAX);
    let xtask = xtask.to_owned();
    let fuzz = move |time: Duration| {
        let seconds = (time / targets).as_secs().max(1).to_string();
        vec![command(&xtask, &["fuzz", "--seconds", &seconds])]
    };
    Part {
        name: "fuzzing".to_owned(),
        build: Vec::new(),
        least: Duration::from_secs(20) * targets,
        full: minutes(10) * targets,
        work: Work::Timed(Box::new(fuzz)),
        missing: fuzz::missing(),
    }
}

/// Changes of what the servers run, which a test has to notice. Each run goes on where the last one ended.
fn mutants(xtask: &str) -> impl Iterator<Item = Part> {
    let known = Command::new(xtask)
        .args(["mutants", "--help"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let missing = (!known.is_ok_and(|status| status.success()))
        .then(|| "there is no cargo xtask mutants".to_owned());
    MUTATED.into_iter().map(move |store| {
        let xtask = xtask.to_owned();
        let run = move |time: Duration| {
            let minutes = (time.as_secs() / 60).max(1).to_string();
            let args = ["mutants", "--store", store, "--minutes", &minutes];
            vec![command(&xtask, &args)]
        };
        Part {
            name: format!("mutants {store}"),
            build: Vec::new(),
            least: minutes(5),
            full: minutes(120),
            work: Work::Timed(Box::new(run)),
            missing: missing.clone(),
        }
    })
}

/// What builds a test program in release.
fn build(package: &str, target: &str) -> Vec<String> {
    let (package, test) = (format!("--package={package}"), format!("--test={target}"));
    command("cargo", &["test", "--release", "--no-run", &package, &test])
}
