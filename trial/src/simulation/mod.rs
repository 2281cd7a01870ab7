//! Whole runs of many clients over the memory store, each from one number.
//!
//! A run takes place in virtual time on one thread. Its seed decides everything: the [`Plan`], the actions of each
//! program, the network faults of each request, who is paused, killed or revoked when, and when the store forgets. The
//! same seed is the same run, event for event. Everything that happens goes into a [`History`], which is then
//! [checked](crate::history::check).
//!
//! Only in a build with `--cfg lockcore_sim`: clients are paused and killed through [`lockcore::sim`]. `cargo xtask
//! simulate` builds it. It also builds a copy in which clients can break their [`rules`], to see that each breach is
//! found.
//!
//! ```text
//! cargo xtask simulate --seeds 0..1000
//! cargo xtask simulate --seed 7
//! cargo xtask simulate --broken
//! ```

mod broken;
mod client;
mod ending;
mod fixture;
mod nemesis;
mod place;
mod plan;
mod resource;

use std::sync::Arc;

pub use broken::{Found, Needed, Rule, find, find_again, rules, run_broken};
pub use plan::{Failovers, Plan};

use crate::history::{History, Report, check};
use client::Client;
use fixture::Fixture;

/// The result of one seed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// The plan that the seed decided.
    pub plan: Plan,
    /// Everything that happened.
    pub history: History,
    /// The violations in it.
    pub report: Report,
}

/// Runs the seed, and checks what happened.
///
/// # Panics
///
/// Panics if no runtime can be created.
#[must_use]
pub fn run(seed: u64) -> Run {
    let plan = Plan::of(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    let history = runtime.block_on(simulate(plan.clone()));
    let report = check(&history);
    Run {
        plan,
        history,
        report,
    }
}

async fn simulate(plan: Plan) -> History {
    let fixture = Arc::new(Fixture::new(plan));
    for slot in 0..fixture.plan.clients {
        Client::start(&fixture, slot);
    }
    nemesis::rage(&fixture).await;
    ending::end(&fixture).await;
    fixture.recorder.take()
}
