//! Grants: from when to when each certainly holds its keys, and from when to when it may.

use std::collections::BTreeMap;

use lockcore::{Grant, OwnerId};

use super::{Border, NEVER, Sent};
use crate::history::index::{Cast, Keys, Pos};
use crate::history::{Call, Reply};

/// A step that was asked for under one grant, perhaps several times.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) grant: Grant,
    pub(super) owner: OwnerId,
    /// In the order of their keys.
    pub(super) casts: Vec<Cast>,
    pub(super) joined: bool,
    /// The first request.
    pub(super) begun: Pos,
    /// Every request that was granted: call, answer, token.
    pub(super) answers: Vec<(Pos, Pos, u64)>,
    /// The first request whose outcome is not known.
    doubted: Option<Pos>,
    /// The last answer to a request; never, if one has none and may yet be executed.
    last: Pos,
    /// When a request was told that the store has moved, and no later one that nothing is held.
    moved: Option<Pos>,
    /// Its releases: call, answer, and the keys that were released.
    releases: Vec<(Pos, Pos, Vec<usize>)>,
    /// The first answer that had it wait in line.
    pub(super) stands: Option<Pos>,
    /// The first request that may take it out of the line without its doing.
    pub(super) passed: Option<Pos>,
    /// A request under the same name that asks for something else.
    pub(super) other: Option<Pos>,
}

/// Why a grant does not hold any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gone {
    /// It was released, or never granted.
    Released,
    /// Its session is dead, settled or due.
    Ended,
}

impl Asked {
    /// The first answer that granted it.
    pub(super) fn granted(&self) -> Option<(Pos, Pos)> {
        let first = self.answers.iter().min_by_key(|(_, answer, _)| *answer);
        first.map(|(begun, answer, _)| (*begun, *answer))
    }

    /// Since when the token of an answer to this request may have been given out: a copy is answered as the one before it.
    pub(super) fn drawn(&self, begun: Pos) -> Pos {
        let granted = self.granted().map(|(begun, _)| begun);
        let earlier = self.doubted.into_iter().chain(granted);
        earlier.fold(begun, Pos::min)
    }

    pub(super) fn cast(&self, key: usize) -> Option<Cast> {
        let found = self.casts.binary_search_by_key(&key, |cast| cast.key);
        found.ok().map(|at| self.casts[at])
    }

    /// Every request was answered, and none was granted.
    pub(super) fn was_refused(&self) -> bool {
        self.answers.is_empty() && self.last < NEVER
    }

    /// A copy of a request may stand although all of them were answered, and none was granted: the way has made it, or the
    /// store has executed one twice, and answered for the second copy, which has met another incarnation and done nothing.
    fn may_stand(&self, border: &Border<'_>) -> bool {
        border.setting.repeats || (border.setting.doubles && self.moved.is_some())
    }

    /// It certainly holds all of its keys from the first to the second; nothing, if they are the wrong way round.
    pub(super) fn certain(&self, border: &Border<'_>) -> (Pos, Pos) {
        self.certain_but_for(border, NEVER)
    }

    /// The same, if the release that was called there had not been.
    pub(super) fn certain_but_for(&self, border: &Border<'_>, release: Pos) -> (Pos, Pos) {
        let (Some((_, from)), Some(life)) =
            (self.granted(), border.sessions.get(&self.grant.session))
        else {
            return (NEVER, Pos::instant(0));
        };
        let others = self.releases.iter().map(|(begun, ..)| *begun);
        let released = others.filter(|begun| *begun != release).min();
        let until = life
            .is_live(&border.setting)
            .min(released.unwrap_or(NEVER))
            .min(life.retired(self.grant.n).0);
        (from, until)
    }

    /// It certainly stands in line from the first to the second, in the way of all that come later. Whose session is
    /// abandoned waits no more.
    pub(super) fn in_line(&self, border: &Border<'_>) -> Option<(Pos, Pos)> {
        let from = self.stands?;
        let life = border.sessions.get(&self.grant.session)?;
        let granted = self.answers.iter().map(|(begun, ..)| *begun);
        let released = self.releases.iter().map(|(begun, ..)| *begun);
        let until = granted.chain(released).chain(self.passed).min();
        let until = until
            .unwrap_or(NEVER)
            .min(life.lives(&border.setting).1)
            .min(life.retired(self.grant.n).0);
        Some((from, until))
    }

    /// It may hold the key from its first request to here.
    pub(super) fn possible(&self, border: &Border<'_>, key: usize) -> (Pos, Gone) {
        if self.was_refused() && !self.may_stand(border) {
            return (self.last, Gone::Released);
        }
        let released = self
            .releases
            .iter()
            .filter(|(begun, _, keys)| {
                let settled = self.last < *begun && !border.setting.repeats;
                settled && keys.binary_search(&key).is_ok()
            })
            .map(|(_, answer, _)| *answer)
            .min();
        let life = border.sessions.get(&self.grant.session);
        let retired = life.map_or(NEVER, |life| life.retired(self.grant.n).1);
        let ended = life.map_or(NEVER, |life| life.gone(&border.setting));
        let released = released.unwrap_or(NEVER).min(retired);
        (released, Gone::Released).min((ended, Gone::Ended))
    }
}

/// Everything that was asked for, by its name.
pub(super) fn asked(sent: &[Sent<'_>], keys: &mut Keys) -> BTreeMap<Grant, Asked> {
    let mut all: BTreeMap<Grant, Asked> = BTreeMap::new();
    for call in sent {
        match call.request {
            Call::Acquire {
                grant,
                owner,
                claims,
                joined,
                waits,
                past,
            } => {
                for grant in past {
                    if let Some(passed) = all.get_mut(grant) {
                        passed.passed.get_or_insert(call.begun);
                    }
                }
                let casts = keys.casts(claims);
                let asked = all.entry(*grant).or_insert_with(|| Asked {
                    grant: *grant,
                    owner: *owner,
                    casts: casts.clone(),
                    joined: *joined,
                    begun: call.begun,
                    answers: Vec::new(),
                    doubted: None,
                    last: Pos::instant(0),
                    moved: None,
                    releases: Vec::new(),
                    stands: None,
                    passed: None,
                    other: None,
                });
                if asked.casts != casts || asked.owner != *owner {
                    asked.other.get_or_insert(call.begun);
                }
                match call.answer {
                    Some((at, Reply::Granted(token))) => {
                        asked.answers.push((call.begun, at, *token));
                    }
                    Some((at, Reply::Moved)) => asked.moved = asked.moved.max(Some(at)),
                    Some((at, reply @ (Reply::Busy(_) | Reply::Void))) => {
                        if *waits && matches!(reply, Reply::Busy(_)) {
                            asked.stands = Some(asked.stands.map_or(at, |first| first.min(at)));
                        }
                        asked.moved = asked.moved.filter(|moved| *moved > call.begun);
                    }
                    _ => {}
                }
                // One that failed without effect may have written some records, and taken them back.
                let answer = if call.in_doubt() {
                    asked.doubted.get_or_insert(call.begun);
                    NEVER
                } else {
                    call.answered()
                };
                asked.last = asked.last.max(answer);
            }
            Call::Release { grant, claims } if !call.failed() => {
                let keys = keys.casts(claims).iter().map(|cast| cast.key).collect();
                let answer = match call.answer {
                    Some((at, Reply::Released(_))) => at,
                    _ => NEVER,
                };
                if let Some(asked) = all.get_mut(grant) {
                    asked.releases.push((call.begun, answer, keys));
                }
            }
            _ => {}
        }
    }
    all
}
