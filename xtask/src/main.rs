//! The developer's commands: `cargo xtask …`.

mod simulate;
mod stores;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The developer's commands.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the tests of the whole workspace, or what one store needs.
    Test {
        /// Only lockcore, and the conformance and own tests of this store.
        #[arg(long, value_name = "STORE", value_parser = stores::find)]
        only: Option<&'static stores::Store>,
    },
    /// Runs the seeded simulation: `--seeds FROM..TO [--threads N]`, `--seed N`, or `--broken [RULE]`.
    Simulate {
        /// What the simulation is given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Test { only } => test::run(only),
        Command::Simulate { args } => {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            simulate::run(&args)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
