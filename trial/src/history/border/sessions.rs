//! Sessions: from when to when each certainly lives, since when it is certainly dead, and what an answer says of that.

use std::collections::BTreeMap;

use lockcore::backend::Ranges;
use lockcore::limits::MIN_MARGIN;
use lockcore::{Grant, SessionId};

use super::{Border, NEVER, Sent, Setting};
use crate::history::check::{Findings, Subject, Violation};
use crate::history::event::{Answer, Change};
use crate::history::index::Pos;
use crate::history::{Call, Ending, Law, Reply};

/// A session, as far as requests and answers tell. Its death is for good, so it lives without a gap until the last
/// renewal that was acknowledged.
#[derive(Debug)]
pub(super) struct Life<'a> {
    pub(super) ttl: u64,
    /// It certainly lives from here.
    opened: Pos,
    /// The acknowledged opening and renewals, by their answers: the answer, and the greatest time of a call until then.
    acked: Vec<(Pos, Pos)>,
    /// The last answer to a renewal that may have been executed.
    last: Pos,
    /// A renewal may be executed at any time.
    in_doubt: bool,
    /// The first call that may end it before it is due.
    ended: Pos,
    /// It is certainly dead or abandoned from here.
    pub(super) dead: Pos,
    /// The same, by an answer to what changes sessions: a list, or a refusal, may come from a copy.
    pub(super) ended_for_sure: Pos,
    /// None of its holders counts from here.
    free: Pos,
    /// When its intent was perhaps registered, certainly registered, and perhaps removed by its owner.
    put: Pos,
    pub(super) registered: Pos,
    pub(super) dropped: Pos,
    /// When it was perhaps settled or discarded.
    pub(super) freed: Pos,
    /// Renewals by their calls: call, acknowledgement, numbers that are over.
    retireds: Vec<(Pos, Pos, &'a Ranges)>,
}

impl Life<'_> {
    fn new() -> Self {
        Self {
            ttl: 0,
            opened: NEVER,
            acked: Vec::new(),
            last: Pos::instant(0),
            in_doubt: false,
            ended: NEVER,
            dead: NEVER,
            ended_for_sure: NEVER,
            free: NEVER,
            put: NEVER,
            registered: NEVER,
            dropped: NEVER,
            freed: NEVER,
            retireds: Vec::new(),
        }
    }

    /// For so long a guard believes in a lease, and a store keeps it, whatever its clock.
    fn validity(&self) -> u64 {
        let margin = u64::try_from(MIN_MARGIN.as_nanos()).unwrap_or(u64::MAX);
        self.ttl.saturating_sub(margin.max(self.ttl / 100))
    }

    /// When the last opening or renewal was sent of those that were acknowledged until then.
    pub(super) fn renewed(&self, until: Pos) -> Option<Pos> {
        let known = self.acked.partition_point(|(answer, _)| *answer <= until);
        known.checked_sub(1).map(|last| self.acked[last].1)
    }

    /// Until when guards may believe in the lease that was acknowledged until then.
    pub(super) fn deadline(&self, until: Pos) -> Option<u64> {
        let renewed = self.renewed(until)?;
        Some(renewed.at.saturating_add(self.validity()))
    }

    /// It certainly lived until here, as far as was known at that time: to the end of its lease, unless the store's clock was
    /// set forward meanwhile.
    fn lived(&self, known: Pos, setting: &super::Setting) -> Option<Pos> {
        let renewed = self.renewed(known)?;
        let due = Pos::instant(renewed.at.saturating_add(self.validity()));
        let steps = setting.forward.iter();
        let shorter = steps.filter(|(from, until)| *from <= due && renewed <= *until);
        let due = shorter.map(|(from, _)| *from).fold(due, Pos::min);
        Some(renewed.max(due.min(self.ended)))
    }

    /// It certainly lives from the first to the second; nothing, if they are the wrong way round.
    pub(super) fn lives(&self, setting: &super::Setting) -> (Pos, Pos) {
        let end = self.lived(NEVER, setting).unwrap_or(Pos::instant(0));
        (self.opened, end)
    }

    /// Its holders certainly count until here, unless their numbers are over.
    pub(super) fn is_live(&self, setting: &super::Setting) -> Pos {
        if self.registered < NEVER && self.dropped == NEVER {
            return self.freed;
        }
        self.lives(setting).1
    }

    /// None of its holders counts from here on.
    pub(super) fn gone(&self, setting: &super::Setting) -> Pos {
        if self.put < NEVER {
            return self.free;
        }
        let due = match setting.timed && setting.steady && !self.in_doubt && !self.acked.is_empty()
        {
            true => Pos::instant(
                self.last
                    .at
                    .saturating_add(self.ttl)
                    .saturating_add(setting.allowance),
            ),
            false => NEVER,
        };
        self.free.min(self.dead).min(due)
    }

    /// When a number was over: perhaps, and certainly.
    pub(super) fn retired(&self, n: u64) -> (Pos, Pos) {
        // What is over stays over, so the first renewal that says so is found by halves.
        let first = self
            .retireds
            .partition_point(|(.., retired)| !retired.contains(n));
        let saying = &self.retireds[first..];
        let perhaps = saying.first().map_or(NEVER, |(begun, ..)| *begun);
        let certain = saying
            .iter()
            .map(|(_, acked, _)| *acked)
            .find(|acked| *acked < NEVER);
        (perhaps, certain.unwrap_or(NEVER))
    }

    /// An intent may be registered at some time in between.
    pub(super) fn may_have_intent(&self, until: Pos) -> bool {
        self.put < until
    }

    fn dies(&mut self, at: Pos, without_intent: bool) {
        self.ended_for_sure = self.ended_for_sure.min(at);
        self.is_told(at, without_intent);
    }

    fn is_told(&mut self, at: Pos, without_intent: bool) {
        self.dead = self.dead.min(at);
        if without_intent {
            self.free = self.free.min(at);
        }
    }
}

/// All sessions that requests or answers name. Where that proves nothing, without what lists and refusals say.
pub(super) fn lives<'a>(sent: &[Sent<'a>], setting: &Setting) -> BTreeMap<SessionId, Life<'a>> {
    let mut lives: BTreeMap<SessionId, Life<'a>> = BTreeMap::new();
    for call in sent {
        match call.request {
            Call::Open { session, ttl } => {
                let life = lives.entry(*session).or_insert_with(Life::new);
                life.ttl = *ttl;
                match call.answer {
                    Some((at, Reply::Opened(true))) => {
                        life.opened = life.opened.min(at);
                        life.acked.push((at, call.begun));
                        life.last = life.last.max(at);
                    }
                    _ if call.in_doubt() => life.in_doubt = true,
                    _ => {}
                }
            }
            Call::Renew {
                session,
                retired,
                change,
                ..
            } if !call.failed() => {
                let life = lives.entry(*session).or_insert_with(Life::new);
                renewal(life, call, retired, *change);
            }
            Call::End { sessions, how } => {
                for session in sessions {
                    let life = lives.entry(*session).or_insert_with(Life::new);
                    if call.failed() {
                        continue;
                    }
                    match how {
                        Ending::Close | Ending::Revoke => life.ended = life.ended.min(call.begun),
                        Ending::Discard => life.freed = life.freed.min(call.begun),
                        Ending::IfDue => {}
                    }
                }
            }
            Call::Adopt { session, .. } => {
                let life = lives.entry(*session).or_insert_with(Life::new);
                if let Some((at, Reply::Adopted(Some(_)))) = call.answer {
                    life.dies(at, false);
                }
            }
            Call::Settle { session, .. } if !call.failed() => {
                let life = lives.entry(*session).or_insert_with(Life::new);
                life.freed = life.freed.min(call.begun);
                if let Some((at, Reply::Settled(true))) = call.answer {
                    life.dies(at, true);
                }
            }
            _ => {}
        }
        if !setting.is_sure(call) {
            continue;
        }
        let is_sure = matches!(call.request, Call::End { .. });
        told(call, |session, answer, at| {
            let life = lives.entry(session).or_insert_with(Life::new);
            match (answer, is_sure) {
                (Answer::Dead | Answer::Abandoned, true) => life.dies(at, answer == Answer::Dead),
                (Answer::Dead | Answer::Abandoned, false) => {
                    life.is_told(at, answer == Answer::Dead);
                }
                _ => {}
            }
        });
    }
    for life in lives.values_mut() {
        life.acked.sort_unstable();
        let mut greatest = Pos::instant(0);
        for (_, begun) in &mut life.acked {
            greatest = greatest.max(*begun);
            *begun = greatest;
        }
    }
    lives
}

fn renewal<'a>(life: &mut Life<'a>, call: &Sent<'a>, retired: &'a Ranges, change: Change) {
    let mut acked = NEVER;
    match call.answer {
        Some((at, Reply::Renewed(Answer::Living))) => {
            acked = at;
            life.acked.push((at, call.begun));
            life.last = life.last.max(at);
        }
        Some((at, Reply::Renewed(Answer::Dead))) => return life.dies(at, false),
        Some((_, Reply::Renewed(_))) => return,
        _ => life.in_doubt = true,
    }
    match change {
        Change::Keep => {}
        Change::Put(_) => {
            life.put = life.put.min(call.begun);
            life.registered = life.registered.min(acked);
        }
        Change::Drop => life.dropped = life.dropped.min(call.begun),
    }
    life.retireds.push((call.begun, acked, retired));
}

/// What an answer says of the lives of sessions, other than of those that it was about to end or to renew.
fn told(call: &Sent<'_>, mut tell: impl FnMut(SessionId, Answer, Pos)) {
    let Some((at, reply)) = call.answer else {
        return;
    };
    match reply {
        Reply::States(states) => {
            for state in states {
                tell(state.session, state.life, at);
            }
        }
        Reply::Busy(refused) => {
            for holder in refused.iter().flat_map(|refused| &refused.by) {
                tell(holder.grant.session, holder.life, at);
            }
        }
        Reply::Listed(holders) => {
            for holder in holders {
                tell(holder.grant.session, holder.life, at);
            }
        }
        _ => {}
    }
}

/// A dead session stays dead, and dies of nothing but its end.
pub(super) fn check(border: &Border<'_>, findings: &mut Findings) {
    for call in &border.sent {
        let Some((at, reply)) = call.answer else {
            continue;
        };
        match (call.request, reply) {
            (Call::Open { session, .. }, Reply::Opened(true)) => {
                said(border, findings, call, (*session, Answer::Living, at));
            }
            (Call::Renew { session, .. }, Reply::Renewed(answer)) => {
                said(border, findings, call, (*session, *answer, at));
            }
            (Call::Acquire { grant, .. }, Reply::Void) => {
                let life = border.sessions.get(&grant.session);
                // A number that is over is void in a living session, too.
                if life.is_some_and(|life| life.retired(grant.n).0 > at) {
                    said(border, findings, call, (grant.session, Answer::Dead, at));
                }
            }
            (Call::Adopt { session, .. }, Reply::Adopted(Some(_))) => {
                said(border, findings, call, (*session, Answer::Abandoned, at));
            }
            // Who closes or revokes a session does not ask.
            (
                Call::End {
                    how: Ending::Close | Ending::Revoke,
                    ..
                },
                _,
            ) => {}
            _ if !border.setting.is_sure(call) => {}
            _ => told(call, |session, answer, at| {
                said(border, findings, call, (session, answer, at));
            }),
        }
    }
}

fn said(
    border: &Border<'_>,
    findings: &mut Findings,
    call: &Sent<'_>,
    (session, answer, at): (SessionId, Answer, Pos),
) {
    let Some(life) = border.sessions.get(&session) else {
        return;
    };
    if life.dead < call.begun {
        findings.judged(Law::DeadStaysDead, 1);
        if answer == Answer::Living {
            let what = format!("{session} was dead, and lives");
            let violation = Violation::new(Law::DeadStaysDead, at, what);
            findings.add(violation.about([Subject::Session(session)]));
        }
    }
    let lived = life.lived(call.begun, &border.setting);
    if lived.is_some_and(|until| at < until) {
        findings.judged(Law::DiesOfItsEnd, 1);
        if matches!(answer, Answer::Dead | Answer::Abandoned | Answer::Forgotten)
            && !gave_back(border, call, at)
        {
            let what = format!("{session} is {answer:?}: it was not due, and nobody ended it")
                .to_lowercase();
            let violation = Violation::new(Law::DiesOfItsEnd, at, what);
            findings.add(violation.about([Subject::Session(session)]));
        }
    }
}

/// A renewal has named a grant whose release began before the answer: what it asked for need not be there.
fn gave_back(border: &Border<'_>, call: &Sent<'_>, answered: Pos) -> bool {
    let (
        Call::Renew {
            session, granted, ..
        },
        Some((_, Reply::Renewed(Answer::Forgotten))),
    ) = (call.request, call.answer)
    else {
        return false;
    };
    let named = |grant: &Grant| grant.session == *session && granted.contains(grant.n);
    border.sent.iter().any(|other| {
        other.begun < answered
            && matches!(other.request, Call::Release { grant, .. } if named(grant))
    })
}
