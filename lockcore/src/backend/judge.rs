//! The judgement of who is in the way, for backends whose server does not make it: the records that a claim needs, what
//! may stand beside it there, how to report a refusal, and whom to judge first.

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

/// A holder in a record.
pub trait Entry {
    /// The grant; `None` if the holder cannot be understood. Such a holder is always live.
    fn grant(&self) -> Option<Grant>;
    /// The owner; `None` if the holder cannot be understood.
    fn owner(&self) -> Option<OwnerId>;
    /// The mode in which the record's key is held.
    fn mode(&self) -> Mode;
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

    /// The holders in the way of a grant that does not stand here yet: those that the matrix forbids beside the claim,
    /// and the shares if their limit is reached. `counts` is called only for these; those for which it is false are left
    /// out.
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
    /// At most [`MAX_LISTED`] holders.
    pub holders: Vec<Holder>,
    /// There are more.
    pub more: bool,
}

impl Listed {
    /// Adds a holder. For one grant on one key, the strongest mode is listed.
    pub fn add(&mut self, holder: Holder) {
        let same = |listed: &&mut Holder| {
            holder.grant.is_some() && listed.grant == holder.grant && listed.key == holder.key
        };
        if let Some(listed) = self.holders.iter_mut().find(same) {
            listed.mode = listed.mode.max(holder.mode);
            // Whoever holds something and waits for more is a holder.
            listed.waiting = listed.waiting.and(holder.waiting);
        } else if self.holders.len() == MAX_LISTED {
            self.more = true;
        } else {
            self.holders.push(holder);
        }
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

/// The holders in the way, by record.
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

/// What is known of the holders that were met, for a store that judges by a request of its own: it sends the batch,
/// ends the sessions in the way that are due, and sends the batch again, to pass those that are not live.
#[derive(Debug, Default)]
pub struct Judged {
    free: BTreeSet<Grant>,
    states: BTreeMap<SessionId, SessionState>,
}

/// What to do with a batch that met somebody, once they were judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The asking session does not live, or its number is retired.
    Void,
    /// Some of the holders that were met are not live: send the batch again.
    Again,
    /// All of them are live.
    Busy,
}

impl Judged {
    /// The grants that were found not to be live. They never will be again.
    #[must_use]
    pub fn free(&self) -> &BTreeSet<Grant> {
        &self.free
    }

    /// The sessions to [end if due](crate::End::IfDue): those of all holders that were met, and that of the request.
    /// The latter matters because the holders of a dead session stay in place, so its refusal could not name the first
    /// claim.
    #[must_use]
    pub fn to_end<E: Entry>(request: &Acquire, met: &Met<E>) -> Vec<SessionId> {
        let mut ids: BTreeSet<SessionId> = grants(met).map(|grant| grant.session).collect();
        ids.insert(request.grant.session);
        ids.into_iter().collect()
    }

    /// Takes the states of [those sessions](Self::to_end). A holder that was found not to be live is not met again, so
    /// [`Again`](Verdict::Again) is not returned often.
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

    /// The last known state of a grant's session.
    #[must_use]
    pub fn state(&self, grant: Grant) -> Option<&SessionState> {
        self.states.get(&grant.session)
    }
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
    /// A holder was in the way. Whatever this attempt wrote is given back.
    Met(Met<E>),
}

/// The grants that were met in each record and are not live. They never will be again.
pub type Past = BTreeMap<LockKey, BTreeSet<Grant>>;

/// A store whose largest atomic unit is one record, and which judges holders by a request of its own.
pub trait ByRecord: Sync {
    /// A holder in a record.
    type Held: Entry + Send;
    /// Why the store failed.
    type Failure: Send;

    /// Writes the records that the request [needs](needed), each past the grants that were met in it and are not live.
    /// A holder in a record that is not among these is met.
    fn attempt(
        &self,
        request: &Acquire,
        needed: &BTreeMap<LockKey, Ask<'_>>,
        past: &Past,
    ) -> impl Future<Output = Result<Tried<Self::Held>, Self::Failure>> + Send;

    /// Ends those of the sessions [that are due](crate::End::IfDue).
    fn end_due(
        &self,
        sessions: &[SessionId],
    ) -> impl Future<Output = Result<Vec<SessionState>, Self::Failure>> + Send;

    /// A holder in the way, with what is known of its session.
    fn holder(key: &LockKey, held: &Self::Held, state: Option<&SessionState>) -> Holder;
}

/// One batch: tries, ends the sessions in the way that are due, and tries again, past the holders that are not live,
/// until the batch is granted or all holders in the way are live.
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
