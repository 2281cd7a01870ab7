//! There is no job control: a command shares the console of this program.

/// Nothing: no terminal is given to a command.
#[derive(Debug)]
pub(crate) struct Terminal(());

impl Terminal {
    pub(crate) fn of_stdin() -> Option<Self> {
        None
    }
}

/// Nobody stops a process by a signal.
pub(crate) fn stand_still() -> bool {
    false
}
