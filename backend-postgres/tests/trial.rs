//! Processes on a PostgreSQL, killed, stopped and continued at random.
//!
//! `cargo xtask trial --store postgres --seconds 300 --processes 10` is a long run.

mod fixture;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_servers::faults::main("postgres", fixture::Server::new())
}
