//! `cargo xtask simulate`.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::breaches;
use crate::builds::{Programs, cargo_command, root};

/// Its clients can be paused and killed, so it is a build of its own.
const BUILD: [&str; 2] = ["--profile=simulation", "--package=lockcore-trial"];

/// Where it is built, and the one whose clients can break their rules.
const TARGET: &str = "target/simulation";
/// The program of the first.
const PROGRAM: &str = "simulate";

/// The seeds of every test run: these, and as many that follow from the commit.
const SEEDS: u64 = 500;

fn flags() -> [(&'static str, String); 1] {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    [("RUSTFLAGS", format!("{flags} --cfg lockcore_sim"))]
}

/// Runs the simulation with these arguments.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    if args.contains(&"--save") {
        return save(args);
    }
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

/// Looks for every broken client, and writes down which seed has shown it.
fn save(args: &[&str]) -> Result<(), String> {
    let others = args.iter().filter(|arg| **arg != "--save");
    let done = Command::new(build_broken()?).args(others).output();
    let done = done.map_err(|error| format!("the simulation cannot be run: {error}"))?;
    let table = String::from_utf8_lossy(&done.stdout);
    print!("{table}");
    breaches::save(&shown(&table))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("simulate {}: {}", args.join(" "), done.status)),
    }
}

/// The rules of a table that were found, and by which seed.
fn shown(table: &str) -> BTreeMap<&str, u64> {
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        Some((cells.next()?, cells.next()?.parse().ok()?))
    });
    rows.collect()
}

/// Builds the simulation and its own tests; those are found under their names.
pub(crate) fn build() -> Result<Programs, String> {
    build_program()?;
    let target = target();
    let build = [&BUILD[..], &["--test=simulation", &target]].concat();
    Programs::build(&build, &flags())
}

fn build_program() -> Result<PathBuf, String> {
    build_example(PROGRAM, &[])
}

/// Builds the simulation of a client that can break its rules.
pub(crate) fn build_broken() -> Result<PathBuf, String> {
    let manifest = breaches::copy()?.join("Cargo.toml");
    let manifest = format!("--manifest-path={}", manifest.display());
    build_example(breaches::PROGRAM, &[&manifest])
}

fn build_example(name: &str, of: &[&str]) -> Result<PathBuf, String> {
    let (target, example) = (target(), format!("--example={name}"));
    let build = [&["build", &target, &example], of, &BUILD[..]].concat();
    cargo_command(&build, &flags())?;
    Ok(program(name))
}

fn target() -> String {
    format!("--target-dir={}", root().join(TARGET).display())
}

fn program(name: &str) -> PathBuf {
    root().join(TARGET).join("simulation/examples").join(name)
}

/// What every test run does: the unbroken client keeps all laws, and each broken one is found. Its time is simulated, so it
/// takes the processors only when nobody else wants them.
pub(crate) fn checks() -> Vec<(String, Command)> {
    let first = of_commit();
    let ranges = [(1, SEEDS + 1), (first, first + SEEDS)];
    let seeds = ranges.map(|(from, to)| {
        vec![
            "--seeds".to_owned(),
            format!("{from}..{to}"),
            "--threads=1".to_owned(),
        ]
    });
    let seeds = seeds.map(|args| (program(PROGRAM), args));
    let broken = ["--broken", "--threads=1"].map(str::to_owned).to_vec();
    let broken = (program(breaches::PROGRAM), broken);
    let commands = seeds.into_iter().chain([broken]).map(|(program, args)| {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(program).args(&args);
        command.current_dir(root());
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
