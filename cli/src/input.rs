//! What reads the command's input, for tests that feed it anything. Nothing here opens a store.

use std::time::Duration;

use clap::Parser;

use crate::args::{Action, Cli};
use crate::claims::{self, Claims};
use crate::failure::Failure;
use crate::{bad_usage, intent, store};

/// What `lockkeeper run` was asked for.
#[derive(Debug)]
pub struct Run {
    /// `--ttl`.
    pub ttl: Duration,
    /// `--wait`.
    pub wait: Option<Duration>,
    /// The keys of all claims.
    pub keys: Vec<String>,
}

/// Reads the arguments behind the command's name; `None` for any action but `run`. A file that they name is read.
///
/// # Errors
///
/// What the command says about them.
pub fn arguments(arguments: &[&str]) -> Result<Option<Run>, String> {
    let arguments = ["lockkeeper"].iter().chain(arguments);
    let cli = Cli::try_parse_from(arguments).map_err(|error| bad_usage(&error))?;
    let Action::Run(mut args) = cli.action else {
        return Ok(None);
    };
    let keys = match Claims::parse(&mut args.claims).map_err(said)? {
        Claims::Lock(name) | Claims::Shared { name, .. } => vec![name.to_string()],
        Claims::Documents(documents) => documents.ids().map(str::to_owned).collect(),
        Claims::Tree { write, read } => {
            let paths = write.iter().chain(&read);
            paths.map(ToString::to_string).collect()
        }
    };
    Ok(Some(Run {
        ttl: args.ttl,
        wait: args.wait,
        keys,
    }))
}

/// Reads a file of ids.
///
/// # Errors
///
/// What the command says about it.
pub fn ids(file: &[u8]) -> Result<Vec<String>, String> {
    let lines = claims::text("a file", file.to_vec()).map_err(said)?;
    let documents = claims::Documents::of(lines).map_err(said)?;
    Ok(documents.ids().map(str::to_owned).collect())
}

/// Reads the value of `--intent`; the file that it names, if it begins with `@`.
///
/// # Errors
///
/// What the command says about it.
pub fn intent(argument: &str) -> Result<Vec<u8>, String> {
    let intent = intent::parse(argument).map_err(said)?;
    Ok(intent.as_bytes().to_vec())
}

/// A URL as it is shown to other programs.
#[must_use]
pub fn shown(url: &str) -> String {
    store::without_password(url)
}

fn said(failure: Failure) -> String {
    failure.message().unwrap_or_default().to_owned()
}
