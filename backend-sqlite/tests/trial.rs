//! Processes on one SQLite file, killed, stopped and continued at random.
//!
//! `cargo xtask trial --seconds 300 --processes 10` is a long run.

mod fixture;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_servers::faults::main("sqlite", fixture::Sqlite)
}
