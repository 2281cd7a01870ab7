//! The public conformance suite.

mod actor;
mod backend;
mod case;
mod child;
mod client;
mod journal;
mod model;
mod recorded;
mod run;
mod scene;
mod verdict;
mod wire;
mod world;

pub use case::{Case, Failure, Law, Layer};
pub use run::{check, main, suite};
pub use world::{BoxError, Space, World};

/// Every case, in the order in which they build on each other.
#[must_use]
pub fn cases() -> Vec<Case> {
    [backend::cases(), client::cases()].concat()
}
