//! The whole kit on this backend.

mod support;

fn main() -> std::process::ExitCode {
    lockcore_conformance::main(support::Files {
        wrap: |files| files,
    })
}
