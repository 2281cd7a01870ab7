//! A command that runs in its own process group.

#[cfg(target_os = "linux")]
pub(crate) mod stage;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use rustix::termios::Termios;

use crate::failure::{Failure, status};
use crate::terminal::Terminal;

/// What runs a line of a shell's language.
pub(crate) const SHELL: [&str; 2] = ["sh", "-c"];

/// The signal that has ended a command.
pub(crate) fn signal_of(ended: ExitStatus) -> Option<i32> {
    ended.signal()
}

/// A command that was started, the leader of a process group.
#[derive(Debug)]
pub(crate) struct Job {
    child: Child,
    group: Pid,
    terminal: Option<Terminal>,
    /// Whether the command has been in the foreground, or was to be.
    interactive: bool,
    /// The terminal's modes before it was given the terminal.
    modes: Option<Termios>,
    /// Where it is told that the command could not be executed.
    failed: (PipeReader, PipeWriter),
}

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Stopped,
    /// It wants the terminal, and is in the background.
    WantsTerminal,
    Ended,
}

/// What is known of a command that has ended.
pub(crate) struct Reaped {
    pub(crate) status: ExitStatus,
    /// Whether it was executed at all, as far as that can be told.
    pub(crate) executed: bool,
    /// Whether somebody is left in its group who has become another user's.
    pub(crate) unreached: bool,
}

/// What a command finds in its environment.
pub(crate) type Environment = [(&'static str, String)];

impl Job {
    /// Starts a command; an interactive one in the terminal's foreground, if this process is there. Another one gets the
    /// terminal when it asks for it. Call it from the main thread: on Linux the command dies with the thread that started it.
    pub(crate) fn start(
        command: &[OsString],
        environment: &Environment,
        stdin: Stdio,
        interactive: bool,
    ) -> Result<Self, Failure> {
        let terminal = Terminal::controlling();
        let interactive = interactive && terminal.is_some();
        let foreground = interactive && terminal.as_ref().is_some_and(Terminal::is_ours);
        let failed = io::pipe().map_err(|error| not_started(&command[0], &error))?;
        let given = terminal.as_ref().filter(|_| foreground);
        let modes = given.and_then(Terminal::modes);
        let child = prepared(command, foreground, &failed.1)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .process_group(0)
            .spawn()
            .map_err(|error| not_started(&command[0], &error))?;
        let group = Pid::from_child(&child);
        if let Some(terminal) = terminal.as_ref().filter(|_| interactive) {
            terminal.give(group);
        }
        Ok(Self {
            modes,
            child,
            group,
            terminal,
            interactive,
            failed,
        })
    }

    /// The way to the command's standard input, if that is a pipe.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to the whole group: `false` if the system does not allow it for any process of it, because they have
    /// become another user's. That nobody is left in it is no failure.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal) != Err(Errno::PERM)
    }

    /// Sends a signal that is to end the command, which hears it also if it is stopped.
    pub(crate) fn end(&self, signal: Signal) -> bool {
        let sent = self.signal(signal);
        self.signal(Signal::CONT);
        sent
    }

    /// Stops the whole group, whatever it does about the signals of a terminal.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// What the system calls the command.
    pub(crate) fn number(&self) -> String {
        format!("process group {}", self.group.as_raw_nonzero())
    }

    /// Looks, and does not wait. An ended command keeps its number until it is reaped, and so does its group.
    pub(crate) fn look(&self) -> Result<Change, Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.group), options) {
            Ok(Some(_)) => Ok(Change::Ended),
            Ok(None) => self.look_for_a_stop(),
            Err(error) => Err(lost_sight(error.into())),
        }
    }

    fn look_for_a_stop(&self) -> Result<Change, Failure> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.group), options) {
            Ok(Some(stopped)) => {
                let by = stopped.stopping_signal();
                let terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
                match by.is_some_and(|by| terminal.contains(&by)) && self.terminal.is_some() {
                    true => Ok(Change::WantsTerminal),
                    false => Ok(Change::Stopped),
                }
            }
            Ok(None) => Ok(Change::None),
            // It has ended since it was looked at before: there is no child left that could stop.
            Err(Errno::CHILD) => Ok(Change::Ended),
            Err(error) => Err(lost_sight(error.into())),
        }
    }

    /// Whether a shell would stop with the command.
    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Puts the command, which is stopped, into the foreground; `false` if this process is not there.
    pub(crate) fn lend_terminal(&mut self) -> bool {
        let Some(terminal) = self.terminal.as_ref().filter(|it| it.is_ours()) else {
            return false;
        };
        self.modes = terminal.modes();
        terminal.give(self.group);
        self.interactive = true;
        true
    }

    /// Takes the terminal from the command, which was stopped.
    pub(crate) fn take_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.group);
        }
    }

    /// Continues the command; an interactive one in the foreground, if this process is there.
    pub(crate) fn go_on(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.interactive) {
            terminal.give(self.group);
        }
        self.signal(Signal::CONT);
    }

    /// Reaps the command, which has ended.
    pub(crate) fn reap(mut self) -> Result<Reaped, Failure> {
        self.take_terminal();
        let status = self.child.wait().map_err(lost_sight)?;
        if let (Some(terminal), Some(modes)) = (&self.terminal, &self.modes)
            && status.signal().is_some()
        {
            // It could not set them back itself.
            terminal.restore(modes);
        }
        let (mut told, pipe) = self.failed;
        // Nobody else has this end: the command does not inherit it.
        drop(pipe);
        Ok(Reaped {
            status,
            executed: !matches!(told.read(&mut [0]), Ok(1..)),
            // A leader that is not reaped can be signalled.
            unreached: test_kill_process_group(self.group) == Err(Errno::PERM),
        })
    }
}

/// The command, by way of a stage of this program that binds its life to ours, where that can be.
#[cfg_attr(
    not(target_os = "linux"),
    expect(unused_variables, reason = "for the stage")
)]
fn prepared(command: &[OsString], foreground: bool, failed: &PipeWriter) -> Command {
    #[cfg(target_os = "linux")]
    if let Some(stage) = stage::command(command, foreground, failed.as_raw_fd()) {
        return stage;
    }
    let mut prepared = Command::new(&command[0]);
    prepared.args(&command[1..]);
    prepared
}

/// Whether there is such a command, before anything is locked for it.
pub(crate) fn find(command: &OsStr) -> Result<(), Failure> {
    let executable = |path: &Path| {
        if path.is_dir() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        access(path, Access::EXEC_OK).map_err(io::Error::from)
    };
    let found = if command.is_empty() {
        Err(io::ErrorKind::NotFound.into())
    } else if command.as_encoded_bytes().contains(&b'/') {
        executable(Path::new(command))
    } else {
        let Some(path) = env::var_os("PATH") else {
            // The system has a path of its own for that.
            return Ok(());
        };
        let mut best = Err(io::ErrorKind::NotFound.into());
        for directory in env::split_paths(&path) {
            match executable(&directory.join(command)) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => best = Err(error),
                Err(_) => {}
            }
        }
        best
    };
    found.map_err(|error| not_started(command, &error))
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

fn lost_sight(error: io::Error) -> Failure {
    Failure::new(
        status::UNAVAILABLE,
        format!("cannot tell what became of the command: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ends_between_two_looks_has_ended() {
        let child = Command::new("true").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        let job = Job {
            child,
            group,
            terminal: None,
            interactive: false,
            modes: None,
            failed: io::pipe().unwrap(),
        };
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(group), ended).unwrap();
        assert_eq!(job.look_for_a_stop().unwrap(), Change::Ended);
        assert_eq!(job.look().unwrap(), Change::Ended);
        let reaped = job.reap().unwrap();
        assert!(reaped.status.success() && reaped.executed && !reaped.unreached);
    }
}
