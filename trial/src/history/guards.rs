//! Guards as intervals: from when each was handed out until when it last said that it would be valid.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::SessionId;

use super::check::{Findings, Subject, Violation};
use super::event::{Answer, How, Stored, What};
use super::failovers::Failovers;
use super::index::{Cast, Keys, Pos};
use super::{Call, History, Law, Reply};

/// What was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) at: Pos,
    pub(super) process: u32,
    pub(super) owner: u64,
    pub(super) casts: Vec<Cast>,
    pub(super) intent: bool,
}

/// A guard that was handed out.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) attempt: u64,
    pub(super) session: SessionId,
    pub(super) token: u64,
    pub(super) numbers: Vec<u64>,
    pub(super) start: Pos,
    /// It said to be valid from the start to here; nothing, if that is not after the start.
    pub(super) end: Pos,
    /// When its program said that its change is finished.
    pub(super) released: Option<Pos>,
    /// The deadline that it named last, and how long before that the renewal was sent which that counts from.
    deadline: u64,
    pub(super) validity: u64,
    /// It is kept until its end, by a renewal that was sent then.
    kept: Option<u64>,
    /// It said that it is not valid, was given back, or its process was killed.
    retired: bool,
    not_valid: bool,
    /// Its session was closed by the guard that it has re-entered, or it was evicted.
    pub(super) closed: bool,
    /// What it holds was forgotten before it believed in it.
    pub(super) forgotten: bool,
}

/// The attempts of a history, and the guards in the order in which they were handed out.
#[derive(Debug, Default)]
pub(super) struct Guards {
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) guards: Vec<Guard>,
    by_attempt: BTreeMap<u64, usize>,
    by_process: BTreeMap<u32, Vec<usize>>,
    by_session: BTreeMap<SessionId, Vec<usize>>,
    /// The longest validity of a guard.
    pub(super) validity: Option<u64>,
    /// Sessions of which something was to be given up. When each guard that goes with it is gone its own client says.
    evicting: BTreeSet<SessionId>,
    /// When each session was to be revoked.
    revoked: BTreeMap<SessionId, Pos>,
    /// Steps of the store's clock forward.
    steps: Vec<Pos>,
    resumed: BTreeMap<u32, Pos>,
    paused: BTreeMap<u32, Pos>,
    real_time: bool,
    /// Sessions with a guard that has an intent.
    intents: BTreeSet<SessionId>,
    /// Those of them whose owner was told that the store is another one: they do not move to it.
    unmoved: BTreeSet<SessionId>,
    /// Which session each renewal under way is of, by its process and its number there.
    renewals: BTreeMap<(u32, u64), SessionId>,
    pub(super) failovers: Failovers,
}

impl Guards {
    pub(super) fn of(history: &History, keys: &mut Keys, findings: &mut Findings) -> Self {
        let mut guards = Self {
            real_time: history.real_time,
            failovers: Failovers::of(history),
            ..Self::default()
        };
        for (number, event) in history.events.iter().enumerate() {
            let at = Pos {
                at: event.at,
                number: number + 1,
            };
            guards.event(at, event.process, &event.what, keys, findings);
        }
        guards.cut();
        guards
    }

    pub(super) fn of_attempt(&self, attempt: u64) -> Option<&Guard> {
        self.by_attempt.get(&attempt).map(|at| &self.guards[*at])
    }

    fn event(
        &mut self,
        at: Pos,
        process: u32,
        what: &What,
        keys: &mut Keys,
        findings: &mut Findings,
    ) {
        match what {
            What::Asked {
                attempt,
                owner,
                claims,
                intent,
            } => {
                let asked = Asked {
                    at,
                    process,
                    owner: *owner,
                    casts: keys.casts(claims),
                    intent: *intent,
                };
                self.asked.insert(*attempt, asked);
            }
            What::Granted {
                attempt,
                session,
                token,
                numbers,
                left,
                validity,
            } => {
                if self.asked.get(attempt).is_some_and(|asked| asked.intent) {
                    self.intents.insert(*session);
                }
                // Who was to give it up may have been told so between the look at it and this.
                let broken = self.evicting.contains(session)
                    || self.broken_for(*session, at.at.saturating_sub(*validity), at);
                let late = self.real_time || self.paused_since_asked(*attempt);
                if *left == 0 && !broken && !late {
                    findings.add(Violation::new(
                        Law::HandedOutValid,
                        at,
                        format!(
                            "the guard of attempt {attempt} was not valid when it was handed out"
                        ),
                    ));
                }
                let number = self.guards.len();
                self.by_attempt.insert(*attempt, number);
                self.by_process.entry(process).or_default().push(number);
                self.by_session.entry(*session).or_default().push(number);
                self.validity = self.validity.max(Some(*validity));
                self.guards.push(Guard {
                    attempt: *attempt,
                    session: *session,
                    token: token.get(),
                    numbers: numbers.clone(),
                    start: at,
                    end: Pos::instant(at.at + left),
                    released: None,
                    deadline: at.at + left,
                    validity: *validity,
                    kept: None,
                    retired: *left == 0,
                    not_valid: *left == 0,
                    closed: false,
                    forgotten: false,
                });
            }
            What::Looked { attempt, left } => {
                findings.judged(Law::ValidOnce, 1);
                self.looked(at, *attempt, *left, findings);
            }
            What::Confirmed { attempt, held } => {
                findings.judged(Law::Guard, 1);
                if !held {
                    self.denied(at, *attempt, findings);
                }
            }
            What::GivingBack { attempt, how } => {
                let intent = self.asked.get(attempt).is_some_and(|asked| asked.intent);
                let Some(guard) = self.guard(*attempt) else {
                    return;
                };
                guard.retired(at);
                if *how == How::Released {
                    guard.released = Some(at);
                }
                if intent && (*how != How::Released || guard.not_valid) {
                    // Its session is closed, and with it go those that have re-entered it.
                    let session = guard.session;
                    for other in self.by_session.remove(&session).unwrap_or_default() {
                        self.guards[other].gone(at);
                    }
                }
            }
            What::Kept {
                attempt,
                left,
                validity,
            } => {
                findings.judged(Law::AtMostOneHolder, 1);
                let Some(number) = self.by_attempt.get(attempt).copied() else {
                    return;
                };
                let guard = &mut self.guards[number];
                if !guard.closed {
                    let end = at.at + left;
                    guard.end = Pos::instant(end);
                    guard.kept = Some(end.saturating_sub(*validity));
                }
                // It is no process's any more.
                let processes = self.by_process.values_mut();
                processes.for_each(|guards| guards.retain(|it| *it != number));
            }
            What::Killed => {
                for guard in self.by_process.remove(&process).unwrap_or_default() {
                    self.guards[guard].retired(at);
                }
            }
            What::Paused => drop(self.paused.insert(process, at)),
            What::Resumed => drop(self.resumed.insert(process, at)),
            What::Stored(Stored::Renew {
                session,
                retired,
                answer: Answer::Living,
                ..
            }) => {
                // Whoever says that a grant is over believes nothing of it any more.
                let of_it = self.by_session.get(session).into_iter().flatten();
                for guard in of_it {
                    let guard = &mut self.guards[*guard];
                    if !guard.retired && guard.numbers.iter().any(|n| retired.contains(*n)) {
                        guard.gone(at);
                    }
                }
            }
            What::Stored(Stored::Renew {
                session,
                answer: Answer::Moved,
                ..
            }) => self.is_not_moved(*session),
            What::Called {
                call,
                request: Call::Renew { session, .. },
            } => drop(self.renewals.insert((process, *call), *session)),
            What::Answered {
                call,
                reply: Reply::Renewed(answer),
            } => {
                let session = self.renewals.remove(&(process, *call));
                if let Some(session) = session.filter(|_| *answer == Answer::Moved) {
                    self.is_not_moved(session);
                }
            }
            What::Stored(Stored::End {
                session,
                if_due: false,
                discard: false,
                ..
            }) if self.evicting.contains(session) && !self.revoked.contains_key(session) => {
                // By its owner, who believes nothing of it any more, and not by an operator.
                for guard in self.by_session.get(session).into_iter().flatten() {
                    self.guards[*guard].gone(at);
                }
            }
            What::Evicting { session } => drop(self.evicting.insert(*session)),
            What::Revoking { session } => drop(self.revoked.entry(*session).or_insert(at)),
            What::Stepped { by } if *by > 0 => self.steps.push(at),
            _ => {}
        }
    }

    /// Its owner was told that the store is another one.
    fn is_not_moved(&mut self, session: SessionId) {
        if self.intents.contains(&session) {
            self.unmoved.insert(session);
        }
    }

    fn guard(&mut self, attempt: u64) -> Option<&mut Guard> {
        self.by_attempt
            .get(&attempt)
            .map(|at| &mut self.guards[*at])
    }

    /// Whether something since then may have ended the session before its guards expect it.
    fn broken_for(&self, session: SessionId, since: u64, at: Pos) -> bool {
        let stepped = self.steps.last().is_some_and(|step| step.at >= since);
        // Where the intent may be forgotten, nobody asks.
        let intent = self.intents.contains(&session);
        let failed_over = self.failovers.iter().any(|it| {
            let meets = it.touches(session) || (it.named && intent);
            it.at.at >= since && it.at < at && meets
        });
        stepped || failed_over || self.revoked.contains_key(&session)
    }

    /// Whether an operator, or a step of the store's clock, may have ended the session.
    pub(super) fn was_broken(&self, session: SessionId) -> bool {
        let evicted = self.evicting.contains(&session);
        evicted || !self.steps.is_empty() || self.revoked.contains_key(&session)
    }

    /// Whether anything may have ended the session, or have had it forgotten, before its guards expect it.
    pub(super) fn may_be_broken(&self, session: SessionId) -> bool {
        self.was_broken(session) || self.failovers.touched(session).is_some()
    }

    /// Whether a guard of that session has an intent.
    pub(super) fn has_intent(&self, session: SessionId) -> bool {
        self.intents.contains(&session)
    }

    /// A process that was paused between the look at the deadline and its program does not lie.
    fn paused_since_asked(&self, attempt: u64) -> bool {
        let Some(asked) = self.asked.get(&attempt) else {
            return false;
        };
        let after = |at: Option<&Pos>| at.is_some_and(|at| *at > asked.at);
        after(self.paused.get(&asked.process)) || after(self.resumed.get(&asked.process))
    }

    fn looked(&mut self, at: Pos, attempt: u64, left: u64, findings: &mut Findings) {
        let Some(guard) = self.guard(attempt) else {
            return;
        };
        if left == 0 {
            guard.retired(at);
            guard.not_valid = true;
        } else if guard.not_valid {
            findings.add(
                Violation::new(
                    Law::ValidOnce,
                    at,
                    format!("the guard of attempt {attempt} said that it is not valid, and now is"),
                )
                .about([Subject::Attempt(attempt)]),
            );
        } else if !guard.retired {
            guard.deadline = guard.deadline.max(at.at + left);
            guard.end = Pos::instant(guard.deadline);
        }
    }

    /// What a guard has promised until its deadline, only a revocation or a step of the store's clock may break; and with an
    /// intent, a store that is another one.
    fn denied(&mut self, at: Pos, attempt: u64, findings: &mut Findings) {
        let Some(guard) = self.of_attempt(attempt) else {
            return;
        };
        let sent = guard.deadline.saturating_sub(guard.validity);
        let evicted = self.evicting.contains(&guard.session);
        let forgotten = || {
            let cut = self.failovers.cut(guard.session, &guard.numbers, sent);
            cut.is_some_and(|cut| cut < at)
        };
        let unmoved = self.unmoved.contains(&guard.session);
        let broken = guard.closed
            || evicted
            || unmoved
            || self.broken_for(guard.session, sent, at)
            || forgotten();
        if at.at < guard.deadline && !broken {
            let left = std::time::Duration::from_nanos(guard.deadline - at.at);
            findings.add(
                Violation::new(
                    Law::Guard,
                    at,
                    format!(
                        "the guard of attempt {attempt} does not hold, {left:?} before its deadline"
                    ),
                )
                .about([Subject::Attempt(attempt)]),
            );
        }
    }

    /// The first revocation or step forward that may have ended a session which believes to live at `start`. Where it is
    /// not known which session that is, it may be any.
    pub(super) fn broken_since(&self, session: Option<SessionId>, start: Pos) -> Option<Pos> {
        let since = start.at.saturating_sub(self.validity.unwrap_or(start.at));
        let revoked = self.revoked.iter();
        let of_it = revoked.filter(|(revoked, _)| session.is_none_or(|it| it == **revoked));
        let all = self.steps.iter().chain(of_it.map(|(_, at)| at));
        all.filter(|broken| broken.at >= since).min().copied()
    }

    /// The first failover that may have ended what began at `start` and rests on a renewal that was sent then: one that is
    /// older is told by it, where the store has a name.
    pub(super) fn forgets_since(&self, start: Pos, sent: u64) -> Option<Pos> {
        let since = start.at.saturating_sub(self.validity.unwrap_or(start.at));
        let mut cuts = self.failovers.iter().filter(|it| it.at.at >= since);
        let found = cuts.find(|it| !(it.named && sent > it.at.at));
        found.map(|failover| failover.at)
    }

    /// Whoever revokes a session, or sets the store's clock forward, says so: from then on, and until the next
    /// renewal is acknowledged, a guard believes what is not so.
    fn cut(&mut self) {
        for guard in &mut self.guards {
            let counts_from = guard.deadline.saturating_sub(guard.validity);
            let sent = guard.kept.unwrap_or(counts_from);
            // A renewal after a step says that the session lived through it, if no failover has forgotten its death between.
            let began = guard.start.at.saturating_sub(guard.validity);
            let forgets = |step: &Pos| {
                let mut failovers = self.failovers.iter();
                failovers.any(|it| it.at > *step && it.at.at <= sent)
            };
            let mut steps = self.steps.iter();
            let step = steps.find(|it| it.at >= sent || it.at >= began && forgets(it));
            let revoked = self.revoked.get(&guard.session);
            let forgotten = self.failovers.cut(guard.session, &guard.numbers, sent);
            guard.forgotten = forgotten.is_some_and(|at| at < guard.start);
            for cut in step.into_iter().chain(revoked).chain(&forgotten) {
                guard.end = guard.end.min(*cut);
            }
        }
    }
}

impl Guard {
    /// Its client believes nothing of it any more.
    fn gone(&mut self, at: Pos) {
        self.retired(at);
        self.not_valid = true;
        self.closed = true;
    }

    fn retired(&mut self, at: Pos) {
        self.end = self.end.min(at);
        self.retired = true;
    }
}
