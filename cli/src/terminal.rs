//! The terminal of a command that runs in its own process group: which group is in the foreground.

use std::fs::File;
use std::io::{IsTerminal, stdin};

use nix::sys::signal::{Signal as Number, raise};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

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
/// shell could continue it, because its parent is of another session: `false`.
///
/// In a container a session or a group that began outside has the number 0, and so has a parent outside.
pub(crate) fn stand_still(stop_others: impl FnOnce()) -> bool {
    let parent = getppid();
    let continues = parent.as_raw() != 0
        && getsid(Some(parent)).is_ok_and(|session| getsid(None) == Ok(session));
    if continues {
        stop_others();
    }
    continues && raise(Number::SIGSTOP).is_ok()
}
