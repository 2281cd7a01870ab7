//! `cargo xtask trial`.

use crate::stores::Store;
use crate::test::cargo_command;

/// Runs the trial of a store with these arguments, with optimised code.
pub(crate) fn run(store: &Store, args: &[String]) -> Result<(), String> {
    let package = store
        .trial
        .ok_or_else(|| format!("{}: no other process reaches it", store.name))?;
    let test = ["test", "--release", package, "--test=trial", "--"];
    let args = args.iter().map(String::as_str);
    cargo_command(&test.into_iter().chain(args).collect::<Vec<_>>(), &[])
}
