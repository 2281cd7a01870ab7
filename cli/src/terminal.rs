//! The terminal of a command that runs in its own process group: which group is in the foreground.

use std::io::{IsTerminal, stdin};

use nix::sys::signal::{SigSet, Signal as Number, raise};
use rustix::process::{Pid, getpgrp, getppid, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Standard input, where it is a terminal.
#[derive(Debug)]
pub(crate) struct Terminal(());

impl Terminal {
    pub(crate) fn of_stdin() -> Option<Self> {
        stdin().is_terminal().then_some(Self(()))
    }

    /// Whether our own group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
    }

    /// Puts the command's group into the foreground, if we are there ourselves.
    pub(crate) fn give(&self, group: Pid) {
        if self.is_ours() {
            // A terminal that is gone hangs up on both groups; nothing is left to do here.
            let _ = tcsetpgrp(stdin(), group);
        }
    }

    /// Takes the foreground back from the command's group.
    pub(crate) fn take_back(&self, group: Pid) {
        if tcgetpgrp(stdin()).is_ok_and(|foreground| foreground == group) {
            // Whoever changes the foreground from the background is stopped, unless the signal for that is blocked.
            let stops = SigSet::from(Number::SIGTTOU);
            let blocked = stops.thread_block();
            let _ = tcsetpgrp(stdin(), getpgrp());
            if blocked.is_ok() {
                let _ = stops.thread_unblock();
            }
        }
    }
}

/// Stops this process as the command was stopped, and returns when it is continued; at once where no shell could
/// continue it, because its parent is of another session: `false`.
pub(crate) fn stand_still() -> bool {
    let session = |pid| getsid(pid).ok();
    let parent = getppid().and_then(|parent| session(Some(parent)));
    parent.is_some() && parent == session(None) && raise(Number::SIGSTOP).is_ok()
}
