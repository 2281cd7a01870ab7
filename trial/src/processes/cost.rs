//! What it costs to write down every request and every answer: the store's rate of pairs with and without.

use std::sync::Arc;
use std::time::Duration;

use lockcore::{Attempt, LockBackend, Locks, Released};
use tokio::runtime::Builder;
use tokio::time::Instant;

use super::log::Log;
use crate::programs::Watched;
use lockcore_conformance::parts::Shared;
use lockcore_conformance::{BoxError, Fixture};

/// Rounds, an odd number.
const ROUNDS: usize = 11;
/// Slices of each kind in a round, which take turns.
const SLICES: usize = 7;
/// How long each slice lasts.
const SLICE: Duration = Duration::from_millis(100);

/// Prints what came of it.
pub(super) fn measured(fixture: &dyn Fixture) -> Result<(), BoxError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let space = fixture.fresh().await?;
        let dir = Shared::new().map_err(|unpassed| unpassed.to_string())?;
        let store = space.connect().await?;
        let log = Log::create(dir.path(), 1)?;
        let watched: Arc<dyn LockBackend> = Arc::new(Watched::new(Arc::clone(&store), log));
        let plain = Locks::builder(store).build()?;
        let written = Locks::builder(watched).build()?;
        pairs(&plain).await?;
        pairs(&written).await?;
        let mut rates = Vec::new();
        for round in 0..ROUNDS {
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for slice in 0..2 * SLICES {
                match (round + slice) % 2 {
                    0 => without.push(pairs(&plain).await?),
                    _ => with.push(pairs(&written).await?),
                }
            }
            let (without, with) = (median(without), median(with));
            println!("{without:8.0} pairs a second, {with:8.0} written down");
            rates.push(with / without);
        }
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let median = median(rates);
        println!("median ratio {median:.3} ({least:.3} to {most:.3})");
        for locks in [plain, written] {
            locks.shutdown(super::BOUND).await;
        }
        Ok(())
    })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Acquires and releases one lock after the other, for a slice; how many pairs a second.
async fn pairs(locks: &Locks) -> Result<f64, BoxError> {
    let (begin, mut pairs) = (Instant::now(), 0_u32);
    while begin.elapsed() < SLICE {
        let Attempt::Acquired(guard) = locks.lock("cost").try_acquire().await? else {
            return Err("somebody else holds it".into());
        };
        if guard.release().await? == Released::NotHeld {
            return Err("the session was lost".into());
        }
        pairs += 1;
    }
    Ok(f64::from(pairs) / begin.elapsed().as_secs_f64())
}
