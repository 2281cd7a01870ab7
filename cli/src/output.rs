//! [`Output`]: lines and JSON on standard output.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;

use crate::failure::{Failure, status};

/// Standard output, which may be large, and whose reader may go away.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(|error| gone(&error))
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(&serde_json::to_string(value).expect("strings and lists are JSON"))
    }

    /// What was written so far is to be seen.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| gone(&error))
    }

    pub(crate) fn finish(mut self) -> Result<u8, Failure> {
        self.flush()?;
        Ok(0)
    }
}

fn gone(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::signal(rustix::process::Signal::PIPE.as_raw());
    }
    Failure::new(status::UNAVAILABLE, format!("standard output: {error}"))
}
