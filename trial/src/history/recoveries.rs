//! Adoptions: one at a time, after the holder's death, with the locks that the intent is about.

use std::collections::BTreeMap;

use lockcore::SessionId;

use super::border::Border;
use super::check::{Findings, Subject, Violation};
use super::event::{Stored, What};
use super::guards::Guards;
use super::index::Pos;
use super::{History, Law};

/// An adoption that an adopter has received.
#[derive(Debug)]
pub(super) struct Adoption {
    pub(super) id: u64,
    pub(super) session: SessionId,
    /// The adopter's session, if it is known.
    adopter: Option<SessionId>,
    /// The attempt that left the intent.
    pub(super) attempt: u64,
    pub(super) token: u64,
    process: u32,
    pub(super) start: Pos,
    /// The adopter believed in it until here.
    pub(super) end: Pos,
    /// When the renewal was sent by which it believed so.
    sent: u64,
    retired: bool,
}

/// The adoptions of a history.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    pub(super) adoptions: Vec<Adoption>,
    /// When somebody first said that a session's change is finished, undone or of no interest.
    pub(super) resolved: BTreeMap<SessionId, Pos>,
    /// When an intent was to be thrown away, perhaps under its adopter.
    discarded: BTreeMap<SessionId, Pos>,
}

impl Recoveries {
    pub(super) fn of(
        history: &History,
        guards: &Guards,
        border: &Border<'_>,
        findings: &mut Findings,
    ) -> Self {
        let mut this = Self::default();
        let mut by_id: BTreeMap<u64, usize> = BTreeMap::new();
        for (number, event) in history.events.iter().enumerate() {
            let at = Pos {
                at: event.at,
                number: number + 1,
            };
            match &event.what {
                What::Adopted {
                    adoption,
                    session,
                    attempt,
                    old_token,
                    token,
                } => {
                    by_id.insert(*adoption, this.adoptions.len());
                    this.adoptions.push(Adoption {
                        id: *adoption,
                        session: *session,
                        adopter: border.adopter(*session, *token),
                        attempt: *attempt,
                        token: token.get(),
                        process: event.process,
                        start: at,
                        end: at,
                        sent: 0,
                        retired: false,
                    });
                    let handed_out = guards.of_attempt(*attempt).map(|guard| guard.token);
                    if token <= old_token || handed_out.is_some_and(|old| old != old_token.get()) {
                        findings.add(Violation::new(
                            Law::TokensOnlyRise,
                            at,
                            format!(
                                "adoption {adoption} has token {token} and old token {old_token}, its guard had {handed_out:?}"
                            ),
                        ));
                    }
                }
                What::Believed { adoption, left } => {
                    if let Some(adoption) = by_id.get(adoption).map(|at| &mut this.adoptions[*at])
                        && !adoption.retired
                    {
                        adoption.end = at;
                        let validity = guards.validity.unwrap_or_default();
                        adoption.sent = (at.at + left).saturating_sub(validity);
                    }
                }
                What::Settling { adoption } | What::GivingUp { adoption } => {
                    if let Some(adoption) = by_id.get(adoption).map(|at| &mut this.adoptions[*at]) {
                        adoption.retired = true;
                        if matches!(event.what, What::Settling { .. }) {
                            this.resolved.entry(adoption.session).or_insert(at);
                        }
                    }
                }
                What::Killed => {
                    for adoption in &mut this.adoptions {
                        adoption.retired |= adoption.process == event.process;
                    }
                }
                What::Discarding { session } => {
                    this.resolved.entry(*session).or_insert(at);
                    this.discarded.entry(*session).or_insert(at);
                }
                _ => {}
            }
        }
        findings.judged(Law::OneAdopter, this.adoptions.len());
        numbers(history, findings);
        this.cut(guards);
        this.one_at_a_time(findings);
        this.after_death(guards, findings);
        this
    }

    /// An adopter does not know that the intent was thrown away, that its own session was revoked, or that a step of
    /// the clock has ended that; nor what the store has forgotten, before its next renewal.
    fn cut(&mut self, guards: &Guards) {
        for adoption in &mut self.adoptions {
            let discarded = self.discarded.get(&adoption.session).copied();
            let broken = guards.broken_since(adoption.adopter, adoption.start);
            let forgotten = guards.forgets_since(adoption.start, adoption.sent);
            for cut in discarded.into_iter().chain(broken).chain(forgotten) {
                adoption.end = adoption.end.min(cut);
            }
        }
    }

    fn one_at_a_time(&self, findings: &mut Findings) {
        let mut by_token: Vec<&Adoption> = self.adoptions.iter().collect();
        by_token.sort_by_key(|adoption| adoption.token);
        let mut last: BTreeMap<SessionId, &Adoption> = BTreeMap::new();
        for adoption in by_token {
            // Who was told of an adoption when its session was over did not believe in it.
            if let Some(before) = last.get(&adoption.session)
                && before.end > before.start
                && before.end > adoption.start
                && adoption.end >= adoption.start
            {
                findings.add(
                    Violation::new(
                        Law::OneAdopter,
                        adoption.start.max(before.start),
                        format!(
                            "adoptions {} and {} of {} at the same time",
                            before.id, adoption.id, adoption.session
                        ),
                    )
                    .about([before.id, adoption.id].map(Subject::Adoption)),
                );
            }
            let latest = last.entry(adoption.session).or_insert(adoption);
            if latest.end < adoption.end {
                *latest = adoption;
            }
        }
    }

    /// No guard of a session says that it is valid when the session is adopted.
    fn after_death(&self, guards: &Guards, findings: &mut Findings) {
        let mut ends: BTreeMap<SessionId, (Pos, u64)> = BTreeMap::new();
        for guard in &guards.guards {
            if guard.end > guard.start {
                let end = ends
                    .entry(guard.session)
                    .or_insert((guard.end, guard.attempt));
                *end = (*end).max((guard.end, guard.attempt));
            }
        }
        for adoption in &self.adoptions {
            if let Some((end, attempt)) = ends.get(&adoption.session)
                && *end > adoption.start
            {
                findings.add(Violation::new(
                    Law::OneAdopter,
                    adoption.start,
                    format!(
                        "session {} was adopted while the guard of attempt {attempt} in it says that it is valid",
                        adoption.session
                    ),
                ).about([Subject::Adoption(adoption.id), Subject::Attempt(*attempt)]));
            }
        }
    }
}

/// Each number of an adoption is one adopter's, and only a number that somebody has received settles.
fn numbers(history: &History, findings: &mut Findings) {
    let mut adopters: BTreeMap<(SessionId, u64), SessionId> = BTreeMap::new();
    let mut copy = BTreeMap::new();
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        let wrong = match &event.what {
            What::Copied => {
                copy.clone_from(&adopters);
                None
            }
            What::FailedOver { .. } => {
                adopters.clone_from(&copy);
                None
            }
            What::Stored(Stored::Adopt {
                session,
                adopter,
                give_up: false,
                number: Some(number),
                ..
            }) => {
                let first = *adopters.entry((*session, *number)).or_insert(*adopter);
                (first != *adopter).then(|| {
                    format!("adoption {number} of {session} is {adopter}'s, and {first}'s")
                })
            }
            What::Stored(Stored::Settle {
                session,
                adoption,
                adopter,
                settled: true,
            }) => (adopters.get(&(*session, *adoption)) != Some(adopter)).then(|| {
                format!(
                    "{session} was settled by {adopter} and adoption {adoption}, which it has not received"
                )
            }),
            _ => None,
        };
        if let Some(wrong) = wrong {
            findings.add(Violation::new(Law::OneAdopter, at, wrong));
        }
    }
}
