//! [`Call`] and [`Reply`]: what a process asks of its store, and what comes back.

use lockcore::backend::Ranges;
use lockcore::{Claim, Grant, LockKey, Mode, OwnerId, SessionId};
use serde::{Deserialize, Serialize};

use super::event::{Answer, Change};
use super::text;

/// A request of one process. A request that is sent again is another call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Call {
    /// A session is opened.
    Open {
        /// Which.
        #[serde(with = "text")]
        session: SessionId,
        /// Its time to live, in nanoseconds.
        ttl: u64,
    },
    /// A session is renewed.
    Renew {
        /// Which.
        #[serde(with = "text")]
        session: SessionId,
        /// The number of the send.
        seq: u64,
        /// The numbers that are over.
        #[serde(with = "text")]
        over: Ranges,
        /// What becomes of its intent.
        change: Change,
        /// The grants that the store has to have.
        #[serde(with = "text")]
        granted: Ranges,
    },
    /// Sessions are ended, or asked about.
    End {
        /// Which.
        #[serde(with = "text::list")]
        sessions: Vec<SessionId>,
        /// In which way.
        how: Ending,
    },
    /// An abandoned session is adopted, or an adoption is given up.
    Adopt {
        /// Who is adopted.
        #[serde(with = "text")]
        session: SessionId,
        /// The adoption number that the adopter has seen.
        seen: u64,
        /// By whom.
        #[serde(with = "text")]
        adopter: SessionId,
        /// It is given up.
        give_up: bool,
    },
    /// An adopted session is settled.
    Settle {
        /// Which.
        #[serde(with = "text")]
        session: SessionId,
        /// By which adoption.
        adoption: u64,
    },
    /// Claims are asked for.
    Acquire {
        /// Under which grant.
        #[serde(with = "text")]
        grant: Grant,
        /// By whom.
        #[serde(with = "text")]
        owner: OwnerId,
        /// What.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
        /// The guard has other steps.
        joined: bool,
    },
    /// A grant is released.
    Release {
        /// Which.
        #[serde(with = "text")]
        grant: Grant,
        /// On the keys of these.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// Whether a grant still holds.
    Confirm {
        /// Which.
        #[serde(with = "text")]
        grant: Grant,
        /// These.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// What does not count is removed.
    Sweep,
    /// Claims are watched. The watch ends with [`What::Woken`](super::What::Woken) or
    /// [`What::Unwatched`](super::What::Unwatched).
    Watch {
        /// Which.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// Records are listed.
    Records,
    /// Sessions are listed.
    Sessions,
    /// A foreign record is removed.
    Evict {
        /// On which key.
        #[serde(with = "text")]
        key: LockKey,
    },
}

/// How a session is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// By anybody, if it is due.
    IfDue,
    /// By its owner.
    Close,
    /// By an operator.
    Revoke,
    /// An operator throws its intent away.
    Discard,
}

/// What came back.
///
/// An answer may get fields, and there may be further kinds of answers: the name of the store's incarnation, evicted
/// numbers, a place in the line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// A session was opened, or the id was used.
    Opened(bool),
    /// Of a renewal: living, overtaken or dead.
    Renewed(Answer),
    /// What sessions are.
    States(Vec<State>),
    /// The adoption, if there is one.
    Adopted(Option<Received>),
    /// Whether the session was settled.
    Settled(bool),
    /// Everything is held, with this token of the store.
    Granted(u64),
    /// Nothing is held.
    Busy(Vec<Refused>),
    /// The session is not living, or the number is over.
    Void,
    /// The store is of another incarnation, and has done nothing.
    Moved,
    /// The grant was released, and was held until then or not.
    Released(bool),
    /// Whether the grant holds.
    Confirmed(bool),
    /// So many holders were removed.
    Swept(usize),
    /// The watch stands.
    Stands,
    /// Who holds what.
    Listed(Vec<Met>),
    /// Whether the record was removed.
    Evicted(bool),
    /// An error.
    Failed {
        /// The request certainly had no effect, and never will.
        settled: bool,
    },
}

/// A session, as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    /// Which.
    #[serde(with = "text")]
    pub session: SessionId,
    /// Living, abandoned or dead.
    pub life: Answer,
}

/// What an adopter receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Received {
    /// The number of the adoption.
    pub number: u64,
    /// The store's token for the adopter.
    pub token: u64,
    /// The token of the guard that died.
    pub old_token: u64,
}

/// A claim that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// Where it stands in the request.
    pub claim: usize,
    /// Who is in the way. Foreign holders are left out.
    pub by: Vec<Met>,
    /// There are others, or foreign ones.
    pub more: bool,
}

/// A holder that an answer names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Met {
    /// Its grant.
    #[serde(with = "text")]
    pub grant: Grant,
    /// What it holds.
    #[serde(with = "text")]
    pub key: LockKey,
    /// How.
    #[serde(with = "text::mode")]
    pub mode: Mode,
    /// What its session is.
    pub life: Answer,
}
