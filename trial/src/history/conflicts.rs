//! Guards and adoptions against each other, key by key in the order of their tokens: each begins to be believed in
//! when all earlier ones that it is incompatible with have ended.

use std::collections::BTreeMap;

use lockcore::{Mode, SessionId};

use super::Law;
use super::check::{Findings, Subject, Violation};
use super::guards::{Asked, Guards};
use super::index::{Cast, Keys, Pos};
use super::recoveries::Recoveries;

/// Something that was believed to be held from `start` to `end`.
struct Belief<'a> {
    who: Who,
    token: u64,
    owner: u64,
    start: Pos,
    end: Pos,
    casts: &'a [Cast],
    asked: &'a Asked,
    session: SessionId,
}

impl Belief<'_> {
    /// Whether it was forgotten before it began.
    fn is_forgotten(&self, guards: &Guards) -> bool {
        match self.who {
            Who::Guard(attempt) => guards.of_attempt(attempt).is_some_and(|it| it.forgotten),
            Who::Adoption(_) => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Guard(u64),
    Adoption(u64),
}

impl Who {
    fn subject(self) -> Subject {
        match self {
            Who::Guard(attempt) => Subject::Attempt(attempt),
            Who::Adoption(adoption) => Subject::Adoption(adoption),
        }
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Guard(attempt) => write!(f, "the guard of attempt {attempt}"),
            Who::Adoption(adoption) => write!(f, "adoption {adoption}"),
        }
    }
}

/// One key of one belief.
type Entry<'a> = (&'a Belief<'a>, &'a Cast);

pub(super) fn check(
    guards: &Guards,
    recoveries: &Recoveries,
    keys: &Keys,
    findings: &mut Findings,
) {
    let beliefs = beliefs(guards, recoveries);
    let mut by_key: Vec<Vec<Entry<'_>>> = (0..keys.len()).map(|_| Vec::new()).collect();
    for belief in &beliefs {
        for cast in belief.casts {
            by_key[cast.key].push((belief, cast));
        }
    }
    for (key, mut entries) in by_key.into_iter().enumerate() {
        entries.sort_by_key(|(belief, _)| belief.token);
        let adoptions = entries
            .iter()
            .filter(|(belief, _)| matches!(belief.who, Who::Adoption(_)));
        findings.judged(Law::IntentHasItsLocks, adoptions.count());
        let intents = entries.iter().filter(|(belief, _)| belief.asked.intent);
        findings.judged(Law::IntentStays, intents.count());
        let mut on_key = OnKey {
            key: keys.key(key).as_str(),
            findings,
        };
        on_key.tokens(&entries, guards);
        on_key.exclusion(&entries);
        on_key.limits(&entries);
        on_key.intents(&entries, guards, recoveries);
    }
}

fn beliefs<'a>(guards: &'a Guards, recoveries: &Recoveries) -> Vec<Belief<'a>> {
    let of_guards = guards.guards.iter().filter_map(|guard| {
        let asked = guards.asked.get(&guard.attempt)?;
        Some(Belief {
            who: Who::Guard(guard.attempt),
            token: guard.token,
            owner: asked.owner,
            start: guard.start,
            end: guard.end,
            casts: &asked.casts,
            asked,
            session: guard.session,
        })
    });
    let of_adopters = recoveries.adoptions.iter().filter_map(|adoption| {
        let (session, start) = (adoption.session, adoption.start);
        let failovers = &guards.failovers;
        // Its change is finished, and its locks were given back; or they are forgotten, and its holder was not told.
        if failovers.is_revived(session, start) || failovers.has_lost_untold(session, start) {
            return None;
        }
        let asked = guards.asked.get(&adoption.attempt)?;
        Some(Belief {
            who: Who::Adoption(adoption.id),
            token: adoption.token,
            owner: asked.owner,
            start: adoption.start,
            end: adoption.end,
            casts: &asked.casts,
            asked,
            session: adoption.session,
        })
    });
    of_guards.chain(of_adopters).collect()
}

struct OnKey<'a> {
    key: &'a str,
    findings: &'a mut Findings,
}

impl OnKey<'_> {
    fn found<const N: usize>(&mut self, law: Law, at: Pos, what: &str, whom: [Who; N]) {
        let what = format!("{}: {what}", self.key);
        let about = whom.map(Who::subject);
        self.findings
            .add(Violation::new(law, at, what).about(about));
    }

    /// What is asked for after something was handed out gets a greater token, and no token is given out twice.
    fn tokens(&mut self, entries: &[Entry<'_>], guards: &Guards) {
        for pair in entries.windows(2) {
            let ((before, _), (after, _)) = (pair[0], pair[1]);
            if before.token == after.token {
                let what = format!("{} and {} have the same token", before.who, after.who);
                let whom = [before.who, after.who];
                self.found(Law::TokensOnlyRise, after.start, &what, whom);
            }
        }
        let mut by_start: Vec<&Entry<'_>> = entries.iter().collect();
        by_start.sort_by_key(|(belief, _)| belief.start);
        let of_all = greatest(by_start.iter().map(|(belief, _)| *belief));
        let exclusive = by_start.iter().filter(|(_, cast)| cast.mode == Mode::X);
        let of_exclusive = greatest(exclusive.map(|(belief, _)| *belief));
        for (belief, cast) in entries {
            if let Who::Adoption(_) = belief.who {
                continue;
            }
            // Who is handed on what was asked for before, and was broken meanwhile, has the token of then.
            let is_handed_on = !belief.token.is_multiple_of(64);
            if is_handed_on && guards.may_be_broken(belief.session) {
                continue;
            }
            // A share that another one of its process has, or had, is older than others beside it.
            let greatest = match is_handed_on && cast.share {
                true => &of_exclusive,
                false => &of_all,
            };
            let before = greatest.partition_point(|(start, _)| *start < belief.asked.at);
            if let Some((_, most)) = greatest[..before].last()
                && most.token >= belief.token
            {
                let what = format!(
                    "{} has token {}, and {} had {} before it was asked for",
                    belief.who, belief.token, most.who, most.token
                );
                let whom = [belief.who, most.who];
                self.found(Law::TokensOnlyRise, belief.start, &what, whom);
            }
        }
    }

    /// In the order of tokens, whoever is incompatible has ended before.
    fn exclusion(&mut self, entries: &[Entry<'_>]) {
        // For each mode, the two that end last and have different owners.
        let mut latest: [[Option<&Belief<'_>>; 2]; 4] = [[None; 2]; 4];
        for (belief, cast) in entries.iter().copied() {
            if belief.end <= belief.start {
                continue;
            }
            for mode in Mode::ALL {
                if cast.mode.beside(mode) {
                    continue;
                }
                let in_the_way = latest[at(mode)].into_iter().flatten().find(|before| {
                    let own = cast.reenters && before.owner == belief.owner;
                    // An adoption while its holder believes is found as that.
                    let adopted =
                        before.session == belief.session && matches!(belief.who, Who::Adoption(_));
                    before.end > belief.start && !own && !adopted
                });
                if let Some(before) = in_the_way {
                    let law = match (before.who, belief.who) {
                        (Who::Guard(_), Who::Guard(_)) => Law::AtMostOneHolder,
                        _ => Law::IntentHasItsLocks,
                    };
                    let what = format!(
                        "{} ({mode}, token {}) and {} ({}, token {}) both say that they hold it",
                        before.who, before.token, belief.who, cast.mode, belief.token
                    );
                    let at = belief.start.max(before.start);
                    self.found(law, at, &what, [before.who, belief.who]);
                }
            }
            let [first, second] = &mut latest[at(cast.mode)];
            match first {
                Some(most) if most.owner == belief.owner => {
                    if most.end < belief.end {
                        *first = Some(belief);
                    }
                }
                Some(most) if most.end < belief.end => {
                    *second = *first;
                    *first = Some(belief);
                }
                Some(_) if second.is_none_or(|less| less.end < belief.end) => {
                    *second = Some(belief);
                }
                Some(_) => {}
                None => *first = Some(belief),
            }
        }
    }

    /// A share with a limit finds fewer shares than that: what was handed out before it was asked for, and ends after
    /// it was handed out, was there when it was granted.
    fn limits(&mut self, entries: &[Entry<'_>]) {
        if entries.iter().all(|(_, cast)| cast.limit.is_none()) {
            return;
        }
        // A share without a limit is one, however many of its process have it.
        let mut ends: BTreeMap<(SessionId, u64), Pos> = BTreeMap::new();
        let grant = |belief: &Belief<'_>| (belief.session, belief.token / 64);
        let unlimited = |cast: &Cast| cast.share && cast.limit.is_none();
        for (belief, _) in entries.iter().filter(|(_, cast)| unlimited(cast)) {
            let end = ends.entry(grant(belief)).or_insert(belief.end);
            *end = belief.end.max(*end);
        }
        // By their ends; those that have ended are passed over at once, and few are alive at a time.
        let mut shares: Vec<(Pos, Pos)> = Vec::new();
        for (belief, cast) in entries {
            if !cast.share || belief.end <= belief.start {
                continue;
            }
            let end = match unlimited(cast) {
                true => ends.remove(&grant(belief)),
                false => Some(belief.end),
            };
            let Some(end) = end else { continue };
            let ended = shares.partition_point(|(end, _)| *end <= belief.start);
            let alive = shares[ended..].iter();
            let beside = alive.filter(|(_, start)| *start < belief.asked.at).count();
            if let (Some(limit), Who::Guard(_)) = (cast.limit, belief.who)
                && beside >= usize::try_from(limit).unwrap_or(usize::MAX)
            {
                let what = format!(
                    "{} is one of {} shares, and asked for at most {limit}",
                    belief.who,
                    beside + 1
                );
                self.found(Law::SharedAreASet, belief.start, &what, [belief.who]);
            }
            let place = shares.partition_point(|(other, _)| *other <= end);
            shares.insert(place, (end, belief.start));
        }
    }

    /// Whoever comes after a guard with an intent comes after its release, or after its change was settled.
    fn intents(&mut self, entries: &[Entry<'_>], guards: &Guards, recoveries: &Recoveries) {
        let mut open: Vec<Entry<'_>> = Vec::new();
        for (belief, cast) in entries.iter().copied() {
            open.retain(|(before, held)| {
                let Who::Guard(attempt) = before.who else {
                    return false;
                };
                let released = guards.of_attempt(attempt).and_then(|guard| guard.released);
                let resolved = recoveries.resolved.get(&before.session).copied();
                let forgotten = guards.failovers.touched(before.session);
                let gone = released.into_iter().chain(resolved).chain(forgotten).min();
                if gone.is_some_and(|gone| gone < belief.start) {
                    return false;
                }
                let own = cast.reenters && before.owner == belief.owner;
                let beside = held.mode.beside(cast.mode) || own;
                let adopted = matches!(belief.who, Who::Adoption(_));
                if !beside && !adopted && !belief.is_forgotten(guards) {
                    let what = format!(
                        "{} was handed out while the intent of {} is neither released nor settled",
                        belief.who, before.who
                    );
                    let whom = [before.who, belief.who];
                    self.found(Law::IntentStays, belief.start, &what, whom);
                }
                beside || adopted
            });
            if belief.asked.intent && matches!(belief.who, Who::Guard(_)) {
                open.push((belief, cast));
            }
        }
    }
}

/// From when on which of them had the greatest token; they come in the order of their starts.
fn greatest<'a>(by_start: impl Iterator<Item = &'a Belief<'a>>) -> Vec<(Pos, &'a Belief<'a>)> {
    let mut greatest: Vec<(Pos, &Belief<'_>)> = Vec::new();
    for belief in by_start {
        let most = greatest.last().map(|(_, most)| *most);
        let most = most.filter(|most| most.token >= belief.token);
        greatest.push((belief.start, most.unwrap_or(belief)));
    }
    greatest
}

fn at(mode: Mode) -> usize {
    match mode {
        Mode::IS => 0,
        Mode::IX => 1,
        Mode::S => 2,
        Mode::X => 3,
    }
}
