//! Requests and answers of all processes against what a store may answer.
//!
//! Nobody knows when a store executes a request: it does so between the call and the answer, and a request without an
//! answer at any time after its call, or never. So everything is an interval, and each law is judged on the safe side: what
//! is *certain* lasts from an answer to the call that may end it, what is *possible* from a call to the answer that says
//! that it has ended. A violation is certain, then; what is told by a violation is not all that went wrong.
//!
//! There is room for what stores do not do yet: an answer that names the store's incarnation cuts what is certain at a
//! change of its name ([`sessions`]); an evicted grant ends what is certain as a call for its release does ([`grants`]);
//! a waiter is possible and never certain ([`turns`] says who may overtake it); a pass hands a guard on
//! without a call, so that a grant has several guards, one after the other ([`guards`]).

mod confirmations;
mod exclusion;
mod grants;
mod guards;
mod recoveries;
mod refusals;
mod sessions;
mod tokens;
mod trouble;
mod turns;
mod wakeups;

use std::collections::BTreeMap;

use lockcore::{FencingToken, Grant, SessionId};

use grants::Asked;
use recoveries::Adoptions;
use sessions::Life;
use wakeups::Watch;

use super::check::Findings;
use super::guards::Guards;
use super::index::{Keys, Pos};
use super::losses::Losses;
use super::{Call, History, Reply, What};

/// After everything.
const NEVER: Pos = Pos {
    at: u64::MAX,
    number: usize::MAX,
};

/// A request and its answer.
#[derive(Debug)]
struct Sent<'a> {
    process: u32,
    begun: Pos,
    request: &'a Call,
    answer: Option<(Pos, &'a Reply)>,
}

impl Sent<'_> {
    /// When the answer was there; never, without one.
    fn answered(&self) -> Pos {
        self.answer.map_or(NEVER, |(at, _)| at)
    }

    /// It may be executed after its answer, or has none.
    fn in_doubt(&self) -> bool {
        matches!(
            self.answer,
            None | Some((_, Reply::Failed { settled: false }))
        )
    }

    /// It certainly had no effect.
    fn failed(&self) -> bool {
        matches!(self.answer, Some((_, Reply::Failed { settled: true })))
    }
}

/// What laws of time are judged by.
#[derive(Debug, Default)]
struct Setting {
    poll: Option<u64>,
    allowance: u64,
    steady: bool,
    /// The store's clock does not step.
    timed: bool,
    /// When it was set forward: from before that until after it.
    forward: Vec<(Pos, Pos)>,
    /// A request may be executed again after its answer.
    repeats: bool,
    /// A request may be executed twice before it.
    doubles: bool,
    /// What lists and refusals say of sessions proves nothing where one of these explains it.
    unsure: Option<Losses>,
}

impl Setting {
    /// Whether what was said of sessions proves something, for a request that was begun then, and an answer.
    fn is_sure(&self, call: &Sent<'_>) -> bool {
        let explained = |losses: &Losses| {
            let answered = call.answer.map_or(call.begun, |(at, _)| at);
            [call.begun, answered]
                .iter()
                .any(|at| losses.explain(at.at))
        };
        matches!(call.request, Call::End { .. }) || !self.unsure.as_ref().is_some_and(explained)
    }
}

/// The requests of a history, by whom they are about.
#[derive(Debug)]
pub(super) struct Border<'a> {
    setting: Setting,
    sent: Vec<Sent<'a>>,
    sessions: BTreeMap<SessionId, Life<'a>>,
    asked: BTreeMap<Grant, Asked>,
    /// For each key, who asked for it, by the time of the first request.
    by_key: Vec<Vec<Grant>>,
    watches: Vec<Watch>,
    adoptions: Adoptions,
}

impl<'a> Border<'a> {
    pub(super) fn of(history: &'a History, keys: &mut Keys) -> Self {
        let mut setting = Setting {
            timed: true,
            ..Setting::default()
        };
        let mut sent: Vec<Sent<'a>> = Vec::new();
        let mut open: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for (number, event) in history.events.iter().enumerate() {
            let at = Pos {
                at: event.at,
                number: number + 1,
            };
            match &event.what {
                What::Called { call, request } => {
                    open.insert((event.process, *call), sent.len());
                    sent.push(Sent {
                        process: event.process,
                        begun: at,
                        request,
                        answer: None,
                    });
                }
                What::Answered { call, reply } => {
                    if let Some(call) = open.remove(&(event.process, *call)) {
                        sent[call].answer = Some((at, reply));
                    }
                }
                What::Begun {
                    poll,
                    allowance,
                    steady,
                    ..
                } => {
                    setting.poll = *poll;
                    setting.allowance = *allowance;
                    setting.steady = *steady;
                }
                What::Stepped { by } => {
                    setting.timed = false;
                    match by {
                        0 => {
                            let open = setting.forward.iter_mut().rev();
                            let open = open.take_while(|(_, until)| *until == NEVER);
                            open.for_each(|(_, until)| *until = at);
                        }
                        1.. => setting.forward.push((at, NEVER)),
                        _ => {}
                    }
                }
                What::Repeats => setting.repeats = true,
                What::Doubles => setting.doubles = true,
                What::Unsure => setting.unsure = Some(Losses::of(history)),
                _ => {}
            }
        }
        let mut border = Self {
            sessions: sessions::lives(&sent, &setting),
            asked: grants::asked(&sent, keys),
            by_key: Vec::new(),
            watches: wakeups::watches(history, keys),
            adoptions: Adoptions::of(&sent),
            setting,
            sent,
        };
        border.by_key.resize_with(keys.len(), Vec::new);
        let mut in_order: Vec<&Asked> = border.asked.values().collect();
        in_order.sort_by_key(|asked| asked.begun);
        for asked in in_order {
            for cast in &asked.casts {
                border.by_key[cast.key].push(asked.grant);
            }
        }
        border
    }

    /// Grants that were handed out: of acquisitions with several steps, and of others.
    pub(super) fn granted(&self) -> (usize, usize) {
        let granted = self
            .asked
            .values()
            .filter(|asked| asked.granted().is_some());
        let (joined, alone): (Vec<&Asked>, Vec<&Asked>) = granted.partition(|asked| asked.joined);
        (joined.len(), alone.len())
    }

    /// Whether the grant is a step of several.
    pub(super) fn is_joined(&self, grant: Grant) -> bool {
        self.asked.get(&grant).is_some_and(|asked| asked.joined)
    }

    /// Which session received the adoption with this token.
    pub(super) fn adopter(&self, session: SessionId, token: FencingToken) -> Option<SessionId> {
        self.adoptions
            .adopter(session, token.grant_and_pass().0.get())
    }
}

/// Holds requests and answers against the laws.
pub(super) fn check(
    border: &Border<'_>,
    history: &History,
    guards: &Guards,
    keys: &Keys,
    findings: &mut Findings,
) {
    sessions::check(border, findings);
    exclusion::check(border, keys, findings);
    tokens::check(border, keys, findings);
    refusals::check(border, keys, findings);
    turns::check(border, keys, findings);
    confirmations::check(border, keys, findings);
    recoveries::check(border, findings);
    guards::check(border, history, guards, findings);
    wakeups::check(border, history, keys, findings);
}
