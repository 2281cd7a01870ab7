//! One record, and who holds it.

use std::time::{Duration, SystemTime};

use crate::backend::judge::{Aside, Ask, Entry};
use crate::backend::rows::Waits;
use crate::limits::MAX_WAITERS;
use crate::session::Life;
use crate::{Acquire, Grant, Holder, LockKey, Mode, OwnerId};

/// An entry in a record.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// `None` for what cannot be understood: it always counts, and only an eviction removes it.
    pub(super) grant: Option<Grant>,
    pub(super) owner: Option<OwnerId>,
    pub(super) mode: Mode,
    /// Since the Unix epoch.
    pub(super) since: Duration,
    /// How many records its request has written.
    pub(super) of: usize,
    /// The attempt that wrote it last.
    pub(super) attempt: u64,
    /// It holds nothing: it waits.
    pub(super) waits: Option<Waits>,
    /// How it waited before it was entered.
    pub(super) waited: Option<Waits>,
    /// The key of the claim that it waits for.
    pub(super) claim: Option<LockKey>,
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

    fn waits(&self) -> Option<Waits> {
        self.waits
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
            waiting: self.waits.map(Waits::waiting),
        }
    }
}

/// What an attempt at a request enters in a record.
#[derive(Clone, Copy)]
pub(super) struct Entered<'a> {
    pub(super) request: &'a Acquire,
    pub(super) ask: Ask<'a>,
    /// In so many records.
    pub(super) of: usize,
    pub(super) attempt: u64,
}

impl Entered<'_> {
    fn held(self, since: Duration, waits: Option<Waits>, waited: Option<Waits>) -> Held {
        Held {
            grant: Some(self.request.grant),
            owner: Some(self.request.owner),
            mode: self.ask.mode(),
            since,
            of: self.of,
            attempt: self.attempt,
            waits,
            waited,
            claim: waits.map(|_| self.ask.claim.key().clone()),
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
        entry: Entered<'_>,
        aside: Option<&Aside>,
        now: Duration,
    ) -> bool {
        let grant = Some(entry.request.grant);
        if self.stands(entry.request.grant, entry.ask.mode()) {
            let at = self.find(grant).expect("it stands here");
            let attempt = &mut self.holders[at].attempt;
            *attempt = entry.attempt.max(*attempt);
            return false;
        }
        if let Some(aside) = aside {
            self.set_aside(aside);
        }
        let waited = self.get(grant).and_then(|own| own.waits);
        self.put(entry.held(now, None, waited));
        true
    }

    /// Removes what is not live, and who may go and does not; the others were passed once more.
    fn set_aside(&mut self, aside: &Aside) {
        self.remove_passed(aside);
        let gone = |held: &Held| {
            let quits = |it| held.waits.is_some() && aside.quit.contains(it);
            held.grant
                .as_ref()
                .is_some_and(|it| aside.gone.contains(it) || quits(it))
        };
        self.holders.retain(|held| !gone(held));
        for past in &aside.passed {
            if let Ok(at) = self.find(Some(past.grant))
                && let Some(waits) = &mut self.holders[at].waits
            {
                waits.passed = waits.passed.saturating_add(1);
            }
        }
    }

    /// Removes who may go and does not. Returns whether there was anybody.
    pub(super) fn remove_passed(&mut self, aside: &Aside) -> bool {
        let may_go = |held: &Held| {
            let passed = aside.passed.iter().filter(|past| past.waiting.may_go);
            let mut passed = passed.map(|past| (Some(past.grant), Some(Waits::from(past.waiting))));
            passed.any(|past| past == (held.grant, held.waits))
        };
        let before = self.holders.len();
        self.holders.retain(|held| !may_go(held));
        self.holders.len() < before
    }

    /// Whether a refused request has no place here yet, and there is one.
    pub(super) fn has_a_place_for(&self, request: &Acquire) -> bool {
        let waiters = self.holders.iter().filter(|held| held.waits.is_some());
        self.get(Some(request.grant)).is_none() && waiters.count() < MAX_WAITERS
    }

    /// The grant of a refused attempt waits at that place, unless a later attempt was granted.
    pub(super) fn stand(&mut self, entry: Entered<'_>, place: u64, now: Duration) {
        let own = self.get(Some(entry.request.grant));
        let is_later = own.is_some_and(|own| own.attempt > entry.attempt);
        if is_later || own.is_none() && !self.has_a_place_for(entry.request) {
            return;
        }
        let waited = own.and_then(|own| own.waits.or(own.waited));
        let waited = waited.filter(|waited| waited.place == place);
        let waits = waited.unwrap_or(Waits { place, passed: 0 });
        self.put(entry.held(now, Some(waits), None));
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
