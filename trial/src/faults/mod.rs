//! Faults between a client and its store, from a seed.
//!
//! [`Faulty`] stands before a store as one client sees it over a network that delays, loses, repeats and reorders, in
//! virtual time or on a real store. [`Observed`] stands behind it, and records what the store really executes.
//!
//! `Proxy` stands before a server: it cuts, holds, slows or resets what one client sends and receives. `Between` stands
//! between the servers of a cluster, and cuts one off from the others. [`Fault`] is the table of all faults of a trial.

mod fault;
mod faulty;
mod observed;
#[cfg(unix)]
mod proxy;
mod route;

pub use fault::{Fault, NetworkFault, ProcessFault, RequestFault, ServerFault};
pub use faulty::{Faulty, Link, Weather};
pub use observed::Observed;
#[cfg(unix)]
pub use proxy::{Between, Proxies, Proxy};
pub use route::rerouted;
