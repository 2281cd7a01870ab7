//! Finishing what dead clients have left: by a handler, and by hand.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{Recover, RecoverError, Recovery};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use tokio::time::sleep;

use super::{Place, User, nanos, up_to};
use crate::history::What;

/// What an adopter does in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Settles,
    Fails,
    Dies,
}

/// An adoption in the history: given up when it is dropped, unless it was settled.
struct Adopted<'a, P: Place> {
    place: &'a P,
    number: u64,
    retired: bool,
}

impl<'a, P: Place> Adopted<'a, P> {
    fn new(place: &'a P, recovery: &Recovery) -> Self {
        let number = place.number();
        let attempt = serde_json::from_slice(recovery.intent().as_bytes());
        place.record(What::Adopted {
            adoption: number,
            session: recovery.session().session,
            attempt: attempt.expect("intents are numbers of attempts"),
            old_token: recovery.old_token(),
            token: recovery.token(),
        });
        Self {
            place,
            number,
            retired: false,
        }
    }

    /// Works on it for a while, and says now and then that it is still adopted.
    async fn work(&self, recovery: &Recovery, times: u32, each: Duration) {
        for time in 0..=times {
            if time > 0 {
                sleep(each).await;
            }
            let at = self.place.now();
            let left = nanos(recovery.remaining());
            if left > 0 {
                let adoption = self.number;
                self.place.record_at(at, What::Believed { adoption, left });
            }
        }
    }

    fn settling(mut self) {
        let adoption = self.number;
        self.place.record(What::Settling { adoption });
        self.retired = true;
    }
}

impl<P: Place> Drop for Adopted<'_, P> {
    fn drop(&mut self) {
        if !self.retired {
            let adoption = self.number;
            self.place.record(What::GivingUp { adoption });
        }
    }
}

/// What an adoption will be like.
fn plan(rng: &mut Xoshiro256PlusPlus) -> (u32, Duration, Fate) {
    let fate = match rng.random_range(0..10) {
        0 => Fate::Dies,
        1..=4 => Fate::Fails,
        _ => Fate::Settles,
    };
    let times = rng.random_range(0..4);
    (times, up_to(rng, Duration::from_millis(300)), fate)
}

/// A handler that succeeds, fails, or does not survive.
pub(crate) struct Handler<P> {
    place: P,
    rng: Mutex<Xoshiro256PlusPlus>,
}

impl<P: Place> Handler<P> {
    pub(crate) fn new(place: P, rng: Xoshiro256PlusPlus) -> Self {
        Self {
            place,
            rng: Mutex::new(rng),
        }
    }
}

#[async_trait]
impl<P: Place> Recover for Handler<P> {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        let (times, each, fate) =
            plan(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        let adopted = Adopted::new(&self.place, recovery);
        adopted.work(recovery, times, each).await;
        match fate {
            Fate::Settles => {
                adopted.settling();
                Ok(())
            }
            Fate::Dies if self.place.may_die() && !self.place.is_stopped() => {
                self.place.die().await;
                std::future::pending().await
            }
            Fate::Fails | Fate::Dies => Err("the recovery fails on purpose".into()),
        }
    }
}

/// Adopts something that is abandoned, if there is anything, and settles it, gives it up, or drops it. Whether there
/// was something.
pub(super) async fn by_hand(
    place: &impl Place,
    user: &User,
    rng: &mut Xoshiro256PlusPlus,
    always_settles: bool,
) -> bool {
    let Ok(abandoned) = user.locks.abandoned().await else {
        return true;
    };
    if abandoned.is_empty() {
        return false;
    }
    let session = abandoned[rng.random_range(0..abandoned.len())].session;
    let Ok(Some(recovery)) = user.locks.adopt(session).await else {
        return true;
    };
    let (times, each, fate) = plan(rng);
    let adopted = Adopted::new(place, &recovery);
    adopted.work(&recovery, times, each).await;
    match fate {
        _ if always_settles => {
            adopted.settling();
            drop(recovery.settle().await);
        }
        Fate::Settles => {
            adopted.settling();
            drop(recovery.settle().await);
        }
        Fate::Fails => {
            drop(adopted);
            drop(recovery.give_up().await);
        }
        Fate::Dies => drop(adopted),
    }
    true
}
