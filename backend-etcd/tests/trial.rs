//! Processes on one etcd, killed, stopped and continued at random.
//!
//! `cargo xtask trial --store etcd --seconds 300 --processes 10` is a long run.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_servers::faults::main("etcd", support::Etcd::given())
}
