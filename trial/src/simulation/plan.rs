//! [`Plan`]: the first decisions of a seed.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;

use crate::faults::Weather;
use crate::programs::chance;

/// The size of a run, and its possible faults.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Whether the store takes any batch in one action; otherwise it takes one record at a time.
    pub atomic: bool,
    /// Keys of one batch.
    pub keys_per_batch: usize,
    /// Concurrent clients.
    pub clients: usize,
    /// Programs of each client.
    pub programs: usize,
    /// Time to live of a session.
    pub ttl: Duration,
    /// How long faults go on.
    pub length: Duration,
    /// The network.
    pub weather: Weather,
    /// How long a client waits for an answer.
    pub timeout: Duration,
    /// How long a client sends a request of unknown outcome again.
    pub patience: Duration,
    /// Clients are paused.
    pub pauses: bool,
    /// Clients are killed.
    pub kills: bool,
    /// A client's connection to the store is cut.
    pub cuts: bool,
    /// The store's clock deviates within the margin of a guard.
    pub drift: bool,
    /// The store's clock steps.
    pub steps: bool,
    /// Operators revoke sessions and discard intents.
    pub operators: bool,
    /// Copies of the store take over, without the writes since the copy was made.
    pub failovers: Option<Failovers>,
    /// Several tasks of each client wait for the same few locks all the time.
    pub crowds: bool,
}

/// What the store tells when a copy takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failovers {
    /// The store has an incarnation, and takes another one.
    Told,
    /// The store has no incarnation.
    Untold,
}

impl Plan {
    /// The plan of a seed.
    ///
    /// # Panics
    ///
    /// Never: every list that is chosen from contains something.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = chance(seed, 0);
        let mut often = || rng.random_bool(0.5);
        let (pauses, kills, cuts, drift) = (often(), often(), often(), often());
        let (steps, operators) = (rng.random_bool(0.2), rng.random_bool(0.3));
        let ttl = *[1_000, 2_000, 3_000]
            .choose(&mut rng)
            .expect("there are some");
        let ttl = Duration::from_millis(ttl);
        let late = ttl * *[0, 1, 3, 10].choose(&mut rng).expect("there are some");
        let bad = *[0.0, 0.02, 0.1, 0.25]
            .choose(&mut rng)
            .expect("there are some");
        let weather = Weather {
            delay: Duration::from_millis(*[2, 10, 40].choose(&mut rng).expect("there are some")),
            slow: rng.random_range(0.0..0.1),
            lost_request: bad * rng.random::<f64>(),
            lost_answer: bad * rng.random::<f64>(),
            repeated: bad * rng.random::<f64>(),
            late,
            unavailable: bad * rng.random_range(0.0..0.3),
        };
        let mut plan = Self {
            seed,
            atomic: rng.random(),
            keys_per_batch: *[1, 1, 2, 3, 100].choose(&mut rng).expect("there are some"),
            clients: rng.random_range(2..=5),
            programs: rng.random_range(1..=3),
            ttl,
            length: Duration::from_millis(rng.random_range(4_000..12_000)),
            weather,
            timeout: Duration::from_millis(rng.random_range(100..900)),
            patience: Duration::from_millis(rng.random_range(300..3_000)),
            failovers: match rng.random_range(0..12) {
                0 | 1 => Some(Failovers::Told),
                2 => Some(Failovers::Untold),
                _ => None,
            },
            pauses,
            kills,
            cuts,
            drift,
            steps,
            operators,
            crowds: false,
        };
        plan.crowds = rng.random_bool(0.25);
        plan
    }

    /// The randomness of one part of the run, independent of that of the others.
    pub(super) fn chance(&self, part: u64) -> Xoshiro256PlusPlus {
        chance(self.seed, part)
    }
}
