//! [`Call`] and [`Reply`]: the requests of a process to its store, and the answers.

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
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// Its time to live, in nanoseconds.
        ttl: u64,
    },
    /// A session is renewed.
    Renew {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// The number of the send.
        seq: u64,
        /// The retired numbers.
        #[serde(with = "text")]
        retired: Ranges,
        /// The change to its intent.
        change: Change,
        /// The grants that the store must have.
        #[serde(with = "text")]
        granted: Ranges,
    },
    /// Sessions are ended, or asked about.
    End {
        /// The sessions.
        #[serde(with = "text::list")]
        sessions: Vec<SessionId>,
        /// How they are ended.
        how: Ending,
    },
    /// An abandoned session is adopted, or an adoption is given up.
    Adopt {
        /// The adopted session.
        #[serde(with = "text")]
        session: SessionId,
        /// The adoption number that the adopter has seen.
        seen: u64,
        /// The adopting session.
        #[serde(with = "text")]
        adopter: SessionId,
        /// The adoption is given up.
        give_up: bool,
    },
    /// An adopted session is settled.
    Settle {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// The adoption.
        adoption: u64,
    },
    /// Claims are asked for.
    Acquire {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The owner.
        #[serde(with = "text")]
        owner: OwnerId,
        /// The claims.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
        /// The guard has other batches.
        joined: bool,
        /// It waits in the line of its only claim if it is refused.
        #[serde(default, skip_serializing_if = "is_not")]
        waits: bool,
        /// The waiters that it may pass.
        #[serde(default, with = "text::list", skip_serializing_if = "Vec::is_empty")]
        past: Vec<Grant>,
    },
    /// A grant is released.
    Release {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The claims on whose keys it is released.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// Whether a grant still holds.
    Confirm {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The claims.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// Holders that are not live are removed.
    Sweep,
    /// Claims are watched. The watch ends with [`What::Woken`](super::What::Woken) or
    /// [`What::Unwatched`](super::What::Unwatched).
    Watch {
        /// The claims.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// Records are listed.
    Records,
    /// Sessions are listed.
    Sessions,
    /// A foreign record is removed.
    Evict {
        /// The key.
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
    /// By an operator, who discards its intent.
    Discard,
}

/// An answer.
///
/// Answers may get more fields, and there may be more kinds of them: the name of the store's incarnation, evicted
/// numbers, a place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// A session was opened, or the id was used.
    Opened(bool),
    /// Of a renewal: living, overtaken or dead.
    Renewed(Answer),
    /// The states of sessions.
    States(Vec<State>),
    /// The adoption, if there is one.
    Adopted(Option<Received>),
    /// Whether the session was settled.
    Settled(bool),
    /// Everything is held, with this token of the store.
    Granted(u64),
    /// Nothing is held.
    Busy(Vec<Refused>),
    /// The session is not living, or the number is retired.
    Void,
    /// The store is of another incarnation, and has done nothing.
    Moved,
    /// The grant was released, and whether it was held until then.
    Released(bool),
    /// Whether the grant holds.
    Confirmed(bool),
    /// This many holders were removed.
    Swept(usize),
    /// The watch stands.
    Stands,
    /// The holders and what they hold.
    Listed(Vec<Met>),
    /// Whether the record was removed.
    Evicted(bool),
    /// An error.
    Failed {
        /// Whether the request certainly had no effect, and never will.
        settled: bool,
    },
}

/// A session, as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    /// The session.
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
    /// Its position in the request.
    pub claim: usize,
    /// The holders in the way, without foreign ones.
    pub by: Vec<Met>,
    /// There are more, or foreign ones.
    pub more: bool,
    /// Waiters that came before are in the way, too.
    #[serde(default)]
    pub waiters: bool,
}

/// A holder that an answer names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Met {
    /// Its grant.
    #[serde(with = "text")]
    pub grant: Grant,
    /// The held key.
    #[serde(with = "text")]
    pub key: LockKey,
    /// The mode.
    #[serde(with = "text::mode")]
    pub mode: Mode,
    /// The state of its session.
    pub life: Answer,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_not(flag: &bool) -> bool {
    !flag
}
