//! The `lockkeeper` command. `lockkeeper run CLAIMS -- COMMAND` runs a command under a lock; `acquire`, `renew`, `release`
//! and `status` are for locks of several steps. `ls`, `inspect`, `sessions`,
//! `watch` and `top` show who holds what. `break`, `recover`, `discard` and `sweep` are for operators; `ping`, `init`, `remove` and
//! `grants` are about a store and its namespace. `bench` measures a store, and `verify` holds it against the laws.
//!
//! This library contains only the command; it has no stable interface.

mod args;
mod bench;
mod broken;
mod changes;
mod claims;
mod describe;
mod failure;
mod handle;
#[doc(hidden)]
pub mod input;
mod intent;
#[cfg_attr(not(unix), path = "windows/job.rs")]
mod job;
mod list;
mod manual;
mod namespace;
mod operate;
mod output;
mod progress;
mod recover;
mod run;
#[cfg_attr(not(unix), path = "windows/signals.rs")]
mod signals;
mod store;
mod supervise;
#[cfg_attr(not(unix), path = "windows/terminal.rs")]
mod terminal;
#[cfg(feature = "top")]
mod top;
#[cfg(all(feature = "verify", unix))]
mod verify;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Runtime;

use args::{Action, Cli};
use failure::{Failure, Voice, status};

/// Executes the arguments of this process and returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(stage) = job::stage::requested() {
        return stage;
    }
    #[cfg(all(feature = "verify", unix))]
    if let Some(done) = verify::child() {
        return done;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let status = match act(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.report(),
    };
    failure::finish();
    status
}

/// The command's parent-death signal follows the thread that starts it. So everything that starts a command stays on
/// this thread: the runtime has one thread.
fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(status::UNAVAILABLE, format!("no runtime: {error}")))
}

/// Runs the action in a runtime of its own.
fn within(action: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(action);
    // A name that is still being resolved keeps nobody waiting.
    runtime.shutdown_background();
    done
}

fn act(cli: Cli) -> Result<u8, Failure> {
    let common = &cli.common;
    let (quiet, json) = (common.quiet, common.json);
    Voice { quiet, json }.set();
    match cli.action {
        Action::Run(args) => within(Box::pin(run::run(common, *args))),
        Action::Acquire(args) => within(Box::pin(handle::acquire(common, *args))),
        Action::Renew(args) => within(handle::renew(common, args)),
        Action::Release(args) => within(handle::release(common, args)),
        Action::Status(args) => within(handle::status(common, args)),
        Action::Ls(args) => within(list::ls(common, args)),
        Action::Inspect(args) => within(list::inspect(common, args)),
        Action::Watch(args) => within(Box::pin(watch::watch(common, args))),
        #[cfg(feature = "top")]
        Action::Top(args) => within(Box::pin(top::top(common, args))),
        Action::Sessions(args) => within(list::sessions(common, args)),
        Action::Break(args) => within(broken::break_lock(common, args)),
        Action::Ask(args) => within(operate::ask(common, args)),
        Action::Recover(args) => within(Box::pin(recover::recover(common, args))),
        Action::Discard(args) => within(operate::discard(common, args)),
        Action::Sweep => within(operate::sweep(common)),
        Action::Ping => within(namespace::ping(common)),
        Action::Init(args) => within(namespace::init(common, args)),
        Action::Remove(args) => within(namespace::remove(common, args)),
        Action::Grants(args) => namespace::grants(common, &args),
        Action::Bench(args) => bench::bench(common, &args),
        #[cfg(all(feature = "verify", unix))]
        Action::Verify(args) => verify::verify(common, &args),
        Action::Completions { shell } => manual::completions(shell),
        Action::Man { action } => manual::page(action.as_deref()),
    }
}

/// Prints help and version where they belong; everything else as one line, with the status of bad usage.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        // A reader that has gone away is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    // What else was asked for is not known.
    let json = asks_for_json(std::env::args_os().skip(1));
    Voice { quiet: false, json }.set();
    Failure::new(status::USAGE, bad_usage(error)).report()
}

/// Whether `--json` is one of the arguments before those of a command.
fn asks_for_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    args.take_while(|it| it != "--").any(|it| it == "--json")
}

fn bad_usage(error: &clap::Error) -> String {
    use clap::error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    if matches!(
        error.kind(),
        DisplayHelpOnMissingArgumentOrSubcommand | MissingSubcommand
    ) {
        // Not the whole help.
        return "'lockkeeper' requires a subcommand (see lockkeeper --help)".to_owned();
    }
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more").next().unwrap_or_default();
    let words: Vec<&str> = what.split_whitespace().collect();
    let what = words.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    format!("{what} (see lockkeeper --help)")
}
