//! Guards against the leases of their sessions, and against the answers that they are made of.

use std::collections::BTreeMap;

use lockcore::SessionId;

use super::Border;
use super::trouble::Trouble;
use crate::history::check::{Findings, Subject, Violation};
use crate::history::guards::Guards;
use crate::history::index::Pos;
use crate::history::{History, Law, What};

/// What a process takes from its look at the deadline to what its program writes down, besides what it is known to be
/// late by.
const SLACK: u64 = 100_000_000;
/// For so long a grant goes on within its process.
const HANDED_ON: u64 = 50_000_000;

pub(super) fn check(
    border: &Border<'_>,
    history: &History,
    guards: &Guards,
    findings: &mut Findings,
) {
    let trouble = Trouble::of(history);
    // When the session received each token.
    let mut received: BTreeMap<(SessionId, u64), Pos> = BTreeMap::new();
    for asked in border.asked.values() {
        for (_, answer, token) in &asked.answers {
            let first = received
                .entry((asked.grant.session, *token))
                .or_insert(*answer);
            *first = (*first).min(*answer);
        }
    }
    // When each guard began to be given back.
    let mut giving: BTreeMap<u64, Pos> = BTreeMap::new();
    // When each grant got its first guard.
    let mut first_guards: BTreeMap<(SessionId, Option<u64>), u64> = BTreeMap::new();
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        match &event.what {
            What::Granted {
                attempt,
                session,
                token,
                numbers,
                left,
                ..
            } => {
                let (of_grant, pass) = token.grant_and_pass();
                let received = received.get(&(*session, of_grant.get())).copied();
                let asked = guards.asked.get(attempt).map_or(at, |asked| asked.at);
                let late = match trouble.stopped(event.process, asked.at, at.at) {
                    true => u64::MAX,
                    false => SLACK + trouble.late(event.process, asked.at, at.at),
                };
                let got = (*attempt, *session, received);
                handed_out(border, at, got, late, findings);
                let grant = (*session, numbers.first().copied());
                let first = *first_guards.entry(grant).or_insert(at.at);
                if pass > 0 && !trouble.stopped(event.process, first, at.at) {
                    let late = match history.real_time {
                        true => SLACK + trouble.late(event.process, first, at.at),
                        false => 0,
                    };
                    let since = at.at - first;
                    findings.judged(Law::HandedOnForShort, 1);
                    if since > HANDED_ON + late {
                        let what = format!(
                            "the guard of attempt {attempt} is number {pass} on its grant, {since} ns after the first"
                        );
                        let violation = Violation::new(Law::HandedOnForShort, at, what);
                        findings.add(violation.about([Subject::Attempt(*attempt)]));
                    }
                }
                believed(border, at, *attempt, *session, *left, findings);
            }
            What::GivingBack { attempt, .. } => {
                giving.insert(*attempt, at);
            }
            What::GaveBack {
                attempt,
                held: Some(true),
            } if history.real_time => {
                let guard = guards.of_attempt(*attempt);
                let life = guard.and_then(|guard| border.sessions.get(&guard.session));
                if let (Some(since), Some(life)) = (giving.get(attempt), life) {
                    findings.judged(Law::Guard, 1);
                    if life.ended_for_sure < *since {
                        let what = format!(
                            "the release of the guard of attempt {attempt} says that it was held, and its session was dead before"
                        );
                        let violation = Violation::new(Law::Guard, at, what);
                        findings.add(violation.about([Subject::Attempt(*attempt)]));
                    }
                }
            }
            What::Looked { attempt, left } => {
                if let Some(guard) = guards.of_attempt(*attempt) {
                    believed(border, at, *attempt, guard.session, *left, findings);
                }
            }
            _ => {}
        }
    }
}

/// By any clock that runs right, a lease lasts at least its TTL from when its renewal was sent.
fn believed(
    border: &Border<'_>,
    at: Pos,
    attempt: u64,
    session: SessionId,
    left: u64,
    findings: &mut Findings,
) {
    let Some(life) = border.sessions.get(&session).filter(|_| left > 0) else {
        return;
    };
    findings.judged(Law::DeadlineWithinLease, 1);
    let lease = life.renewed(at).map_or(0, |sent| sent.at + life.ttl);
    if at.at + left > lease {
        let what = format!(
            "the guard of attempt {attempt} says to be valid for {left} ns, and its lease ends {} ns earlier",
            at.at + left - lease
        );
        let violation = Violation::new(Law::DeadlineWithinLease, at, what);
        findings.add(violation.about([Subject::Attempt(attempt), Subject::Session(session)]));
    }
}

/// The client looks at the deadline after the last answer of an acquisition. What was acknowledged by then has to reach
/// as far, and to when the program has it, unless the process was stopped or late in between.
fn handed_out(
    border: &Border<'_>,
    at: Pos,
    (attempt, session, received): (u64, SessionId, Option<Pos>),
    late: u64,
    findings: &mut Findings,
) {
    let Some(life) = border.sessions.get(&session) else {
        return;
    };
    findings.judged(Law::HandedOutValid, 1);
    let deadline = life.deadline(at).unwrap_or(0);
    let wrong = match received {
        None => "its token was never given to its session".to_owned(),
        Some(answer) if deadline < answer.at => format!(
            "its deadline had passed {} ns before it was granted",
            answer.at - deadline
        ),
        Some(_) if deadline.saturating_add(late) < at.at => {
            format!("its deadline had passed {} ns before", at.at - deadline)
        }
        Some(_) => return,
    };
    let what = format!("the guard of attempt {attempt} was handed out: {wrong}");
    let violation = Violation::new(Law::HandedOutValid, at, what);
    findings.add(violation.about([Subject::Attempt(attempt), Subject::Session(session)]));
}
