//! Faults between a client and its store, from a seed, in virtual time.
//!
//! [`Faulty`] stands before a store as one client sees it: over a network that delays, loses, repeats and reorders.
//! [`Observed`] stands behind it, and writes down what the store really executes.

mod faulty;
mod observed;

pub use faulty::{Faulty, Link, Weather};
pub use observed::Observed;
