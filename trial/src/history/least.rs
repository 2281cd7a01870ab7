//! The least of a history that shows a violation: the events of whom it is about.

use std::collections::BTreeSet;
use std::time::Duration;

use lockcore::{Claim, Grant, LockKey, SessionId};

use super::check::Violation;
use super::{Call, Event, History, Stored, What};

/// Longest line that is shown.
const LINE: usize = 400;

/// Whom a violation is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Subject {
    /// An attempt of a program.
    Attempt(u64),
    /// An adoption of a program.
    Adoption(u64),
    /// A request for a step, and its session.
    Grant(Grant),
    /// A session.
    Session(SessionId),
    /// A key: of sessions that are subjects, only the requests that touch it are shown; of none, all that touch it.
    Key(LockKey),
    /// A process.
    Process(u32),
}

/// The subjects by their kinds, and what follows from them.
#[derive(Default)]
struct About {
    attempts: BTreeSet<u64>,
    adoptions: BTreeSet<u64>,
    grants: BTreeSet<Grant>,
    sessions: BTreeSet<SessionId>,
    /// Sessions of which every grant is shown.
    whole: BTreeSet<SessionId>,
    keys: Vec<LockKey>,
    processes: BTreeSet<u32>,
    calls: BTreeSet<(u32, u64)>,
}

pub(super) fn around(
    violation: &Violation,
    history: &History,
    before: usize,
    after: usize,
) -> String {
    let shown = violation.event.max(1) - 1;
    let Some(mark) = history.events.get(shown) else {
        return String::new();
    };
    let mut about = About::of(violation, mark, history);
    let concerned: Vec<usize> = history
        .events
        .iter()
        .enumerate()
        .filter(|(at, event)| about.concerns(event) || *at == shown)
        .map(|(at, _)| at)
        .collect();
    let middle = concerned.partition_point(|at| *at < shown);
    let from = middle.saturating_sub(before);
    let lines = concerned.into_iter().skip(from);
    lines
        .take(middle - from + after + 1)
        .map(|at| line(&history.events[at], at + 1, mark.at, at == shown))
        .collect()
}

fn line(event: &Event, number: usize, zero: u64, marked: bool) -> String {
    let (sign, time) = match event.at >= zero {
        true => ('+', event.at - zero),
        false => ('-', zero - event.at),
    };
    let time = format!("{sign}{:.6}", Duration::from_nanos(time).as_secs_f64());
    let mark = if marked { "=>" } else { "  " };
    let mut what = format!("{:?}", event.what);
    if let Some((cut, _)) = what.char_indices().nth(LINE) {
        what.truncate(cut);
        what.push('…');
    }
    format!(
        "{mark} {number:6} {time:>12} p{:<3} {what}\n",
        event.process
    )
}

impl About {
    fn of(violation: &Violation, mark: &Event, history: &History) -> Self {
        let mut about = Self::default();
        for subject in &violation.about {
            match subject {
                Subject::Attempt(attempt) => {
                    about.attempts.insert(*attempt);
                }
                Subject::Adoption(adoption) => {
                    about.adoptions.insert(*adoption);
                }
                Subject::Grant(grant) => {
                    about.grants.insert(*grant);
                    about.sessions.insert(grant.session);
                }
                Subject::Session(session) => {
                    about.sessions.insert(*session);
                    about.whole.insert(*session);
                }
                Subject::Key(key) => about.keys.push(key.clone()),
                Subject::Process(process) => {
                    about.processes.insert(*process);
                }
            }
        }
        if violation.about.is_empty() {
            about.attempts.extend(attempt(&mark.what));
            about.processes.insert(mark.process);
        }
        // The sessions of attempts and adoptions.
        for event in &history.events {
            match &event.what {
                What::Granted {
                    attempt, session, ..
                } if about.attempts.contains(attempt) => {
                    about.sessions.insert(*session);
                    about.whole.insert(*session);
                }
                What::Adopted {
                    adoption, session, ..
                } if about.adoptions.contains(adoption) => {
                    about.sessions.insert(*session);
                }
                _ => {}
            }
        }
        about
    }

    fn touches(&self, claims: &[Claim]) -> bool {
        claims.iter().any(|claim| {
            self.keys.iter().any(|key| {
                key == claim.key() || key.is_above(claim.key()) || claim.key().is_above(key)
            })
        })
    }

    /// Of a session that is a subject the requests that touch the keys, if keys are subjects; of others none.
    fn asks(&self, grant: Grant, claims: &[Claim]) -> bool {
        let touches = self.touches(claims);
        self.grants.contains(&grant)
            || (self.whole.contains(&grant.session) && (self.keys.is_empty() || touches))
            || (self.sessions.is_empty() && touches)
    }

    fn concerns(&mut self, event: &Event) -> bool {
        if attempt(&event.what).is_some_and(|attempt| self.attempts.contains(&attempt)) {
            return true;
        }
        match &event.what {
            What::Called { call, request } => {
                let concerns = self.calls_about(request);
                if concerns {
                    self.calls.insert((event.process, *call));
                    self.processes.insert(event.process);
                }
                concerns
            }
            What::Answered { call, .. } | What::Woken { call } | What::Unwatched { call } => {
                self.calls.contains(&(event.process, *call))
            }
            What::Stored(stored) => self.stored(stored),
            What::Adopted {
                adoption, session, ..
            } => self.adoptions.contains(adoption) || self.sessions.contains(session),
            What::Believed { adoption, .. }
            | What::Settling { adoption }
            | What::GivingUp { adoption } => self.adoptions.contains(adoption),
            What::Evicting { session }
            | What::Revoking { session }
            | What::Discarding { session } => self.sessions.contains(session),
            What::Killed | What::Paused | What::Resumed | What::ShutDown { .. } => {
                self.processes.contains(&event.process)
            }
            What::Late { .. } => false,
            What::Asked { claims, .. } => self.sessions.is_empty() && self.touches(claims),
            What::Begun { .. }
            | What::Calm
            | What::Copied
            | What::FailedOver { .. }
            | What::Stepped { .. }
            | What::Repeats
            | What::Doubles
            | What::Unsure => true,
            _ => false,
        }
    }

    fn calls_about(&self, request: &Call) -> bool {
        match request {
            Call::Open { session, .. } | Call::Renew { session, .. } => {
                self.sessions.contains(session)
            }
            Call::Settle { session, .. } => self.sessions.contains(session),
            Call::Adopt {
                session, adopter, ..
            } => self.sessions.contains(session) || self.sessions.contains(adopter),
            Call::End { sessions, .. } => sessions
                .iter()
                .any(|session| self.sessions.contains(session)),
            Call::Acquire { grant, claims, .. }
            | Call::Release { grant, claims }
            | Call::Confirm { grant, claims } => self.asks(*grant, claims),
            Call::Watch { claims } => self.sessions.is_empty() && self.touches(claims),
            Call::Sweep | Call::Records | Call::Sessions | Call::Evict { .. } => false,
        }
    }

    fn stored(&self, stored: &Stored) -> bool {
        match stored {
            Stored::Open { session, .. }
            | Stored::Renew { session, .. }
            | Stored::End { session, .. }
            | Stored::Adopt { session, .. }
            | Stored::Settle { session, .. } => self.sessions.contains(session),
            Stored::Acquire { grant, claims, .. }
            | Stored::Release { grant, claims }
            | Stored::Confirm { grant, claims, .. } => self.asks(*grant, claims),
            Stored::Released { grant } => self.grants.contains(grant),
        }
    }
}

fn attempt(what: &What) -> Option<u64> {
    match what {
        What::Asked { attempt, .. }
        | What::Granted { attempt, .. }
        | What::Refused { attempt, .. }
        | What::Looked { attempt, .. }
        | What::Confirmed { attempt, .. }
        | What::GivingBack { attempt, .. }
        | What::Kept { attempt, .. }
        | What::GaveBack { attempt, .. }
        | What::Read { attempt, .. }
        | What::Wrote { attempt, .. }
        | What::Stuck { attempt } => Some(*attempt),
        _ => None,
    }
}
