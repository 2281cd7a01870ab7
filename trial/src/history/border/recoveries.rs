//! Adoptions and settlements: one adopter at a time, one settlement, and intents that stay until then.

use std::collections::BTreeMap;

use lockcore::SessionId;

use super::{Border, NEVER, Sent};
use crate::history::check::{Findings, Subject, Violation};
use crate::history::event::Answer;
use crate::history::index::Pos;
use crate::history::{Call, Law, Reply};

/// An adoption that was received.
#[derive(Debug, Clone, Copy)]
struct Adoption {
    number: u64,
    token: u64,
    adopter: SessionId,
    begun: Pos,
    answered: Pos,
}

/// The adoptions of each session, in the order of their answers.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    of: BTreeMap<SessionId, Vec<Adoption>>,
    /// The first call that gives up an adoption of that number, or settles it.
    ended: BTreeMap<(SessionId, u64), Pos>,
    /// When each session was known to be settled.
    settled: BTreeMap<SessionId, Pos>,
}

impl Adoptions {
    pub(super) fn of(sent: &[Sent<'_>]) -> Self {
        let mut this = Self::default();
        for call in sent.iter().filter(|call| !call.failed()) {
            let ended = match call.request {
                Call::Adopt {
                    session,
                    seen,
                    adopter,
                    give_up,
                } => {
                    if let Some((answered, Reply::Adopted(Some(received)))) = call.answer {
                        this.of.entry(*session).or_default().push(Adoption {
                            number: received.number,
                            token: received.token,
                            adopter: *adopter,
                            begun: call.begun,
                            answered,
                        });
                    }
                    give_up.then_some((*session, seen + 1))
                }
                Call::Settle { session, adoption } => {
                    if let Some((at, Reply::Settled(true))) = call.answer {
                        let first = this.settled.entry(*session).or_insert(at);
                        *first = (*first).min(at);
                    }
                    Some((*session, *adoption))
                }
                _ => None,
            };
            if let Some(ended) = ended {
                let first = this.ended.entry(ended).or_insert(call.begun);
                *first = (*first).min(call.begun);
            }
        }
        for adoptions in this.of.values_mut() {
            adoptions.sort_by_key(|adoption| adoption.answered);
        }
        this
    }

    pub(super) fn adopter(&self, session: SessionId, token: u64) -> Option<SessionId> {
        let mut adoptions = self.of.get(&session)?.iter();
        let found = adoptions.find(|adoption| adoption.token == token);
        found.map(|adoption| adoption.adopter)
    }
}

pub(super) fn check(border: &Border<'_>, findings: &mut Findings) {
    let mut add = |law, at, what: String, sessions: &[SessionId]| {
        let about = sessions.iter().copied().map(Subject::Session);
        findings.add(Violation::new(law, at, what).about(about));
    };
    let mut adopted = 0;
    for (session, adoptions) in &border.adoptions.of {
        for (at, adoption) in adoptions.iter().enumerate() {
            adopted += 1;
            for wrong in wrongs(border, *session, &adoptions[..at], adoption) {
                let what = format!("{session} was adopted by {}: {wrong}", adoption.adopter);
                add(
                    Law::OneAdopter,
                    adoption.answered,
                    what,
                    &[*session, adoption.adopter],
                );
            }
        }
    }
    let mut deaths = 0;
    for call in &border.sent {
        let Some((at, reply)) = call.answer else {
            continue;
        };
        match (call.request, reply) {
            (Call::Settle { session, adoption }, Reply::Settled(true)) => {
                adopted += 1;
                let adoptions = border.adoptions.of.get(session);
                let known = adoptions.is_some_and(|adoptions| {
                    let mut known = adoptions.iter();
                    known.any(|known| known.number == *adoption && known.begun < at)
                });
                if !known {
                    let what = format!(
                        "{session} was settled by adoption {adoption}, which nobody has received"
                    );
                    add(Law::OneAdopter, at, what, &[*session]);
                }
            }
            (_, Reply::States(states)) => {
                for state in states {
                    let Some(life) = border.sessions.get(&state.session) else {
                        continue;
                    };
                    if life.registered >= call.begun || state.life == Answer::Living {
                        continue;
                    }
                    let stays = life.dropped.min(life.freed) > at;
                    deaths += usize::from(stays);
                    if stays && state.life == Answer::Dead {
                        let session = state.session;
                        let what = format!(
                            "{session} is dead, and nobody has settled or discarded its intent"
                        );
                        add(Law::IntentStays, at, what, &[session]);
                    }
                }
            }
            _ => {}
        }
    }
    findings.judged(Law::OneAdopter, adopted);
    findings.judged(Law::IntentStays, deaths);
}

/// What is wrong with an adoption after those before it.
fn wrongs(
    border: &Border<'_>,
    session: SessionId,
    before: &[Adoption],
    adoption: &Adoption,
) -> Vec<String> {
    let mut wrongs = Vec::new();
    let same =
        |other: &&Adoption| other.number == adoption.number && other.adopter != adoption.adopter;
    if let Some(other) = before.iter().find(same) {
        wrongs.push(format!("adoption {} is {}'s", other.number, other.adopter));
    }
    let settled = border.adoptions.settled.get(&session);
    if settled.is_some_and(|settled| *settled < adoption.begun) {
        wrongs.push("it was settled".to_owned());
    }
    let living = before.iter().find(|other| {
        let ended = border.adoptions.ended.get(&(session, other.number));
        let life = border.sessions.get(&other.adopter);
        let (from, until) = life.map_or((NEVER, NEVER), |life| life.lives(&border.setting));
        other.adopter != adoption.adopter
            && other.number < adoption.number
            && other.answered < adoption.begun
            && ended.is_none_or(|ended| *ended > adoption.answered)
            && from < adoption.begun
            && adoption.answered < until
    });
    if let Some(other) = living {
        wrongs.push(format!("its adopter {} lives", other.adopter));
    }
    wrongs
}
