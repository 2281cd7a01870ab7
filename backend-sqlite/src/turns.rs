//! Turns between processes: who looks every few milliseconds would never get a key from who takes it back at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockcore::{Claim, LockKey};

/// Long enough for a waiter of another process to look and to ask.
const PAUSE: Duration = Duration::from_millis(5);

/// Keys that this process has just released and that another one waits for.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<LockKey, Instant>>>);

impl Turns {
    /// Leaves these keys to the others for a moment.
    pub(crate) fn leave(&self, keys: Vec<LockKey>) {
        if keys.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut left = self.lock();
        left.retain(|_, until| *until > now);
        left.extend(keys.into_iter().map(|key| (key, now + PAUSE)));
    }

    /// Waits until none of the claims is left to others. Dropping it changes nothing.
    pub(crate) async fn wait(&self, claims: &[Claim]) {
        let until = self.until(claims);
        if let Some(until) = until {
            tokio::time::sleep_until(until.into()).await;
        }
    }

    fn until(&self, claims: &[Claim]) -> Option<Instant> {
        let left = self.lock();
        if left.is_empty() {
            return None;
        }
        let until = claims.iter().filter_map(|claim| left.get(claim.key()));
        until.max().copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use lockcore::Want;

    use super::*;

    #[tokio::test]
    async fn only_keys_that_were_left_make_a_pause() {
        let key = |text| LockKey::parse(text).unwrap();
        let claims = |text| vec![Claim::new(key(text), Want::Upsert).unwrap()];
        let turns = Turns::default();
        turns.leave(vec![key("a")]);
        let began = Instant::now();
        turns.wait(&claims("b")).await;
        assert!(began.elapsed() < PAUSE);
        turns.wait(&claims("a")).await;
        assert!(began.elapsed() >= PAUSE);
        assert_eq!(
            turns.until(&claims("a")).filter(|at| *at > Instant::now()),
            None
        );
    }
}
