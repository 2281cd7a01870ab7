//! One record, who holds it, and the one judgement of who is in the way there.

use std::time::{Duration, SystemTime};

use crate::limits::MAX_LISTED;
use crate::session::Life;
use crate::{Claim, Grant, Holder, LockKey, Mode, OwnerId, Refused, SessionId};

/// An entry in a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// `None` for what cannot be understood: it always counts, and only an eviction removes it.
    pub(super) grant: Option<Grant>,
    pub(super) owner: Option<OwnerId>,
    pub(super) mode: Mode,
    /// Since the Unix epoch.
    pub(super) since: Duration,
}

impl Held {
    /// The mode that meets a claim which finds this at that place.
    pub(super) fn seen(&self, place: Place) -> Mode {
        match (place, self.mode) {
            (Place::Below, Mode::X | Mode::IX) => Mode::IX,
            (Place::Below, Mode::S | Mode::IS) => Mode::IS,
            (Place::Key | Place::Above, mode) => mode,
        }
    }
}

/// Where a claim meets a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The claim's own key.
    Key,
    /// An ancestor of it.
    Above,
    /// Something below it, which holds the claim's own key in mode IX or IS.
    Below,
}

/// What one request asks of one record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) grant: Grant,
    pub(super) owner: OwnerId,
    pub(super) claim: &'a Claim,
    pub(super) place: Place,
}

impl Ask<'_> {
    pub(super) fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Whether this may be granted beside `held`.
    pub(super) fn beside(self, held: &Held) -> bool {
        let same_owner = held.owner == Some(self.owner);
        let mode = held.seen(self.place);
        held.grant == Some(self.grant)
            || match self.place {
                Place::Key | Place::Below => self.claim.beside(mode, same_owner),
                Place::Above => self.claim.beside_above(mode, same_owner),
            }
    }
}

/// The mode in which a claim holds its own key, or each of its ancestors.
pub(super) fn mode(claim: &Claim, place: Place) -> Mode {
    match place {
        Place::Above => claim
            .want()
            .above()
            .expect("only a path claim has ancestors"),
        Place::Key | Place::Below => claim.want().mode(),
    }
}

/// Who holds one key.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// In the order of their grants.
    pub(super) holders: Vec<Held>,
    /// The number of the last write.
    pub(super) version: u64,
}

impl Record {
    /// Whether the grant already stands here in that mode: the request was sent before.
    pub(super) fn stands(&self, grant: Grant, mode: Mode) -> bool {
        self.find(Some(grant))
            .is_ok_and(|at| self.holders[at].mode == mode)
    }

    /// Who is in the way of a grant that does not stand here yet: what the matrix forbids beside the claim, and the
    /// shares where their limit is reached. Only those matter of whom `counts` says so; nobody else is asked about.
    pub(super) fn in_the_way(
        &self,
        ask: Ask<'_>,
        mut counts: impl FnMut(Grant) -> bool,
    ) -> Vec<&Held> {
        let mut counts = |held: &&Held| held.grant.is_none_or(&mut counts);
        let mut found: Vec<&Held> = self
            .holders
            .iter()
            .filter(|held| !ask.beside(held))
            .filter(&mut counts)
            .collect();
        if let Some(limit) = ask.claim.want().limit() {
            let shares: Vec<&Held> = self
                .holders
                .iter()
                .filter(|held| held.mode == Mode::IS)
                .filter(&mut counts)
                .collect();
            if shares.len() >= usize::try_from(limit.get()).unwrap_or(usize::MAX) {
                found.extend(shares);
            }
        }
        found
    }

    /// Enters the grant, once nobody was found in the way. `false` if it stood there before.
    pub(super) fn enter(&mut self, ask: Ask<'_>, now: Duration, version: u64) -> bool {
        self.version = version;
        let mode = mode(ask.claim, ask.place);
        if self.stands(ask.grant, mode) {
            return false;
        }
        // What the matrix forbids and is here all the same was found not to count.
        self.holders.retain(|held| ask.beside(held));
        self.put(Held {
            grant: Some(ask.grant),
            owner: Some(ask.owner),
            mode,
            since: now,
        });
        true
    }

    pub(super) fn put(&mut self, held: Held) {
        match self.find(held.grant) {
            Ok(at) => self.holders[at] = held,
            Err(at) => self.holders.insert(at, held),
        }
    }

    fn find(&self, grant: Option<Grant>) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&grant, |held| held.grant)
    }
}

/// Some of the holders of a key, one for each grant and key, and whether there are more.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) holders: Vec<Holder>,
    pub(super) more: bool,
}

impl Listed {
    /// Adds who holds `key` in that mode. `session` says what a session's label and state are.
    pub(super) fn add(
        &mut self,
        key: &LockKey,
        held: &Held,
        mode: Mode,
        session: impl FnOnce(SessionId) -> (String, Life),
    ) {
        let same = |holder: &&mut Holder| {
            held.grant.is_some() && holder.grant == held.grant && holder.key == *key
        };
        if let Some(holder) = self.holders.iter_mut().find(same) {
            holder.mode = holder.mode.max(mode);
            return;
        }
        if self.holders.len() == MAX_LISTED {
            self.more = true;
            return;
        }
        let (label, life) = match held.grant {
            Some(grant) => session(grant.session),
            None => ("a record that cannot be read".to_owned(), Life::Living),
        };
        self.holders.push(Holder {
            key: key.clone(),
            grant: held.grant,
            owner: held.owner,
            mode,
            label,
            since: held
                .grant
                .is_some()
                .then(|| SystemTime::UNIX_EPOCH + held.since),
            life,
        });
    }

    /// The refusal of a claim, if somebody is listed.
    pub(super) fn refusal(self, claim: &Claim) -> Option<Refused> {
        (!self.holders.is_empty()).then(|| Refused {
            claim: claim.clone(),
            holders: self.holders,
            more: self.more,
        })
    }
}
