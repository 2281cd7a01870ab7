//! What was measured.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::turns::Turn;

/// From the call of acquire to the acknowledged release.
pub const PAIR: &str = "pair";
/// From the call of acquire to the grant.
pub const WAIT: &str = "wait";
/// From the call of release to the grant of the next one.
pub const HAND_OVER: &str = "hand-over";
/// An acquisition of many.
pub const ACQUIRE: &str = "acquire";
/// Its refusal, by what somebody else holds of it.
pub const REFUSED: &str = "refused";
/// Its release, acknowledged: others can have everything.
pub const RELEASE: &str = "release";
/// From the call of release until no record is left.
pub const SWEPT: &str = "swept";
/// From when an acquisition was given up half-way until somebody else has what it had been granted first.
pub const ABORT: &str = "abort";

/// What a run of a workload took. Times are in µs.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// How often something took how long, by what it was.
    pub times: BTreeMap<&'static str, Histogram<u64>>,
    /// Turns a second of all together; of a lock that only one can have: how often it went to another one.
    pub per_second: Option<f64>,
    /// Jain's index of how many turns each had: 1 where all had as many, 1/n where one of n had all.
    pub fairness: Option<f64>,
    /// The turns of who had the fewest, to the mean.
    pub least_share: Option<f64>,
}

impl Measured {
    /// Notes that something took so long.
    pub fn note(&mut self, what: &'static str, time: Duration) {
        self.record(what, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn record(&mut self, what: &'static str, us: u64) {
        let times = self.times.entry(what).or_insert_with(histogram);
        times.saturating_record(us);
    }

    /// Of turns at locks that nobody else wanted, or that several can have.
    #[must_use]
    pub fn of_turns(each: &[Vec<Turn>], time: Duration) -> Self {
        let mut measured = Self::default();
        for turn in each.iter().flatten() {
            measured.record(WAIT, turn.granted.saturating_sub(turn.asked));
            measured.record(PAIR, turn.released.saturating_sub(turn.asked));
        }
        let counts: Vec<f64> = each.iter().map(|turns| to_f64(turns.len())).collect();
        let all: f64 = counts.iter().sum();
        measured.per_second = Some(all / time.as_secs_f64());
        if counts.len() > 1 && all > 0.0 {
            let squares: f64 = counts.iter().map(|count| count * count).sum();
            let n = to_f64(counts.len());
            measured.fairness = Some(all * all / (n * squares));
            let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
            measured.least_share = Some(least / (all / n));
        }
        measured
    }

    /// Of turns at one lock that only one can have.
    #[must_use]
    pub fn of_one_lock(each: &[Vec<Turn>], time: Duration) -> Self {
        let mut measured = Self::of_turns(each, time);
        let turns = each.iter().enumerate();
        let mut granted: Vec<(u64, usize)> = turns
            .flat_map(|(who, turns)| turns.iter().map(move |turn| (turn.granted, who)))
            .collect();
        granted.sort_unstable();
        let mut handed_over = 0_usize;
        for two in granted.windows(2) {
            if two[0].1 != two[1].1 {
                handed_over += 1;
                measured.record(HAND_OVER, two[1].0 - two[0].0);
            }
        }
        measured.per_second = Some(to_f64(handed_over) / time.as_secs_f64());
        measured
    }
}

/// Three digits of any time.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("an hour in µs, with three digits")
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn to_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(asked: u64, granted: u64, released: u64) -> Turn {
        Turn {
            asked,
            granted,
            released,
        }
    }

    #[test]
    fn hand_overs_are_counted_between_two() {
        let first = vec![turn(0, 10, 15), turn(15, 20, 25), turn(25, 50, 55)];
        let second = vec![turn(0, 30, 35)];
        let measured = Measured::of_one_lock(&[first, second], Duration::from_secs(1));
        assert_eq!(measured.per_second, Some(2.0));
        let hand_overs = &measured.times[HAND_OVER];
        assert_eq!(
            (hand_overs.len(), hand_overs.min(), hand_overs.max()),
            (2, 10, 20)
        );
        assert_eq!(measured.times[WAIT].max(), 30);
        assert_eq!(measured.times[PAIR].max(), 35);
        assert_eq!(measured.least_share, Some(0.5));
        // (3 + 1)² / (2 × (9 + 1))
        assert_eq!(measured.fairness, Some(0.8));
    }
}
