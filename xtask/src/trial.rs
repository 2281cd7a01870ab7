//! `cargo xtask trial`.

use crate::builds::cargo_command;
use crate::stores::Store;

/// Runs the trial of a store with these arguments, with optimised code; on the first of its servers, if it has some.
pub(crate) fn run(store: &Store, args: &[String]) -> Result<(), String> {
    if !store.trial {
        return Err(format!("{}: no other process reaches it", store.name));
    }
    let package = format!("--package={}", store.package);
    let test = ["test", "--release", &package, "--test=trial", "--"];
    let args = args.iter().map(String::as_str);
    let args: Vec<&str> = test.into_iter().chain(args).collect();
    match &store.servers {
        Some(servers) if !servers.given() => {
            let server = (servers.each[0].start)()?;
            let url = server.url().replacen("http", store.name, 1);
            cargo_command(&args, &[(servers.variable, url)])
        }
        _ => cargo_command(&args, &[]),
    }
}
