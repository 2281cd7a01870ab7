//! The client: what a program uses, and where retrying, ordering, waiting, renewing and recovering live, once, for
//! all stores.
//!
//! The way of a call: [`Acquisition`] → an attempt → one step after the other → the backend; and
//! back as a [`Guard`]. What a guard needs afterwards (renewals, its release) is done by the keeper, the one task of
//! its session.
//!
//! Its files import each other in one direction, from `acquisition` down to `core`, which all of a client shares.

mod acquisition;
mod adopting;
mod attempt;
mod breaker;
mod chain;
mod clock;
mod config;
mod contention;
mod core;
mod deadline;
mod doubts;
mod error;
mod guard;
mod keeper;
mod locks;
mod lost;
mod news;
mod numbers;
mod order;
mod owner;
mod pool;
mod queue;
mod recovery;
mod retry;
mod session;
#[cfg(lockcore_sim)]
pub mod sim;
mod step;
mod task;
#[cfg(test)]
mod tests;
mod wait;

pub use acquisition::{Acquisition, Attempt, Flat, RwLock, Tree};
pub use attempt::Progress;
pub use config::LocksBuilder;
pub use error::{Abandoned, AcquireError, InputError, RecoverError, RunError};
pub use guard::{Guard, Held};
pub use locks::Locks;
pub use lost::LostReason;
pub use order::Released;
pub use owner::Owner;
pub use recovery::{Recover, Recovery};
