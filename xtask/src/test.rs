//! `cargo xtask test`.

use std::env;
use std::process::Command;

use crate::simulate;
use crate::stores::{STORES, Store};

/// Runs the tests of everything, or of one store, with the servers that they talk to.
pub(crate) fn run(only: Option<&Store>) -> Result<(), String> {
    match only {
        None => {
            let servers = STORES.iter().map(|store| (store.server)());
            let _running = servers.collect::<Result<Vec<_>, _>>()?;
            cargo(&["test", "--workspace"])?;
            // A backend outside the workspace, as another author would have it.
            cargo(&[
                "test",
                "--manifest-path=examples/files-backend/Cargo.toml",
                "--target-dir=target",
            ])?;
            simulate::check()
        }
        Some(store) => {
            let _running = (store.server)()?;
            cargo(&["test", "--package=lockcore"])?;
            for tests in store.tests {
                cargo(&[&["test"], *tests].concat())?;
            }
            Ok(())
        }
    }
}

fn cargo(args: &[&str]) -> Result<(), String> {
    cargo_command(args, &[])
}

/// Runs cargo, in an environment with these besides.
pub(crate) fn cargo_command(args: &[&str], environment: &[(&str, String)]) -> Result<(), String> {
    println!("+ cargo {}", args.join(" "));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(args)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed: {status}", args.join(" ")))
    }
}
