//! What happened in a run, and whether it kept the laws.
//!
//! A [`History`] is a list of [`Event`]s on one clock: from a simulation, or from real processes of one machine that
//! each write JSON lines. [`check`] looks at it without searching: fencing tokens give the order that a
//! linearizability checker would have to guess, so that everything is sorting and sweeping, O(n log n). What stores are
//! asked and answer is judged by the times of calls and answers alone: a violation is certain whatever the order in which
//! the store executed them. The [`Report`] says how many events each law has judged.

mod border;
mod calls;
mod check;
mod conflicts;
mod event;
mod failovers;
mod guards;
mod index;
mod least;
mod recorder;
mod recoveries;
mod resources;
mod store;
#[cfg(test)]
mod tests;
pub(crate) mod text;

pub use crate::law::Law;
pub use calls::{Call, Ending, Met, Received, Refused, Reply, State};
pub use check::{Report, Subject, Violation, check};
pub use event::{Answer, Change, Event, History, How, Outcome, Stored, What};
pub use recorder::Recorder;
