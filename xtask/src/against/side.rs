//! A program of one of the builds, which measures when it is asked.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;

use super::build::{Built, MEASURES};

pub(super) struct Side {
    name: String,
    child: Child,
    /// Closed before it is waited for.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Side {
    /// Starts the program on a store, and sees that it is of this build.
    pub(super) fn start(built: &Built, url: &str) -> Result<Self, String> {
        let mut child = Command::new(&built.program)
            .env("LOCKKEEPER_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", built.program.display()))?;
        let output = child.stdout.take().ok_or("its output is not there")?;
        let mut side = Self {
            name: built.name.clone(),
            input: child.stdin.take(),
            output: BufReader::new(output).lines(),
            child,
        };
        let (said, expected): (String, _) = (side.ask("built")?, built.source.join(MEASURES));
        if said == expected.display().to_string() {
            Ok(side)
        } else {
            Err(format!(
                "the program of {} was built in {said}, not in {}",
                side.name,
                expected.display()
            ))
        }
    }

    /// Sends a line, and reads the answer.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, line: &str) -> Result<T, String> {
        self.answer(line)
            .map_err(|error| format!("the program of {}, asked for {line:?}: {error}", self.name))
    }

    fn answer<T: DeserializeOwned>(&mut self, line: &str) -> Result<T, String> {
        let input = self.input.as_mut().ok_or("its input is not there")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())?;
        let answer = self.output.next().ok_or("it has ended")?;
        let answer = answer.map_err(|error| error.to_string())?;
        serde_json::from_str(&answer).map_err(|error| format!("{answer}: {error}"))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}
