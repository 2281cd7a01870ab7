//! What faults of servers have lost, and whom it may be about.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use lockcore::SessionId;

use super::check::{Subject, Violation};
use super::{Call, History, Law, What};
use crate::faults::Fault;

/// What no session is to be blamed for shows so long after a fault, counted in TTLs.
pub const SHOWS: u32 = 5;

/// What a guard believes, and what is done under it: it is told within a TTL that its grant is lost.
const BELIEVED: [Law; 3] = [Law::Guard, Law::FencedTakesValid, Law::LossIsExplained];

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

    /// When the last fault ended, or will, that began before.
    fn last_end(&self, at: u64) -> Option<u64> {
        let before = self.faults.partition_point(|fault| *fault.start() <= at);
        Some(*self.faults[..before].last()?.end())
    }

    /// Whether it may be a fault's, by the time alone.
    pub(super) fn explain(&self, at: u64) -> bool {
        self.is_within(at, SHOWS)
    }

    /// Whether a fault is not over, or has ended so few TTLs ago.
    fn is_within(&self, at: u64, ttls: u32) -> bool {
        let last = self.last_end(at);
        last.is_some_and(|end| at < end.saturating_add(self.ttl * u64::from(ttls)))
    }
}

/// The laws that a store does not promise after faults, those faults, and who was there.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    laws: Vec<Law>,
    losses: Losses,
    /// When each session was opened.
    opened: BTreeMap<SessionId, u64>,
    /// The sessions of attempts, and those that were adopted.
    attempts: BTreeMap<u64, SessionId>,
    adoptions: BTreeMap<u64, SessionId>,
}

impl Excuses {
    pub(super) fn of(history: &History, laws: &[Law]) -> Self {
        let mut excuses = Self {
            laws: laws.to_vec(),
            losses: Losses::of(history),
            ..Self::default()
        };
        if laws.is_empty() {
            return excuses;
        }
        for event in &history.events {
            match &event.what {
                What::Called {
                    request: Call::Open { session, .. },
                    ..
                } => drop(excuses.opened.entry(*session).or_insert(event.at)),
                What::Granted {
                    attempt, session, ..
                } => drop(excuses.attempts.insert(*attempt, *session)),
                What::Adopted {
                    adoption, session, ..
                } => drop(excuses.adoptions.insert(*adoption, *session)),
                _ => {}
            }
        }
        excuses
    }

    /// How long after a fault a law was broken that is not promised, if the fault may be why: because it is about a session
    /// that was there before the fault was over, of which something may be lost. What is about later ones alone is not
    /// excused. Of what is about none, the time decides, and of what guards believe, both.
    pub(super) fn excuse(&self, violation: &Violation) -> Option<Duration> {
        let at = violation.at.at;
        let end = self.losses.last_end(at)?;
        if !self.laws.contains(&violation.law) {
            return None;
        }
        let sessions = violation.about.iter().filter_map(|subject| match subject {
            Subject::Attempt(attempt) => self.attempts.get(attempt).copied(),
            Subject::Adoption(adoption) => self.adoptions.get(adoption).copied(),
            Subject::Grant(grant) => Some(grant.session),
            Subject::Session(session) => Some(*session),
            Subject::Key(_) | Subject::Process(_) => None,
        });
        // One that nobody has opened can have lost nothing.
        let opened = sessions.filter_map(|session| self.opened.get(&session).copied());
        let is_excused = match opened.min() {
            Some(_) if BELIEVED.contains(&violation.law) && !self.losses.is_within(at, 1) => false,
            Some(first) => first < end,
            None => self.losses.explain(at),
        };
        is_excused.then(|| Duration::from_nanos(at.saturating_sub(end)))
    }
}

#[cfg(test)]
mod tests {
    use lockcore::Grant;

    use super::super::index::Pos;
    use super::super::{Event, check_but};
    use super::*;
    use crate::faults::ServerFault;

    const TTL: u64 = 10;
    const LAW: Law = Law::WaitingEnds;

    /// A fault from 100 to 200, and sessions that were opened at these times, whose ids they are.
    fn history(opened: &[u64], more: impl IntoIterator<Item = (u64, What)>) -> History {
        let fault = Fault::Server(ServerFault::PowerLost);
        let begun = What::Begun {
            ttl: TTL,
            poll: None,
            allowance: 0,
            steady: false,
        };
        let mut events = vec![
            (1, begun),
            (100, What::Struck { fault }),
            (200, What::Mended { fault }),
        ];
        events.extend(opened.iter().map(|at| {
            let (session, ttl) = (SessionId::new((*at).into()), TTL);
            let request = Call::Open { session, ttl };
            (*at, What::Called { call: *at, request })
        }));
        events.extend(more);
        events.sort_by_key(|(at, _)| *at);
        let events = events.into_iter().map(|(at, what)| Event {
            at,
            process: 0,
            what,
        });
        History {
            events: events.collect(),
            real_time: true,
        }
    }

    #[test]
    fn what_is_about_nobody_is_excused_for_some_time() {
        let shows = TTL * u64::from(SHOWS);
        let excuses = Excuses::of(&history(&[], []), &[LAW]);
        let excuse = |law, at| excuses.excuse(&Violation::new(law, Pos::instant(at), ""));
        assert_eq!(excuse(LAW, 50), None);
        assert_eq!(excuse(LAW, 150), Some(Duration::ZERO));
        assert_eq!(excuse(Law::Guard, 150), None);
        let latest = Duration::from_nanos(shows - 1);
        assert_eq!(excuse(LAW, 199 + shows), Some(latest));
        assert_eq!(excuse(LAW, 200 + shows), None);
    }

    #[test]
    fn what_is_about_sessions_is_excused_if_one_was_there_before_the_fault_was_over() {
        let excuses = Excuses::of(&history(&[50, 199, 200, 300], []), &[LAW]);
        let grant = |session: u64| {
            let session = SessionId::new(session.into());
            Subject::Grant(Grant { session, n: 1 })
        };
        for (at, sessions, is_excused) in [
            (90, [50, 50], false),
            (150, [50, 50], true),
            // Long afterwards, too.
            (9_000, [300, 199], true),
            // At once.
            (210, [200, 200], false),
            (9_000, [200, 300], false),
        ] {
            let violation = Violation::new(LAW, Pos::instant(at), "");
            let excuse = excuses.excuse(&violation.about(sessions.map(grant)));
            assert_eq!(excuse.is_some(), is_excused, "{at}: {sessions:?}");
        }
    }

    #[test]
    fn what_a_guard_believes_is_excused_for_a_ttl() {
        let excuses = Excuses::of(&history(&[50], []), &[Law::Guard]);
        for (at, is_excused) in [(150, true), (199 + TTL, true), (200 + TTL, false)] {
            let violation = Violation::new(Law::Guard, Pos::instant(at), "");
            let about = [Subject::Session(SessionId::new(50))];
            assert_eq!(
                excuses.excuse(&violation.about(about)).is_some(),
                is_excused,
                "{at}"
            );
        }
    }

    #[test]
    fn what_is_excused_hides_nothing_that_is_not() {
        let stuck = |at| (at, What::Stuck { attempt: at });
        let many = (0..100).map(|_| stuck(150));
        let history = history(&[], many.chain([stuck(1_000)]));
        let report = check_but(&history, &[LAW]);
        let excused = report.excused[&LAW];
        assert_eq!((report.violations.len(), excused.count), (1, 100));
    }
}
