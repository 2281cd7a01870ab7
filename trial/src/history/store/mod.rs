//! What the store executed, against what it may answer: sessions and holders as they must be.
//!
//! The check knows the store's clock only by its steps, and deaths only from answers. A session that was due may have
//! been ended by whoever met it; one that was not may not.

mod clock;
mod forgets;
mod releases;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{Claim, Grant, OwnerId, SessionId};

use clock::Clock;
use forgets::{Copied, Forgotten};
use releases::Given;
use sessions::Session;

use super::check::{Findings, Violation};
use super::event::{Answer, Stored, What};
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
        releases: BTreeMap::new(),
        tokens: BTreeMap::new(),
        copy: Copied::default(),
        forgotten: Forgotten::default(),
        believed: BTreeMap::new(),
        given: BTreeMap::new(),
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
            What::GivingBack { attempt, how } => store.gives_back(at, *attempt, *how),
            What::GaveBack { attempt, held } => store.gave_back(at, *attempt, *held),
            What::Copied => store.copied(),
            What::FailedOver { named } => store.failed_over(at, *named),
            What::Stepped { by } | What::Drifted { by } => store.clock.step(at.at, *by),
            _ => {}
        }
    }
}

#[derive(Clone)]
struct Holder {
    owner: OwnerId,
    granted: Pos,
    /// How many events the history had when the store began with its request.
    begun: usize,
    /// In the order of their keys.
    casts: Vec<Cast>,
}

impl Holder {
    fn cast(&self, key: usize) -> Option<Cast> {
        let found = self.casts.binary_search_by_key(&key, |cast| cast.key);
        found.ok().map(|at| self.casts[at])
    }
}

struct Store<'a> {
    guards: &'a Guards,
    keys: &'a mut Keys,
    findings: &'a mut Findings,
    clock: Clock,
    sessions: BTreeMap<SessionId, Session>,
    holders: BTreeMap<Grant, Holder>,
    by_key: BTreeMap<usize, BTreeSet<Grant>>,
    /// Of each grant, the releases under way, and the event where the last one began or ended.
    releases: BTreeMap<Grant, (usize, usize)>,
    /// The tokens given out on each key, rising, and when.
    tokens: BTreeMap<usize, Vec<(Pos, u64)>>,
    copy: Copied,
    forgotten: Forgotten,
    /// Of each guard that says to be valid, when the renewal was sent that its deadline counts from.
    believed: BTreeMap<u64, u64>,
    /// What is being given back.
    given: BTreeMap<u64, Given>,
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
                retired,
                change,
                ttl,
                answer,
            } => self.renewed(at, *session, (*seq, retired, *change), *ttl, *answer),
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
            Stored::Released { grant } => {
                if let Some((under_way, last)) = self.releases.get_mut(grant) {
                    *under_way = under_way.saturating_sub(1);
                    *last = at.number;
                }
            }
            Stored::Confirm {
                grant,
                claims,
                begun,
                held,
            } => self.confirmed(at, *grant, claims, *begun, *held),
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
                adopter,
                settled,
            } => self.settled(at, *session, (*adoption, *adopter), *settled),
        }
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
        if known.is_none_or(|session| !session.is_live(grant.n)) {
            return; // It may stand in a record, and holds nothing.
        }
        for cast in &casts {
            self.rises(at, cast.key, token, begun);
        }
        self.forgotten.grants.remove(&grant);
        let release = self.releases.get(&grant);
        if release.is_some_and(|(under_way, last)| *under_way > 0 || *last > begun) {
            return; // A late copy, beside a release of its own: nobody knows what stands.
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
            begun,
            casts,
        };
        self.holders.insert(grant, holder);
    }

    /// A holder of a key, if it counts as far as is known.
    fn counting(&self, grant: Grant, key: usize) -> Option<(&Holder, Cast)> {
        let holder = self.holders.get(&grant)?;
        let session = self.sessions.get(&grant.session)?;
        let cast = holder.cast(key)?;
        session.is_live(grant.n).then_some((holder, cast))
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
        if self.guards.failovers.any_between(begun, at) {
            return; // Some of them were met before.
        }
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
        let (under_way, last) = self.releases.entry(grant).or_default();
        *under_way += 1;
        *last = at.number;
        self.releases_what_stands(grant, claims);
        let Some(holder) = self.holders.get_mut(&grant) else {
            return;
        };
        let gone = self.keys.casts(claims);
        for cast in &gone {
            if let Some(holders) = self.by_key.get_mut(&cast.key) {
                holders.remove(&grant);
            }
        }
        let key = |cast: &Cast| cast.key;
        holder
            .casts
            .retain(|held| gone.binary_search_by_key(&held.key, key).is_err());
        if holder.casts.is_empty() {
            self.holders.remove(&grant);
            if let Some(session) = self.sessions.get_mut(&grant.session) {
                session.grants.remove(&grant.n);
            }
        }
        self.covered(at, grant.session);
    }

    /// Nobody but its owner takes a holder away as long as its session lives; and a dead session holds nothing.
    fn confirmed(&mut self, at: Pos, grant: Grant, claims: &[Claim], begun: usize, held: bool) {
        if self.guards.failovers.any_between(begun, at) {
            return;
        }
        if held && self.forgotten.grants.contains_key(&grant) {
            let what = format!("{grant} was confirmed, and is forgotten");
            self.found(Law::ConfirmationsAreTrue, at, what);
        }
        let due = self.was_due(grant.session, at);
        let Some(session) = self.sessions.get(&grant.session) else {
            return;
        };
        let casts = self.keys.casts(claims);
        let stands = self.holders.get(&grant).is_some_and(|holder| {
            let own = |cast: &Cast| holder.cast(cast.key).is_some();
            holder.granted.number <= begun && casts.iter().all(own)
        });
        if held && session.dead.is_some_and(|dead| dead.number <= begun) {
            let what = format!("{grant} was confirmed, and its session is dead");
            self.found(Law::DeadStaysDead, at, what);
        } else if !held && stands && session.dead.is_none() && session.is_live(grant.n) && !due {
            let what = format!("{grant} does not hold any more, and nobody has released it");
            self.found(Law::OwnClaimsOnly, at, what);
        }
    }

    /// As long as an intent is registered, its session holds what the intent is about.
    fn covered(&mut self, at: Pos, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let Some(attempt) = session.intent.filter(|_| session.abandoned()) else {
            return;
        };
        let failovers = &self.guards.failovers;
        // Its removal is forgotten, and its locks were given back; or they are, and its holder is not told.
        if failovers.is_revived(id, at) || failovers.has_lost_untold(id, at) {
            return;
        }
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
}
