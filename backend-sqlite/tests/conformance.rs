//! The public suite on SQLite files.

mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(world::Sqlite)
}
