//! Lock stores under faults: real processes that are killed, stopped and continued, a network and requests that go wrong, a
//! seeded simulation, and one checker that judges all of their histories by every law.
//!
//! The store's tests are [`lockcore-conformance`](lockcore_conformance)'s cases first. The [`processes`] take the
//! same [`Fixture`](lockcore_conformance::Fixture), as a second test target of one line.
//!
//! - [`processes`] (on Unix) runs real processes on a store that other processes reach.
//! - [`faults`] has the proxy, and the link to a store that loses, delays and repeats requests.
//! - [`history`] is what happened, as events, and [`check`](history::check) says which laws it breaks.

#![cfg_attr(
    lockcore_sim,
    allow(dead_code, unused_imports, reason = "what only the processes use")
)]

pub mod faults;
pub mod history;
mod ports;
#[cfg(all(unix, not(lockcore_sim)))]
pub mod processes;
#[cfg(any(unix, lockcore_sim))]
mod programs;
#[cfg(lockcore_sim)]
pub mod simulation;

pub use ports::Port;
