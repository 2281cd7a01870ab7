//! The public conformance suite of lockkeeper: every law that a [`LockBackend`](lockcore::LockBackend) keeps, as a
//! named case, one code for all stores.
//!
//! A case knows no store by its name; what it expects differs only by what [`Info`](lockcore::Info) says. Cases go
//! through the traits, or through the client, [`Locks`](lockcore::Locks), on top of them, or through several processes
//! of which some are killed.
//!
//! # Running it against your own backend
//!
//! Say how an empty namespace of your store is made ([`World`]) and what can be done with one ([`Space`]), in
//! `tests/conformance.rs` of your backend's package:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! ```
//! use std::{process::ExitCode, sync::Arc, time::Duration};
//!
//! use async_trait::async_trait;
//! use lockcore::{LockBackend, LockKey, MemoryBackend};
//! use lockcore_conformance::{BoxError, Space, World};
//!
//! struct Memory;
//! struct Store(Arc<MemoryBackend>);
//!
//! #[async_trait]
//! impl World for Memory {
//!     fn name(&self) -> String { "memory".to_owned() }
//!     fn paused(&self) -> bool { true } // its time follows tokio's
//!     fn processes(&self) -> bool { false } // and nobody else reaches it
//!     async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> { Ok(Arc::new(Store(MemoryBackend::new()))) }
//!     async fn reopen(&self, _: &str) -> Result<Arc<dyn LockBackend>, BoxError> { Err("nobody else".into()) }
//! }
//!
//! #[async_trait]
//! impl Space for Store {
//!     async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> { Ok(self.0.clone()) }
//!     async fn pass(&self, time: Duration) { self.0.advance(time) } // others sleep
//!     fn allowance(&self) -> Duration { Duration::ZERO }
//!     async fn plant(&self, key: &LockKey) -> Result<(), BoxError> { Ok(self.0.plant(key)) }
//!     fn url(&self) -> Option<String> { None }
//! }
//!
//! // The whole of the test target's `main`:
//! # #[expect(dead_code, reason = "it takes the arguments of a test target")]
//! # mod target { use super::*;
//! fn main() -> ExitCode {
//!     lockcore_conformance::main(Memory)
//! }
//! # }
//! # fn main() {
//! #     let world: Arc<dyn World> = Arc::new(Memory);
//! #     let cases = lockcore_conformance::cases();
//! #     let trees = cases.iter().filter(|case| case.group() == "trees");
//! #     let results: Vec<_> = trees.map(|case| lockcore_conformance::check(case, &world, 1)).collect();
//! #     assert!(results.len() > 10 && results.iter().all(Result::is_ok));
//! # }
//! ```
//!
//! `cargo test --test conformance` then runs trials named `<world>::<group>::<case>`, and takes a filter as any test
//! does. Each has a namespace, a thread and a runtime of its own, and they run at the same time. Cases that need
//! several processes are left out where [`World::processes`] says no, and the run prints which.
//!
//! `LOCKCORE_CONFORMANCE_SET=quick` runs the [quick] set of them only, and says so: for while a backend is written.
//!
//! A case that fails says which law is broken, what was seen and what should have been, and every request and answer
//! in order. What it chose by chance follows from a seed that it prints; `LOCKCORE_CONFORMANCE_SEED` sets it. A seed
//! repeats those choices, and neither the order in which tasks run nor the store's timing. Where time is paused it
//! repeats the whole run, but for processes and threads.
//!
//! Where the store does not answer, the fixture fails, or a limit of time is missed by no more than the machine itself
//! was late, no law is seen broken. The case is then *inconclusive* ([`FailureKind`]). It is run again, as is one in which
//! something came *late*; if three runs of it end so, the run has failed.
//!
//! Several configurations of a store, each with chosen cases, are one [`suite`]; a single case is run by [`check`], or
//! on a space of your own by [`Case::run`].
//!
//! # Real processes under faults
//!
//! The module `processes` (on Unix) runs real processes on a store that others reach, kills, stops and continues them at
//! random, and checks what they saw: a second test target of one line.
//!
//! # What a store has to offer
//!
//! Steps of at least 20 keys, or only the cases of [`Layer::Client`] are for it. Its shortest TTL decides how long the
//! cases on expiry take where time cannot be moved. What stopped counting stays until it is swept: a sweep is judged by
//! how many holders it says that it removed. Whether a dead session is remembered for a day, and not longer, is seen only
//! where the fixture can make its end lie further back ([`Space::age`]); the run prints where it cannot.
//!
//! What no case sees: an entry for a watch that stays in a list of the backend's, or in the store, when the watch was
//! dropped. A task that stays is seen.

#![cfg_attr(
    lockcore_sim,
    allow(
        dead_code,
        unused_imports,
        reason = "what only the cases and the processes use"
    )
)]

// The simulation is clients and the checker. To build the cases, too, would take most of its time.
#[cfg(not(lockcore_sim))]
mod actor;
#[cfg(not(lockcore_sim))]
mod backend;
#[cfg(not(lockcore_sim))]
mod case;
#[cfg(not(lockcore_sim))]
mod child;
#[cfg(not(lockcore_sim))]
mod client;
mod decorator;
#[cfg(not(lockcore_sim))]
mod each;
pub mod faults;
pub mod history;
#[cfg(not(lockcore_sim))]
mod journal;
#[cfg(not(lockcore_sim))]
mod lateness;
mod law;
#[cfg(not(lockcore_sim))]
mod model;
#[cfg(any(unix, feature = "servers"))]
#[cfg_attr(
    not(feature = "servers"),
    expect(unreachable_pub, reason = "it is shown with the servers")
)]
mod ports;
#[cfg(all(unix, not(lockcore_sim)))]
pub mod processes;
#[cfg(any(unix, lockcore_sim))]
mod programs;
#[cfg(not(lockcore_sim))]
mod quick;
#[cfg(not(lockcore_sim))]
mod recorded;
#[cfg(not(lockcore_sim))]
mod run;
#[cfg(not(lockcore_sim))]
mod scene;
#[cfg(feature = "servers")]
pub mod servers;
#[cfg(lockcore_sim)]
pub mod simulation;
#[cfg(not(lockcore_sim))]
mod verdict;
#[cfg(not(lockcore_sim))]
mod wire;
#[cfg(not(lockcore_sim))]
mod world;

#[cfg(not(lockcore_sim))]
pub use case::{Case, Failure, FailureKind, Layer};
pub use decorator::{Decorated, Decorator};
pub use law::Law;
#[cfg(not(lockcore_sim))]
pub use run::{check, main, suite};
#[cfg(not(lockcore_sim))]
pub use world::{BoxError, Space, World};

/// A few cases, for while a backend is written: they find nearly every mistake that the kit is tried on, in less than a
/// minute on a store behind a network. A backend passes when it passes [all](cases).
///
/// ```
/// use lockcore_conformance::{cases, quick};
///
/// assert!(quick().len() * 8 < cases().len());
/// ```
#[cfg(not(lockcore_sim))]
#[must_use]
pub fn quick() -> Vec<Case> {
    let mut cases = cases();
    cases.retain(quick::has);
    cases
}

/// Every case.
///
/// ```
/// use lockcore_conformance::{Law, cases};
///
/// let cases = cases();
/// assert!(cases.len() > 100);
/// assert!(cases.iter().any(|case| case.law() == Law::GarbageIsHeld));
/// ```
#[cfg(not(lockcore_sim))]
#[must_use]
pub fn cases() -> Vec<Case> {
    [backend::cases(), client::cases()].concat()
}
