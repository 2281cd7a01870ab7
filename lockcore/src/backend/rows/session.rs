//! A session's record, and what each operation does to it: values, no I/O.

use std::time::{Duration, UNIX_EPOCH};

use crate::{End, Grant, Label, Life, Notes, Ranges, Renewal, Renewed, SessionId, SessionState};

/// The store's time, once for a whole transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// By the clock that leases are measured with, whenever that began.
    pub lease: Duration,
    /// Since 1970: for people, and for forgetting sessions. No decision about a lock depends on it.
    pub date: Duration,
}

/// A session's record. Its intent stands beside it, so that a renewal does not rewrite it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// What people read about it.
    pub label: Label,
    /// How long a renewal keeps it living.
    pub ttl: Duration,
    /// When it is due, by the clock of leases. Zero if that cannot be told any more: it is due.
    pub due: Duration,
    /// Its state.
    pub life: Life,
    /// When it stopped living, since 1970.
    pub ended: Option<Duration>,
    /// The number of its last renewal.
    pub seq: u64,
    /// Its numbers that are over.
    pub over: Ranges,
    /// How often an adoption number was used.
    pub adoption: u64,
    /// The session that has adopted it.
    pub adopter: Option<SessionId>,
    /// The adoption by which it was settled.
    pub settled: Option<u64>,
    /// What was noted for its owner.
    pub notes: Notes,
}

impl SessionRow {
    /// One that has just been opened.
    #[must_use]
    pub fn opened(label: Label, ttl: Duration, now: Now) -> Self {
        Self {
            label,
            ttl,
            due: now.lease.saturating_add(ttl),
            life: Life::Living,
            ended: None,
            seq: 0,
            over: Ranges::EMPTY,
            adoption: 0,
            adopter: None,
            settled: None,
            notes: Notes::default(),
        }
    }

    /// The record of a session that never was, so that it never will be.
    #[must_use]
    pub fn tombstone(now: Now) -> Self {
        Self {
            due: Duration::ZERO,
            life: Life::Dead,
            ended: Some(now.date),
            ..Self::opened(Label::ours(""), Duration::ZERO, now)
        }
    }

    /// Renews the lease. Its intent is not here: change that if the answer [is living](Renewed::is_living).
    pub fn renew(&mut self, renewal: &Renewal, now: Now) -> Renewed {
        if self.life != Life::Living {
            return Renewed::Dead;
        }
        if self.seq < renewal.acknowledged {
            return Renewed::Forgotten;
        }
        if renewal.seq <= self.seq {
            return Renewed::Overtaken;
        }
        self.seq = renewal.seq;
        self.due = now.lease.saturating_add(self.ttl);
        self.over.clone_from(&renewal.over);
        Renewed::living(&self.notes)
    }

    /// Whether that ends it.
    #[must_use]
    pub fn ends(&self, how: End, now: Now) -> bool {
        match how {
            End::IfDue => self.life == Life::Living && self.due <= now.lease,
            End::Close | End::Revoke => self.life == Life::Living,
            End::Discard => self.life == Life::Abandoned,
        }
    }

    /// Ends it, if [that does](Self::ends). One that was living is abandoned if it leaves an intent; discarding takes
    /// the intent away. Says whether it was ended.
    pub fn end(&mut self, how: End, intent: bool, now: Now) -> bool {
        let ends = self.ends(how, now);
        if ends {
            if how == End::Discard {
                self.use_up();
            }
            let left = intent && how != End::Discard;
            self.life = if left { Life::Abandoned } else { Life::Dead };
            self.ended = Some(now.date);
        }
        ends
    }

    /// Gives it to `by`, if it is abandoned and nobody took it since it was `seen`. Says the number of the adoption.
    pub fn adopt(&mut self, seen: u64, by: SessionId) -> Option<u64> {
        let next = seen.checked_add(1)?;
        if self.life != Life::Abandoned || !(self.adoption == seen || self.is_of(next, by)) {
            return None;
        }
        self.adoption = next;
        self.adopter = Some(by);
        Some(next)
    }

    /// Makes sure that `by` does not have the adoption after `seen`, and never will. That is done whatever the session
    /// is: a late copy of the adoption may find it abandoned. Says whether anything changed.
    pub fn give_up(&mut self, seen: u64, by: SessionId) -> bool {
        let next = seen.checked_add(1);
        let used = self.adoption == seen || next.is_some_and(|next| self.is_of(next, by));
        if used {
            self.use_up();
        }
        used
    }

    /// Settles it for who has that adoption; its intent has to go in the same transaction. Says whether anything
    /// changed; whether it [is settled](Self::is_settled) is another question.
    pub fn settle(&mut self, adoption: u64, by: SessionId, now: Now) -> bool {
        let settles = self.life == Life::Abandoned && self.is_of(adoption, by);
        if settles {
            self.life = Life::Dead;
            self.ended = Some(now.date);
            self.settled = Some(adoption);
        }
        settles
    }

    /// Whether that adoption has settled it.
    #[must_use]
    pub fn is_settled(&self, adoption: u64, by: SessionId) -> bool {
        // One that has given up since has settled it all the same.
        let theirs = self.adopter.is_none_or(|adopter| adopter == by);
        self.life == Life::Dead && self.settled == Some(adoption) && theirs
    }

    /// Whether a holder of this session counts whose grant has this number.
    #[must_use]
    pub fn counts(&self, n: u64) -> bool {
        self.life.counts() && !self.over.contains(n)
    }

    /// Whether a request under that grant may have what it asks for.
    #[must_use]
    pub fn admits(&self, grant: Grant) -> bool {
        self.life == Life::Living && !self.over.contains(grant.n)
    }

    /// What the traits say about it.
    #[must_use]
    pub fn state(&self, session: SessionId) -> SessionState {
        SessionState {
            session,
            label: self.label.clone(),
            life: self.life,
            over: self.over.clone(),
            adoption: self.adoption,
            adopter: self.adopter,
            notes: self.notes.clone(),
            ended: self.ended.and_then(|ended| UNIX_EPOCH.checked_add(ended)),
        }
    }

    fn is_of(&self, adoption: u64, by: SessionId) -> bool {
        self.adoption == adoption && self.adopter == Some(by)
    }

    /// Nobody has the adoption any more.
    fn use_up(&mut self) {
        self.adoption = self.adoption.saturating_add(1);
        self.adopter = None;
    }
}
