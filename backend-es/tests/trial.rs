//! Processes on an Elasticsearch or OpenSearch, killed, stopped and continued at random.
//!
//! `cargo xtask trial --store elasticsearch --seconds 300 --processes 10` is a long run.

mod fixture;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_servers::faults::main("elasticsearch", fixture::Server::new())
}
