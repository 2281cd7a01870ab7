//! What faults of servers have lost, and for how long it may show.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{History, Law, What};
use crate::faults::Fault;

/// What a fault has lost shows so long after its end, counted in TTLs: a session that lives again ends after one, whoever
/// adopts what it left may be killed or sleep meanwhile, and so on.
pub const SHOWS: u32 = 5;

/// The faults of servers in a history.
#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    ttl: u64,
    /// From when until when each one was.
    faults: Vec<RangeInclusive<u64>>,
}

/// Violations of a law that a store does not promise after a fault.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excused {
    /// How many.
    pub count: usize,
    /// How long after the end of a fault the latest of them came.
    pub latest: Duration,
}

impl Losses {
    pub(super) fn of(history: &History) -> Self {
        let mut losses = Self::default();
        for event in &history.events {
            match event.what {
                What::Begun { ttl, .. } => losses.ttl = ttl,
                What::Struck {
                    fault: Fault::Server(_),
                } => losses.faults.push(event.at..=u64::MAX),
                What::Mended {
                    fault: Fault::Server(_),
                } => {
                    if let Some(last) = losses.faults.last_mut() {
                        *last = *last.start()..=event.at;
                    }
                }
                _ => {}
            }
        }
        losses
    }

    /// How long ago the last fault ended; nothing if it is not over.
    fn since(&self, at: u64) -> Option<Duration> {
        let before = self.faults.partition_point(|fault| *fault.start() <= at);
        let last = self.faults[..before].last()?;
        Some(Duration::from_nanos(at.saturating_sub(*last.end())))
    }

    /// How long after a fault that is, if it explains what shows then.
    pub(super) fn explain(&self, at: u64) -> Option<Duration> {
        let shows = Duration::from_nanos(self.ttl) * SHOWS;
        self.since(at).filter(|since| *since < shows)
    }
}

/// The laws that a store does not promise after faults, and those faults.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    pub(super) laws: Vec<Law>,
    pub(super) losses: Losses,
}

impl Excuses {
    /// How long after a fault that law was broken, if that is not promised.
    pub(super) fn excuse(&self, law: Law, at: u64) -> Option<Duration> {
        self.losses.explain(at).filter(|_| self.laws.contains(&law))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, check_but};
    use super::*;
    use crate::faults::ServerFault;

    const TTL: u64 = 10;

    /// What is not excused, and what is, where so many violations are at that time.
    fn judged(many: usize, at: u64, one_more: Option<u64>, but: &[Law]) -> (usize, Excused) {
        let fault = Fault::Server(ServerFault::PowerLost);
        let begun = What::Begun {
            ttl: TTL,
            poll: None,
            allowance: 0,
            steady: false,
        };
        let stuck = |at| (at, What::Stuck { attempt: at });
        let mut events = vec![
            (1, begun),
            (100, What::Struck { fault }),
            (200, What::Mended { fault }),
        ];
        events.extend((0..many).map(|_| stuck(at)));
        events.extend(one_more.map(stuck));
        events.sort_by_key(|(at, _)| *at);
        let events = events.into_iter().map(|(at, what)| Event {
            at,
            process: 0,
            what,
        });
        let history = History {
            events: events.collect(),
            real_time: true,
        };
        let report = check_but(&history, but);
        let excused = report.excused.get(&Law::WaitingEnds);
        (
            report.violations.len(),
            excused.copied().unwrap_or_default(),
        )
    }

    #[test]
    fn what_a_store_may_break_is_excused_only_while_a_fault_of_a_server_explains_it() {
        let may_break = [Law::WaitingEnds];
        let shows = TTL * u64::from(SHOWS);
        let excused = |count, latest| Excused {
            count,
            latest: Duration::from_nanos(latest),
        };
        for (at, but, expected) in [
            (50, &may_break[..], (1, Excused::default())),
            (150, &may_break, (0, excused(1, 0))),
            (150, &[Law::Guard], (1, Excused::default())),
            (199 + shows, &may_break, (0, excused(1, shows - 1))),
            (200 + shows, &may_break, (1, Excused::default())),
        ] {
            assert_eq!(judged(1, at, None, but), expected, "at {at}");
        }
    }

    #[test]
    fn what_is_excused_hides_nothing_that_is_not() {
        let (violations, excused) = judged(100, 150, Some(1_000), &[Law::WaitingEnds]);
        assert_eq!((violations, excused.count), (1, 100));
    }
}
