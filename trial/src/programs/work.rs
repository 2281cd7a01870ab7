//! What a program does while it holds something.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockcore::{KeptState, LockKey, Released, Want};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use tokio::time::{sleep, timeout};

use super::program::{Got, Request, ask};
use super::{Access, PATHS, Place, User, nanos, up_to, validity};
use crate::history::{How, What};

/// Works, looks at the guard now and then, and gives it back.
pub(super) async fn hold<P: Place>(
    place: &P,
    user: &User,
    rng: &mut Xoshiro256PlusPlus,
    got: Got,
    may_reenter: bool,
) {
    // Some do not look before they write, and go on although the guard is lost.
    let reckless = rng.random_bool(0.2);
    // Some hold it for longer than a session lives without a renewal.
    let (rounds, nap) = match rng.random_bool(0.15) {
        true => (rng.random_range(4..20), place.ttl() / 3),
        false => (rng.random_range(0..4), Duration::from_millis(200)),
    };
    let mut inside = None;
    for _ in 0..rounds {
        match rng.random_range(0..10) {
            0 if may_reenter && got.claims[0].want().reenters() && inside.is_none() => {
                inside = ask(place, user, Request::inside(rng, &got)).await;
            }
            1 => confirm(place, &got).await,
            2..=4 => change(place, rng, &got, reckless).await,
            _ => sleep(up_to(rng, nap)).await,
        }
        let valid = look(place, &got);
        if let Some(inside) = &inside {
            look(place, inside);
        }
        if !valid && !reckless {
            break;
        }
    }
    match inside {
        None if got.own_session && rng.random() => keep(place, user, rng, got).await,
        None => give_back(place, rng, got).await,
        // The inner one may go first, or last.
        Some(inside) if rng.random() => {
            give_back(place, rng, inside).await;
            give_back(place, rng, got).await;
        }
        Some(inside) => {
            give_back(place, rng, got).await;
            look(place, &inside);
            rest(place, user, rng, inside).await;
        }
    }
}

/// Changes what it protects, as often as not without a look before the write, and gives it back.
pub(crate) async fn use_up(place: &impl Place, rng: &mut Xoshiro256PlusPlus, got: Got) {
    for _ in 0..rng.random_range(1..4) {
        let reckless = rng.random();
        change(place, rng, &got, reckless).await;
    }
    give_back(place, rng, got).await;
}

/// Asks the store whether it is still held, as often as not after a while, and gives it back.
pub(crate) async fn confirm_and_give_back(
    place: &impl Place,
    rng: &mut Xoshiro256PlusPlus,
    got: Got,
) {
    if rng.random() {
        sleep(up_to(rng, Duration::from_millis(20))).await;
        confirm(place, &got).await;
    }
    give_back(place, rng, got).await;
}

/// What is left when the outer one is gone.
fn rest<'a, P: Place>(
    place: &'a P,
    user: &'a User,
    rng: &'a mut Xoshiro256PlusPlus,
    inside: Got,
) -> BoxFuture<'a, ()> {
    hold(place, user, rng, inside, false).boxed()
}

/// What the guard says now.
fn look(place: &impl Place, got: &Got) -> bool {
    let at = place.now();
    let (attempt, left) = (got.attempt, place.left(&got.guard));
    place.record_at(at, What::Looked { attempt, left });
    left > 0
}

/// What the store says.
async fn confirm(place: &impl Place, got: &Got) {
    if let Ok(held) = got.guard.confirm().await {
        let attempt = got.attempt;
        place.record(What::Confirmed { attempt, held });
    }
}

/// Leaves it held without a process, for up to two TTLs. Sometimes it is renewed or released by its handle.
async fn keep(place: &impl Place, user: &User, rng: &mut Xoshiro256PlusPlus, got: Got) {
    let least = user.locks.info().min_ttl;
    let mut time = up_to(rng, place.ttl() * 2).max(least);
    let (attempt, how) = (got.attempt, How::Kept);
    let mut sent = place.now();
    place.record_at(sent, What::GivingBack { attempt, how });
    let Ok(kept) = got.guard.keep_for(time).await else {
        return;
    };
    loop {
        // The store's clock may run faster than this, as for a guard.
        let validity = nanos(validity(time));
        let left = (sent + validity).saturating_sub(place.now());
        if left > 0 {
            place.record(What::Kept {
                attempt,
                left,
                validity,
            });
        }
        sleep(up_to(rng, time * 2)).await;
        let how = match rng.random_range(0..4) {
            0 => How::Dropped,
            1 => How::Kept,
            _ => return,
        };
        sent = place.now();
        place.record_at(sent, What::GivingBack { attempt, how });
        if how == How::Dropped {
            drop(user.locks.release_kept(&kept).await);
            return;
        }
        time = up_to(rng, place.ttl() * 2).max(least);
        if !matches!(
            user.locks.renew_kept(&kept, time).await,
            Ok(KeptState::Held)
        ) {
            return;
        }
    }
}

async fn give_back(place: &impl Place, rng: &mut Xoshiro256PlusPlus, got: Got) {
    if rng.random_bool(0.2) {
        confirm(place, &got).await;
    }
    look(place, &got);
    let attempt = got.attempt;
    let how = match rng.random_bool(0.7) {
        true => How::Released,
        false => How::Dropped,
    };
    place.record(What::GivingBack { attempt, how });
    match how {
        How::Dropped => drop(got.guard),
        How::Released if rng.random_bool(0.2) => {
            // Nobody waits for the answer.
            let limit = up_to(rng, Duration::from_millis(50));
            if let Ok(released) = timeout(limit, got.guard.release()).await {
                gave_back(place, attempt, released);
            }
        }
        How::Released => gave_back(place, attempt, got.guard.release().await),
        How::Kept => {}
    }
}

/// What the release has said, if it was answered.
fn gave_back(place: &impl Place, attempt: u64, released: lockcore::Result<Released>) {
    let held = match released {
        Ok(Released::Released) => Some(true),
        Ok(Released::NotHeld) => Some(false),
        Ok(_) => None,
        Err(_) => return,
    };
    place.record(What::GaveBack { attempt, held });
}

/// Reads a resource that the guard protects, and writes one more.
async fn change(place: &impl Place, rng: &mut Xoshiro256PlusPlus, got: &Got, reckless: bool) {
    // What one owner holds twice, two of its programs may change at the same time.
    let Some(resource) = protected(rng, got).filter(|_| got.alone) else {
        return;
    };
    let access = Access {
        resource,
        fenced: rng.random(),
        attempt: got.attempt,
        token: got.guard.token(),
    };
    sleep(up_to(rng, Duration::from_millis(20))).await;
    let Some(read) = place.read(&access).await else {
        return;
    };
    let thinks = if rng.random_bool(0.2) { 300 } else { 20 };
    sleep(up_to(rng, Duration::from_millis(thinks))).await;
    if !reckless && !look(place, got) {
        return;
    }
    let slow = if rng.random_bool(0.1) { 3_000 } else { 20 };
    let delay = up_to(rng, Duration::from_millis(slow));
    place.write(access, read, delay).await;
}

/// Something that the guard holds exclusively.
fn protected(rng: &mut Xoshiro256PlusPlus, got: &Got) -> Option<LockKey> {
    let held = got.guard.claims();
    let exclusive: Vec<_> = held
        .iter()
        .filter(|claim| matches!(claim.want(), Want::Create | Want::Upsert | Want::Write))
        .collect();
    let claim = exclusive.choose(rng)?;
    if claim.want() != Want::Write || rng.random() {
        return Some(claim.key().clone());
    }
    let below: Vec<LockKey> = PATHS
        .iter()
        .map(|path| LockKey::parse(path).expect("a path"))
        .filter(|path| path == claim.key() || claim.key().is_above(path))
        .collect();
    below.choose(rng).cloned()
}
