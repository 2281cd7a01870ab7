//! What was measured.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::turns::Turn;

/// From the call of acquire to the acknowledged release.
pub const PAIR: &str = "pair";
/// From the call of acquire to the grant.
pub const WAIT: &str = "wait";
/// From one grant to that of the next one, with what the first held it.
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
    /// How many waits were given up, where they are; their times are noted, too.
    pub given_up: Option<u32>,
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
        let counts: Vec<usize> = each.iter().map(Vec::len).collect();
        let all = to_f64(counts.iter().sum());
        measured.per_second = Some(all / time.as_secs_f64());
        if counts.len() > 1 {
            measured.fairness = jain(&counts);
            let least = counts.iter().min().copied().map(to_f64);
            let share = all / to_f64(counts.len());
            measured.least_share = least.map(|least| least / share).filter(|_| all > 0.0);
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

/// Jain's index: the square of the sum to as many times the sum of the squares. None where nobody had anything.
fn jain(counts: &[usize]) -> Option<f64> {
    let counts = || counts.iter().copied().map(to_f64);
    let (sum, squares): (f64, f64) = (counts().sum(), counts().map(|count| count * count).sum());
    (squares > 0.0).then(|| sum * sum / (counts().map(|_| 1.0).sum::<f64>() * squares))
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
    fn jains_index_is_1_of_equals_and_1_in_n_of_one_alone() {
        for (counts, index) in [
            (&[7, 7, 7, 7][..], Some(1.0)),
            (&[0, 0, 9, 0], Some(0.25)),
            // (1 + 2 + 3)² / (3 × (1 + 4 + 9))
            (&[1, 2, 3], Some(36.0 / 42.0)),
            (&[5, 5, 0, 0, 0, 0, 0, 0, 0, 0], Some(0.2)),
            (&[0, 0], None),
            (&[], None),
        ] {
            assert_eq!(jain(counts), index, "{counts:?}");
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
