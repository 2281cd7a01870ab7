//! `cargo xtask test`.

use std::env;
use std::process::Command;

use crate::stores::{STORES, Store};

/// Runs the tests of everything, or of one store, with the servers that they talk to.
pub(crate) fn run(only: Option<&Store>) -> Result<(), String> {
    match only {
        None => {
            let servers = STORES.iter().map(|store| (store.server)());
            let _running = servers.collect::<Result<Vec<_>, _>>()?;
            cargo(&["test", "--workspace"])
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
    println!("+ cargo {}", args.join(" "));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(args)
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed: {status}", args.join(" ")))
    }
}
