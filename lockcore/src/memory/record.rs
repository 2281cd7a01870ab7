//! One record, and who holds it.

use std::time::{Duration, SystemTime};

use crate::backend::judge::{Ask, Entry};
use crate::backend::rows::Waits;
use crate::session::Life;
use crate::{Acquire, Grant, Holder, LockKey, Mode, OwnerId};

/// An entry in a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// `None` for what cannot be understood: it always counts, and only an eviction removes it.
    pub(super) grant: Option<Grant>,
    pub(super) owner: Option<OwnerId>,
    pub(super) mode: Mode,
    /// Since the Unix epoch.
    pub(super) since: Duration,
    /// How many records its request has written.
    pub(super) of: usize,
    /// It holds nothing: it waits.
    pub(super) waits: Option<Waits>,
}

impl Entry for Held {
    fn grant(&self) -> Option<Grant> {
        self.grant
    }

    fn owner(&self) -> Option<OwnerId> {
        self.owner
    }

    fn mode(&self) -> Mode {
        self.mode
    }
}

/// What is said of what cannot be understood.
pub(super) const STRANGE: &str = "a record that cannot be read";

impl Held {
    /// As a holder of `key`, of a session with that label and state.
    pub(super) fn holder(&self, key: &LockKey, label: String, life: Life) -> Holder {
        let known = self.grant.is_some();
        Holder {
            key: key.clone(),
            grant: self.grant,
            owner: self.owner,
            mode: self.mode,
            label: if known { label } else { STRANGE.to_owned() },
            since: known.then(|| SystemTime::UNIX_EPOCH + self.since),
            life: if known { life } else { Life::Living },
            waiting: None,
        }
    }
}

/// Who holds one key.
#[derive(Debug, Clone, Default)]
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
            .is_ok_and(|at| self.holders[at].mode == mode && self.holders[at].waits.is_none())
    }

    /// The holder of that grant.
    pub(super) fn get(&self, grant: Option<Grant>) -> Option<&Held> {
        self.find(grant).ok().map(|at| &self.holders[at])
    }

    /// Where the holders behind that grant begin.
    pub(super) fn behind(&self, grant: Option<Grant>) -> usize {
        self.find(grant).map_or_else(|at| at, |at| at + 1)
    }

    /// Enters the grant, once nobody was found in the way. `false` if it stood there before.
    pub(super) fn enter(
        &mut self,
        request: &Acquire,
        ask: Ask<'_>,
        of: usize,
        now: Duration,
        version: u64,
    ) -> bool {
        self.version = version;
        if self.stands(request.grant, ask.mode()) {
            return false;
        }
        // What the matrix forbids and is here all the same was found not to count.
        self.holders.retain(|held| ask.beside(held));
        self.put(Held {
            grant: Some(request.grant),
            owner: Some(request.owner),
            mode: ask.mode(),
            since: now,
            of,
            waits: None,
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
