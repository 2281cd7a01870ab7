//! Workloads for a store of locks, the same for every store.
//!
//! A [`Workload`] says what is done; [`run`](Workload::run) does it through the whole client and says what it took.
//! Other libraries' locks take the same [`turns`].

mod documents;
mod measured;
mod ours;
pub mod processes;
pub mod turns;
mod workload;
mod writer;

pub use documents::id;
pub use measured::{ABORT, ACQUIRE, HAND_OVER, Measured, PAIR, REFUSED, RELEASE, SWEPT, WAIT};
pub use ours::{Kind, Ours};
pub use turns::{Failure, Granted, Hold, Lock, Turn};
pub use workload::Workload;
pub use writer::{NEVER_WITHIN, READ_FOR};
