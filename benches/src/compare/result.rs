//! What a comparison found, as it is written down.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use lockkeeper_workloads::Measured;
use serde::{Deserialize, Serialize};

use crate::rounds::Spread;

/// Whose figures they are.
pub(super) const OURS: &str = "lockkeeper";
/// The store by itself.
pub(super) const BASELINE: &str = "baseline";

/// Everything that was found.
#[derive(Serialize, Deserialize)]
pub(super) struct Comparison {
    /// On which day.
    pub(super) date: String,
    pub(super) machine: Vec<String>,
    pub(super) rounds: usize,
    /// After which round it ended and was resumed.
    #[serde(default)]
    pub(super) resumed_after: Option<usize>,
    pub(super) slice_ms: u64,
    pub(super) stores: Vec<About>,
    pub(super) series: Vec<Series>,
}

/// A store, as it was measured.
#[derive(Serialize, Deserialize, PartialEq)]
pub(super) struct About {
    pub(super) name: String,
    /// What it was started from.
    pub(super) server: String,
    pub(super) clock: String,
    /// How often who waits looks, in ms, where the store does not push.
    pub(super) poll_ms: Option<u64>,
    pub(super) survives_crash: bool,
    pub(super) survives_power_loss: bool,
    /// What the baseline's pair is, and its many records are.
    pub(super) baseline: Option<[String; 2]>,
}

/// The rounds of one workload on one store.
#[derive(Serialize, Deserialize)]
pub(super) struct Series {
    pub(super) store: String,
    /// [`OURS`], [`BASELINE`] or another library.
    pub(super) of: String,
    pub(super) workload: String,
    pub(super) size: u32,
    pub(super) rounds: Vec<Round>,
}

/// What one round found.
#[derive(Serialize, Deserialize, Default)]
pub(super) struct Round {
    /// Distributions, in µs.
    pub(super) times: BTreeMap<String, Times>,
    /// Other figures.
    pub(super) figures: BTreeMap<String, f64>,
}

/// A distribution, in µs.
#[derive(Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) count: u64,
    pub(super) mean: f64,
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) longest: u64,
}

impl Times {
    pub(super) fn of(times: &Histogram<u64>) -> Self {
        Self {
            count: times.len(),
            mean: times.mean(),
            p50: times.value_at_quantile(0.5),
            p90: times.value_at_quantile(0.9),
            p99: times.value_at_quantile(0.99),
            longest: times.max(),
        }
    }
}

pub(super) const PER_SECOND: &str = "per second";
pub(super) const FAIRNESS: &str = "fairness";
pub(super) const LEAST_SHARE: &str = "least share";
/// The rate to that of the workload's baseline, which was measured just before it and just after it.
pub(super) const TO_BASELINE: &str = "to baseline";
/// Waits that were given up.
pub(super) const GIVEN_UP: &str = "given up";
/// Requests to the server, of guards that are kept.
pub(super) const REQUESTS: &str = "requests";
/// CPU time of the process that keeps them, in ms.
pub(super) const CPU_MS: &str = "CPU ms";
/// The TTL of a session, in ms.
pub(super) const TTL_MS: &str = "TTL ms";

impl From<Measured> for Round {
    fn from(measured: Measured) -> Self {
        let times = measured.times.iter();
        let figures = [
            (PER_SECOND, measured.per_second),
            (FAIRNESS, measured.fairness),
            (LEAST_SHARE, measured.least_share),
            (GIVEN_UP, measured.given_up.map(f64::from)),
        ];
        Self {
            times: times
                .map(|(what, times)| ((*what).to_owned(), Times::of(times)))
                .collect(),
            figures: figures
                .into_iter()
                .filter_map(|(name, figure)| Some((name.to_owned(), figure?)))
                .collect(),
        }
    }
}

impl Round {
    /// Notes the rate to the mean of its baseline's, if it was measured.
    pub(super) fn note_baseline(&mut self, rates: &[Option<f64>]) {
        let rates: Option<Vec<f64>> = rates.iter().copied().collect();
        let count = rates.iter().flatten().map(|_| 1.0).sum::<f64>();
        let mean = rates.map(|rates| rates.iter().sum::<f64>() / count);
        if let (Some(rate), Some(mean)) = (self.figures.get(PER_SECOND), mean) {
            self.figures.insert(TO_BASELINE.to_owned(), rate / mean);
        }
    }
}

/// How a figure is read from a round.
pub(super) type Read = fn(&Round) -> Option<f64>;

impl Comparison {
    /// The rounds of a series; none if it was not measured.
    pub(super) fn rounds_of(&self, store: &str, of: &str, workload: &str, size: u32) -> &[Round] {
        let found = self.series.iter().find(|series| {
            (series.store.as_str(), series.of.as_str()) == (store, of)
                && (series.workload.as_str(), series.size) == (workload, size)
        });
        found.map_or(&[], |series| &series.rounds)
    }

    /// A figure of a series.
    pub(super) fn figure(
        &self,
        at: At<'_>,
        read: impl Fn(&Round) -> Option<f64>,
    ) -> Option<Spread> {
        let rounds = self.rounds_of(at.store, at.of, at.workload, at.size);
        spread(rounds.iter().filter_map(read))
    }

    /// One figure of a series to another, round by round.
    pub(super) fn ratio(
        &self,
        (of, read): (At<'_>, impl Fn(&Round) -> Option<f64>),
        (to, read_to): (At<'_>, impl Fn(&Round) -> Option<f64>),
    ) -> Option<Spread> {
        let rounds = |at: At<'_>| self.rounds_of(at.store, at.of, at.workload, at.size).iter();
        let both = rounds(of).zip(rounds(to));
        spread(both.filter_map(|(of, to)| Some(read(of)? / read_to(to)?)))
    }

    /// The other libraries that were measured on a store.
    pub(super) fn peers(&self, store: &str) -> Vec<&str> {
        let mut peers: Vec<&str> = Vec::new();
        for series in self.series.iter().filter(|series| series.store == store) {
            let of = series.of.as_str();
            if of != OURS && of != BASELINE && !peers.contains(&of) {
                peers.push(of);
            }
        }
        peers
    }

    /// The sizes of a workload that were measured.
    pub(super) fn sizes(&self, workload: &str) -> Vec<u32> {
        let of = self
            .series
            .iter()
            .filter(|series| series.workload == workload);
        let mut sizes: Vec<u32> = of.map(|series| series.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Which series.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) store: &'a str,
    pub(super) of: &'a str,
    pub(super) workload: &'a str,
    pub(super) size: u32,
}

fn spread(values: impl Iterator<Item = f64>) -> Option<Spread> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| Spread::of(values))
}

/// A figure of that name.
pub(super) fn named(name: &'static str) -> impl Fn(&Round) -> Option<f64> + Copy {
    move |round| round.figures.get(name).copied()
}

/// Something of the distribution of that name.
pub(super) fn of_times(
    name: &'static str,
    read: impl Fn(&Times) -> f64,
) -> impl Fn(&Round) -> Option<f64> {
    move |round| round.times.get(name).map(&read)
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
pub(super) fn to_f64(count: u64) -> f64 {
    count as f64
}
