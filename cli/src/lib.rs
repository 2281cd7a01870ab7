//! The `lockkeeper` command: `lockkeeper run CLAIMS -- COMMAND` runs a command under a lock; `ls`, `inspect` and
//! `sessions` show who holds what; `break`, `recover`, `discard` and `sweep` are for operators.
//!
//! This library is the command and nothing else: it has no stable interface.

mod args;
mod claims;
mod describe;
mod failure;
#[doc(hidden)]
pub mod input;
mod intent;
mod job;
mod list;
mod operate;
mod progress;
mod recover;
mod run;
mod signals;
mod store;
mod supervise;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use args::{Action, Cli};
use failure::{Failure, status};

/// Does what the arguments of this process ask for, and says its exit status.
#[must_use]
pub fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(stage) = job::stage::requested() {
        return stage;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // The command's parent-death signal follows the thread that starts it, so everything that starts one stays on
    // this thread: a runtime of one thread.
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(status::UNAVAILABLE, format!("no runtime: {error}")))
        .and_then(|runtime| runtime.block_on(act(cli)));
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => failure.report(),
    }
}

async fn act(cli: Cli) -> Result<u8, Failure> {
    let url = cli.url.as_deref();
    match cli.action {
        Action::Run(args) => Box::pin(run::run(url, *args)).await,
        Action::Ls(args) => list::ls(url, args).await,
        Action::Inspect(args) => list::inspect(url, args).await,
        Action::Sessions(args) => list::sessions(url, args).await,
        Action::Break(args) => operate::break_lock(url, args).await,
        Action::Recover(args) => Box::pin(recover::recover(url, args)).await,
        Action::Discard(args) => operate::discard(url, args).await,
        Action::Sweep => operate::sweep(url).await,
    }
}

/// Help and version go where they belong; everything else is one line, and the status of bad usage.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        // A reader that has gone away is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    Failure::new(status::USAGE, bad_usage(error)).report()
}

fn bad_usage(error: &clap::Error) -> String {
    let text = error.to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or_default();
    let what = what.split("\n\nFor more").next().unwrap_or_default();
    let words: Vec<&str> = what.split_whitespace().collect();
    let what = words.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    format!("{what} (see lockkeeper --help)")
}
