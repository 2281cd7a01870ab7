//! The public suite on one etcd, or on the cluster whose URL is in the environment.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(support::Etcd::given())
}
