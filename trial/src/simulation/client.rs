//! [`Client`]: one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockcore::sim::Gate;
use lockcore::{Label, Locks};
use rand::RngExt;

use super::fixture::{Fixture, detached};
use super::place::Site;
use crate::faults::{Faulty, Link, Weather};
use crate::history::What;
use crate::programs::{self, Handler, User};

/// Parts of a run that are no process begin here.
pub(super) const NEMESIS: u64 = 1 << 40;

/// Further programs of each client where there are crowds, and the locks that they wait for.
const CROWD: usize = 3;
const CROWDED: [&str; 2] = ["r1", "r2"];

#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: u32,
    pub(super) gate: Gate,
    pub(super) link: Link,
    pub(super) user: User,
    programs: AtomicUsize,
}

impl Client {
    /// Starts a process in a slot.
    pub(super) fn start(fixture: &Arc<Fixture>, slot: usize) {
        let plan = &fixture.plan;
        let client = Self::new(fixture, plan.weather, true);
        let crowd = if plan.crowds { CROWD } else { 0 };
        let programs = plan.programs + crowd;
        client.programs.store(programs, Ordering::Relaxed);
        for program in 0..programs {
            let part = u64::from(client.process) * 100 + 10 + program as u64;
            let rng = plan.chance(part);
            let (site, mine) = (client.site(fixture), Arc::clone(&client));
            let gate = client.gate.clone();
            let is_of_crowd = program >= plan.programs;
            let body = async move {
                match is_of_crowd {
                    true => programs::relay(&site, &mine.user, &CROWDED, rng).await,
                    false => programs::run(&site, &mine.user, rng).await,
                }
                mine.programs.fetch_sub(1, Ordering::Relaxed);
            };
            detached(async move {
                let _killed: Option<()> = gate.run(body).await;
            });
        }
        fixture.slots()[slot] = Some(client);
    }

    /// A process without programs.
    pub(super) fn new(fixture: &Arc<Fixture>, weather: Weather, recovers: bool) -> Arc<Self> {
        let plan = &fixture.plan;
        let process = fixture.process();
        let mut rng = plan.chance(u64::from(process) * 100);
        let link = Link::new(rng.random(), weather);
        let backend = Faulty::new(fixture.backend(), link.clone(), plan.timeout);
        let gate = Gate::default();
        let label = Label::parse(format!("p{process}")).expect("a short label");
        let mut builder = Locks::builder(Arc::new(backend))
            .ttl(plan.ttl)
            .label(label)
            .patience(plan.patience)
            .seed(rng.random());
        if recovers && rng.random_bool(0.6) {
            let chance = plan.chance(u64::from(process) * 100 + 1);
            let site = Site {
                fixture: Arc::clone(fixture),
                process,
                gate: gate.clone(),
            };
            builder = builder.recovery(Handler::new(site, chance));
        }
        Arc::new(Self {
            process,
            gate,
            link,
            user: User::new(builder.build().expect("options that the store takes")),
            programs: AtomicUsize::new(0),
        })
    }

    /// Whether its programs have ended.
    pub(super) fn is_idle(&self) -> bool {
        self.gate.is_gone() || self.programs.load(Ordering::Relaxed) == 0
    }

    /// Where its programs run.
    pub(super) fn site(&self, fixture: &Arc<Fixture>) -> Site {
        Site {
            fixture: Arc::clone(fixture),
            process: self.process,
            gate: self.gate.clone(),
        }
    }
}

/// Kills a process.
pub(super) fn kill(fixture: &Fixture, process: u32, gate: &Gate) {
    if !gate.is_gone() {
        fixture.record(process, What::Killed);
        gate.kill();
    }
}
