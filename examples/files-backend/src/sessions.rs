//! `SessionStore`: the only records that know time.

use std::collections::btree_map::Entry;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{
    Adopt, Adoption, End, Grant, IntentChange, Label, Life, Opened, Operation, Ranges, Registered,
    Renewal, Renewed, Result, SessionId, SessionState, SessionStore,
};

use crate::FilesBackend;
use crate::state::{Left, Session, Sessions, Text};

#[async_trait]
impl SessionStore for FilesBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let label = label.clone();
        self.update(Operation::Open, move |state, now| {
            state.sessions.open(session, label, ttl, now)
        })
        .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewal = renewal.clone();
        self.update(Operation::Renew, move |state, now| {
            state.sessions.renew(session, renewal, now)
        })
        .await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let ids = sessions.to_vec();
        self.update(Operation::End, move |state, now| {
            ids.into_iter()
                .map(|id| state.sessions.end(id, how, now).state(id))
                .collect()
        })
        .await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        self.update(Operation::Adopt, move |state, now| {
            let (number, left) = state.sessions.adopt(session, seen, adopter, how)?;
            Some(Adoption {
                number,
                token: state.draw_token(now),
                left: Registered {
                    token: left.token.0,
                    intent: left.intent,
                },
            })
        })
        .await
    }

    async fn settle(&self, session: SessionId, adoption: u64) -> Result<bool> {
        self.update(Operation::Settle, move |state, now| {
            state.sessions.settle(session, adoption, now)
        })
        .await
    }
}

impl Session {
    fn new(label: Label, ttl_us: u64, now: u64) -> Self {
        Self {
            label,
            ttl_us,
            until_us: now.saturating_add(ttl_us),
            life: Life::Living,
            seq: 0,
            over: Text(Ranges::EMPTY),
            intent: None,
            adoption: 0,
            adopter: None,
            settled_by: None,
        }
    }

    /// The record of a session that never was, so that it never will be.
    fn tombstone(now: u64) -> Self {
        let label = Label::parse("").expect("a label may be empty");
        Self {
            life: Life::Dead,
            ..Self::new(label, 0, now)
        }
    }

    pub(crate) fn state(&self, session: SessionId) -> SessionState {
        SessionState {
            session,
            label: self.label.clone(),
            life: self.life,
            over: self.over.0.clone(),
            adoption: self.adoption,
            adopter: self.adopter.map(|adopter| adopter.0),
        }
    }

    fn counts(&self, number: u64) -> bool {
        self.life.counts() && !self.over.0.contains(number)
    }
}

impl Sessions {
    fn open(&mut self, id: SessionId, label: Label, ttl: Duration, now: u64) -> Opened {
        match self.by_id.entry(Text(id)) {
            Entry::Occupied(_) => Opened::Used,
            Entry::Vacant(vacant) => {
                let ttl_us = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
                vacant.insert(Session::new(label, ttl_us, now));
                Opened::Opened
            }
        }
    }

    fn renew(&mut self, id: SessionId, renewal: Renewal, now: u64) -> Renewed {
        let Some(session) = self.by_id.get_mut(&Text(id)) else {
            return Renewed::Dead;
        };
        if session.life != Life::Living {
            return Renewed::Dead;
        }
        if renewal.seq <= session.seq {
            return Renewed::Overtaken;
        }
        session.seq = renewal.seq;
        session.until_us = now.saturating_add(session.ttl_us);
        if session.over.0 != renewal.over {
            session.over = Text(renewal.over);
            self.freed += 1;
        }
        match renewal.intent {
            IntentChange::Keep => {}
            IntentChange::Put(Registered { token, intent }) => {
                let token = Text(token);
                session.intent = Some(Left { token, intent });
            }
            IntentChange::Drop => session.intent = None,
        }
        Renewed::Living
    }

    /// The only way to die, but for `settle`.
    fn end(&mut self, id: SessionId, how: End, now: u64) -> &Session {
        let session = self
            .by_id
            .entry(Text(id))
            .or_insert_with(|| Session::tombstone(now));
        let ends = match how {
            End::IfDue => session.life == Life::Living && session.until_us <= now,
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
            session.until_us = now;
            self.freed += 1;
        }
        session
    }

    /// The number of an adoption, and what it hands over.
    fn adopt(
        &mut self,
        id: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Option<(u64, Left)> {
        let session = self.by_id.get_mut(&Text(id))?;
        let next = seen.checked_add(1)?;
        let mine = session.adopter == Some(Text(adopter)) && session.adoption == next;
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
                session.adopter = Some(Text(adopter));
                Some((next, session.intent.clone()?))
            }
            Adopt::Take => None,
        }
    }

    fn settle(&mut self, id: SessionId, adoption: u64, now: u64) -> bool {
        let Some(session) = self.by_id.get_mut(&Text(id)) else {
            return false;
        };
        let adopted = session.adopter.is_some() && session.adoption == adoption;
        if session.life == Life::Abandoned && adopted {
            session.intent = None;
            session.life = Life::Dead;
            session.until_us = now;
            session.settled_by = Some(adoption);
            self.freed += 1;
        }
        session.settled_by == Some(adoption)
    }

    /// Whether a holder counts, once its session was ended if it is due.
    pub(crate) fn judge(&mut self, grant: Grant, now: u64) -> bool {
        self.end(grant.session, End::IfDue, now).counts(grant.n)
    }

    /// Whether a request may have what it asks for: its session lives, and its number is not over.
    pub(crate) fn admits(&mut self, grant: Grant, now: u64) -> bool {
        let session = self.end(grant.session, End::IfDue, now);
        session.life == Life::Living && session.counts(grant.n)
    }

    /// Whether a holder counts, as things stand; for listings, which change nothing.
    pub(crate) fn counts(&self, grant: Grant) -> bool {
        let session = self.by_id.get(&Text(grant.session));
        session.is_some_and(|session| session.counts(grant.n))
    }

    /// Label and state, for a list of holders.
    pub(crate) fn shown(&self, id: SessionId) -> (String, Life) {
        match self.by_id.get(&Text(id)) {
            Some(session) => (session.label.to_string(), session.life),
            None => (String::new(), Life::Dead),
        }
    }

    pub(crate) fn end_due(&mut self, now: u64) {
        let ids: Vec<SessionId> = self.by_id.keys().map(|id| id.0).collect();
        for id in ids {
            self.end(id, End::IfDue, now);
        }
    }

    /// Forgets up to `limit` of those that have been dead for long, and says how many.
    pub(crate) fn forget(&mut self, limit: usize, now: u64) -> usize {
        let kept_us = u64::try_from(TOMBSTONE_KEPT.as_micros()).unwrap_or(u64::MAX);
        let mut left = limit;
        self.by_id.retain(|_, session| {
            let old = session.life == Life::Dead && session.until_us.saturating_add(kept_us) <= now;
            if old && left > 0 {
                left -= 1;
                return false;
            }
            true
        });
        limit - left
    }
}
