//! [`SessionStore`]: the records that have a lease.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::session::Life;
use crate::{FencingToken, Label, Note, Notes, Ranges, Registered, Result, SessionId};

/// The name of the state that a store has. A store takes another name whenever it may have lost acknowledged writes:
/// when a copy takes over that was perhaps behind, or when the store starts again perhaps without its last moments. A
/// name never comes back.
///
/// A client names the incarnation that it knows in its requests. So it learns of another one before it relies on
/// anything that this one has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(u128);

impl Incarnation {
    /// No name: the store loses nothing, or cannot tell that it did. A request with it is compared with nothing.
    pub const UNKNOWN: Self = Self(0);

    /// The name with this number; 0 is [`UNKNOWN`](Self::UNKNOWN).
    #[must_use]
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Whether it is a name.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// The content of one renewal. It is cumulative: it contains everything that is not acknowledged yet, so a newer
/// renewal replaces an older one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The number of this send. Every send has a new one, and they rise.
    pub seq: u64,
    /// The greatest number whose answer [is living](Renewed::is_living); 0 if there is none.
    pub acknowledged: u64,
    /// All retired numbers of the session.
    pub retired: Ranges,
    /// The change to the session's intent.
    pub intent: IntentChange,
    /// The incarnation that the renewal is meant for.
    pub incarnation: Incarnation,
    /// The grants that must exist, or nothing is renewed: all that the client has of the session when it moves to
    /// another incarnation, else none.
    pub granted: Ranges,
    /// The session's TTL from this renewal on; `None` if it stays.
    pub ttl: Option<Duration>,
}

impl Renewal {
    /// The renewal of that number, of a session that has no acknowledged one.
    #[must_use]
    pub fn new(seq: u64, retired: Ranges, intent: IntentChange) -> Self {
        Self {
            seq,
            acknowledged: 0,
            retired,
            intent,
            incarnation: Incarnation::UNKNOWN,
            granted: Ranges::EMPTY,
            ttl: None,
        }
    }

    /// The same renewal, which changes the session's TTL: this renewal and later ones count with it.
    #[must_use]
    pub fn lasting(self, ttl: Duration) -> Self {
        Self {
            ttl: Some(ttl),
            ..self
        }
    }

    /// The same renewal, of a session whose last acknowledged renewal has that number.
    #[must_use]
    pub fn after(self, acknowledged: u64) -> Self {
        Self {
            acknowledged,
            ..self
        }
    }

    /// The same renewal, only for that incarnation, and only if these grants exist there.
    #[must_use]
    pub fn within(self, incarnation: Incarnation, granted: Ranges) -> Self {
        Self {
            incarnation,
            granted,
            ..self
        }
    }
}

/// The change that a [`Renewal`] makes to the session's one intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntentChange {
    /// The intent stays as the last acknowledged renewal left it.
    Keep,
    /// The intent is this one.
    Put(Registered),
    /// There is no intent.
    Drop,
}

/// The answer to [`SessionStore::open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The session lives, in this incarnation of the store.
    Opened(Incarnation),
    /// The id was used before, or something of it is left. Nothing changed. Choose another id.
    Used,
}

/// The answer to [`SessionStore::renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// Written: the session lives for another TTL, and everything in the renewal is acknowledged.
    Living,
    /// Like `Living`; besides, the session's record contains notes. Every renewal is answered with all of them.
    Noted(Notes),
    /// The record has this sequence number or a greater one. Nothing was changed, nothing is acknowledged.
    Overtaken,
    /// The store has lost writes that it had acknowledged: the record's number is smaller than the acknowledged one, or
    /// one of the required grants does not exist. Nothing was changed.
    Forgotten,
    /// The store is of this incarnation, not the one that the renewal is meant for. Nothing was changed.
    Moved(Incarnation),
    /// The session is dead or abandoned, or has no record. Nothing was changed.
    Dead,
}

impl Renewed {
    /// The answer for a session that was renewed and has these notes.
    #[must_use]
    pub fn living(notes: &Notes) -> Self {
        match notes.is_empty() {
            true => Self::Living,
            false => Self::Noted(notes.clone()),
        }
    }

    /// Whether the renewal was written.
    #[must_use]
    pub fn is_living(&self) -> bool {
        matches!(self, Self::Living | Self::Noted(_))
    }
}

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// By anybody, if the session is due by the store's time.
    IfDue,
    /// By its owner: the last write. An intent that is still registered is left behind.
    Close,
    /// By an operator, at once. An intent that is registered is left behind.
    Revoke,
    /// By an operator: an abandoned session loses its intent and is dead. Its adoption number is used up, so an
    /// adopter's settle changes nothing. A living session stays as it is.
    Discard,
}

/// The state of a session, as [`SessionStore::end`] leaves it and [`Inspect::sessions`](crate::Inspect::sessions) lists
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionState {
    /// The session.
    pub session: SessionId,
    /// Its label; empty if the session was never opened.
    pub label: Label,
    /// Its state.
    pub life: Life,
    /// Its retired numbers. Any answer may be believed: a number stays retired.
    pub retired: Ranges,
    /// How many adoption numbers were used.
    pub adoption: u64,
    /// The session that has adopted it, if any.
    pub adopter: Option<SessionId>,
    /// The notes for its owner.
    pub notes: Notes,
    /// When it stopped living, if it did and the time is known; for people.
    pub ended: Option<SystemTime>,
}

impl SessionState {
    /// A session of which nothing else is known.
    #[must_use]
    pub fn new(session: SessionId, life: Life) -> Self {
        Self {
            session,
            label: Label::ours(""),
            life,
            retired: Ranges::EMPTY,
            adoption: 0,
            adopter: None,
            notes: Notes::default(),
            ended: None,
        }
    }

    /// A session whose record cannot be understood: it lives, and nobody can end it.
    #[must_use]
    pub fn unreadable(session: SessionId) -> Self {
        Self {
            label: Label::ours("unreadable session record"),
            ..Self::new(session, Life::Living)
        }
    }
}

impl SessionState {
    /// Whether a holder of this session is live if its grant has this number.
    #[must_use]
    pub fn is_live(&self, n: u64) -> bool {
        self.life.is_live() && !self.retired.contains(n)
    }
}

/// The request to [`SessionStore::adopt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adopt {
    /// Take the adoption.
    Take,
    /// Make sure that an adoption by the same session, perhaps under way, never happens. The number is used up, and
    /// nobody has it.
    GiveUp,
}

/// What an adopter receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// The adoption number, which settles it.
    pub number: u64,
    /// A new token of the store, greater than any that was granted before, and at most
    /// [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
    pub token: FencingToken,
    /// The intent, with the token of the holder that died.
    pub left: Registered,
}

/// The answer to [`SessionStore::adopt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// The adopter has the adoption.
    Adopted(Adoption),
    /// The adopter does not have the adoption, and this request has not changed that; or the adoption was given up.
    NotAdopted,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing;
    /// an earlier, unanswered copy of it may have. A renewal tells the new incarnation.
    Moved,
}

impl Adopted {
    /// The adoption, if there is one.
    #[must_use]
    pub fn adoption(self) -> Option<Adoption> {
        match self {
            Self::Adopted(adoption) => Some(adoption),
            Self::NotAdopted | Self::Moved => None,
        }
    }
}

/// The answer to [`SessionStore::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settled {
    /// That adoption has settled the session.
    Settled,
    /// The adoption has not settled it: it is another session's, or was given up or discarded. Nothing was changed.
    NotSettled,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing;
    /// an earlier, unanswered copy of it may have. A renewal tells the new incarnation.
    Moved,
}

impl Settled {
    /// The answer for a store that compared the incarnation: settled or not.
    #[must_use]
    pub fn of(is_settled: bool) -> Self {
        match is_settled {
            true => Self::Settled,
            false => Self::NotSettled,
        }
    }

    /// Whether it is certainly settled.
    #[must_use]
    pub fn is_settled(self) -> bool {
        self == Self::Settled
    }
}

/// Sessions: opened once, renewed by their owner, ended by one acknowledged write, adopted by number.
///
/// # Laws
///
/// *A dead session stays dead.* Death is one acknowledged write. It is made when the session is due by the store's
/// time, or by its owner, or by an operator; or it is the store's own removal of the record. It is never a read, and
/// never a comparison of clocks alone. After it no renewal and no registration of that session has any effect. A
/// missing record means a dead session. A request that meets a missing record writes a tombstone first, unless the
/// store removes records by itself.
///
/// *Expiry frees every lock of a session that left no intent*, at once.
///
/// A record is written by its owner alone, apart from its death, its adoption and the notes for its owner.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Creates the session's record. The lease begins by the store's time. Never creates a second record: if the id has
    /// a record, a tombstone or an intent, the answer is [`Opened::Used`] and nothing changes.
    ///
    /// # Errors
    ///
    /// The store failed. After an unknown outcome the caller takes another id.
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened>;

    /// Renews the lease, for the renewal's [`ttl`](Renewal::ttl) if it has one, and writes the changes, all or nothing. Takes effect only if all of this is true in the same
    /// atomic action:
    ///
    /// - the session lives;
    /// - the record's number is smaller than `seq`, and not smaller than `acknowledged`;
    /// - the store is of the named incarnation, and has the named grants.
    ///
    /// Never creates a record. A session that is due but not yet dead is renewed.
    ///
    /// # Errors
    ///
    /// The store failed. An unknown outcome acknowledges nothing; the next renewal contains everything again.
    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed>;

    /// Ends sessions. Returns the state of each one afterwards, in the order of the request. `Dead` and `Abandoned` are
    /// answered only when the death was written and acknowledged. For a session without a record a tombstone is
    /// written. The request may be sent again at any time.
    ///
    /// # Errors
    ///
    /// The store failed; any of the sessions may have ended.
    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>>;

    /// A compare-and-set of an abandoned session's adoption number from `seen` to `seen + 1`, with `adopter` as its
    /// adopter. The same call again by the same adopter gets the same answer, perhaps with a greater token. The answer
    /// is [`Adopted::NotAdopted`] if the number is another one, or if the session is not abandoned.
    ///
    /// All of this happens only in a store of the incarnation `within`, which is compared in the same atomic action: in
    /// another incarnation the number, and what was seen with it, may belong to another adoption.
    ///
    /// The caller has established in that incarnation that the former adopter, if there is one, is dead or abandoned
    /// ([`End::IfDue`]), or is `adopter` itself and no longer recovering the session.
    ///
    /// [`Adopt::GiveUp`] makes sure that `adopter` does not have the adoption `seen + 1` and never will. If the number
    /// is still `seen`, or is `seen + 1` by this adopter, then afterwards it is greater than `seen`, and nobody has the
    /// adoption by that call. An adoption by another session is left alone. The answer is [`Adopted::NotAdopted`].
    ///
    /// # Errors
    ///
    /// The store failed; the adoption may be taken. Send it again or give it up.
    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted>;

    /// Declares the change of an adopted session finished or undone: its intent is gone, the session is dead, and its
    /// locks are free. Takes effect only for the adoption with this number by `adopter`; sent again, it gets the same
    /// answer. Takes effect only in the incarnation `within`, which is compared in the same atomic action. The number
    /// alone does not suffice: a store that has lost an adoption, and has no incarnation, gives its number out again.
    ///
    /// # Errors
    ///
    /// The store failed; it may be settled. Send it again.
    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled>;

    /// Adds a note to the session's record, whatever its state, as [`Notes::add`] does. Nothing else changes: the owner
    /// reads the note with its next renewal and decides what to do. Sent again, the note may be there twice. `false` if
    /// there is no record; then nothing changed.
    ///
    /// # Errors
    ///
    /// The store failed; the note may be there. Send it again.
    async fn note(&self, session: SessionId, note: &Note) -> Result<bool>;
}
