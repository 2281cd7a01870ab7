//! Those who wait for one lock after the other, so that somebody of the process waits for most of them, or shares them.

use std::time::Duration;

use lockcore::{Claim, LockKey, Want};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use tokio::time::sleep;

use super::{Place, Request, User, ask, confirm_and_give_back, up_to, use_up};

/// Waits for one of the locks after the other, for as long as it takes, until the place is stopped. Half of those who want the
/// last one share it.
pub(crate) async fn relay<P: Place>(
    place: &P,
    user: &User,
    keys: &[&str],
    mut rng: Xoshiro256PlusPlus,
) {
    while !place.is_stopped() {
        sleep(up_to(&mut rng, Duration::from_millis(50))).await;
        let at = rng.random_range(0..keys.len());
        let want = match at + 1 == keys.len() && rng.random() {
            true => Want::Share { limit: None },
            false => Want::Create,
        };
        let request = Request::waiting(vec![flat(keys[at], want)], false);
        if let Some(got) = ask(place, user, request).await {
            // Half of them hand it on at once, so that those who wait are woken often.
            match rng.random() {
                true => confirm_and_give_back(place, &mut rng, got).await,
                false => use_up(place, &mut rng, got).await,
            }
        }
    }
}

/// A claim of a flat key.
pub(crate) fn flat(key: &str, want: Want) -> Claim {
    let key = LockKey::parse(key).expect("a flat key");
    Claim::new(key, want).expect("a flat claim")
}
