//! The judgement of who is in the way, for backends whose server does not make it: the records that a claim needs, what
//! may stand beside it there, how to report a refusal, and whom to judge first.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::num::NonZeroU32;

use crate::backend::rows::Waits;
use crate::limits::MAX_LISTED;
use crate::store::Past;
use crate::{
    Acquire, Acquired, Busy, Claim, FencingToken, Grant, Holder, Life, LockKey, Mode, OwnerId,
    Record, Refused, SessionId, SessionState, Want,
};

/// Where a claim meets a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the claim's own key.
    Key,
    /// On an ancestor of it.
    Above,
    /// Below it; such a holder holds the claim's own key in mode IX or IS.
    Below,
}

impl Place {
    /// The mode that the claim meets. A holder below counts with the mode that it has on everything above it.
    #[must_use]
    pub const fn seen(self, held: Mode) -> Mode {
        match (self, held) {
            (Place::Below, Mode::X | Mode::IX) => Mode::IX,
            (Place::Below, Mode::S | Mode::IS) => Mode::IS,
            (Place::Key | Place::Above, mode) => mode,
        }
    }
}

/// A holder or a waiter in a record.
pub trait Entry {
    /// The grant; `None` if the holder cannot be understood. Such a holder is always live.
    fn grant(&self) -> Option<Grant>;
    /// The owner; `None` if the holder cannot be understood.
    fn owner(&self) -> Option<OwnerId>;
    /// The mode in which the record's key is held, or waited for.
    fn mode(&self) -> Mode;
    /// Its place in line if it is a waiter.
    fn waits(&self) -> Option<Waits>;
}

/// Whether an entry is live, by the state of its session. A waiter is live only while its session is living.
#[must_use]
pub fn is_live(entry: &impl Entry, state: &SessionState) -> bool {
    let lives = entry.waits().is_none() || state.life == Life::Living;
    lives && entry.grant().is_none_or(|grant| state.is_live(grant.n))
}

/// What a claim asks of one place.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The place.
    pub place: Place,
    /// The asking grant and owner; `None` if somebody only watches.
    pub asker: Option<(Grant, OwnerId)>,
}

impl<'a> Ask<'a> {
    /// What a claim of a request asks of its own key.
    #[must_use]
    pub fn of(request: &Acquire, claim: &'a Claim) -> Self {
        Self {
            claim,
            place: Place::Key,
            asker: Some((request.grant, request.owner)),
        }
    }

    /// The same at another place.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// The mode in which the place would be held.
    #[must_use]
    pub fn mode(self) -> Mode {
        let want = self.claim.want();
        match (self.place, want.above()) {
            (Place::Above, Some(above)) => above,
            _ => want.mode(),
        }
    }

    /// Whether the claim may be granted beside that holder. A limited share needs more: its limit must not be reached.
    #[must_use]
    pub fn beside(self, held: &impl Entry) -> bool {
        let (grant, owner) = self.asker.unzip();
        let same_owner = owner.is_some() && held.owner() == owner;
        let mode = self.place.seen(held.mode());
        (grant.is_some() && held.grant() == grant)
            || match self.place {
                Place::Key | Place::Below => self.claim.beside(mode, same_owner),
                Place::Above => self.claim.beside_above(mode, same_owner),
            }
    }

    /// Those in the way of a grant that does not hold the place yet: the holders and the earlier waiters that the matrix
    /// forbids beside the claim, and the shares if their limit is reached. `counts` is called only for these; those for
    /// which it is false are left out.
    pub fn in_the_way<E: Entry>(self, entries: &[E], counts: impl FnMut(&E) -> bool) -> Vec<&E> {
        let own = self.asker.map(|(grant, _)| grant);
        let is_own = |entry: &&E| own.is_some() && entry.grant() == own;
        let waits = entries.iter().find(is_own).and_then(Entry::waits);
        self.in_the_way_of(waits.map_or(u64::MAX, |waits| waits.place), entries, counts)
    }

    /// The same for a grant with that place in line.
    pub fn in_the_way_of<E: Entry>(
        self,
        place: u64,
        entries: &[E],
        mut counts: impl FnMut(&E) -> bool,
    ) -> Vec<&E> {
        let own = self.asker.map(|(grant, _)| grant);
        let is_before = |entry: &&E| entry.waits().is_none_or(|waits| waits.place < place);
        let before: Vec<&E> = entries.iter().filter(is_before).collect();
        let mut found: Vec<&E> = before
            .iter()
            .copied()
            .filter(|entry| !self.beside(*entry))
            .filter(|entry| counts(entry))
            .collect();
        if let Some(limit) = self.claim.want().limit() {
            let share = |entry: &&E| {
                entry.mode() == Mode::IS && entry.grant().is_some() && entry.grant() != own
            };
            let shares = before.into_iter().filter(share);
            let shares: Vec<&E> = shares.filter(|entry| counts(entry)).collect();
            if shares.len() >= usize::try_from(limit.get()).unwrap_or(usize::MAX) {
                found.extend(shares);
            }
        }
        found
    }
}

/// What a claim asks of every record that it needs, in a store where ancestors are records: the shortest ancestor
/// first, its own key last.
pub fn asks(
    claim: &Claim,
    asker: Option<(Grant, OwnerId)>,
) -> impl Iterator<Item = (LockKey, Ask<'_>)> {
    let ask = Ask {
        claim,
        place: Place::Key,
        asker,
    };
    let above = claim
        .key()
        .ancestor_keys()
        .map(move |key| (key, ask.at(Place::Above)));
    above.chain([(claim.key().clone(), ask)])
}

/// The records that prepared claims need, in a store where ancestors are records: in path order, each with the
/// strongest thing that is asked of it.
#[must_use]
pub fn needed(claims: &[Claim], asker: Option<(Grant, OwnerId)>) -> BTreeMap<LockKey, Ask<'_>> {
    let asked = claims.iter().flat_map(|claim| asks(claim, asker));
    let mut needed: Vec<(LockKey, Ask<'_>)> = asked.collect();
    // IS and IX is IX, X is all; S and IX never meet in prepared claims. Thousands of claims are in order already, so
    // that to sort them is cheaper than to look for the place of each.
    needed.sort_by(|(key, ask), (other, than)| {
        let strongest_first = || than.mode().cmp(&ask.mode());
        key.cmp(other).then_with(strongest_first)
    });
    needed.dedup_by(|(key, _), (first, _)| key == first);
    needed.into_iter().collect()
}

/// Some of the holders in the way of a claim: one for each grant and key, limited in number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// At most [`MAX_LISTED`]: whoever holds comes before whoever waits, and of these the first in line.
    pub holders: Vec<Holder>,
    /// There are more.
    pub more: bool,
}

impl Listed {
    /// Adds a holder or a waiter. For one grant on one key, the strongest mode is listed.
    pub fn add(&mut self, holder: Holder) {
        // Nobody, for whoever holds.
        let place = |holder: &Holder| holder.waiting.map(|waiting| waiting.place);
        let same = |listed: &&mut Holder| {
            holder.grant.is_some() && listed.grant == holder.grant && listed.key == holder.key
        };
        if let Some(listed) = self.holders.iter_mut().find(same) {
            listed.mode = listed.mode.max(holder.mode);
            // Whoever holds something and waits for more is a holder.
            listed.waiting = listed.waiting.and(holder.waiting);
        } else if self.holders.len() < MAX_LISTED {
            self.holders.push(holder);
        } else {
            self.more = true;
            let last = self.holders.iter_mut().max_by_key(|it| place(it));
            if let Some(last) = last.filter(|last| place(last) > place(&holder)) {
                *last = holder;
            }
        }
    }

    /// Whether anybody is listed who does not only wait. Those come first.
    #[must_use]
    pub fn has_a_holder(&self) -> bool {
        let holds = |holder: &Holder| holder.waiting.is_none();
        self.holders.iter().any(holds)
    }

    /// Whether no more holders can be listed: there are more, and nobody listed only waits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.more && self.holders.iter().all(|holder| holder.waiting.is_none())
    }

    /// The refusal of a claim, if any holder is listed.
    #[must_use]
    pub fn refusal(self, claim: &Claim) -> Option<Refused> {
        (!self.holders.is_empty()).then(|| Refused {
            claim: claim.clone(),
            holders: self.holders,
            more: self.more,
        })
    }

    /// The record of a key as [`Inspect`](crate::Inspect) shows it, if any holder is listed.
    #[must_use]
    pub fn record(mut self, key: &LockKey, version: String) -> Option<Record> {
        // Those who wait stand behind the holders, in their order.
        self.holders
            .sort_by_key(|holder| holder.waiting.map(|waiting| waiting.place));
        (!self.holders.is_empty()).then(|| Record {
            key: key.clone(),
            holders: self.holders,
            more: self.more,
            version,
        })
    }
}

/// Entries, by record.
pub type Met<E> = BTreeMap<LockKey, Vec<E>>;

/// The refusal of a request by the holders that were met in the records that it [needs](needed). A record may have been
/// asked for more than one claim needs of it, so each claim is judged again.
///
/// # Panics
///
/// Panics if no holder that was met is in the way of any claim.
#[must_use]
pub fn refusal<E: Entry>(
    request: &Acquire,
    met: &Met<E>,
    holder: impl Fn(&LockKey, &E) -> Holder,
) -> Busy {
    let refused = |claim: &Claim| {
        let mut holders = Vec::new();
        for (key, ask) in asks(claim, Some((request.grant, request.owner))) {
            for held in met.get(&key).into_iter().flatten() {
                // A share that is in the way is there because of the limit.
                if !ask.beside(held) || claim.want().limit().is_some() {
                    holders.push(holder(&key, held));
                }
            }
        }
        // Those who wait stand behind the holders, in their order.
        holders.sort_by_key(|holder| holder.waiting.map(|waiting| waiting.place));
        let mut listed = Listed::default();
        holders.into_iter().for_each(|holder| listed.add(holder));
        listed.refusal(claim)
    };
    Busy::of(request.claims.iter().filter_map(refused)).expect("a refusal names who is in the way")
}

/// What is known of the entries that were met, for a store that judges by a request of its own: it sends the batch,
/// ends the sessions in the way that are due, and sends the batch again, to pass those that are not live.
#[derive(Debug, Default)]
pub struct Judged {
    states: BTreeMap<SessionId, SessionState>,
}

/// What to do with a batch that met somebody, once they were judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The asking session does not live, or its number is retired.
    Void,
    /// Some of those that were met are not live: send the batch again.
    Again,
    /// All of them are live.
    Busy,
}

impl Judged {
    /// Whether the entry is known not to be live, by the last state of its session. It never will be again.
    #[must_use]
    pub fn is_gone(&self, entry: &impl Entry) -> bool {
        let state = entry.grant().and_then(|grant| self.state(grant));
        state.is_some_and(|state| !is_live(entry, state))
    }

    /// The sessions to [end if due](crate::End::IfDue): those of all holders that were met and of the first waiters, and that
    /// of the request. The latter matters because the holders of a dead session stay in place, so its refusal could not name
    /// the first claim. The waiters behind the first few are judged when those have gone: each of many that wait would judge
    /// all others.
    #[must_use]
    pub fn to_end<E: Entry>(request: &Acquire, met: &Met<E>) -> Vec<SessionId> {
        let mut ids = BTreeSet::from([request.grant.session]);
        for entries in met.values() {
            let mut line: Vec<(Option<u64>, SessionId)> = entries
                .iter()
                .filter_map(|it| Some((it.waits().map(|waits| waits.place), it.grant()?.session)))
                .collect();
            line.sort_unstable();
            let holders = line.iter().take_while(|(place, _)| place.is_none()).count();
            ids.extend(
                line.into_iter()
                    .take(holders + MAX_LISTED)
                    .map(|(_, id)| id),
            );
        }
        ids.into_iter().collect()
    }

    /// Takes the states of [those sessions](Self::to_end). One that was found not to be live is not met again, so
    /// [`Again`](Verdict::Again) is returned once for each few of the dead.
    pub fn learn<E: Entry>(
        &mut self,
        request: &Acquire,
        met: &Met<E>,
        states: Vec<SessionState>,
    ) -> Verdict {
        let found = self.knows(met.values().flatten(), states);
        let own = self.state(request.grant);
        if own.is_none_or(|own| own.life != Life::Living || !own.is_live(request.grant.n)) {
            return Verdict::Void;
        }
        match found {
            true => Verdict::Again,
            false => Verdict::Busy,
        }
    }

    /// Judges the entries by these states. Returns whether any of them is not live.
    fn knows<'a, E: Entry + 'a>(
        &mut self,
        mut entries: impl Iterator<Item = &'a E>,
        states: Vec<SessionState>,
    ) -> bool {
        let states = states.into_iter().map(|state| (state.session, state));
        self.states.extend(states);
        entries.any(|entry| self.is_gone(entry))
    }

    /// The last known state of a grant's session.
    #[must_use]
    pub fn state(&self, grant: Grant) -> Option<&SessionState> {
        self.states.get(&grant.session)
    }
}

fn sessions<'a, E: Entry + 'a>(
    entries: impl Iterator<Item = &'a E>,
) -> impl Iterator<Item = SessionId> {
    entries.filter_map(|entry| Some(entry.grant()?.session))
}

/// How one attempt at a batch ended that did not fail.
#[derive(Debug)]
pub enum Tried<E> {
    /// Every record was written, and the session lived after the last one.
    Granted(FencingToken),
    /// The session did not live then. Whatever this attempt wrote is given back.
    Void,
    /// The store is of another incarnation than the one that the request is meant for. Whatever this attempt wrote is
    /// given back.
    Moved,
    /// Somebody was in the way: all entries of the records that were not written for that reason. Whatever this attempt
    /// wrote is given back. If the request [stands in line](stands_in_line), it is a waiter in each of its records.
    Met(Met<E>),
}

/// The entries of a record that are not in the way.
#[derive(Debug, Clone, Default)]
pub struct Aside {
    /// Not live. They never will be again.
    pub gone: BTreeSet<Grant>,
    /// Waiters of sessions that do not live any more. What has been granted since is in the way.
    pub quit: BTreeSet<Grant>,
    /// Waiters that are passed, as long as they have this place and were not passed meanwhile. One that may go is removed;
    /// of any other it is written that it was passed.
    pub passed: Vec<Past>,
}

impl Aside {
    /// Whether an entry is in the way all the same.
    pub fn leaves(&self, entry: &impl Entry) -> bool {
        let (Some(grant), waits) = (entry.grant(), entry.waits()) else {
            return true;
        };
        let is_passed = |past: &Past| past.grant == grant && waits == Some(past.waiting.into());
        let quits = waits.is_some() && self.quit.contains(&grant);
        !self.gone.contains(&grant) && !quits && !self.passed.iter().any(is_passed)
    }
}

/// Whether a refused request becomes a waiter.
#[must_use]
pub fn stands_in_line(request: &Acquire) -> bool {
    request.waits && request.claims.len() == 1
}

/// A store whose largest atomic unit is one record, and which judges holders by a request of its own.
pub trait ByRecord: Sync {
    /// A holder or a waiter in a record.
    type Held: Entry + Clone + Send + Sync;
    /// Why the store failed.
    type Failure: Send;

    /// Writes the records that the request [needs](needed), each past those who are not in the way there.
    fn attempt(
        &self,
        request: &Acquire,
        needed: &BTreeMap<LockKey, Ask<'_>>,
        aside: &BTreeMap<LockKey, Aside>,
    ) -> impl Future<Output = Result<Tried<Self::Held>, Self::Failure>> + Send;

    /// Ends those of the sessions [that are due](crate::End::IfDue).
    fn end_due(
        &self,
        sessions: &[SessionId],
    ) -> impl Future<Output = Result<Vec<SessionState>, Self::Failure>> + Send;

    /// All entries of these records.
    fn entries(
        &self,
        keys: Vec<LockKey>,
    ) -> impl Future<Output = Result<Met<Self::Held>, Self::Failure>> + Send;

    /// The key of the claim that a waiter in the record of `key` waits for.
    fn waits_for(key: &LockKey, waiter: &Self::Held) -> LockKey;

    /// One in the way, with what is known of its session.
    fn holder(key: &LockKey, held: &Self::Held, state: Option<&SessionState>) -> Holder;

    /// Whether the request that failed last had certainly no effect, whatever was written before it. `false` if that is not known.
    fn was_refused(_failure: &Self::Failure) -> bool {
        false
    }
}

/// One batch: tries, ends the sessions in the way that are due, and tries again, past those that are not live, until the
/// batch is granted or all in the way are live.
///
/// # Errors
///
/// The store failed.
pub async fn acquire<S: ByRecord>(store: &S, request: &Acquire) -> Result<Acquired, S::Failure> {
    let needed = needed(&request.claims, Some((request.grant, request.owner)));
    let (mut judged, mut aside) = (Judged::default(), BTreeMap::new());
    loop {
        let records = match store.attempt(request, &needed, &aside).await? {
            Tried::Granted(token) => return Ok(Acquired::Acquired(token)),
            Tried::Void => return Ok(Acquired::Void),
            Tried::Moved => return Ok(Acquired::Moved),
            Tried::Met(records) => records,
        };
        let mut met = met_in(&needed, &records, &aside);
        let states = match store.end_due(&Judged::to_end(request, &met)).await {
            // It stands in line, and keeps its place.
            Err(failure) if stands_in_line(request) && S::was_refused(&failure) => {
                return Ok(Acquired::Busy(busy::<S>(
                    request,
                    &met,
                    &judged,
                    &BTreeSet::new(),
                )));
            }
            states => states?,
        };
        match judged.learn(request, &met, states) {
            Verdict::Void => return Ok(Acquired::Void),
            Verdict::Again => {
                for (key, entries) in &met {
                    let aside: &mut Aside = aside.entry(key.clone()).or_default();
                    for entry in entries.iter().filter(|entry| judged.is_gone(*entry)) {
                        // It may be granted, and hold, by the next attempt.
                        let set = match entry.waits() {
                            Some(_) => &mut aside.quit,
                            None => &mut aside.gone,
                        };
                        set.extend(entry.grant());
                    }
                }
                continue;
            }
            Verdict::Busy => {}
        }
        let mut may_go = BTreeSet::new();
        if stands_in_line(request) {
            let mut line = Line {
                store,
                records,
                judged: &mut judged,
                limit: line_limit(&request.claims[0]),
            };
            let examined = match line.examined(request, &met).await {
                // Nobody is known to go.
                Err(failure) if S::was_refused(&failure) => Default::default(),
                examined => examined?,
            };
            let mut passed = examined.1;
            may_go = examined.0;
            let removes = passed.iter().any(|(_, past)| past.waiting.may_go);
            // Who is refused all the same has passed nobody: it would be patient with them anew, and again.
            passed.retain(|(_, past)| past.waiting.may_go || !removes);
            let passes = !passed.is_empty();
            for (key, past) in passed {
                aside.entry(key).or_default().passed.push(past);
            }
            if passes {
                let Line { mut records, .. } = line;
                records.retain(|key, _| met.contains_key(key));
                met = met_in(&needed, &records, &aside);
            }
            if removes || met.values().all(Vec::is_empty) {
                continue;
            }
        }
        return Ok(Acquired::Busy(busy::<S>(request, &met, &judged, &may_go)));
    }
}

/// The refusal by those that were met, of which some waiters may go.
fn busy<S: ByRecord>(
    request: &Acquire,
    met: &Met<S::Held>,
    judged: &Judged,
    may_go: &BTreeSet<Grant>,
) -> Busy {
    refusal(request, met, |key, held| {
        let state = held.grant().and_then(|it| judged.state(it));
        let mut holder = S::holder(key, held, state);
        if let Some(waiting) = &mut holder.waiting {
            waiting.may_go = held.grant().is_some_and(|it| may_go.contains(&it));
        }
        holder
    })
}

/// Who is in the way in the records that were refused.
fn met_in<E: Entry + Clone>(
    needed: &BTreeMap<LockKey, Ask<'_>>,
    records: &Met<E>,
    aside: &BTreeMap<LockKey, Aside>,
) -> Met<E> {
    let mut met = Met::new();
    for (key, entries) in records {
        let is_left = |entry: &E| aside.get(key).is_none_or(|aside| aside.leaves(entry));
        let found = needed[key].in_the_way(entries, is_left);
        met.insert(key.clone(), found.into_iter().cloned().collect());
    }
    met
}

/// The line of a key, as a refused request that stands in it sees it.
struct Line<'a, S: ByRecord> {
    store: &'a S,
    /// The records that are known.
    records: Met<S::Held>,
    judged: &'a mut Judged,
    /// [That of the shares](line_limit) of the key.
    limit: Option<NonZeroU32>,
}

/// A waiter.
struct Waiter {
    grant: Grant,
    owner: OwnerId,
    claim: Claim,
    place: u64,
}

/// Who keeps a waiter out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// Nobody.
    Nobody,
    /// A holder, or an earlier waiter.
    Somebody,
    /// A holder of the session that was asked about.
    Asked,
}

impl<S: ByRecord> Line<'_, S> {
    /// Which of the waiters in the way may go, and which of them the request passes.
    async fn examined(
        &mut self,
        request: &Acquire,
        met: &Met<S::Held>,
    ) -> Result<(BTreeSet<Grant>, Vec<(LockKey, Past)>), S::Failure> {
        let waits = |(key, entries): (&LockKey, &Vec<S::Held>)| {
            let waiting = entries.iter().filter_map(|it| Some((it.waits()?, it)));
            let found = waiting.map(|(waits, it)| (waits, key.clone(), it.clone()));
            found.collect::<Vec<_>>()
        };
        let mut waiters: Vec<(Waits, LockKey, S::Held)> = met.iter().flat_map(waits).collect();
        waiters.sort_by_key(|(waits, ..)| waits.place);
        waiters.truncate(MAX_LISTED);
        let (mut may_go, mut passed) = (BTreeSet::new(), Vec::new());
        for (waits, key, entry) in waiters {
            let Some(waiter) = self.waiter(&key, &entry, waits.place) else {
                continue;
            };
            let grant = waiter.grant;
            let is_past = |past: &&Past| past.grant == grant && Waits::from(past.waiting) == waits;
            let past = request.past.iter().find(is_past).copied();
            let asked = past.filter(|past| !past.waiting.may_go);
            let keeper = self.keeper(waiter, asked.map(|_| request.grant.session));
            let keeper = keeper.await?;
            if keeper == Keeper::Nobody {
                may_go.insert(grant);
            }
            let lets_by = match keeper {
                Keeper::Nobody => past.filter(|past| past.waiting.may_go),
                Keeper::Asked => asked,
                Keeper::Somebody => None,
            };
            passed.extend(lets_by.map(|past| (key, past)));
        }
        Ok((may_go, passed))
    }

    fn waiter(&self, key: &LockKey, entry: &S::Held, place: u64) -> Option<Waiter> {
        let mode = entry.mode();
        Some(Waiter {
            grant: entry.grant()?,
            owner: entry.owner()?,
            claim: waited_for(S::waits_for(key, entry), mode, self.limit)?,
            place,
        })
    }

    /// Who keeps a waiter from what it asks for. If a session is `asked` about, whether that does: as a holder, or because
    /// an earlier waiter waits for it in turn.
    async fn keeper(
        &mut self,
        waiter: Waiter,
        asked: Option<SessionId>,
    ) -> Result<Keeper, S::Failure> {
        let mut keeper = Keeper::Nobody;
        let mut seen = BTreeSet::from([waiter.grant]);
        let mut left = vec![waiter];
        while let Some(waiter) = left.pop() {
            self.read(&waiter).await?;
            for (key, ask) in asks(&waiter.claim, Some((waiter.grant, waiter.owner))) {
                let entries = self.records.get(&key).map_or(&[][..], Vec::as_slice);
                let is_live = |entry: &S::Held| !self.judged.is_gone(entry);
                for entry in ask.in_the_way_of(waiter.place, entries, is_live) {
                    keeper = Keeper::Somebody;
                    let Some(asked) = asked else {
                        return Ok(keeper);
                    };
                    let grant = entry.grant();
                    match entry.waits() {
                        None if grant.is_some_and(|grant| grant.session == asked) => {
                            return Ok(Keeper::Asked);
                        }
                        Some(before) if grant.is_some_and(|grant| seen.insert(grant)) => {
                            left.extend(self.waiter(&key, entry, before.place));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(keeper)
    }

    /// Reads and judges what a waiter needs.
    async fn read(&mut self, waiter: &Waiter) -> Result<(), S::Failure> {
        let keys: Vec<LockKey> = asks(&waiter.claim, None).map(|(key, _)| key).collect();
        let unread = keys.iter().filter(|key| !self.records.contains_key(*key));
        let unread: Vec<LockKey> = unread.cloned().collect();
        if !unread.is_empty() {
            let mut read = self.store.entries(unread.clone()).await?;
            for key in unread {
                let entries = read.remove(&key).unwrap_or_default();
                self.records.insert(key, entries);
            }
        }
        let unknown = self.unknown(&keys, waiter.place);
        let states = self.store.end_due(&unknown).await?;
        let entries = keys.iter().filter_map(|key| self.records.get(key));
        self.judged.knows(entries.flatten(), states);
        Ok(())
    }

    /// The sessions in these records, of holders and of waiters before that place, of which nothing is known.
    fn unknown(&self, keys: &[LockKey], place: u64) -> Vec<SessionId> {
        let entries = keys.iter().filter_map(|key| self.records.get(key));
        let is_before = |entry: &&S::Held| entry.waits().is_none_or(|waits| waits.place < place);
        let mut unknown: BTreeSet<SessionId> =
            sessions(entries.flatten().filter(is_before)).collect();
        unknown.retain(|session| !self.judged.states.contains_key(session));
        unknown.into_iter().collect()
    }
}

/// The limit of the shares of a key, as who asks for it knows it: all who want one have the same. Who wants no share does not
/// know it, and takes each of them for the last.
#[must_use]
pub fn line_limit(claim: &Claim) -> Option<NonZeroU32> {
    match claim.want() {
        Want::Share { limit } => limit,
        _ => Some(NonZeroU32::MIN),
    }
}

/// What a waiter asks for that waits in this mode, on the key or on an ancestor of it. A share has
/// [this limit](line_limit).
pub(crate) fn waited_for(key: LockKey, mode: Mode, limit: Option<NonZeroU32>) -> Option<Claim> {
    let want = match (mode, key.is_path()) {
        (Mode::X | Mode::IX, true) => Want::Write,
        (Mode::S | Mode::IS, true) => Want::Read,
        (Mode::X, false) => Want::Upsert,
        (_, false) => Want::Share { limit },
    };
    Claim::new(key, want)
}
