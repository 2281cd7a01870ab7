//! cargo-mutants on a backend's Rust, beside a server of its store.

use std::path::Path;
use std::process::{Command, Stdio};

use lockkeeper_servers::Server;

use super::root;
use super::subjects::RUST;
use crate::stores;

/// Goes on where the last run on this store ended; `args` are cargo-mutants' own, as in `-F claims.rs`.
///
/// # Errors
///
/// A mutant survives, or cargo-mutants is missing.
pub(crate) fn run(store: &str, args: &[String]) -> Result<(), String> {
    let known = RUST.iter().find(|(known, _)| *known == store);
    let (_, tests) =
        known.ok_or_else(|| format!("{store}: no tests are chosen for cargo-mutants"))?;
    let found = Command::new("cargo")
        .args(["mutants", "--version"])
        .stdout(Stdio::null())
        .status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(
            "cargo mutants does not run: install it with: cargo install cargo-mutants".to_owned(),
        );
    }
    let of_store = stores::find(store)?;
    let server: Option<Server> = match &of_store.servers {
        Some(servers) if !servers.given() => Some((servers.each[0].start)()?),
        _ => None,
    };
    let root = root();
    let output = root.join(format!("target/mutants/rust-{store}"));
    let package = format!(
        "--package=lockcore-{}",
        if store == "elasticsearch" {
            "es"
        } else {
            store
        }
    );
    let mut command = Command::new("cargo");
    command
        .args(["mutants", "--iterate", "--timeout=300", &package])
        .args(["--test-package", package.trim_start_matches("--package=")])
        .arg("--output")
        .arg(&output)
        .args(tests.iter().map(|test| format!("--cargo-test-arg={test}")))
        .args(args)
        // What the copies of the repository have in common is built once.
        .env("CARGO_TARGET_DIR", target(&root))
        .current_dir(&root);
    if let (Some(servers), Some(server)) = (&of_store.servers, &server) {
        command.env(servers.variable, server.url().replacen("http", store, 1));
    }
    println!("+ {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo mutants: {status}; see {}", output.display())),
        Err(error) => Err(format!("cargo mutants cannot be run: {error}")),
    }
}

fn target(root: &Path) -> std::path::PathBuf {
    root.join("target/mutants/target")
}
