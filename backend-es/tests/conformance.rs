//! The public suite on an Elasticsearch or OpenSearch, whose URL is in the environment.

mod support;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(world::Server::new())
}
