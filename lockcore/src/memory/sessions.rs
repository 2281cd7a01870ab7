//! The sessions, and the five operations on them, the same for both forms.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use async_trait::async_trait;

use super::MemoryBackend;
use crate::limits::TOMBSTONE_KEPT;
use crate::session::Life;
use crate::{
    Adopt, Adoption, End, Grant, IntentChange, Label, Opened, Ranges, Registered, Renewal, Renewed,
    Result, SessionId, SessionState, SessionStore,
};

#[derive(Debug)]
pub(super) struct Session {
    label: Label,
    ttl: Duration,
    /// When it is due; of a dead one, when it died.
    until: Duration,
    life: Life,
    seq: u64,
    over: Ranges,
    intent: Option<Registered>,
    adoption: u64,
    adopter: Option<SessionId>,
    settled_by: Option<u64>,
}

impl Session {
    fn new(label: Label, ttl: Duration, now: Duration) -> Self {
        Self {
            label,
            ttl,
            until: now.saturating_add(ttl),
            life: Life::Living,
            seq: 0,
            over: Ranges::EMPTY,
            intent: None,
            adoption: 0,
            adopter: None,
            settled_by: None,
        }
    }

    /// The record of a session that never was, so that it never will be.
    fn tombstone(now: Duration) -> Self {
        let label = Label::parse("").expect("a label may be empty");
        Self {
            life: Life::Dead,
            ..Self::new(label, Duration::ZERO, now)
        }
    }

    fn counts(&self, number: u64) -> bool {
        self.life.counts() && !self.over.contains(number)
    }
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    /// Something stopped counting, and nobody was told yet.
    pub(super) freed: bool,
}

impl Sessions {
    fn open(&mut self, id: SessionId, label: &Label, ttl: Duration, now: Duration) -> Opened {
        match self.sessions.entry(id) {
            Entry::Occupied(_) => Opened::Used,
            Entry::Vacant(vacant) => {
                vacant.insert(Session::new(label.clone(), ttl, now));
                Opened::Opened
            }
        }
    }

    fn renew(&mut self, id: SessionId, renewal: &Renewal, now: Duration) -> Renewed {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Renewed::Dead;
        };
        if session.life != Life::Living {
            return Renewed::Dead;
        }
        if renewal.seq <= session.seq {
            return Renewed::Overtaken;
        }
        session.seq = renewal.seq;
        session.until = now.saturating_add(session.ttl);
        if session.over != renewal.over {
            session.over.clone_from(&renewal.over);
            self.freed = true;
        }
        match &renewal.intent {
            IntentChange::Keep => {}
            IntentChange::Put(intent) => session.intent = Some(intent.clone()),
            IntentChange::Drop => session.intent = None,
        }
        Renewed::Living
    }

    fn end(&mut self, id: SessionId, how: End, now: Duration) -> &Session {
        let session = self
            .sessions
            .entry(id)
            .or_insert_with(|| Session::tombstone(now));
        let ends = match how {
            End::IfDue => session.life == Life::Living && session.until <= now,
            End::Close | End::Revoke => session.life == Life::Living,
            End::Discard => session.life == Life::Abandoned,
        };
        if ends {
            if how == End::Discard {
                session.intent = None;
                session.adoption += 1;
                session.adopter = None;
            }
            session.life = match session.intent {
                Some(_) => Life::Abandoned,
                None => Life::Dead,
            };
            session.until = now;
            self.freed = true;
        }
        session
    }

    /// The number and the intent of an adoption.
    fn adopt(
        &mut self,
        id: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Option<(u64, Registered)> {
        let session = self.sessions.get_mut(&id)?;
        let next = seen.checked_add(1)?;
        let mine = session.adopter == Some(adopter) && session.adoption == next;
        if session.adoption != seen && !mine {
            return None;
        }
        match how {
            // Whatever the session is: a late copy of the adoption may find it abandoned.
            Adopt::GiveUp => {
                session.adoption += 1;
                session.adopter = None;
                None
            }
            Adopt::Take if session.life == Life::Abandoned => {
                session.adoption = next;
                session.adopter = Some(adopter);
                Some((session.adoption, session.intent.clone()?))
            }
            Adopt::Take => None,
        }
    }

    fn settle(&mut self, id: SessionId, adoption: u64, now: Duration) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        let adopted = session.adopter.is_some() && session.adoption == adoption;
        if session.life == Life::Abandoned && adopted {
            session.intent = None;
            session.life = Life::Dead;
            session.until = now;
            session.settled_by = Some(adoption);
            self.freed = true;
        }
        session.settled_by == Some(adoption)
    }

    /// Whether a holder counts, once its session was ended if it is due.
    pub(super) fn judge(&mut self, grant: Grant, now: Duration) -> bool {
        self.end(grant.session, End::IfDue, now).counts(grant.n)
    }

    /// Whether a holder counts, as things stand; nothing is written.
    pub(super) fn counts(&self, grant: Grant) -> bool {
        self.sessions
            .get(&grant.session)
            .is_some_and(|session| session.counts(grant.n))
    }

    /// Whether the session lives, as things stand, and the number is not over.
    pub(super) fn lives(&self, grant: Grant) -> bool {
        self.sessions
            .get(&grant.session)
            .is_some_and(|session| session.life == Life::Living && !session.over.contains(grant.n))
    }

    /// Label and state, for a list of holders.
    pub(super) fn shown(&self, id: SessionId) -> (String, Life) {
        match self.sessions.get(&id) {
            Some(session) => (session.label.as_str().to_owned(), session.life),
            None => (String::new(), Life::Dead),
        }
    }

    /// The states behind `after`, in order.
    pub(super) fn states(
        &self,
        after: Option<SessionId>,
    ) -> impl Iterator<Item = SessionState> + '_ {
        self.sessions
            .iter()
            .filter(move |(id, _)| after.is_none_or(|after| **id > after))
            .map(|(id, session)| state(*id, session))
    }

    /// Ends every session that is due.
    pub(super) fn end_due(&mut self, now: Duration) {
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.end(id, End::IfDue, now);
        }
    }

    /// Forgets up to `limit` of those that have been dead for long, and says how many.
    pub(super) fn forget(&mut self, limit: usize, now: Duration) -> usize {
        let old: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.life == Life::Dead)
            .filter(|(_, session)| session.until.saturating_add(TOMBSTONE_KEPT) <= now)
            .map(|(id, _)| *id)
            .take(limit)
            .collect();
        for id in &old {
            self.sessions.remove(id);
        }
        old.len()
    }
}

fn state(id: SessionId, session: &Session) -> SessionState {
    SessionState {
        session: id,
        label: session.label.clone(),
        life: session.life,
        over: session.over.clone(),
        adoption: session.adoption,
        adopter: session.adopter,
    }
}

#[async_trait]
impl SessionStore for MemoryBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.pause().await;
        Ok(self.update(|state| {
            let now = state.clock.now();
            state.sessions.open(session, label, ttl, now)
        }))
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.pause().await;
        Ok(self.update(|state| {
            let now = state.clock.now();
            state.sessions.renew(session, renewal, now)
        }))
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = Vec::with_capacity(sessions.len());
        for id in sessions {
            self.pause().await;
            states.push(self.update(|all| {
                let now = all.clock.now();
                state(*id, all.sessions.end(*id, how, now))
            }));
        }
        Ok(states)
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        self.pause().await;
        Ok(self.update(|state| {
            let (number, left) = state.sessions.adopt(session, seen, adopter, how)?;
            let token = state.token();
            Some(Adoption {
                number,
                token,
                left,
            })
        }))
    }

    async fn settle(&self, session: SessionId, adoption: u64) -> Result<bool> {
        self.pause().await;
        Ok(self.update(|state| {
            let now = state.clock.now();
            state.sessions.settle(session, adoption, now)
        }))
    }
}
