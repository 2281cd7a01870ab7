//! [`SessionStore`]: the only records that know time.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::session::Life;
use crate::{FencingToken, Label, Note, Notes, Ranges, Registered, Result, SessionId};

/// The name of what a store has. It has another one whenever it may have lost what it acknowledged: when a copy takes over
/// that was perhaps behind, or when it starts again perhaps without its last moments. A name never comes back.
///
/// A client says with its requests which one it believes in, so that it hears of another one before it believes in anything
/// that this one has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(u128);

impl Incarnation {
    /// No name: of a store that loses nothing, or cannot tell. A request with it is compared with nothing.
    pub const UNKNOWN: Self = Self(0);

    /// The name with this number; 0 is [`UNKNOWN`](Self::UNKNOWN).
    #[must_use]
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// Its number.
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

/// What one renewal writes. Cumulative: whatever is not acknowledged yet is in it, so a newer one replaces an older.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The number of this send; every send has a new one, and they rise.
    pub seq: u64,
    /// The greatest number that was answered [`Renewed::Living`]; 0 if none was.
    pub acknowledged: u64,
    /// All numbers of the session that are over.
    pub over: Ranges,
    /// What becomes of the session's intent.
    pub intent: IntentChange,
    /// The incarnation that it is meant for.
    pub incarnation: Incarnation,
    /// Grants without which nothing is renewed: all that the client has of the session when it moves to another incarnation,
    /// else none.
    pub granted: Ranges,
}

impl Renewal {
    /// The renewal of that number, of a session of which none was acknowledged.
    #[must_use]
    pub fn new(seq: u64, over: Ranges, intent: IntentChange) -> Self {
        Self {
            seq,
            acknowledged: 0,
            over,
            intent,
            incarnation: Incarnation::UNKNOWN,
            granted: Ranges::EMPTY,
        }
    }

    /// The same, of a session whose last acknowledged renewal has that number.
    #[must_use]
    pub fn after(self, acknowledged: u64) -> Self {
        Self {
            acknowledged,
            ..self
        }
    }

    /// The same, for that incarnation only, and only if it has these grants.
    #[must_use]
    pub fn within(self, incarnation: Incarnation, granted: Ranges) -> Self {
        Self {
            incarnation,
            granted,
            ..self
        }
    }
}

/// What a [`Renewal`] does to the session's one intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntentChange {
    /// It stays as the last acknowledged renewal left it.
    Keep,
    /// It is this one.
    Put(Registered),
    /// There is none.
    Drop,
}

/// The answer to [`SessionStore::open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The session lives, in this incarnation of the store.
    Opened(Incarnation),
    /// The id was used, or has left something behind. Nothing changed; choose another id.
    Used,
}

/// The answer to [`SessionStore::renew`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// Written: the session lives for another TTL, and everything in the renewal is acknowledged.
    Living,
    /// The same, and there are notes in the session's record: all of them, with each renewal.
    Noted(Notes),
    /// The record has a greater sequence number: nothing was changed, nothing is acknowledged.
    Overtaken,
    /// The record's number is smaller than the acknowledged one, or one of the grants without which nothing is to be renewed
    /// is not there: the store has lost writes that it acknowledged. Nothing was changed.
    Forgotten,
    /// The store is of another incarnation, this one, than the one that the renewal is meant for. Nothing was changed.
    Moved(Incarnation),
    /// The session is dead or abandoned, or has no record: nothing was changed.
    Dead,
}

impl Renewed {
    /// Of a session that was renewed and has these notes.
    #[must_use]
    pub fn living(notes: &Notes) -> Self {
        match notes.is_empty() {
            true => Self::Living,
            false => Self::Noted(notes.clone()),
        }
    }

    /// Whether it was written.
    #[must_use]
    pub fn is_living(&self) -> bool {
        matches!(self, Self::Living | Self::Noted(_))
    }
}

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// By anybody, if it is due by the store's time.
    IfDue,
    /// By its owner: the last write. An intent that is still registered is left behind.
    Close,
    /// By an operator, at once. An intent that is registered is left behind.
    Revoke,
    /// By an operator: a session that is abandoned loses its intent and is dead; its adoption number is used up, so
    /// that an adopter's settle changes nothing. A living session stays as it is.
    Discard,
}

/// What a session is, as [`SessionStore::end`] leaves it and [`Inspect::sessions`](crate::Inspect::sessions) lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionState {
    /// Which session.
    pub session: SessionId,
    /// Its label; empty for one that was never opened.
    pub label: Label,
    /// Its state.
    pub life: Life,
    /// Its numbers that are over. May be believed from any answer.
    pub over: Ranges,
    /// How often an adoption number was used.
    pub adoption: u64,
    /// The session that has adopted it, if any.
    pub adopter: Option<SessionId>,
    /// What was noted for its owner.
    pub notes: Notes,
    /// When it stopped living, if it did and that is known; for people.
    pub ended: Option<SystemTime>,
}

impl SessionState {
    /// A session of which no more is known.
    #[must_use]
    pub fn new(session: SessionId, life: Life) -> Self {
        Self {
            session,
            label: Label::ours(""),
            life,
            over: Ranges::EMPTY,
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
    /// Whether a holder of this session counts whose grant has this number.
    #[must_use]
    pub fn counts(&self, n: u64) -> bool {
        self.life.counts() && !self.over.contains(n)
    }
}

/// What [`SessionStore::adopt`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adopt {
    /// The adoption.
    Take,
    /// That an adoption by the same session which may be under way never happens: the number is used up, by nobody.
    GiveUp,
}

/// What an adopter receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// The adoption number, by which it is settled.
    pub number: u64,
    /// A new token of the store, greater than any that was granted before, and at most
    /// [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
    pub token: FencingToken,
    /// The intent with the token of the holder that died.
    pub left: Registered,
}

/// The answer to [`SessionStore::adopt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// The adoption is the adopter's.
    Adopted(Adoption),
    /// It is not, and this request has done nothing about it; or it was given up.
    NotAdopted,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing; an
    /// earlier copy of it, which was not answered, may have. A renewal says which one it is.
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
    /// It has not: the adoption is another's, or was given up or discarded. Nothing was changed.
    NotSettled,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing; an
    /// earlier copy of it, which was not answered, may have. A renewal says which one it is.
    Moved,
}

impl Settled {
    /// Whether it is settled.
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
/// *A dead session stays dead.* Death is one acknowledged write, made when the session is due by the store's time, or
/// by its owner, or by an operator, or it is the store's own removal of the record; never a read, never a comparison
/// of clocks alone. After it no renewal and no registration of that session has any effect. A missing record is a dead
/// session's: who meets one writes a tombstone first, where the store does not remove records by itself.
///
/// *Expiry frees every lock of a session that left no intent*, at once.
///
/// A record is written by its owner alone, apart from its death and its adoption.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Creates the session's record; the lease begins by the store's time. Never creates a second one: an id that has
    /// a record, a tombstone or an intent is answered [`Opened::Used`] and nothing changes.
    ///
    /// # Errors
    ///
    /// The store failed. After an unknown outcome the caller takes another id.
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened>;

    /// Renews the lease and writes what changed, all or nothing, if the session lives, and the record's number is
    /// smaller than `seq` and not smaller than `acknowledged`, and the store is of the incarnation that is named and has the
    /// grants that are, in the same step. Never creates a record. A session that is due but not yet dead is renewed.
    ///
    /// # Errors
    ///
    /// The store failed. An unknown outcome acknowledges nothing; the next renewal has it all again.
    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed>;

    /// Ends sessions, and says of each, in the order asked, what it is now. `Dead` and `Abandoned` are answered only
    /// when the death was written and acknowledged; for a session without a record a tombstone is written. May be
    /// sent again at any time.
    ///
    /// # Errors
    ///
    /// The store failed; any of the sessions may have ended.
    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>>;

    /// A compare-and-set of an abandoned session's adoption number from `seen` to `seen + 1`, with `adopter` as its
    /// adopter. The same call again by the same adopter is answered alike, perhaps with a greater token.
    /// [`Adopted::NotAdopted`] when the number is another, or the session is not abandoned.
    ///
    /// All of it in a store of the incarnation `within` only, which is compared in the same step: in another one the number,
    /// and what was seen with it, may be those of another adoption.
    ///
    /// The caller has established in that incarnation that the former adopter, if there is one, is dead or abandoned
    /// ([`End::IfDue`]), or is `adopter` itself and at it no longer.
    ///
    /// [`Adopt::GiveUp`] makes sure that `adopter` does not have the adoption `seen + 1` and never will: whether the
    /// number is still `seen`, or `seen + 1` by this adopter, afterwards it is greater than `seen` and nobody has it
    /// by that call; an adoption of another session is left alone. The answer is [`Adopted::NotAdopted`].
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

    /// Says that the change of an adopted session is finished or undone: its intent is gone, it is dead, and its
    /// locks are free. Only for the adoption of that number by that session; sent again it is answered alike. Only in the
    /// incarnation `within`, which is compared in the same step. The number alone does not do: a store that has lost an
    /// adoption, and has no name, gives its number out again.
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

    /// Adds a note to the session's record, whatever its state, as [`Notes::add`] does. Nothing else is changed: it is its
    /// owner's business what it does when it reads the note, with its next renewal. Sent again it may stand there twice.
    /// `false`, and nothing changed, when there is no record.
    ///
    /// # Errors
    ///
    /// The store failed; it may be there. Send it again.
    async fn note(&self, session: SessionId, note: &Note) -> Result<bool>;
}
