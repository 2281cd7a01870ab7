//! [`Network`]: the ways of a run's processes to the store, each through proxies of its own, and what is done to them.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use tokio::time::Instant;

use super::log::Log;
use super::{Plan, Struck};
use crate::faults::{Fault, NetworkFault, Proxies, Proxy, rerouted};
use crate::history::What;
use crate::programs::{chance, up_to};
use lockcore_conformance::parts::{Verdict, Wrong};

/// One way in so many stays as it is: what is promised where the network is well is judged there.
const WELL: usize = 2;

/// The way of the processes in one place, one after the other.
struct Way {
    url: String,
    /// One for each host of the store.
    proxies: Vec<Proxy>,
    state: State,
}

enum State {
    /// Until then; for good, without an end.
    Open(Option<Instant>),
    Struck {
        fault: NetworkFault,
        process: u32,
        /// These proxies.
        which: std::ops::Range<usize>,
        until: Instant,
    },
}

/// A process can be cut off from the store while the others are not.
pub(super) struct Network {
    ways: Vec<Way>,
    faults: Vec<NetworkFault>,
    ttl: Duration,
    rng: Xoshiro256PlusPlus,
    log: Log,
    _thread: Proxies,
}

impl Network {
    /// A way to the store of this URL for each place of a process.
    pub(super) fn new(plan: &Plan, ttl: Duration, url: &str, log: &Log) -> Verdict<Self> {
        let thread = Proxies::new()?;
        let mut rng = chance(plan.seed, 4);
        let mut ways = Vec::new();
        for place in 0..plan.processes {
            let mut proxies = Vec::new();
            let through = |host: &str| {
                let proxy = thread.start(host, rng.random())?;
                let port = proxy.port();
                proxies.push(proxy);
                Ok::<_, std::io::Error>(port)
            };
            let Some(url) = rerouted(url, through)? else {
                return Err(Wrong("this store is not behind a network".to_owned()));
            };
            let is_well = place % WELL == WELL - 1;
            let until = Instant::now() + up_to(&mut rng, ttl * 2);
            ways.push(Way {
                url,
                proxies,
                state: State::Open((!is_well).then_some(until)),
            });
        }
        Ok(Self {
            ways,
            faults: plan.network.clone(),
            ttl,
            rng,
            log: log.clone(),
            _thread: thread,
        })
    }

    /// The store, as the process in this place reaches it.
    pub(super) fn url(&self, place: usize) -> &str {
        &self.ways[place].url
    }

    /// Begins a fault on the way of the process in this place, or ends it, if it is time.
    pub(super) fn look(&mut self, place: usize, process: u32, struck: &mut Struck) {
        let now = Instant::now();
        match self.ways[place].state {
            State::Open(Some(until)) if until <= now => self.strike(place, process),
            State::Struck { until, .. } if until <= now => self.mend(place, struck),
            _ => {}
        }
    }

    /// Ends whatever goes on.
    pub(super) fn mend_all(&mut self, struck: &mut Struck) {
        for place in 0..self.ways.len() {
            self.mend(place, struck);
        }
    }

    fn strike(&mut self, place: usize, process: u32) {
        let way = &mut self.ways[place];
        let fault = self.faults.choose(&mut self.rng);
        let fault = *fault.expect("there are some");
        // Half of them outlive a session.
        let (least, more) = match self.rng.random() {
            true => (self.ttl, self.ttl),
            false => (Duration::ZERO, self.ttl / 4),
        };
        let until = Instant::now() + least + up_to(&mut self.rng, more);
        let which = match self.rng.random() {
            true => 0..way.proxies.len(),
            false => {
                let one = self.rng.random_range(0..way.proxies.len());
                one..one + 1
            }
        };
        let what = What::Struck {
            fault: Fault::Network(fault),
        };
        self.log.record_of(process, what);
        for proxy in &way.proxies[which.clone()] {
            proxy.strike(fault);
        }
        way.state = State::Struck {
            fault,
            process,
            which,
            until,
        };
    }

    fn mend(&mut self, place: usize, struck: &mut Struck) {
        let way = &mut self.ways[place];
        let State::Struck {
            fault,
            process,
            ref which,
            ..
        } = way.state
        else {
            return;
        };
        let which = which.clone();
        let next = Instant::now() + up_to(&mut self.rng, self.ttl * 3);
        way.state = State::Open(Some(next));
        let mended = way.proxies[which].iter().map(Proxy::mend);
        // Each of them, whatever the others say.
        let met = mended.fold(false, |met, one| met | one);
        let fault = Fault::Network(fault);
        self.log.record_of(process, What::Mended { fault });
        if met {
            struck.add(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockcore_conformance::parts::Shared;

    #[test]
    fn every_second_way_stays_well() {
        let dir = Shared::new().unwrap();
        let log = Log::create(dir.path(), 0).unwrap();
        let mut plan = Plan::new(1);
        plan.processes = 4;
        let mut network = Network::new(&plan, Duration::ZERO, "redis://127.0.0.1:1", &log).unwrap();
        for (place, process) in (0..4).zip(1..) {
            network.look(place, process, &mut Struck::default());
        }
        let struck = network
            .ways
            .iter()
            .map(|way| matches!(way.state, State::Struck { .. }));
        assert_eq!(struck.collect::<Vec<_>>(), [true, false, true, false]);
    }
}
