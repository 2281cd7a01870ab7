//! `cargo xtask simulate`.

use std::env;

use crate::test::cargo_command;

/// Seeds of every test run.
const SEEDS: &str = "1..1001";

/// Runs the simulation with these arguments, in a build of its own: its clients can be paused, killed and broken.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let build = [
        "run",
        "--profile=simulation",
        "--package=lockcore-conformance",
        "--example=simulate",
        "--target-dir=target/simulation",
    ];
    cargo_command(
        &[&build[..], &["--"], args].concat(),
        &[("RUSTFLAGS", format!("{flags} --cfg lockcore_sim"))],
    )
}

/// What every test run does: the unbroken client keeps all laws, and each broken one is found.
pub(crate) fn check() -> Result<(), String> {
    run(&["--seeds", SEEDS, "--threads", "2"])?;
    run(&["--broken"])
}
