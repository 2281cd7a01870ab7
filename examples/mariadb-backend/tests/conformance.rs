//! The whole kit on this backend, on the server whose URL is in the environment.

mod support;

fn main() -> std::process::ExitCode {
    lockcore_conformance::main(support::Server)
}
