//! The public conformance suite of lockkeeper: every law of a [`LockBackend`](lockcore::LockBackend) as a named case,
//! with the same code for all stores.
//!
//! A case knows no store by name. Its expectations depend only on [`Info`](lockcore::Info). Cases use the traits, or
//! the client, [`Locks`](lockcore::Locks), on top of them, or several processes, some of which are killed.
//!
//! # Running it against your own backend
//!
//! Write a fixture in `tests/conformance.rs` of your backend's package: how to create an empty namespace of your store
//! ([`Fixture`]), and what can be done with one ([`Space`]).
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
//! use lockcore_conformance::{BoxError, Feature, Fixture, Space};
//!
//! struct Memory;
//! struct Store(Arc<MemoryBackend>);
//!
//! #[async_trait]
//! impl Fixture for Memory {
//!     fn name(&self) -> String { "memory".to_owned() }
//!     fn paused(&self) -> bool { true } // its time follows tokio's
//!     fn lacks(&self) -> Vec<Feature> {
//!         // Nobody else reaches it, and it has neither of the next two. The others this fixture could have.
//!         vec![
//!             Feature::Processes, Feature::TurnWatch, Feature::Incarnation,
//!             Feature::Aging, Feature::Restart, Feature::Recreation,
//!         ]
//!     }
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
//! #     let fixture: Arc<dyn Fixture> = Arc::new(Memory);
//! #     let cases = lockcore_conformance::cases();
//! #     let trees = cases.iter().filter(|case| case.group() == "trees");
//! #     let results: Vec<_> = trees.map(|case| lockcore_conformance::check(case, &fixture, 1)).collect();
//! #     assert!(results.len() > 10 && results.iter().all(Result::is_ok));
//! # }
//! ```
//!
//! `cargo test --test conformance` then runs trials named `<fixture>::<group>::<case>`. It accepts a filter, as any test
//! does. Each trial has a namespace, a thread and a runtime of its own; the trials run concurrently. A case that needs a
//! [`Feature`] is ignored where [`Fixture::lacks`] names it, and fails where it is missing and not named.
//!
//! `LOCKCORE_CONFORMANCE_SET=quick` runs only the [quick] set and says so. Use it while you write a backend.
//!
//! A case that fails reports the broken law, what was seen, what should have been seen, and every request and answer in
//! order. Its random choices follow from a seed that it prints; `LOCKCORE_CONFORMANCE_SEED` sets the seed. A seed
//! repeats these choices, but not the order in which tasks run, nor the store's timing. With paused time it repeats the
//! whole run, except for processes and threads.
//!
//! A case shows no broken law if the store does not answer, if the fixture fails, or if a time limit is missed by no
//! more than the machine itself was late. The case is then *inconclusive* ([`FailureKind`]) and runs again. So does a
//! case in which something came *late*. If three runs of a case end this way, the whole run has failed.
//!
//! Several configurations of a store, each with chosen cases, are one [`suite`]. [`check`] runs a single case, and
//! [`Case::run`] runs one on a space of your own.
//!
//! # Real processes under faults
//!
//! [`lockcore-trial`](https://docs.rs/lockcore-trial) runs real processes on a store that other processes reach, for the same
//! fixture. It kills, stops and continues them at random, and checks what they saw.
//!
//! # Requirements on a store
//!
//! The store takes batches of at least 20 keys; otherwise only the cases of [`Layer::Client`] apply to it. Its shortest
//! TTL determines how long the cases on expiry take if time cannot be moved. A holder that is no longer live stays
//! until it is swept: a sweep is judged by the number of holders that it reports as removed. Whether a dead session is
//! remembered for a day, and not longer, is tested only if the fixture can move its end into the past ([`Space::age`]).
//!
//! No case sees an entry for a watch that remains in a list of the backend, or in the store, after the watch was
//! dropped. A remaining task is seen.

// The simulation needs no cases, and to build them would take most of its time.
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
#[cfg(not(lockcore_sim))]
mod fixture;
#[cfg(not(lockcore_sim))]
mod journal;
#[cfg(not(lockcore_sim))]
mod lateness;
mod law;
#[cfg(not(lockcore_sim))]
mod model;
#[cfg(not(lockcore_sim))]
mod quick;
#[cfg(not(lockcore_sim))]
mod recorded;
mod request;
#[cfg(not(lockcore_sim))]
mod run;
#[cfg(not(lockcore_sim))]
mod scene;
#[cfg(not(lockcore_sim))]
mod verdict;
#[cfg(not(lockcore_sim))]
mod wire;

#[cfg(not(lockcore_sim))]
pub use case::{Case, Failure, FailureKind, Layer};
pub use decorator::{Decorated, Decorator};
#[cfg(not(lockcore_sim))]
pub use fixture::{BoxError, Feature, Fixture, Space};
pub use law::Law;
pub use request::{Answer, Request};
#[cfg(not(lockcore_sim))]
pub use run::{check, main, suite};

/// What `lockcore-trial` shares with the cases. It may change with any version.
#[cfg(not(lockcore_sim))]
#[doc(hidden)]
pub mod parts {
    pub use crate::child::{Process, Shared, Task, main};
    pub use crate::verdict::Unpassed::{self, Wrong};
    pub use crate::verdict::Verdict;
}

/// A few cases, for use while a backend is written. They find nearly every mistake that the kit is tried on, in less
/// than a minute on a store behind a network. A backend passes only when it passes [all](cases).
///
/// ```
/// use lockcore_conformance::{cases, quick};
///
/// assert!(quick().len() * 7 < cases().len());
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
