//! [`Client`]: one process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lockcore::sim::Gate;
use lockcore::{Label, Locks, Owner};
use rand::RngExt;

use super::program;
use super::recovery::Handler;
use super::world::{World, detached};
use crate::faults::{Faulty, Link, Weather};
use crate::history::What;

/// Parts of a run that are no process begin here.
pub(super) const NEMESIS: u64 = 1 << 40;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: u32,
    pub(super) gate: Gate,
    pub(super) link: Link,
    pub(super) locks: Locks,
    /// An owner that several of its programs use, and its number.
    owner: Mutex<Option<(u64, Owner)>>,
    programs: AtomicUsize,
}

impl Client {
    /// Starts a process in a slot.
    pub(super) fn start(world: &Arc<World>, slot: usize) {
        let plan = &world.plan;
        let client = Self::new(world, plan.weather, true);
        client.programs.store(plan.programs, Ordering::Relaxed);
        for program in 0..plan.programs {
            let part = u64::from(client.process) * 100 + 10 + program as u64;
            let rng = plan.chance(part);
            let (world, mine) = (Arc::clone(world), Arc::clone(&client));
            let gate = client.gate.clone();
            let body = async move {
                program::run(&world, &mine, rng).await;
                mine.programs.fetch_sub(1, Ordering::Relaxed);
            };
            detached(async move {
                let _killed: Option<()> = gate.run(body).await;
            });
        }
        world.slots()[slot] = Some(client);
    }

    /// A process without programs.
    pub(super) fn new(world: &Arc<World>, weather: Weather, recovers: bool) -> Arc<Self> {
        let plan = &world.plan;
        let process = world.process();
        let mut rng = plan.chance(u64::from(process) * 100);
        let link = Link::new(rng.random(), weather);
        let backend = Faulty::new(world.backend(), link.clone(), plan.timeout);
        let gate = Gate::default();
        let label = Label::parse(format!("p{process}")).expect("a short label");
        let mut builder = Locks::builder(Arc::new(backend))
            .ttl(plan.ttl)
            .label(label)
            .patience(plan.patience)
            .seed(rng.random());
        if recovers && rng.random_bool(0.6) {
            let chance = plan.chance(u64::from(process) * 100 + 1);
            builder = builder.recovery(Handler::new(world, process, gate.clone(), chance));
        }
        Arc::new(Self {
            process,
            gate,
            link,
            locks: builder.build().expect("options that the store takes"),
            owner: Mutex::default(),
            programs: AtomicUsize::new(0),
        })
    }

    /// Whether its programs have ended.
    pub(super) fn is_idle(&self) -> bool {
        self.gate.is_gone() || self.programs.load(Ordering::Relaxed) == 0
    }

    /// The owner that its programs share.
    pub(super) fn owner(&self, world: &World) -> (u64, Owner) {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        owner
            .get_or_insert_with(|| (world.number(), self.locks.owner()))
            .clone()
    }

    /// The owner's session was lost; or, without a number, nobody needs the owner any more.
    pub(super) fn forget_owner(&self, number: Option<u64>) {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if number.is_none_or(|number| owner.as_ref().is_some_and(|(known, _)| *known == number)) {
            *owner = None;
        }
    }
}

/// Kills a process.
pub(super) fn kill(world: &World, process: u32, gate: &Gate) {
    if !gate.is_gone() {
        world.record(process, What::Killed);
        gate.kill();
    }
}
