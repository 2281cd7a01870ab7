use crate::world::World;
use std::process::ExitCode;
pub(crate) fn main<'a>(_worlds: impl Iterator<Item = &'a dyn World>) -> Option<ExitCode> {
    None
}
