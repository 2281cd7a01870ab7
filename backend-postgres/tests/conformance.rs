//! The public suite on a PostgreSQL whose URL is in the environment, as a role with the least rights.

mod support;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(world::Server::new())
}
