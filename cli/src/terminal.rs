//! The terminal of a command that runs in its own process group: which group is in the foreground.

use std::fs::File;
use std::io::{IsTerminal, stdin};

use nix::sys::signal::{Signal as Number, raise};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    pub(crate) fn controlling() -> Option<Self> {
        let opened = File::options().read(true).write(true).open("/dev/tty");
        opened.ok().map(Self)
    }

    /// Whether our own group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|group| group == getpgrp())
    }

    /// Puts the command's group into the foreground, if we are there ourselves.
    pub(crate) fn give(&self, group: rustix::process::Pid) {
        if self.is_ours() {
            // A terminal that is gone hangs up on both groups; nothing is left to do here.
            let _ = tcsetpgrp(&self.0, number(group));
        }
    }

    /// Its modes: whether it echoes, and what it does with keys.
    pub(crate) fn modes(&self) -> Option<Termios> {
        tcgetattr(&self.0).ok()
    }

    /// Sets them back, if our own group is in the foreground.
    pub(crate) fn restore(&self, modes: &Termios) {
        if self.is_ours() {
            let _ = tcsetattr(&self.0, OptionalActions::Drain, modes);
        }
    }

    /// Takes the foreground back from the command's group.
    pub(crate) fn take_back(&self, group: rustix::process::Pid) {
        if tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == number(group)) {
            // TTOU, which would stop us, is blocked while we have a command.
            let _ = tcsetpgrp(&self.0, getpgrp());
        }
    }
}

/// Whether what reads standard input reads a terminal.
pub(crate) fn is_stdin() -> bool {
    stdin().is_terminal()
}

fn number(group: rustix::process::Pid) -> Pid {
    Pid::from_raw(group.as_raw_nonzero().get())
}

/// Stops this process as the command was stopped, the others before it, and returns when it is continued; at once where no
/// shell could continue it: `false`.
pub(crate) fn stand_still(stop_others: impl FnOnce()) -> bool {
    let continues = has_job_control();
    if continues {
        stop_others();
    }
    continues && raise(Number::SIGSTOP).is_ok()
}

/// Whether this process is of a shell's job: the first of its ancestors that is of another group is of its session. Elsewhere the
/// group is orphaned, as POSIX calls it, and the system itself would not stop it.
///
/// In a container a session or a group that began outside has the number 0, and so has a parent outside.
fn has_job_control() -> bool {
    let (group, session) = (getpgrp(), getsid(None));
    let mut ancestor = Some(getppid());
    while let Some(process) = ancestor.filter(|process| process.as_raw() != 0) {
        if getpgid(Some(process)) != Ok(group) {
            return session.is_ok() && getsid(Some(process)) == session;
        }
        ancestor = parent_of(process);
    }
    false
}

#[cfg(target_os = "linux")]
fn parent_of(process: Pid) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok().map(Pid::from_raw)
}

/// Elsewhere there is no simple way to ask: who runs in a script's group takes its shell for one without job control.
#[cfg(not(target_os = "linux"))]
fn parent_of(_: Pid) -> Option<Pid> {
    None
}
