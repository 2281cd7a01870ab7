//! What the store executed, against what it may answer: sessions and holders as they must be.
//!
//! The check knows the store's clock only by its steps, and deaths only from answers. A session that was due may have
//! been ended by whoever met it; one that was not may not.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{Claim, Grant, OwnerId, Ranges, SessionId};

use super::check::{Findings, Violation};
use super::event::{Answer, Change, Stored, What};
use super::guards::Guards;
use super::index::{Cast, Keys, Pos, join};
use super::{History, Law};

pub(super) fn check(history: &History, guards: &Guards, keys: &mut Keys, findings: &mut Findings) {
    let mut store = Store {
        guards,
        keys,
        findings,
        clock: Clock::default(),
        sessions: BTreeMap::new(),
        holders: BTreeMap::new(),
        by_key: BTreeMap::new(),
        tokens: BTreeMap::new(),
    };
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        match &event.what {
            What::Stored(stored) => store.stored(at, stored),
            What::Granted { attempt, left, .. } | What::Looked { attempt, left } => {
                store.believed(at, *attempt, *left);
            }
            What::Stepped { by } | What::Drifted { by } => store.clock.step(at.at, *by),
            _ => {}
        }
    }
}

/// The store's clock: that of the history, and its steps.
#[derive(Default)]
struct Clock {
    offset: i128,
    /// For each step, when it was, and the offset before and after it.
    steps: Vec<(u64, i128, i128)>,
}

impl Clock {
    fn step(&mut self, at: u64, by: i64) {
        let after = self.offset + i128::from(by);
        self.steps.push((at, self.offset, after));
        self.offset = after;
    }

    fn now(&self, at: u64) -> i128 {
        i128::from(at) + self.offset
    }

    /// The latest and the earliest that it showed between two instants.
    fn between(&self, from: u64, to: u64) -> (i128, i128) {
        let first = self.steps.partition_point(|(at, ..)| *at < from);
        let steps = &self.steps[first..];
        let begin = steps.first().map_or(self.offset, |(_, before, _)| *before);
        let mut range = (self.now(to), i128::from(from) + begin);
        for (at, before, after) in steps {
            for offset in [before, after] {
                let shown = i128::from(*at) + offset;
                range = (range.0.max(shown), range.1.min(shown));
            }
        }
        (range.0, range.1.min(self.now(to)))
    }
}

struct Session {
    ttl: i128,
    /// When it is due by the store's clock, and since when.
    until: i128,
    since: u64,
    seq: u64,
    over: Ranges,
    /// The attempt whose intent is registered.
    intent: Option<u64>,
    /// Known to be dead or abandoned, by that event.
    dead: Option<Pos>,
    /// Its change was settled or discarded.
    settled: Option<Pos>,
    adoption: u64,
    adopter: Option<SessionId>,
    /// Its grants.
    grants: BTreeSet<u64>,
}

impl Session {
    fn counts(&self, n: u64) -> bool {
        (self.dead.is_none() || self.abandoned()) && !self.over.contains(n)
    }

    /// Whether its locks outlive it.
    fn abandoned(&self) -> bool {
        self.intent.is_some() && self.settled.is_none()
    }

    /// Whether its locks were known to be free before that event.
    fn free_before(&self, number: usize) -> bool {
        let before = |pos: Option<Pos>| pos.is_some_and(|pos| pos.number <= number);
        before(self.dead) && (self.intent.is_none() || before(self.settled))
    }
}

struct Holder {
    owner: OwnerId,
    granted: Pos,
    casts: Vec<Cast>,
}

struct Store<'a> {
    guards: &'a Guards,
    keys: &'a mut Keys,
    findings: &'a mut Findings,
    clock: Clock,
    sessions: BTreeMap<SessionId, Session>,
    holders: BTreeMap<Grant, Holder>,
    by_key: BTreeMap<usize, BTreeSet<Grant>>,
    /// The tokens given out on each key, rising, and when.
    tokens: BTreeMap<usize, Vec<(Pos, u64)>>,
}

impl Store<'_> {
    fn found(&mut self, law: Law, at: Pos, what: String) {
        self.findings.add(Violation::new(law, at, what));
    }

    fn stored(&mut self, at: Pos, stored: &Stored) {
        match stored {
            Stored::Open {
                session,
                ttl,
                opened: true,
            } => self.opened(at, *session, *ttl),
            Stored::Open { .. } => {}
            Stored::Renew {
                session,
                seq,
                over,
                change,
                answer,
            } => self.renewed(at, *session, (*seq, over, *change), *answer),
            Stored::End {
                session,
                if_due,
                discard,
                answer,
            } => self.ended(at, *session, (*if_due, *discard), *answer),
            Stored::Acquire {
                grant,
                owner,
                claims,
                begun,
                answer,
                token,
                met,
                ..
            } => match (answer, token) {
                (Answer::Acquired, Some(token)) => {
                    self.acquired(at, *grant, *owner, claims, *token, *begun);
                }
                (Answer::Busy, _) => self.refused(at, *owner, claims, met, *begun),
                _ => {}
            },
            Stored::Release { grant, claims } => self.released(at, *grant, claims),
            Stored::Adopt {
                session,
                seen,
                adopter,
                give_up,
                number,
            } => self.adopted(at, (*session, *seen), *adopter, *give_up, *number),
            Stored::Settle {
                session,
                adoption,
                settled,
            } => self.settled(at, *session, *adoption, *settled),
        }
    }

    /// By any clock that runs right, a session lasts longer than its guards say.
    fn believed(&mut self, at: Pos, attempt: u64, left: u64) {
        let guard = self.guards.of_attempt(attempt);
        let session = guard.and_then(|guard| self.sessions.get(&guard.session));
        if let Some(session) = session
            && left > 0
            && i128::from(at.at) + i128::from(left) > i128::from(session.since) + session.ttl
        {
            let what = format!(
                "the guard of attempt {attempt} says to be valid for longer than its lease"
            );
            self.found(Law::DeadlineWithinLease, at, what);
        }
    }

    fn opened(&mut self, at: Pos, id: SessionId, ttl: u64) {
        let session = Session {
            ttl: i128::from(ttl),
            until: self.clock.now(at.at) + i128::from(ttl),
            since: at.at,
            seq: 0,
            over: Ranges::EMPTY,
            intent: None,
            dead: None,
            settled: None,
            adoption: 0,
            adopter: None,
            grants: BTreeSet::new(),
        };
        if self.sessions.insert(id, session).is_some() {
            self.found(Law::DeadStaysDead, at, format!("{id} was opened twice"));
        }
    }

    fn renewed(
        &mut self,
        at: Pos,
        id: SessionId,
        (seq, over, change): (u64, &Ranges, Change),
        answer: Answer,
    ) {
        let now = self.clock.now(at.at);
        let due = self.was_due(id, at);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match answer {
            Answer::Dead if session.dead.is_none() => {
                session.dead = Some(at);
                if !due {
                    let what = format!("{id} is dead, and nobody ended it, nor was it due");
                    self.found(Law::DeadStaysDead, at, what);
                }
            }
            Answer::Living if session.dead.is_some() => {
                self.found(
                    Law::DeadStaysDead,
                    at,
                    format!("{id} was dead, and was renewed"),
                );
            }
            Answer::Living => {
                let shrank = session.over.as_slice().iter().any(|(from, to)| {
                    // Ranges do not touch, so one that is still over is inside one of the others.
                    !over
                        .as_slice()
                        .iter()
                        .any(|(first, last)| first <= from && to <= last)
                });
                let stale = seq <= session.seq;
                session.seq = seq;
                session.over = over.clone();
                session.until = now + session.ttl;
                session.since = at.at;
                match change {
                    Change::Keep => {}
                    Change::Put(attempt) => session.intent = Some(attempt),
                    Change::Drop => session.intent = None,
                }
                if stale {
                    let what = format!("{id} was renewed by an old renewal, number {seq}");
                    self.found(Law::DeadStaysDead, at, what);
                }
                if shrank {
                    let what = format!("{id}: numbers that were over are not any more");
                    self.found(Law::UnknownIsSettled, at, what);
                }
                self.covered(at, id);
            }
            _ => {}
        }
    }

    fn ended(&mut self, at: Pos, id: SessionId, (if_due, discard): (bool, bool), answer: Answer) {
        let due = self.was_due(id, at);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let abandoned = session.abandoned();
        let wrong = match answer {
            Answer::Living => session.dead.is_some().then_some("lives again"),
            _ if session.dead.is_none() && !due && (if_due || discard) => {
                Some("was ended before it was due")
            }
            Answer::Dead if abandoned && !discard => Some("has lost its intent"),
            Answer::Abandoned if !abandoned => Some("has an intent that nobody registered"),
            _ => None,
        };
        if answer != Answer::Living {
            session.dead.get_or_insert(at);
            if discard && answer == Answer::Dead && abandoned {
                session.settled = Some(at);
                session.adoption += 1;
                session.adopter = None;
            }
        }
        if let Some(wrong) = wrong {
            self.found(Law::DeadStaysDead, at, format!("{id} {wrong}"));
        }
    }

    fn has_intent(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(Session::abandoned)
    }

    /// Whether the session was due at some instant since it was renewed.
    fn was_due(&self, id: SessionId, at: Pos) -> bool {
        self.sessions.get(&id).is_none_or(|session| {
            let (latest, _) = self.clock.between(session.since, at.at);
            session.until <= latest
        })
    }

    fn acquired(
        &mut self,
        at: Pos,
        grant: Grant,
        owner: OwnerId,
        claims: &[Claim],
        token: u64,
        (_, begun): (u64, usize),
    ) {
        let casts = self.keys.casts(claims);
        let known = self.sessions.get(&grant.session);
        if known.is_none_or(|session| !session.counts(grant.n)) {
            return; // It may stand in a record, and holds nothing.
        }
        for cast in &casts {
            self.rises(at, cast.key, token, begun);
        }
        if let Some(holder) = self.holders.get(&grant) {
            // Sent again: the same holder, unless it is asked for something else under the same name.
            if holder.casts != casts {
                let what = format!("{grant} was used for two requests");
                self.found(Law::OneGrantPerRequest, at, what);
            }
            return;
        }
        for cast in &casts {
            let mut shares = 0;
            for other in self.by_key.get(&cast.key).cloned().unwrap_or_default() {
                let Some((holder, held)) = self.counting(other, cast.key) else {
                    continue;
                };
                let due = self.was_due(other.session, at) && !self.has_intent(other.session);
                shares += u32::from(held.share && holder.granted.number <= begun && !due);
                let reenters = cast.reenters && holder.owner == owner;
                if cast.mode.beside(held.mode) || reenters {
                    continue;
                }
                if self.was_due(other.session, at) {
                    // Whoever passes by a holder has established that it does not count.
                    self.dies(other.session, at);
                    continue;
                }
                let key = self.keys.key(cast.key);
                let what = format!(
                    "{key}: {grant} was granted {} beside {other}, which holds {}",
                    cast.mode, held.mode
                );
                self.found(Law::AtMostOneHolder, at, what);
            }
            if let Some(limit) = cast.limit.filter(|_| cast.share)
                && shares >= limit
            {
                let key = self.keys.key(cast.key);
                let what = format!(
                    "{key}: {grant} was granted beside {shares} shares, at most {limit} asked for"
                );
                self.found(Law::SharedAreASet, at, what);
            }
        }
        for cast in &casts {
            self.by_key.entry(cast.key).or_default().insert(grant);
        }
        if let Some(session) = self.sessions.get_mut(&grant.session) {
            session.grants.insert(grant.n);
        }
        let holder = Holder {
            owner,
            granted: at,
            casts,
        };
        self.holders.insert(grant, holder);
    }

    /// A holder of a key, if it counts as far as is known.
    fn counting(&self, grant: Grant, key: usize) -> Option<(&Holder, Cast)> {
        let holder = self.holders.get(&grant)?;
        let session = self.sessions.get(&grant.session)?;
        let cast = holder.casts.iter().find(|cast| cast.key == key)?;
        session.counts(grant.n).then_some((holder, *cast))
    }

    fn dies(&mut self, id: SessionId, at: Pos) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let abandoned = session.abandoned();
            session.dead.get_or_insert(at);
            if abandoned {
                let what = format!("{id} has an intent, and its locks were passed over");
                self.found(Law::IntentHasItsLocks, at, what);
            }
        }
    }

    /// A token is greater than all that were given out on its key before the request was begun.
    fn rises(&mut self, at: Pos, key: usize, token: u64, begun: usize) {
        let tokens = self.tokens.entry(key).or_default();
        let before = tokens.partition_point(|(given, _)| given.number <= begun);
        let greatest = tokens[..before].last().map(|(_, token)| *token);
        let most = tokens.last().map_or(token, |(_, most)| token.max(*most));
        tokens.push((at, most));
        if let Some(greatest) = greatest.filter(|greatest| *greatest >= token) {
            let key = self.keys.key(key);
            let what = format!("{key}: token {token} was given out after {greatest}");
            self.found(Law::TokensOnlyRise, at, what);
        }
    }

    /// Whoever is named in a refusal counted, and is in the way.
    fn refused(
        &mut self,
        at: Pos,
        owner: OwnerId,
        claims: &[Claim],
        met: &[Grant],
        (begun_at, begun): (u64, usize),
    ) {
        let reenters = claims.iter().all(|claim| claim.want().reenters());
        for grant in met {
            let Some(session) = self.sessions.get(&grant.session) else {
                continue;
            };
            let (_, earliest) = self.clock.between(begun_at, at.at);
            let due = session.until <= earliest && session.since < begun_at;
            let free = due && session.dead.is_none() && session.intent.is_none();
            if session.free_before(begun) || free {
                let what = format!("{grant} is in the way, and its session is dead or due");
                self.found(Law::ExpiryFrees, at, what);
            }
            let same = self
                .holders
                .get(grant)
                .is_some_and(|holder| holder.owner == owner);
            if reenters && same {
                let what = format!("{grant} is in the way of its own owner {owner}");
                self.found(Law::OwnersReenter, at, what);
            }
        }
    }

    fn released(&mut self, at: Pos, grant: Grant, claims: &[Claim]) {
        let Some(holder) = self.holders.get_mut(&grant) else {
            return;
        };
        for cast in self.keys.casts(claims) {
            holder.casts.retain(|held| held.key != cast.key);
            if let Some(holders) = self.by_key.get_mut(&cast.key) {
                holders.remove(&grant);
            }
        }
        if holder.casts.is_empty() {
            self.holders.remove(&grant);
            if let Some(session) = self.sessions.get_mut(&grant.session) {
                session.grants.remove(&grant.n);
            }
        }
        self.covered(at, grant.session);
    }

    /// As long as an intent is registered, its session holds what the intent is about.
    fn covered(&mut self, at: Pos, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let Some(attempt) = session.intent.filter(|_| session.abandoned()) else {
            return;
        };
        let Some(asked) = self.guards.asked.get(&attempt) else {
            return;
        };
        let held = |cast: &Cast| {
            session.grants.iter().any(|n| {
                let grant = Grant { session: id, n: *n };
                let held = self.counting(grant, cast.key);
                held.is_some_and(|(_, held)| join(held.mode, cast.mode) == held.mode)
            })
        };
        if let Some(missing) = asked.casts.iter().find(|cast| !held(cast)) {
            let key = self.keys.key(missing.key);
            let what = format!("{id} has the intent of attempt {attempt}, and does not hold {key}");
            self.found(Law::IntentHasItsLocks, at, what);
        }
    }

    fn adopted(
        &mut self,
        at: Pos,
        (id, seen): (SessionId, u64),
        adopter: SessionId,
        give_up: bool,
        number: Option<u64>,
    ) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let mine = session.adopter == Some(adopter) && session.adoption == seen + 1;
        if give_up {
            if session.adoption == seen || mine {
                let session = self.sessions.get_mut(&id).expect("it was there");
                session.adoption += 1;
                session.adopter = None;
            }
            return;
        }
        let Some(number) = number else {
            return;
        };
        let former = session.adopter.filter(|former| *former != adopter);
        let living = former.is_some_and(|former| {
            let alive = self
                .sessions
                .get(&former)
                .is_some_and(|former| former.dead.is_none());
            alive && !self.was_due(former, at)
        });
        let wrong = if number != seen + 1 || (session.adoption != seen && !mine) {
            Some("under a number that is used")
        } else if !session.abandoned() {
            Some("without an intent")
        } else if session.dead.is_none() && !self.was_due(id, at) {
            Some("while it lives")
        } else if living {
            Some("while its former adopter lives")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            self.found(
                Law::OneAdopter,
                at,
                format!("{id} was adopted by {adopter} {wrong}"),
            );
        }
        let session = self.sessions.get_mut(&id).expect("it was there");
        session.dead.get_or_insert(at);
        session.adoption = number;
        session.adopter = Some(adopter);
    }

    fn settled(&mut self, at: Pos, id: SessionId, adoption: u64, settled: bool) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !settled || session.settled.is_some() {
            return;
        }
        let own = session.adopter.is_some() && session.adoption == adoption;
        session.settled = Some(at);
        if !own {
            let what = format!("{id} was settled by adoption {adoption}, which it does not have");
            self.found(Law::OneAdopter, at, what);
        }
    }
}
