//! The public suite on an Elasticsearch or OpenSearch, whose URL is in the environment.

mod fixture;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(fixture::Server::new())
}
