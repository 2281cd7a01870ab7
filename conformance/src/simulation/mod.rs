//! Whole runs of many clients over the memory store, from one number each.
//!
//! A run takes place in virtual time on one thread. Its seed decides everything: the [`Plan`], what each program does,
//! what the network does to each request, and who is paused, killed or revoked when. The same seed is the same run,
//! event for event. Everything that happens goes into a [`History`], which is then [checked](crate::history::check).
//!
//! In a build with `--cfg lockcore_sim` only: clients are paused and killed through [`lockcore::sim`], which also lets
//! them break one of their rules, so that it can be seen that the breach is found.
//!
//! ```text
//! export RUSTFLAGS="--cfg lockcore_sim" CARGO_TARGET_DIR=target/sim
//! cargo test -p lockcore-conformance --test simulation
//! cargo run --release -p lockcore-conformance --example simulate -- --seeds 0..1000
//! cargo run --release -p lockcore-conformance --example simulate -- --broken
//! cargo run --release -p lockcore-conformance --example simulate -- --seed 7
//! ```

mod broken;
mod client;
mod ending;
mod nemesis;
mod place;
mod plan;
mod resource;
mod world;

use std::sync::Arc;

pub use broken::{Found, find, seeds_for};
pub use plan::Plan;

use crate::history::{History, Report, check};
use client::Client;
use world::World;

/// What came of one seed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run {
    /// What the seed decided first.
    pub plan: Plan,
    /// Everything that happened.
    pub history: History,
    /// What is wrong with it.
    pub report: Report,
}

/// Runs the seed, and checks what happened.
///
/// # Panics
///
/// Panics if no runtime can be made.
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
    let world = Arc::new(World::new(plan));
    for slot in 0..world.plan.clients {
        Client::start(&world, slot);
    }
    nemesis::rage(&world).await;
    ending::end(&world).await;
    world.recorder.take()
}
