//! After the last fault: whatever is abandoned is settled, nothing is left behind, and every key can be had.

use std::collections::BTreeMap;
use std::time::Duration;

use lockcore::backend::{Filter, Sweep};
use lockcore::{Claim, LockBackend, LockKey, Want};
use rand::rngs::Xoshiro256PlusPlus;
use tokio::time::sleep;

use super::program::{Request, answered};
use super::{FLAT, PATHS, Place, User, recovery};
use crate::history::{History, How, Outcome, What};

/// So many sessions in a row may be lost while one key is asked for.
const MOST_LOST: u32 = 5;
/// So often the store is asked for what is held, a second apart.
const LISTED: u32 = 30;

/// The attempts without an answer, and whose they are.
pub(crate) fn unanswered(history: &History) -> BTreeMap<u64, u32> {
    let mut open: BTreeMap<u64, u32> = BTreeMap::new();
    for event in &history.events {
        match &event.what {
            What::Asked { attempt, .. } => drop(open.insert(*attempt, event.process)),
            What::Granted { attempt, .. } | What::Refused { attempt, .. } => {
                open.remove(attempt);
            }
            What::Killed => open.retain(|_, process| *process != event.process),
            _ => {}
        }
    }
    open
}

/// Settles whatever is abandoned.
pub(crate) async fn recover_all(place: &impl Place, prober: &User, rng: &mut Xoshiro256PlusPlus) {
    for _ in 0..200 {
        drop(prober.locks.backend().sweep(Sweep::All, 10_000).await);
        if !recovery::by_hand(place, prober, rng, true).await {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Nobody has a guard any more, so nobody holds anything.
///
/// # Errors
///
/// The store does not say who holds what.
pub(crate) async fn left(place: &impl Place, store: &dyn LockBackend) -> lockcore::Result<()> {
    let all = Filter::Prefix(String::new());
    let mut tries = 0;
    let page = loop {
        match store.records(&all, None, 1_000).await {
            Ok(page) => break page,
            Err(error) if tries == LISTED => return Err(error),
            Err(_) => {}
        }
        tries += 1;
        sleep(Duration::from_secs(1)).await;
    };
    for record in page.items {
        for grant in record.holders.iter().filter_map(|holder| holder.grant) {
            let key = record.key.clone();
            place.record(What::Left { key, grant });
        }
    }
    Ok(())
}

/// Every key can be had, by somebody who waits for as long as this. Who loses a short session on a slow machine asks
/// again: that says nothing about the key.
pub(crate) async fn probe(place: &impl Place, prober: &User, wait: Duration) {
    for text in FLAT.into_iter().chain(PATHS) {
        let key = LockKey::parse(text).expect("a key");
        let want = if key.is_path() {
            Want::Write
        } else {
            Want::Create
        };
        let claim = Claim::new(key.clone(), want).expect("the want fits the key");
        let mut got = Err(Outcome::Lost);
        for _ in 0..MOST_LOST {
            got = answered(place, prober, Request::probe(claim.clone(), wait)).await;
            if !matches!(got, Err(Outcome::Lost)) {
                break;
            }
        }
        let Ok(got) = got else {
            place.record(What::NotToBeHad { key });
            continue;
        };
        let (attempt, how) = (got.attempt, How::Released);
        place.record(What::GivingBack { attempt, how });
        drop(got.guard.release().await);
    }
}
