//! The `lockkeeper` command; what it does is in `lib.rs`.

fn main() -> std::process::ExitCode {
    lockkeeper_cli::main()
}
