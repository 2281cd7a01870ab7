//! `cargo xtask simulate`.

use std::env;
use std::process::Command;

use crate::builds::{Programs, cargo_command, root};

/// Its clients can be paused, killed and broken, so it is a build of its own.
const BUILD: [&str; 3] = [
    "--profile=simulation",
    "--package=lockcore-conformance",
    "--target-dir=target/simulation",
];

/// The seeds of every test run: these, and as many that follow from the commit.
const SEEDS: u64 = 500;

fn flags() -> [(&'static str, String); 1] {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    [("RUSTFLAGS", format!("{flags} --cfg lockcore_sim"))]
}

/// Runs the simulation with these arguments.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let run = [&["run"], &BUILD[..], &["--example=simulate", "--"], args].concat();
    cargo_command(&run, &flags())
}

/// Builds the simulation and its own tests; those are found under their names.
pub(crate) fn build() -> Result<Programs, String> {
    cargo_command(
        &[&["build"], &BUILD[..], &["--example=simulate"]].concat(),
        &flags(),
    )?;
    Programs::build(&[&BUILD[..], &["--test=simulation"]].concat(), &flags())
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
    let runs = seeds.into_iter().chain([vec!["--broken".to_owned()]]);
    let program = root().join("target/simulation/simulation/examples/simulate");
    let commands = runs.map(|args| {
        let mut command = Command::new(&program);
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
