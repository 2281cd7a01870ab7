//! The public suite through a PgBouncer in transaction mode, before the PostgreSQL whose URL is in the environment.

mod support;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(world::Server::pooled())
}
