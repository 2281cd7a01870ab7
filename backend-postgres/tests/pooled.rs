//! The public suite through a PgBouncer in transaction mode, before the PostgreSQL whose URL is in the environment.

mod fixture;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The pooler is this program's; its log tells why it stood still, if it did.
    lockkeeper_servers::explained(lockcore_conformance::main(fixture::Server::pooled()))
}
