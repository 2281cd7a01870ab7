//! The client: what a program uses, and where retrying, ordering, waiting, renewing and recovering live, once, for
//! all stores.
//!
//! The way of a call: [`Acquisition`] → an attempt on a task of its own → one step after the other → the backend; and
//! back as a [`Guard`]. What a guard needs afterwards (renewals, its release) is done by the keeper, the one task of
//! its session.

mod acquisition;
mod attempt;
mod clock;
mod config;
mod contention;
mod deadline;
mod doubts;
mod error;
mod guard;
mod keeper;
mod locks;
mod numbers;
mod owner;
mod pool;
mod recovery;
mod retry;
mod session;
#[cfg(not(lockcore_sim))]
pub(crate) mod sim;
#[cfg(lockcore_sim)]
pub mod sim;
mod step;
mod task;
#[cfg(test)]
mod tests;
mod wait;

pub use acquisition::{Acquisition, Attempt, Documents, Global, Progress, Shared, Tree};
pub use config::LocksBuilder;
pub use error::{Abandoned, AcquireError, InputError, RunError};
pub use guard::{Guard, Held, LostReason, Released};
pub use locks::Locks;
pub use owner::Owner;
pub use recovery::{Recover, RecoverError, Recovery};
