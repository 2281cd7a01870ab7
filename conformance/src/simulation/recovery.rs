//! Finishing what dead clients have left: by a handler, and by hand.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::sim::Gate;
use lockcore::{Recover, RecoverError, Recovery};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use tokio::time::sleep;

use super::client::{Client, kill};
use super::plan::up_to;
use super::world::World;
use crate::history::What;

/// What an adopter does in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Settles,
    Fails,
    Dies,
}

/// An adoption in the history: given up when it is dropped, unless it was settled.
struct Adopted<'a> {
    world: &'a World,
    process: u32,
    number: u64,
    over: bool,
}

impl<'a> Adopted<'a> {
    fn new(world: &'a World, process: u32, recovery: &Recovery) -> Self {
        let number = world.number();
        let attempt = serde_json::from_slice(recovery.intent().as_bytes());
        world.record(
            process,
            What::Adopted {
                adoption: number,
                session: recovery.session().session,
                attempt: attempt.expect("intents are numbers of attempts"),
                old_token: recovery.old_token(),
                token: recovery.token(),
            },
        );
        Self {
            world,
            process,
            number,
            over: false,
        }
    }

    /// Works on it for a while, and says now and then that it is still adopted.
    async fn work(&self, recovery: &Recovery, times: u32, each: Duration) {
        for time in 0..=times {
            if time > 0 {
                sleep(each).await;
            }
            if recovery.is_valid() {
                let adoption = self.number;
                self.world.record(self.process, What::Believed { adoption });
            }
        }
    }

    fn settling(mut self) {
        let adoption = self.number;
        self.world.record(self.process, What::Settling { adoption });
        self.over = true;
    }
}

impl Drop for Adopted<'_> {
    fn drop(&mut self) {
        if !self.over {
            let adoption = self.number;
            self.world.record(self.process, What::GivingUp { adoption });
        }
    }
}

/// What an adoption will be like.
fn plan(rng: &mut Xoshiro256PlusPlus) -> (u32, Duration, Fate) {
    let fate = match rng.random_range(0..10) {
        0 => Fate::Dies,
        1 | 2 => Fate::Fails,
        _ => Fate::Settles,
    };
    let times = rng.random_range(0..4);
    (times, up_to(rng, Duration::from_millis(300)), fate)
}

/// A handler that succeeds, fails, or does not survive.
pub(super) struct Handler {
    world: Arc<World>,
    process: u32,
    gate: Gate,
    rng: Mutex<Xoshiro256PlusPlus>,
}

impl Handler {
    pub(super) fn new(
        world: &Arc<World>,
        process: u32,
        gate: Gate,
        rng: Xoshiro256PlusPlus,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            process,
            gate,
            rng: Mutex::new(rng),
        }
    }
}

#[async_trait]
impl Recover for Handler {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        let (times, each, fate) =
            plan(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        let adopted = Adopted::new(&self.world, self.process, recovery);
        adopted.work(recovery, times, each).await;
        match fate {
            Fate::Settles => {
                adopted.settling();
                Ok(())
            }
            Fate::Dies if self.world.plan.kills && !self.world.is_stopped() => {
                kill(&self.world, self.process, &self.gate);
                std::future::pending().await
            }
            Fate::Fails | Fate::Dies => Err("the simulated recovery fails".into()),
        }
    }
}

/// Adopts something that is abandoned, if there is anything, and settles it, gives it up, or drops it. Whether there
/// was something.
pub(super) async fn by_hand(
    world: &World,
    client: &Client,
    rng: &mut Xoshiro256PlusPlus,
    always_settles: bool,
) -> bool {
    let Ok(abandoned) = client.locks.abandoned().await else {
        return true;
    };
    if abandoned.is_empty() {
        return false;
    }
    let session = abandoned[rng.random_range(0..abandoned.len())].session;
    let Ok(Some(recovery)) = client.locks.adopt(session).await else {
        return true;
    };
    let (times, each, fate) = plan(rng);
    let adopted = Adopted::new(world, client.process, &recovery);
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
