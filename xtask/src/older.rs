//! `cargo xtask older`: the command of another commit and that of the working tree in one namespace, both under load.
//!
//! Each run adds one to a number in a file, which only a lock keeps right. Either all runs of both are counted, or the
//! program that comes second is refused each time, with the version of the namespace as the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_servers::Server;

use crate::against::build::{resolved, unpack};
use crate::builds::{cargo_command, root};
use crate::stores::{STORES, Store};

/// Processes of each program at a time.
const PROCESSES: usize = 2;

/// What runs under the lock: without it, additions are lost.
const ADDS_ONE: &str = r#"n=$(cat "$0"); sleep 0.01; echo $((n + 1)) > "$0""#;

struct Program {
    name: String,
    path: PathBuf,
}

/// How the runs of a program ended.
#[derive(Default)]
struct Runs {
    done: u64,
    refused: u64,
    /// Why, the last time.
    why: String,
}

impl Runs {
    fn and(mut self, other: Self) -> Self {
        self.done += other.done;
        self.refused += other.refused;
        if self.why.is_empty() {
            self.why = other.why;
        }
        self
    }
}

/// Runs both programs on each store, each of them first once.
pub(crate) fn run(than: &str, stores: &[&'static Store], seconds: u64) -> Result<(), String> {
    let (newer, older) = both(than)?;
    let all = STORES.iter().filter(|store| store.trial);
    let all =
        all.filter(|store| stores.is_empty() || stores.iter().any(|it| it.name == store.name));
    for store in all {
        for (round, (first, second)) in [(&older, &newer), (&newer, &older)].into_iter().enumerate()
        {
            let told = beside(store, round, (first, second), Duration::from_secs(seconds));
            let told = told.map_err(|error| format!("{}: {error}", store.name))?;
            println!("{}: {told}", store.name);
        }
    }
    Ok(())
}

/// The command of the working tree, and that of the commit.
fn both(commit: &str) -> Result<(Program, Program), String> {
    let here = root();
    let commit = resolved(here, commit)?;
    // A folder for each commit: cargo would take one tree's packages for those of another, whose files look older.
    let folder = here.join("target/older").join(&commit);
    let tree = folder.join("tree");
    unpack(here, &commit, &tree)?;
    let build = |tree: &Path, target: &Path, name: String| {
        let manifest = format!("--manifest-path={}", tree.join("Cargo.toml").display());
        let into = format!("--target-dir={}", target.display());
        let what = ["build", "--package=lockkeeper-cli", "--all-features"];
        cargo_command(&[&what[..], &[&manifest, &into]].concat(), &[])?;
        let path = target.join("debug/lockkeeper");
        Ok::<_, String>(Program { name, path })
    };
    let older = build(
        &tree,
        &folder.join("build"),
        format!("lockkeeper of {commit}"),
    )?;
    let newer = build(here, &here.join("target"), "lockkeeper of here".to_owned())?;
    Ok((newer, older))
}

/// Has both work on one store. The first one makes the namespace.
fn beside(
    store: &Store,
    round: usize,
    (first, second): (&Program, &Program),
    time: Duration,
) -> Result<String, String> {
    let scratch = lockkeeper_servers::scratch()?;
    let (server, url) = reached(store, scratch.path(), round)?;
    let counter = scratch.path().join("counter");
    fs::write(&counter, "0").map_err(|error| error.to_string())?;
    let made = once(first, &url, &counter)?;
    if made.done != 1 {
        return Err(format!("{} is refused alone: {}", first.name, made.why));
    }
    let until = Instant::now() + time;
    let works = |program: &Program| {
        let mut runs = Runs::default();
        while Instant::now() < until {
            runs = runs.and(once(program, &url, &counter)?);
        }
        Ok::<_, String>(runs)
    };
    let of = |program: &Program| {
        thread::scope(|scope| {
            let all: Vec<_> = (0..PROCESSES)
                .map(|_| scope.spawn(|| works(program)))
                .collect();
            let joined = all.into_iter().map(|one| one.join().expect("no panic"));
            joined.reduce(|one, other| Ok(one?.and(other?)))
        })
        .unwrap_or_else(|| Ok(Runs::default()))
    };
    let (of_first, of_second) = thread::scope(|scope| {
        let second = scope.spawn(|| of(second));
        (of(first), second.join().expect("no panic"))
    });
    let (of_first, of_second) = (made.and(of_first?), of_second?);
    drop(server);
    let counted = fs::read_to_string(&counter).map_err(|error| error.to_string())?;
    let counted: u64 = counted.trim().parse().map_err(|_| "the counter is torn")?;
    let done = of_first.done + of_second.done;
    let told = format!(
        "{} first: it ran {} times, {} ran {} times and was refused {} times",
        first.name, of_first.done, second.name, of_second.done, of_second.refused
    );
    if counted != done {
        return Err(format!("{told}; {counted} are counted"));
    }
    if of_first.refused > 0 {
        return Err(format!("{told}; the first was refused: {}", of_first.why));
    }
    match (of_second.done, of_second.refused) {
        (1.., 0) => Ok(format!("{told}: all {counted} are counted")),
        (0, 1..) if of_second.why.contains("version") => Ok(format!("{told}: {}", of_second.why)),
        _ => Err(format!("{told}: {}", of_second.why)),
    }
}

/// A server of the store, and a namespace on it.
fn reached(
    store: &Store,
    scratch: &Path,
    round: usize,
) -> Result<(Option<Server>, String), String> {
    let Some(servers) = &store.servers else {
        let file = scratch.join("locks.db");
        return Ok((None, format!("{}:{}", store.name, file.display())));
    };
    let server = (servers.each[0].start)()?;
    let url = server.url().replacen("http", store.name, 1);
    Ok((Some(server), format!("{url}?namespace=older{round}")))
}

/// Runs a program once.
fn once(program: &Program, url: &str, counter: &Path) -> Result<Runs, String> {
    let mut command = Command::new(&program.path);
    command.args(["run", "--quiet", "--lock", "older", "--url", url, "--"]);
    command.args(["sh", "-c", ADDS_ONE]).arg(counter);
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", program.path.display()))?;
    let mut runs = Runs::default();
    if output.status.success() {
        runs.done = 1;
    } else {
        runs.refused = 1;
        runs.why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    Ok(runs)
}
