//! [`Record`]: the counts of runs.

use std::collections::BTreeMap;

use lockcore_trial::faults::Fault;
use lockcore_trial::history::Law;
use serde::{Deserialize, Serialize};

/// The counts of one run, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Runs, and how many of them failed.
    pub runs: u64,
    /// Those whose laws were broken, or that came to no end.
    pub failed: u64,
    /// How long faults went on, in seconds.
    pub seconds: u64,
    /// Each fault that met something, and how often.
    pub faults: BTreeMap<String, u64>,
    /// Events that were checked.
    pub events: u64,
    /// Guards that were handed out.
    pub guards: u64,
    /// Attempts that got nothing.
    pub refused: u64,
    /// Adoptions.
    pub adoptions: u64,
    /// Violations of laws that hold.
    pub violations: BTreeMap<String, u64>,
    /// Violations of laws that the store does not promise under this fault.
    pub excused: BTreeMap<String, u64>,
    /// Events that each law has judged in runs that passed, since the last one that failed.
    pub judged: BTreeMap<String, u64>,
    /// Times of takeovers in milliseconds, in runs that kill and do nothing else.
    pub takeovers_ms: Vec<u64>,
    /// Those where somebody had waited longer who was killed, too.
    #[serde(default)]
    pub takeovers_behind_ms: Vec<u64>,
    /// How many of all these were later than their limit.
    #[serde(default)]
    pub takeovers_late: u64,
}

/// Fewer takeovers than that say nothing of 99 in 100.
const TAKEOVERS: usize = 100;

impl Record {
    /// Adds the counts of a later run. One that failed takes back what those before it have shown.
    pub fn add_run(&mut self, run: &Self) {
        if run.failed > 0 {
            self.judged.clear();
            self.takeovers_ms.clear();
            self.takeovers_behind_ms.clear();
            self.takeovers_late = 0;
        }
        self.add(run);
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.failed += other.failed;
        self.seconds += other.seconds;
        self.events += other.events;
        self.guards += other.guards;
        self.refused += other.refused;
        self.adoptions += other.adoptions;
        let judged = match other.failed < other.runs {
            true => &other.judged,
            false => &BTreeMap::new(),
        };
        for (mine, others) in [
            (&mut self.faults, &other.faults),
            (&mut self.violations, &other.violations),
            (&mut self.excused, &other.excused),
            (&mut self.judged, judged),
        ] {
            for (name, count) in others {
                *mine.entry(name.clone()).or_default() += count;
            }
        }
        self.takeovers_late += other.takeovers_late;
        for (mine, others) in [
            (&mut self.takeovers_ms, &other.takeovers_ms),
            (&mut self.takeovers_behind_ms, &other.takeovers_behind_ms),
        ] {
            mine.extend(others);
            mine.sort_unstable();
        }
    }

    /// Whether runs have passed that judged by each of these laws.
    #[must_use]
    pub fn passed(&self, laws: impl Iterator<Item = Law>) -> bool {
        let judged = |law: Law| self.judged.get(law.as_str()).is_some_and(|it| *it > 0);
        let mut laws = laws;
        self.runs > self.failed && laws.all(judged)
    }

    /// How often the fault has met something.
    #[must_use]
    pub fn met(&self, fault: &Fault) -> u64 {
        self.faults.get(&fault.to_string()).copied().unwrap_or(0)
    }

    /// Whether 99 in 100 takeovers were within the limit; `None` if there are too few.
    #[must_use]
    pub fn in_time(&self) -> Option<bool> {
        let all = self.takeovers_ms.len() + self.takeovers_behind_ms.len();
        let late = usize::try_from(self.takeovers_late).unwrap_or(usize::MAX);
        (all >= TAKEOVERS).then_some(late <= all / TAKEOVERS)
    }
}

/// The time that so many percent of these took at most, of which the shortest is the first.
#[must_use]
pub fn percentile(times: &[u64], percent: usize) -> Option<u64> {
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_nothing_of_laws_that_its_checker_did_not_know() {
        let mut record = Record {
            runs: 1,
            judged: Law::JUDGED.map(|law| (law.to_string(), 1)).into(),
            ..Record::default()
        };
        let passed = |record: &Record| record.passed(Law::JUDGED.into_iter());
        assert!(passed(&record));
        record.judged.remove(Law::Guard.as_str());
        assert!(!passed(&record));
        let all_but_one = Law::JUDGED.into_iter().filter(|law| *law != Law::Guard);
        assert!(record.passed(all_but_one));
        // Nor of those that only a run has judged that failed, which also takes back what was shown before.
        let failed = Record {
            failed: 1,
            judged: Law::JUDGED.map(|law| (law.to_string(), 1)).into(),
            ..record.clone()
        };
        let run = Record {
            failed: 0,
            ..failed.clone()
        };
        for (run, passes) in [
            (&failed, false),
            (&run, true),
            (&failed, false),
            (&run, true),
        ] {
            record.add_run(run);
            assert_eq!(passed(&record), passes);
        }
    }

    #[test]
    fn sums_are_of_everything() {
        let one = Record {
            runs: 2,
            failed: 1,
            seconds: 2,
            faults: [("cuts".to_owned(), 3)].into(),
            events: 4,
            guards: 5,
            refused: 6,
            adoptions: 7,
            violations: [("a".to_owned(), 8)].into(),
            excused: [("b".to_owned(), 9)].into(),
            judged: [("c".to_owned(), 10)].into(),
            takeovers_ms: vec![30, 10],
            takeovers_late: 11,
            takeovers_behind_ms: vec![50],
        };
        let mut sum = one.clone();
        sum.add(&one);
        let twice = Record {
            runs: 4,
            failed: 2,
            seconds: 4,
            faults: [("cuts".to_owned(), 6)].into(),
            events: 8,
            guards: 10,
            refused: 12,
            adoptions: 14,
            violations: [("a".to_owned(), 16)].into(),
            excused: [("b".to_owned(), 18)].into(),
            judged: [("c".to_owned(), 20)].into(),
            takeovers_ms: vec![10, 10, 30, 30],
            takeovers_late: 22,
            takeovers_behind_ms: vec![50, 50],
        };
        assert_eq!(sum, twice);
        assert_eq!(
            [50, 99].map(|percent| percentile(&sum.takeovers_ms, percent)),
            [Some(10), Some(30)]
        );
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn one_takeover_in_a_hundred_may_be_late() {
        let record = |all: usize, takeovers_late| Record {
            takeovers_ms: vec![1; all],
            takeovers_late,
            ..Record::default()
        };
        assert_eq!(record(99, 0).in_time(), None);
        assert_eq!(record(100, 1).in_time(), Some(true));
        assert_eq!(record(199, 2).in_time(), Some(false));
        assert_eq!(record(200, 2).in_time(), Some(true));
    }
}
