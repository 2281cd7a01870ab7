//! The public suite on a PostgreSQL whose URL is in the environment, as a role with the least rights.

mod fixture;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(fixture::Server::new())
}
