//! There is no job control: a command shares the console of this program.

/// No terminal is given to a command.
pub(crate) fn is_stdin() -> bool {
    false
}

/// Nobody stops a process by a signal.
pub(crate) fn stand_still(_: impl FnOnce()) -> bool {
    false
}
