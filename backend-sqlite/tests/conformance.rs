//! The public suite on SQLite files.

mod fixture;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(fixture::Sqlite)
}
