//! What a console tells this process, as if they were signals. The command is on the same console, and is told as well.

use std::time::Duration;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
};
use tokio::time::sleep;

use crate::failure::{Failure, status};

/// How often it is looked whether the command has ended: nobody tells.
const LOOK: Duration = Duration::from_millis(20);

/// A signal, by the number that it has elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal(i32);

impl Signal {
    pub(crate) const HUP: Self = Self(1);
    pub(crate) const INT: Self = Self(2);
    pub(crate) const QUIT: Self = Self(3);
    pub(crate) const KILL: Self = Self(9);
    pub(crate) const USR1: Self = Self(10);
    pub(crate) const USR2: Self = Self(12);
    pub(crate) const PIPE: Self = Self(13);
    pub(crate) const TERM: Self = Self(15);
    pub(crate) const CHILD: Self = Self(17);
    pub(crate) const CONT: Self = Self(18);
    pub(crate) const TSTP: Self = Self(20);

    pub(crate) fn as_raw(self) -> i32 {
        self.0
    }
}

/// What this process is told, one after the other.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupts: CtrlC,
    breaks: CtrlBreak,
    closes: CtrlClose,
    shuts_down: CtrlShutdown,
    ended_by: Option<Signal>,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            let message = format!("cannot listen to the console: {error}");
            Failure::new(status::UNAVAILABLE, message)
        };
        Ok(Self {
            interrupts: ctrl_c().map_err(failed)?,
            breaks: ctrl_break().map_err(failed)?,
            closes: ctrl_close().map_err(failed)?,
            shuts_down: ctrl_shutdown().map_err(failed)?,
            ended_by: None,
        })
    }

    /// The next signal; every now and then that the command may have ended.
    pub(crate) async fn next(&mut self) -> Signal {
        let next = tokio::select! {
            biased;
            _ = self.interrupts.recv() => Signal::INT,
            _ = self.breaks.recv() => Signal::TERM,
            _ = self.closes.recv() => Signal::TERM,
            _ = self.shuts_down.recv() => Signal::TERM,
            () = sleep(LOOK) => return Signal::CHILD,
        };
        self.ended_by = Some(next);
        next
    }

    /// The last signal so far that was to end this process.
    pub(crate) fn ended_by(&self) -> Option<Signal> {
        self.ended_by
    }

    /// The next signal that ends a process which does nothing about it.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::CHILD {
                return signal;
            }
        }
    }
}
