//! The public conformance suite for backends of the lockkeeper lock library.

pub mod faults;
pub mod history;
#[cfg(lockcore_sim)]
pub mod simulation;
