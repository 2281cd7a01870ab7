//! The client: the interface of a program. It retries, orders, waits, renews and recovers, once for all stores.
//!
//! The path of a call: [`Acquisition`] → an attempt → one batch after the other → the backend; and back as a [`Guard`].
//! The keeper, the one task of the guard's session, does the rest: renewals and the release.
//!
//! Files import each other in one direction only, from `acquisition` down to `core`, the part that a whole client
//! shares.

mod acquisition;
mod adopting;
mod attempt;
mod batch;
mod breaker;
mod chain;
mod clock;
mod config;
mod core;
mod deadline;
mod deadlock;
mod doubts;
mod election;
mod error;
mod guard;
mod keeper;
mod kept;
mod line;
mod locks;
mod lost;
mod news;
mod numbers;
mod order;
mod owner;
mod pool;
mod queue;
mod recovery;
#[cfg(any(feature = "tracing", feature = "metrics"))]
mod requests;
mod retry;
mod schedule;
mod session;
#[cfg(lockcore_sim)]
pub mod sim;
mod sweeping;
mod sweeps;
mod task;
mod telemetry;
#[cfg(test)]
mod tests;
mod thread;
mod wait;

pub use acquisition::{Acquisition, Attempt, Flat, RwLock, Tree};
pub use attempt::Progress;
pub use config::{Late, LocksBuilder};
pub use election::{Election, Leader, Leadership};
pub use error::{Abandoned, AcquireError, InputError, RecoverError, RunError};
pub use guard::{Guard, Held};
pub use kept::{HandleError, KeepError, Kept, KeptState};
pub use locks::Locks;
pub use lost::LostReason;
pub use order::Released;
pub use owner::Owner;
pub use recovery::{Recover, Recovery};
pub use schedule::{Schedule, Turn};
pub use thread::OwnThread;
