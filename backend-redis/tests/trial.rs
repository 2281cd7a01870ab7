//! Processes on one Redis, killed, stopped and continued at random.
//!
//! `cargo xtask trial --store redis --seconds 300 --processes 10` is a long run.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper_servers::faults::main(
        "redis",
        support::Redis {
            name: "redis",
            place: support::servers::given,
        },
    )
}
