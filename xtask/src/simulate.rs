//! `cargo xtask simulate`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::breaches;
use crate::builds::{Programs, cargo_command, root};

/// Its clients can be paused and killed, so it is a build of its own.
const BUILD: [&str; 3] = [
    "--profile=simulation",
    "--package=lockcore-conformance",
    "--target-dir=target/simulation",
];

/// Where the one is built whose clients can break their rules.
const BROKEN: &str = "target/broken";

/// The seeds of every test run: these, and as many that follow from the commit.
const SEEDS: u64 = 500;

fn flags() -> [(&'static str, String); 1] {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    [("RUSTFLAGS", format!("{flags} --cfg lockcore_sim"))]
}

/// Runs the simulation with these arguments.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let broken = |arg: &&str| ["--broken", "--rule"].iter().any(|it| arg.starts_with(it));
    let program = if args.iter().any(broken) {
        build_broken()?
    } else {
        build_program()?
    };
    let status = Command::new(program).args(args).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("simulate {}: {status}", args.join(" "))),
        Err(error) => Err(format!("the simulation cannot be run: {error}")),
    }
}

/// Builds the simulation and its own tests; those are found under their names.
pub(crate) fn build() -> Result<Programs, String> {
    build_program()?;
    Programs::build(&[&BUILD[..], &["--test=simulation"]].concat(), &flags())
}

fn build_program() -> Result<PathBuf, String> {
    let build = [&["build"], &BUILD[..], &["--example=simulate"]].concat();
    cargo_command(&build, &flags())?;
    Ok(program("target/simulation"))
}

/// Builds the simulation of a client that can break its rules.
pub(crate) fn build_broken() -> Result<PathBuf, String> {
    let manifest = breaches::copy()?.join("Cargo.toml");
    let manifest = format!("--manifest-path={}", manifest.display());
    let target = format!("--target-dir={}", root().join(BROKEN).display());
    let build = ["build", &manifest, BUILD[0], BUILD[1], &target];
    cargo_command(&[&build[..], &["--example=simulate"]].concat(), &flags())?;
    Ok(program(BROKEN))
}

fn program(target: &str) -> PathBuf {
    root().join(target).join("simulation/examples/simulate")
}

/// What every test run does: the unbroken client keeps all laws, and each broken one is found.
pub(crate) fn checks() -> Vec<(String, Command)> {
    let first = of_commit();
    let ranges = [(1, SEEDS + 1), (first, first + SEEDS)];
    let seeds = ranges.map(|(from, to)| {
        vec![
            "--seeds".to_owned(),
            format!("{from}..{to}"),
            "--threads=2".to_owned(),
        ]
    });
    let seeds = seeds.map(|args| (program("target/simulation"), args));
    let broken = (program(BROKEN), vec!["--broken".to_owned()]);
    let commands = seeds.into_iter().chain([broken]).map(|(program, args)| {
        let mut command = Command::new(program);
        command.args(&args).current_dir(root());
        (format!("simulate {}", args.join(" ")), command)
    });
    commands.collect()
}

/// A first seed that another commit does not share; where there is no commit, one that is not among the fixed.
fn of_commit() -> u64 {
    let commit = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(root())
        .output();
    let commit = commit.map_or(String::new(), |it| {
        String::from_utf8_lossy(&it.stdout).into_owned()
    });
    let number = u64::from_str_radix(commit.trim().get(..12).unwrap_or_default(), 16);
    number.unwrap_or_default().max(SEEDS + 1)
}
