//! What happened in a run, and whether it kept the laws.
//!
//! A [`History`] is a list of [`Event`]s on one clock: from a simulation, or from real processes of one machine, each
//! of which writes JSON lines. [`check`] needs no search: fencing tokens give the order that a linearizability checker
//! would have to guess, so everything is sorting and sweeping, O(n log n). Requests to stores and their answers are
//! judged only by the times of calls and answers: a violation is certain, in whatever order the store executed them.
//! The [`Report`] says how many events each law has judged.

mod border;
mod calls;
mod check;
mod conflicts;
mod event;
mod failovers;
mod guards;
mod index;
mod least;
mod losses;
mod recorder;
mod recoveries;
mod resources;
mod store;
#[cfg(test)]
mod tests;
pub(crate) mod text;

pub use calls::{Call, Ending, Met, Received, Refused, Reply, State};
pub use check::{RARE, Report, Subject, Violation, check, check_but};
pub use event::{Answer, Change, Event, History, How, Outcome, Stored, What};
pub use lockcore_conformance::Law;
pub use losses::{Excused, SHOWS};
pub use recorder::Recorder;
