//! A session's record, and the effect of each operation on it: values, no I/O.

use std::time::{Duration, UNIX_EPOCH};

use crate::{End, Grant, Label, Life, Notes, Ranges, Renewal, Renewed, SessionId, SessionState};

/// The store's time, fixed for a whole transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// By the clock that measures leases, from any origin.
    pub lease: Duration,
    /// Since 1970: for people, and for forgetting sessions. No rule decides about a lock by it.
    pub date: Duration,
}

/// A session's record. Its intent is stored separately, so that a renewal does not rewrite it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Text that people read about it.
    pub label: Label,
    /// How long a renewal keeps it alive.
    pub ttl: Duration,
    /// When it is due, by the clock of leases. Zero if the time is no longer known: then it is due.
    pub due: Duration,
    /// Its state.
    pub life: Life,
    /// When it stopped living, since 1970.
    pub ended: Option<Duration>,
    /// The number of its last renewal.
    pub seq: u64,
    /// Its retired numbers.
    pub retired: Ranges,
    /// How many adoption numbers were used.
    pub adoption: u64,
    /// The session that has adopted it.
    pub adopter: Option<SessionId>,
    /// The adoption that settled it.
    pub settled: Option<u64>,
    /// The notes for its owner.
    pub notes: Notes,
}

impl SessionRow {
    /// The record of a session that has just been opened.
    #[must_use]
    pub fn opened(label: Label, ttl: Duration, now: Now) -> Self {
        Self {
            label,
            ttl,
            due: now.lease.saturating_add(ttl),
            life: Life::Living,
            ended: None,
            seq: 0,
            retired: Ranges::EMPTY,
            adoption: 0,
            adopter: None,
            settled: None,
            notes: Notes::default(),
        }
    }

    /// The record of a session that never existed, so that it never will.
    #[must_use]
    pub fn tombstone(now: Now) -> Self {
        Self {
            due: Duration::ZERO,
            life: Life::Dead,
            ended: Some(now.date),
            ..Self::opened(Label::ours(""), Duration::ZERO, now)
        }
    }

    /// Renews the lease. The intent is not part of this record: change it if the answer [is
    /// living](Renewed::is_living).
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
        self.ttl = renewal.ttl.unwrap_or(self.ttl);
        self.due = now.lease.saturating_add(self.ttl);
        self.retired.clone_from(&renewal.retired);
        Renewed::living(&self.notes)
    }

    /// Whether `how` ends the session now.
    #[must_use]
    pub fn ends(&self, how: End, now: Now) -> bool {
        match how {
            End::IfDue => self.life == Life::Living && self.due <= now.lease,
            End::Close | End::Revoke => self.life == Life::Living,
            End::Discard => self.life == Life::Abandoned,
        }
    }

    /// Ends the session, if [`how` does](Self::ends). A living session becomes abandoned if it leaves an intent.
    /// Discarding removes the intent. Returns whether the session was ended.
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

    /// Gives the session to `by`, if it is abandoned and nobody has taken it since it was `seen`. Returns the number of
    /// the adoption.
    pub fn adopt(&mut self, seen: u64, by: SessionId) -> Option<u64> {
        let next = seen.checked_add(1)?;
        if self.life != Life::Abandoned || !(self.adoption == seen || self.is_of(next, by)) {
            return None;
        }
        self.adoption = next;
        self.adopter = Some(by);
        Some(next)
    }

    /// Makes sure that `by` does not have the adoption after `seen`, and never will. This is done in every state of the
    /// session: a late copy of the adoption may find it abandoned. Returns whether anything changed.
    pub fn give_up(&mut self, seen: u64, by: SessionId) -> bool {
        let next = seen.checked_add(1);
        let used = self.adoption == seen || next.is_some_and(|next| self.is_of(next, by));
        if used {
            self.use_up();
        }
        used
    }

    /// Settles the session for the holder of that adoption. Its intent must be removed in the same transaction. Returns
    /// whether anything changed; [`is_settled`](Self::is_settled) tells whether the session is settled.
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

    /// Whether a holder of this session is live if its grant has this number.
    #[must_use]
    pub fn is_live(&self, n: u64) -> bool {
        self.life.is_live() && !self.retired.contains(n)
    }

    /// Whether a request under that grant may be granted.
    #[must_use]
    pub fn admits(&self, grant: Grant) -> bool {
        self.life == Life::Living && !self.retired.contains(grant.n)
    }

    /// The state that the traits report.
    #[must_use]
    pub fn state(&self, session: SessionId) -> SessionState {
        SessionState {
            session,
            label: self.label.clone(),
            life: self.life,
            retired: self.retired.clone(),
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
