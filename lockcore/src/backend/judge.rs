//! The judgement of who is in the way, for backends whose server does not make it: which records a claim needs, what
//! stands beside it there, how a refusal is told, and whom to judge before it is.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use crate::limits::MAX_LISTED;
use crate::{
    Acquire, Acquired, Busy, Claim, FencingToken, Grant, Holder, Life, LockKey, Mode, OwnerId,
    Record, Refused, SessionId, SessionState,
};

/// Where a claim meets a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the claim's own key.
    Key,
    /// On an ancestor of it.
    Above,
    /// Below it, whence the holder holds the claim's own key in mode IX or IS.
    Below,
}

impl Place {
    /// The mode that meets the claim: of a holder below, the one that it casts on everything above it.
    #[must_use]
    pub const fn seen(self, held: Mode) -> Mode {
        match (self, held) {
            (Place::Below, Mode::X | Mode::IX) => Mode::IX,
            (Place::Below, Mode::S | Mode::IS) => Mode::IS,
            (Place::Key | Place::Above, mode) => mode,
        }
    }
}

/// Somebody in a record.
pub trait Entry {
    /// The grant; `None` for what cannot be understood: it always counts.
    fn grant(&self) -> Option<Grant>;
    /// The owner; `None` for what cannot be understood.
    fn owner(&self) -> Option<OwnerId>;
    /// How the record's key is held.
    fn mode(&self) -> Mode;
}

/// What a claim asks of one place.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The place.
    pub place: Place,
    /// Who asks; nobody does when it is only watched who is in the way.
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

    /// Whether this may be granted beside that holder. Of a limited share that is not all: its limit may be reached.
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

    /// Who is in the way of a grant that does not stand here yet: what the matrix forbids beside the claim, and the
    /// shares where their limit is reached. Only those matter of whom `counts` says so; nobody else is asked about.
    pub fn in_the_way<E: Entry>(
        self,
        holders: &[E],
        mut counts: impl FnMut(Grant) -> bool,
    ) -> Vec<&E> {
        let own = self.asker.map(|(grant, _)| grant);
        let mut counts = |held: &&E| held.grant().is_none_or(&mut counts);
        let mut found: Vec<&E> = holders
            .iter()
            .filter(|held| !self.beside(*held))
            .filter(&mut counts)
            .collect();
        if let Some(limit) = self.claim.want().limit() {
            let share = |held: &&E| {
                held.mode() == Mode::IS && held.grant().is_some() && held.grant() != own
            };
            let shares: Vec<&E> = holders.iter().filter(share).filter(&mut counts).collect();
            if shares.len() >= usize::try_from(limit.get()).unwrap_or(usize::MAX) {
                found.extend(shares);
            }
        }
        found
    }
}

/// What a claim asks of every record that it needs where ancestors are records: the shortest ancestor first, its own
/// key last.
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

/// The records that prepared claims need where ancestors are records, in path order, each with what is asked of it
/// most.
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

/// Some of those in the way of a claim: one for each grant and key, and not too many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// At most [`MAX_LISTED`] of them.
    pub holders: Vec<Holder>,
    /// There are more.
    pub more: bool,
}

impl Listed {
    /// Adds one. Of one grant on one key the strongest mode is listed.
    pub fn add(&mut self, holder: Holder) {
        let same = |listed: &&mut Holder| {
            holder.grant.is_some() && listed.grant == holder.grant && listed.key == holder.key
        };
        if let Some(listed) = self.holders.iter_mut().find(same) {
            listed.mode = listed.mode.max(holder.mode);
        } else if self.holders.len() == MAX_LISTED {
            self.more = true;
        } else {
            self.holders.push(holder);
        }
    }

    /// The refusal of a claim, if somebody is listed.
    #[must_use]
    pub fn refusal(self, claim: &Claim) -> Option<Refused> {
        (!self.holders.is_empty()).then(|| Refused {
            claim: claim.clone(),
            holders: self.holders,
            more: self.more,
        })
    }

    /// The record of a key as [`Inspect`](crate::Inspect) shows it, if somebody is listed.
    #[must_use]
    pub fn record(self, key: &LockKey, version: String) -> Option<Record> {
        (!self.holders.is_empty()).then(|| Record {
            key: key.clone(),
            holders: self.holders,
            more: self.more,
            version,
        })
    }
}

/// Who was in the way, by record.
pub type Met<E> = BTreeMap<LockKey, Vec<E>>;

/// The refusal of a request by those who were met in the records that it [needs](needed). A record may have been asked
/// for more than one claim needs of it, so each claim is judged again.
///
/// # Panics
///
/// Panics if nobody met is in the way of any claim.
#[must_use]
pub fn refusal<E: Entry>(
    request: &Acquire,
    met: &Met<E>,
    holder: impl Fn(&LockKey, &E) -> Holder,
) -> Busy {
    let refused = |claim: &Claim| {
        let mut listed = Listed::default();
        for (key, ask) in asks(claim, Some((request.grant, request.owner))) {
            for held in met.get(&key).into_iter().flatten() {
                // A share that is in the way is there because of the limit.
                if !ask.beside(held) || claim.want().limit().is_some() {
                    listed.add(holder(&key, held));
                }
            }
        }
        listed.refusal(claim)
    };
    Busy::of(request.claims.iter().filter_map(refused)).expect("a refusal names who is in the way")
}

/// What has been learnt of those who were met, where a store judges by a request of its own: the step is sent, those in
/// its way are ended if they are due, and it is sent again, to go past those that do not count.
#[derive(Debug, Default)]
pub struct Judged {
    free: BTreeSet<Grant>,
    states: BTreeMap<SessionId, SessionState>,
}

/// What to do with a step that was in somebody's way, once they were judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Who asks does not live, or its number is over.
    Void,
    /// Some of those met do not count: send the step again.
    Again,
    /// All of them count.
    Busy,
}

impl Judged {
    /// The grants that were found not to count. They never will.
    #[must_use]
    pub fn free(&self) -> &BTreeSet<Grant> {
        &self.free
    }

    /// The sessions to [end if due](crate::End::IfDue): of everybody met, and of who asks, since what a dead session
    /// has left stands, so that its refusal could not name the first claim.
    #[must_use]
    pub fn to_end<E: Entry>(request: &Acquire, met: &Met<E>) -> Vec<SessionId> {
        let mut ids: BTreeSet<SessionId> = grants(met).map(|grant| grant.session).collect();
        ids.insert(request.grant.session);
        ids.into_iter().collect()
    }

    /// Takes what became of [those sessions](Self::to_end). Nobody is met twice where he was found not to count, so there
    /// are not many [`Again`](Verdict::Again).
    pub fn learn<E: Entry>(
        &mut self,
        request: &Acquire,
        met: &Met<E>,
        states: Vec<SessionState>,
    ) -> Verdict {
        self.states = states
            .into_iter()
            .map(|state| (state.session, state))
            .collect();
        let own = self.state(request.grant);
        if own.is_none_or(|own| own.life != Life::Living || !own.counts(request.grant.n)) {
            return Verdict::Void;
        }
        let counts = |grant: &Grant| self.state(*grant).is_none_or(|it| it.counts(grant.n));
        let gone: Vec<Grant> = grants(met).filter(|grant| !counts(grant)).collect();
        if gone.is_empty() {
            return Verdict::Busy;
        }
        self.free.extend(gone);
        Verdict::Again
    }

    /// What was learnt last of a grant's session.
    #[must_use]
    pub fn state(&self, grant: Grant) -> Option<&SessionState> {
        self.states.get(&grant.session)
    }
}

/// How one try of a step ended that did not fail.
#[derive(Debug)]
pub enum Tried<E> {
    /// Every record was written, and the session lived after the last of them.
    Granted(FencingToken),
    /// The session did not; what was new is given back.
    Void,
    /// The store is of another incarnation than the one that the request is meant for; what was new is given back.
    Moved,
    /// Somebody was in the way; what was written is given back.
    Met(Met<E>),
}

/// The grants that were met in each record and do not count. They never will.
pub type Past = BTreeMap<LockKey, BTreeSet<Grant>>;

/// A store whose largest atomic thing is one record, and which judges who is in the way by a request of its own.
pub trait ByRecord: Sync {
    /// Somebody in a record.
    type Held: Entry + Send;
    /// Why the store failed.
    type Failure: Send;

    /// Writes the records that the request [needs](needed), each past the grants that were met in it and do not count.
    /// Whoever stands in a record and is not among these is met.
    fn attempt(
        &self,
        request: &Acquire,
        needed: &BTreeMap<LockKey, Ask<'_>>,
        past: &Past,
    ) -> impl Future<Output = Result<Tried<Self::Held>, Self::Failure>> + Send;

    /// Ends those sessions [that are due](crate::End::IfDue).
    fn end_due(
        &self,
        sessions: &[SessionId],
    ) -> impl Future<Output = Result<Vec<SessionState>, Self::Failure>> + Send;

    /// Somebody in the way, of whose session that is known.
    fn holder(key: &LockKey, held: &Self::Held, state: Option<&SessionState>) -> Holder;
}

/// One step: tries, ends the sessions that are due of who is in the way, and tries again, past those that do not
/// count, until it is granted or all of them count.
///
/// # Errors
///
/// The store failed.
pub async fn acquire<S: ByRecord>(store: &S, request: &Acquire) -> Result<Acquired, S::Failure> {
    let needed = needed(&request.claims, Some((request.grant, request.owner)));
    let (mut judged, mut past) = (Judged::default(), Past::new());
    loop {
        let met = match store.attempt(request, &needed, &past).await? {
            Tried::Granted(token) => return Ok(Acquired::Acquired(token)),
            Tried::Void => return Ok(Acquired::Void),
            Tried::Moved => return Ok(Acquired::Moved),
            Tried::Met(met) => met,
        };
        let states = store.end_due(&Judged::to_end(request, &met)).await?;
        match judged.learn(request, &met, states) {
            Verdict::Again => {
                for (key, held) in &met {
                    let gone = held.iter().filter_map(Entry::grant);
                    let gone = gone.filter(|grant| judged.free().contains(grant));
                    past.entry(key.clone()).or_default().extend(gone);
                }
            }
            Verdict::Void => return Ok(Acquired::Void),
            Verdict::Busy => {
                let busy = refusal(request, &met, |key, held| {
                    S::holder(key, held, held.grant().and_then(|it| judged.state(it)))
                });
                return Ok(Acquired::Busy(busy));
            }
        }
    }
}

fn grants<E: Entry>(met: &Met<E>) -> impl Iterator<Item = Grant> {
    met.values().flatten().filter_map(Entry::grant)
}
