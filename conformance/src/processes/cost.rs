//! What it costs to write down every request and every answer: the store's rate of pairs with and without.

use std::sync::Arc;
use std::time::Duration;

use lockcore::{Attempt, LockBackend, Locks, Released};
use tokio::runtime::Builder;
use tokio::time::Instant;

use super::log::Log;
use crate::child::Shared;
use crate::programs::Watched;
use crate::world::{BoxError, World};

/// Rounds, an odd number. Each is one slice with and one without, which take turns to be first.
const ROUNDS: usize = 11;
/// How long each slice lasts.
const SLICE: Duration = Duration::from_millis(700);

/// Prints what came of it.
pub(super) fn measured(world: &dyn World) -> Result<(), BoxError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let space = world.fresh().await?;
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
            let (mut without, mut with) = (0.0, 0.0);
            for slice in 0..2 {
                match (round + slice) % 2 {
                    0 => without = pairs(&plain).await?,
                    _ => with = pairs(&written).await?,
                }
            }
            println!("{without:8.0} pairs a second, {with:8.0} written down");
            rates.push(with / without);
        }
        rates.sort_by(f64::total_cmp);
        let (least, median, most) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
        println!("median ratio {median:.3} ({least:.3} to {most:.3})");
        for locks in [plain, written] {
            locks.shutdown(super::BOUND).await;
        }
        Ok(())
    })
}

/// Acquires and releases one lock after the other, for a slice; how many pairs a second.
async fn pairs(locks: &Locks) -> Result<f64, BoxError> {
    let (begin, mut pairs) = (Instant::now(), 0_u32);
    while begin.elapsed() < SLICE {
        let Attempt::Acquired(guard) = locks.global("cost").try_acquire().await? else {
            return Err("somebody else holds it".into());
        };
        if guard.release().await? == Released::NotHeld {
            return Err("the session was lost".into());
        }
        pairs += 1;
    }
    Ok(f64::from(pairs) / begin.elapsed().as_secs_f64())
}
