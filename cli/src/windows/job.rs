//! A command on the console of this program. Windows has no signals: what elsewhere asks it to end ends it at once, and
//! what it has started itself goes on.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::{Failure, status};
use crate::signals::Signal;

/// What runs a line of a shell's language.
pub(crate) const SHELL: [&str; 2] = ["cmd", "/C"];

/// The signal that has ended a command: none does.
pub(crate) fn signal_of(_: ExitStatus) -> Option<i32> {
    None
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Job(Mutex<Child>);

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    #[expect(dead_code, reason = "nobody stops it here")]
    Stopped,
    #[expect(dead_code, reason = "nobody is in the background here")]
    WantsTerminal,
    Ended,
}

/// What a command finds in its environment.
pub(crate) type Environment = [(&'static str, String)];

/// What is known of a command that has ended.
pub(crate) struct Reaped {
    pub(crate) status: ExitStatus,
    pub(crate) executed: bool,
    pub(crate) unreached: bool,
}

impl Job {
    /// Starts a command.
    pub(crate) fn start(
        command: &[OsString],
        environment: &Environment,
        stdin: Stdio,
        _: bool,
    ) -> Result<Self, Failure> {
        let child = Command::new(&command[0])
            .args(&command[1..])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .spawn()
            .map_err(|error| not_started(&command[0], &error))?;
        Ok(Self(Mutex::new(child)))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the command's standard input, if that is a pipe.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child().stdin.take()
    }

    /// Ends the command where the signal would; the console tells it of the others.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        if matches!(signal, Signal::TERM | Signal::KILL) {
            // One that has ended cannot be ended.
            let _ = self.child().kill();
        }
        true
    }

    /// The same: nothing is stopped here.
    pub(crate) fn end(&self, signal: Signal) -> bool {
        self.signal(signal)
    }

    /// Nobody stops a process by a signal.
    pub(crate) fn stop(&self) {}

    /// What the system calls the command.
    pub(crate) fn number(&self) -> String {
        format!("process {}", self.child().id())
    }

    /// Looks, and does not wait.
    pub(crate) fn look(&self) -> Result<Change, Failure> {
        match self.child().try_wait() {
            Ok(Some(_)) => Ok(Change::Ended),
            Ok(None) => Ok(Change::None),
            Err(error) => Err(lost_sight(&error)),
        }
    }

    pub(crate) fn is_interactive(&self) -> bool {
        false
    }

    pub(crate) fn lend_terminal(&mut self) -> bool {
        false
    }

    pub(crate) fn take_terminal(&self) {}

    pub(crate) fn go_on(&self) {}

    /// Takes the status of the command, which has ended and was executed.
    pub(crate) fn reap(self) -> Result<Reaped, Failure> {
        let status = self.child().wait();
        let status = status.map_err(|error| lost_sight(&error))?;
        Ok(Reaped {
            status,
            executed: true,
            unreached: false,
        })
    }
}

/// Whether there is such a command, before anything is locked for it.
pub(crate) fn find(command: &OsStr) -> Result<(), Failure> {
    let is_there = |path: &Path| {
        let mut program = path.as_os_str().to_owned();
        program.push(".exe");
        path.is_file() || Path::new(&program).is_file()
    };
    let has_folder = Path::new(command).components().count() > 1;
    let found = match env::var_os("PATH") {
        _ if command.is_empty() => false,
        _ if has_folder => is_there(Path::new(command)),
        Some(path) => env::split_paths(&path).any(|folder| is_there(&folder.join(command))),
        // The system has a path of its own for that.
        None => true,
    };
    match found {
        true => Ok(()),
        false => Err(not_started(command, &io::ErrorKind::NotFound.into())),
    }
}

fn not_started(command: &OsStr, error: &io::Error) -> Failure {
    let name = command.display();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            status::NOT_FOUND,
            format!("{name}: there is no such command: correct its name, or PATH"),
        ),
        _ => Failure::new(
            status::NOT_EXECUTABLE,
            format!("{name}: the command cannot be run: {error}"),
        ),
    }
}

fn lost_sight(error: &io::Error) -> Failure {
    Failure::new(
        status::UNAVAILABLE,
        format!("cannot tell what became of the command: {error}"),
    )
}
