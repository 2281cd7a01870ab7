//! What a program does: it asks for one thing after the other, in every way there is.

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockcore::{
    AcquireError, Acquisition, Attempt, Claim, Guard, Intent, LockKey, LockPath, Locks, Owner, Want,
};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::{IndexedRandom, SliceRandom};
use tokio::time::{sleep, timeout};

use super::{FLAT, PATHS, Place, User, nanos, recovery, up_to, validity, work};
use crate::history::{Outcome, What};

/// One thing after the other, until the place is stopped.
pub(crate) async fn run<P: Place>(place: &P, user: &User, mut rng: Xoshiro256PlusPlus) {
    while !place.is_stopped() {
        sleep(up_to(&mut rng, Duration::from_millis(150))).await;
        if rng.random_bool(0.06) {
            recovery::by_hand(place, user, &mut rng, false).await;
        } else {
            let request = Request::any(place, user, &mut rng);
            if let Some(got) = ask(place, user, request).await {
                work::hold(place, user, &mut rng, got, true).await;
            }
        }
    }
}

/// A guard, and what it is for.
pub(crate) struct Got {
    pub(crate) attempt: u64,
    pub(super) owner: u64,
    pub(super) claims: Vec<Claim>,
    pub(crate) guard: Guard,
    /// Nobody else works under the same owner.
    pub(super) alone: bool,
    /// It may be kept: it has a session of its own.
    pub(super) own_session: bool,
}

/// Something to ask for.
pub(crate) struct Request {
    claims: Vec<Claim>,
    /// An explicit owner, and its number.
    owner: Option<(u64, Owner)>,
    intent: bool,
    own_session: bool,
    wait: Wait,
    /// When the program loses patience, whatever it was promised.
    cancel: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    For(Duration),
    ForEver,
}

impl Request {
    fn any(place: &impl Place, user: &User, rng: &mut Xoshiro256PlusPlus) -> Self {
        let claims = claims(rng);
        let reenters = claims[0].want().reenters();
        let owner = (reenters && rng.random_bool(0.2)).then(|| user.owner(place));
        let intent = owner.is_none() && rng.random_bool(0.3);
        let own_session = owner.is_none() && !intent && place.may_keep() && rng.random_bool(0.2);
        let wait = match rng.random_range(0..10) {
            0..=2 => Wait::No,
            3..=5 => Wait::For(up_to(rng, place.ttl() * 2)),
            _ => Wait::ForEver,
        };
        let cancel = rng
            .random_bool(0.15)
            .then(|| up_to(rng, Duration::from_millis(500)));
        Self {
            claims,
            owner,
            intent,
            own_session,
            wait,
            cancel,
        }
    }

    /// Of a program that already holds something: it does not wait for ever.
    pub(super) fn inside(rng: &mut Xoshiro256PlusPlus, held: &Got) -> Self {
        let of_tree = held.claims[0].want().is_path();
        let claims = if of_tree {
            tree_claims(rng, 2)
        } else {
            flat_claims(rng, Want::Upsert, 2)
        };
        let wait = match rng.random() {
            true => Wait::No,
            false => Wait::For(up_to(rng, Duration::from_millis(300))),
        };
        Self {
            claims,
            owner: Some((held.owner, held.guard.owner())),
            intent: false,
            own_session: false,
            wait,
            cancel: None,
        }
    }

    /// Of whoever looks whether a key can be had at all.
    pub(crate) fn probe(claim: Claim, wait: Duration) -> Self {
        Self {
            wait: Wait::For(wait),
            ..Self::waiting(vec![claim], false)
        }
    }

    /// Of whoever does not wait.
    pub(crate) fn trying(claims: Vec<Claim>, intent: bool) -> Self {
        Self {
            wait: Wait::No,
            ..Self::waiting(claims, intent)
        }
    }

    /// Of whoever waits for as long as it takes.
    pub(crate) fn waiting(claims: Vec<Claim>, intent: bool) -> Self {
        Self {
            claims,
            owner: None,
            intent,
            own_session: false,
            wait: Wait::ForEver,
            cancel: None,
        }
    }
}

fn claims(rng: &mut Xoshiro256PlusPlus) -> Vec<Claim> {
    match rng.random_range(0..10) {
        0 => flat_claims(rng, Want::Create, 1),
        1 | 2 => {
            let limit = NonZeroU32::new(rng.random_range(0..4));
            flat_claims(rng, Want::Share { limit }, 1)
        }
        3..=5 => flat_claims(rng, Want::Upsert, FLAT.len()),
        _ => tree_claims(rng, 3),
    }
}

fn flat_claims(rng: &mut Xoshiro256PlusPlus, want: Want, most: usize) -> Vec<Claim> {
    let mut keys = FLAT;
    keys.shuffle(rng);
    let count = rng.random_range(1..=most);
    keys[..count]
        .iter()
        .map(|key| {
            let key = LockKey::flat(key).expect("a flat key");
            Claim::new(key, want).expect("a flat claim")
        })
        .collect()
}

fn tree_claims(rng: &mut Xoshiro256PlusPlus, most: usize) -> Vec<Claim> {
    let count = rng.random_range(1..=most);
    (0..count)
        .map(|_| {
            let path = PATHS.choose(rng).expect("there are some");
            let path = LockPath::parse(path).expect("a path");
            match rng.random_bool(0.6) {
                true => Claim::write(path),
                false => Claim::read(path),
            }
        })
        .collect()
}

/// Asks, and writes down what came of it.
pub(crate) async fn ask(place: &impl Place, user: &User, request: Request) -> Option<Got> {
    answered(place, user, request).await.ok()
}

/// Asks, writes down what came of it, and says why nothing did.
pub(super) async fn answered(
    place: &impl Place,
    user: &User,
    request: Request,
) -> Result<Got, Outcome> {
    let attempt = place.number();
    let owner = request.owner.as_ref().map_or(attempt, |(owner, _)| *owner);
    let claims = request.claims.clone();
    let alone = request.owner.is_none();
    place.record(What::Asked {
        attempt,
        owner,
        claims: claims.clone(),
        intent: request.intent,
    });
    let answer = match request.cancel {
        None => sent(&user.locks, attempt, &request)
            .await
            .map_err(|error| outcome(&error)),
        Some(limit) => match timeout(limit, sent(&user.locks, attempt, &request)).await {
            Ok(answer) => answer.map_err(|error| outcome(&error)),
            Err(_) => Err(Outcome::Cancelled),
        },
    };
    match answer {
        Ok(guard) => {
            // The look comes after the instant: what it says was true then already.
            let at = place.now();
            let left = place.left(&guard);
            place.record_at(
                at,
                What::Granted {
                    attempt,
                    session: guard.session(),
                    token: guard.token(),
                    numbers: guard.numbers().collect(),
                    left,
                    validity: nanos(validity(place.ttl())),
                },
            );
            Ok(Got {
                attempt,
                owner,
                claims,
                guard,
                alone,
                own_session: request.own_session,
            })
        }
        Err(outcome) => {
            if outcome == Outcome::Lost {
                user.forget_owner(Some(owner));
            }
            place.record(What::Refused { attempt, outcome });
            Err(outcome)
        }
    }
}

fn outcome(error: &AcquireError) -> Outcome {
    match error {
        AcquireError::Busy(_) => Outcome::Busy,
        AcquireError::Abandoned(_) => Outcome::Abandoned,
        AcquireError::Lost => Outcome::Lost,
        AcquireError::WouldDeadlock(_) => Outcome::WouldDeadlock,
        _ => Outcome::Failed,
    }
}

/// The acquisition by its scheme.
fn sent<'a>(
    locks: &Locks,
    attempt: u64,
    request: &'a Request,
) -> BoxFuture<'a, Result<Guard, AcquireError>> {
    let claims = &request.claims;
    let names = || claims.iter().map(|claim| claim.key().as_str());
    let first = claims[0].key().as_str();
    match claims[0].want() {
        Want::Create => finish(locks.lock(first), attempt, request).boxed(),
        Want::Upsert => finish(locks.documents(names()), attempt, request).boxed(),
        Want::Share { limit } => {
            let share = match limit {
                Some(permits) => locks.semaphore(first, permits.get()),
                None => locks.rwlock(first).read(),
            };
            finish(share, attempt, request).boxed()
        }
        Want::Write | Want::Read => {
            let tree = claims.iter().fold(locks.tree(), |tree, claim| {
                let path = claim.key().as_str();
                match claim.want() {
                    Want::Write => tree.write(path),
                    _ => tree.read(path),
                }
            });
            finish(tree, attempt, request).boxed()
        }
    }
}

async fn finish<S>(
    mut acquisition: Acquisition<S>,
    attempt: u64,
    request: &Request,
) -> Result<Guard, AcquireError> {
    if let Some((_, owner)) = &request.owner {
        acquisition = acquisition.owner(owner);
    }
    if request.own_session {
        acquisition = acquisition.own_session();
    }
    if request.intent {
        let intent = Intent::json(&attempt).expect("a number is JSON");
        acquisition = acquisition.intent_bytes(intent);
    }
    match request.wait {
        Wait::No => match acquisition.try_acquire().await? {
            Attempt::Acquired(guard) => Ok(guard),
            Attempt::Busy(busy) => Err(AcquireError::Busy(busy)),
        },
        Wait::For(limit) => acquisition.wait(limit).acquire().await,
        Wait::ForEver => acquisition.acquire().await,
    }
}
