//! Refusals and listings: whoever is named asked for what it is said to hold, and may hold it; and somebody is in the
//! way.

use lockcore::{Claim, Grant};

use super::grants::{Asked, Gone};
use super::{Border, NEVER, Sent};
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Cast, Keys, Pos, join};
use crate::history::{Call, Law, Met, Refused, Reply};

pub(super) fn check(border: &Border<'_>, keys: &Keys, findings: &mut Findings) {
    let mut looking = Looking {
        border,
        keys,
        findings,
    };
    for call in &border.sent {
        match (call.request, call.answer) {
            (
                Call::Acquire {
                    grant,
                    owner,
                    claims,
                    ..
                },
                Some((at, Reply::Busy(refused))),
            ) => {
                for refused in refused {
                    let Some(claim) = claims.get(refused.claim) else {
                        continue;
                    };
                    for met in &refused.by {
                        looking.met(call, at, met);
                        looking.owner(at, *owner, claims, met);
                    }
                    looking.refused(call, at, *grant, claim, refused);
                }
            }
            (_, Some((at, Reply::Listed(holders)))) => {
                for met in holders {
                    looking.met(call, at, met);
                    looking.once(at, met, holders);
                }
            }
            _ => {}
        }
    }
    for asked in border.asked.values() {
        findings.judged(
            Law::OneGrantPerRequest,
            asked.answers.len().saturating_sub(1),
        );
        if let Some(at) = asked.other {
            let what = format!("{} was used for two requests", asked.grant);
            let violation = Violation::new(Law::OneGrantPerRequest, at, what);
            findings.add(violation.about([Subject::Grant(asked.grant)]));
        }
    }
}

struct Looking<'a, 'b> {
    border: &'a Border<'b>,
    keys: &'a Keys,
    findings: &'a mut Findings,
}

impl Looking<'_, '_> {
    fn found(&mut self, law: Law, at: Pos, what: String, met: &Met) {
        let about = [Subject::Grant(met.grant), Subject::Key(met.key.clone())];
        self.findings
            .add(Violation::new(law, at, what).about(about));
    }

    /// Every holder was asked for: under that name, and on that key in that mode.
    fn met(&mut self, call: &Sent<'_>, at: Pos, met: &Met) {
        self.findings.judged(Law::OneGrantPerRequest, 1);
        let asked = self.border.asked.get(&met.grant);
        let Some(asked) = asked.filter(|asked| asked.begun < at) else {
            let what = format!("{} holds {}, and nobody asked for it", met.grant, met.key);
            return self.found(Law::OneGrantPerRequest, at, what, met);
        };
        self.findings.judged(Law::OwnClaimsOnly, 1);
        let cast = self.keys.find(&met.key).and_then(|key| asked.cast(key));
        if cast.is_none_or(|cast| join(cast.mode, met.mode) != cast.mode) {
            let what = format!(
                "{} holds {} in mode {}, and did not ask for that",
                met.grant, met.key, met.mode
            );
            return self.found(Law::OwnClaimsOnly, at, what, met);
        }
        self.gone(call, at, asked, met);
    }

    /// Whoever is met may hold the key at some time of the call.
    fn gone(&mut self, call: &Sent<'_>, at: Pos, asked: &Asked, met: &Met) {
        let Some(key) = self.keys.find(&met.key) else {
            return;
        };
        let (until, gone) = asked.possible(self.border, key);
        if until == NEVER {
            return;
        }
        let law = match gone {
            Gone::Released => Law::AllowedIsGranted,
            Gone::Ended => Law::ExpiryFrees,
        };
        self.findings.judged(law, 1);
        if until < call.begun {
            let why = match gone {
                Gone::Released => "it was released, or its number is over",
                Gone::Ended => "its session is dead or due",
            };
            let what = format!("{} is said to hold {}: {why}", met.grant, met.key);
            self.found(law, at, what, met);
        }
    }

    /// Nobody is in the way of its own owner, if all that is asked for re-enters.
    fn owner(&mut self, at: Pos, owner: lockcore::OwnerId, claims: &[Claim], met: &Met) {
        if !claims.iter().all(|claim| claim.want().reenters()) {
            return;
        }
        self.findings.judged(Law::OwnersReenter, 1);
        let held = self.border.asked.get(&met.grant);
        if held.is_some_and(|held| held.owner == owner) {
            let what = format!("{} is in the way of its own owner {owner}", met.grant);
            self.found(Law::OwnersReenter, at, what, met);
        }
    }

    /// Each holder is listed once on a key.
    fn once(&mut self, at: Pos, met: &Met, holders: &[Met]) {
        let same = |other: &&Met| other.grant == met.grant && other.key == met.key;
        if holders.iter().filter(same).count() > 1 {
            let what = format!("{} holds {} twice", met.grant, met.key);
            self.found(Law::OneGrantPerRequest, at, what, met);
        }
    }

    /// Somebody is perhaps in the way: one of those who are named, or anybody if nobody of ours is.
    fn refused(
        &mut self,
        call: &Sent<'_>,
        at: Pos,
        grant: Grant,
        claim: &Claim,
        refused: &Refused,
    ) {
        if refused.waiters {
            // Where those who came before are in the way, what the holders allow may be refused.
            return;
        }
        self.findings.judged(Law::AllowedIsGranted, 1);
        let mut casts: Vec<Cast> = Vec::new();
        if let Some(asked) = self.border.asked.get(&grant) {
            let above = |cast: &&Cast| {
                let key = self.keys.key(cast.key);
                key == claim.key() || key.is_above(claim.key())
            };
            casts.extend(asked.casts.iter().filter(above));
        }
        let mut in_the_way = false;
        if refused.by.is_empty() {
            in_the_way = casts.iter().any(|cast| {
                let others = self.border.by_key[cast.key].iter();
                others.filter(|other| **other != grant).any(|other| {
                    let other = &self.border.asked[other];
                    let (until, _) = other.possible(self.border, cast.key);
                    other.begun < at && until >= call.begun && conflicts(cast, other)
                })
            });
        }
        for met in &refused.by {
            let conflict = |cast: &Cast| {
                let share = cast.share && cast.limit.is_some();
                self.keys.key(cast.key) == &met.key && (!cast.mode.beside(met.mode) || share)
            };
            in_the_way |= met.grant != grant && casts.iter().any(conflict);
        }
        if !in_the_way {
            let what = format!(
                "{grant} was refused {}, and nobody is in the way",
                claim.key()
            );
            let mut about = vec![Subject::Grant(grant), Subject::Key(claim.key().clone())];
            about.extend(refused.by.iter().map(|met| Subject::Grant(met.grant)));
            let violation = Violation::new(Law::AllowedIsGranted, at, what);
            self.findings.add(violation.about(about));
        }
    }
}

/// What the other one asked for keeps this from being granted, or counts for its limit.
fn conflicts(cast: &Cast, other: &Asked) -> bool {
    other
        .cast(cast.key)
        .is_some_and(|held| !cast.mode.beside(held.mode) || (cast.limit.is_some() && held.share))
}
