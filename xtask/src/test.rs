//! `cargo xtask test`.

use std::env;
use std::process::Command;

use lockcore_conformance::servers::etcd;

use crate::simulate;
use crate::stores::{STORES, Store};

/// Runs the tests of everything, or of one store, with the servers that they talk to.
pub(crate) fn run(only: Option<&Store>) -> Result<(), String> {
    if only.is_none_or(|store| store.name == "etcd") {
        etcd::protoc()?;
    }
    match only {
        None => {
            // Tests that need a server run on each of theirs.
            let with_servers = STORES.iter().filter_map(|store| store.servers.as_ref());
            let mut rest = vec!["test", "--workspace"];
            rest.extend(with_servers.flat_map(|servers| ["--exclude", servers.package]));
            cargo(&rest)?;
            for store in STORES.iter().filter(|store| store.servers.is_some()) {
                tests(store)?;
            }
            // A backend outside the workspace, as another author would have it.
            cargo(&[
                "test",
                "--manifest-path=examples/files-backend/Cargo.toml",
                "--target-dir=target",
            ])?;
            simulate::check()
        }
        Some(store) => {
            cargo(&["test", "--package=lockcore"])?;
            tests(store)
        }
    }
}

/// Runs a store's own tests, on each of its servers.
fn tests(store: &Store) -> Result<(), String> {
    let run = |tests: &[&[&str]], environment: &[(&str, String)]| {
        let mut tests = tests.iter();
        tests.try_for_each(|tests| cargo_command(&[&["test"], *tests].concat(), environment))
    };
    let Some(servers) = &store.servers else {
        return run(store.tests, &[]);
    };
    if servers.given() {
        run(store.tests, &[])?;
        return run(servers.once, &[]);
    }
    for (number, startable) in servers.each.iter().enumerate() {
        let server = (startable.start)()?;
        let url = server.url().replacen("http", store.name, 1);
        let environment = [(servers.variable, url)];
        let mut done = run(startable.part.unwrap_or(store.tests), &environment);
        if number == 0 {
            done = done.and_then(|()| run(servers.once, &environment));
        }
        done.inspect_err(|_| eprintln!("{}{}", server.says(), server.log_tail()))?;
    }
    run(servers.alone, &[])
}

fn cargo(args: &[&str]) -> Result<(), String> {
    cargo_command(args, &[])
}

/// Runs cargo, in an environment with these besides.
pub(crate) fn cargo_command(args: &[&str], environment: &[(&str, String)]) -> Result<(), String> {
    println!("+ cargo {}", args.join(" "));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What cargo says to this program is about this program. Build scripts that see it run again.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    let status = command
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
