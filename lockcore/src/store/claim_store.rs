//! [`ClaimStore`]: acquiring, releasing, confirming and sweeping.

use std::time::SystemTime;

use async_trait::async_trait;

use crate::limits::MAX_LISTED;
use crate::session::Life;
use crate::store::Incarnation;
use crate::{Claim, FencingToken, Grant, LockKey, Mode, OwnerId, Result, SessionId};

/// A request for one batch. Its claims are prepared: one for each key, in [path order](LockKey), and never both a read
/// path and a write path at or below it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The name of the request.
    pub grant: Grant,
    /// The owner, for re-entry; of the same session as the grant.
    pub owner: OwnerId,
    /// The claims, at least one.
    pub claims: Vec<Claim>,
    /// The guard has other batches too.
    pub joined: bool,
    /// The incarnation that the request is meant for.
    pub incarnation: Incarnation,
    /// If it has one claim and is refused, its grant becomes a waiter, until the grant is acquired, released or retired.
    pub waits: bool,
    /// Waiters that the request may pass, each as a refusal has shown it.
    pub past: Vec<Past>,
}

/// A waiter that a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Past {
    /// The waiter.
    pub grant: Grant,
    /// Its state in the refusal. If its state is another one by now, it is not passed.
    pub waiting: Waiting,
}

impl Acquire {
    /// A request that is its guard's only one.
    #[must_use]
    pub fn new(grant: Grant, owner: OwnerId, claims: Vec<Claim>) -> Self {
        Self {
            grant,
            owner,
            claims,
            joined: false,
            incarnation: Incarnation::UNKNOWN,
            waits: false,
            past: Vec::new(),
        }
    }

    /// The same request, which [waits](Self::waits).
    #[must_use]
    pub fn waiting(self) -> Self {
        Self {
            waits: true,
            ..self
        }
    }

    /// The same request, which may pass these waiters.
    #[must_use]
    pub fn past(self, past: Vec<Past>) -> Self {
        Self { past, ..self }
    }

    /// The same request, for that incarnation only.
    #[must_use]
    pub fn within(self, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            ..self
        }
    }
}

/// The answer to [`ClaimStore::acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// Every claim is held.
    Acquired(FencingToken),
    /// A claim was refused; none is held.
    Busy(Busy),
    /// The session is not living, or the number is retired. Nothing live is held.
    Void,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing;
    /// an earlier, unanswered copy of it may have. A renewal tells the new incarnation.
    Moved,
}

/// A refusal: who is in the way. At most 16 claims with at most 16 holders each. It contains no intent's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// The refused claims, in the order of the request. The first one is the request's first refused claim.
    refused: Vec<Refused>,
    /// More claims may have been refused than are listed.
    pub more: bool,
}

impl Busy {
    /// A refusal of at least one claim.
    ///
    /// # Panics
    ///
    /// Panics if `refused` is empty: a refusal names what was refused.
    #[must_use]
    pub fn new(refused: Vec<Refused>, more: bool) -> Self {
        assert!(
            !refused.is_empty(),
            "a refusal names the first refused claim"
        );
        Self { refused, more }
    }

    /// The refusal of these claims, if there are any, cut to the number that is listed. The rest is not read.
    pub fn of(refused: impl IntoIterator<Item = Refused>) -> Option<Self> {
        let mut refused: Vec<Refused> = refused.into_iter().take(MAX_LISTED + 1).collect();
        let more = refused.len() > MAX_LISTED;
        refused.truncate(MAX_LISTED);
        (!refused.is_empty()).then(|| Self::new(refused, more))
    }

    /// The first refused claim. No claim of the request before it was refused.
    #[must_use]
    pub fn first(&self) -> &Refused {
        &self.refused[0]
    }

    /// The listed refused claims, in the order of the request.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }
}

/// A refused claim and the holders in its way. Every listed holder was live when it was met, after sessions that were
/// due had been ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The claim.
    pub claim: Claim,
    /// The holders in the way.
    pub holders: Vec<Holder>,
    /// More holders are in the way than are listed.
    pub more: bool,
}

/// The holder of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The held key: the refused claim's own, or one of its ancestors. A holder of something below a path holds that
    /// path in mode IX or IS.
    pub key: LockKey,
    /// The grant that names the holder; `None` for a foreign holder. Nobody can judge a foreign holder; it stays until
    /// it is evicted.
    pub grant: Option<Grant>,
    /// Its owner; `None` for a foreign holder.
    pub owner: Option<OwnerId>,
    /// The mode in which the key is held. A foreign record that cannot be understood holds X.
    pub mode: Mode,
    /// The session's label; for a foreign holder, what can be said of it.
    pub label: String,
    /// The time of the grant, for people. No decision depends on it.
    pub since: Option<SystemTime>,
    /// The session's state. A foreign holder is living.
    pub life: Life,
    /// Set if it is a waiter: it does not hold the key yet, and came before.
    pub waiting: Option<Waiting>,
}

/// A waiter's place in the line of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// The place. Of two waiters, the one with the smaller place came first. It is no token.
    pub place: u64,
    /// How many requests have passed it.
    pub passed: u32,
    /// Nothing keeps it out: neither a holder nor an earlier waiter. `false` where the store does not examine that: in
    /// listings, and in refusals of requests that do not wait.
    pub may_go: bool,
}

/// The records that [`ClaimStore::sweep`] examines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sweep {
    /// Those of one session.
    Session(SessionId),
    /// Those of every session, and the tombstones that are old enough: of sessions without an intent that died
    /// [`TOMBSTONE_KEPT`](crate::limits::TOMBSTONE_KEPT) ago, or that a sweep first met that long ago.
    All,
}

/// The answer to [`ClaimStore::release`]: the state of the grant's holders until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stood {
    /// The grant was held: all holders existed, the session lived according to its record, and the number was not
    /// retired.
    Held,
    /// All holders existed but were no longer live: the session was dead or abandoned, or the number retired.
    Fallen,
    /// Not all holders existed: some were released before, or evicted, or swept.
    Absent,
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Holders removed. For [`Sweep::All`] also sessions forgotten, if the store forgets them in the call.
    pub removed: usize,
    /// There may be more: call again. If `false`, the call left nothing that it found not to be live.
    pub more: bool,
    /// How many sessions it has looked at: the more they are, the less often each client sweeps. 0 where it is not told.
    pub sessions: usize,
}

impl Swept {
    /// What was removed, and whether there may be more.
    #[must_use]
    pub const fn new(removed: usize, more: bool) -> Self {
        Self {
            removed,
            more,
            sessions: 0,
        }
    }

    /// The same, by a sweep that has looked at so many sessions.
    #[must_use]
    pub const fn of_sessions(self, sessions: usize) -> Self {
        Self { sessions, ..self }
    }
}

/// Claims: a batch is granted whole or refused whole.
///
/// A holder **is live** if its number is not retired and its session is living or abandoned. A holder that is not live
/// is as good as absent, to everybody, wherever it turns up. A holder that was once seen not to be live is never live
/// again.
///
/// # Laws
///
/// *At most one incompatible holder.* The store never has two live holders that the [matrix](Mode::beside) forbids,
/// unless they have one owner and the later one re-enters.
///
/// *One grant per request.* A request sent again under its grant, any number of times, in any interleaving, yields one
/// holder on each key. A repetition may be answered with a greater token. Where a batch is not
/// [atomic](crate::Info::atomic), this holds only for copies sent one after the other: a copy that is refused takes
/// back what another copy under way has written.
///
/// *Own claims only.* Release removes the holders of its grant and nothing else; a late release frees nobody else's
/// lock. The answer is [`Held`](Stood::Held) only if the grant held all of the claims until then, and never for a
/// holder that had ceased to be live.
///
/// *Tokens only rise.* Of two grants in a namespace, the later has the greater token: across release, expiry, takeover,
/// deletion of the record, restart and failover of the store, and re-creation of the namespace. No token is greater
/// than [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
///
/// *Shared holders are a set.* A share sent twice counts once. A dead holder's share stops counting when its session is
/// dead.
///
/// *In turn.* A live waiter is in the way of later requests as a holder is: of requests with a greater place, and of
/// requests without a place. It keeps its place until it is acquired, released or retired. It is live while its session
/// is living. It holds nothing: its release answers [`Absent`](Stood::Absent), and its confirmation `false`. A request
/// that waits and names a waiter in [`past`](Acquire::past) removes it if it may go. If it may not go, the request passes
/// it, once, if a holder of the request's own session keeps it out, directly or through earlier waiters. A request that is
/// refused all the same has passed nobody; whom it removes is removed.
///
/// *Garbage is held.* A record that cannot be understood is treated as held by a foreign holder, never as free, and is
/// not changed.
#[async_trait]
pub trait ClaimStore: Send + Sync {
    /// Asks for one batch, all or nothing.
    ///
    /// The backend judges the holders that it meets. A backend with transactions does so in the transaction of the
    /// request. Any other asks [`end`](crate::SessionStore::end) about their sessions, and sends the batch again with
    /// what it has learnt. A batch that is written as several records (several claims, or one path where ancestors are
    /// records), or whose request is `joined`, is granted only if the session lived after the last record was written.
    /// If the session did not, the call gives back only what it wrote itself: earlier records may belong to an
    /// abandoned session.
    ///
    /// # Errors
    ///
    /// The store failed; any of the claims may be held. Send the same request again, or release it.
    async fn acquire(&self, request: &Acquire) -> Result<Acquired>;

    /// Removes the holders of `grant` on the keys of these claims and on their ancestors. Returns their state until
    /// then. Finding none is no error.
    ///
    /// Where a batch is not [atomic](crate::Info::atomic), the session is read before the first holder is removed.
    ///
    /// # Errors
    ///
    /// The store failed; some holders may be removed. Send it again.
    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood>;

    /// Whether the grant still holds all of these claims and its session lives. A guarded write, not a read.
    ///
    /// # Errors
    ///
    /// The store failed; nothing was changed.
    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool>;

    /// Removes holders that are not live: at most `limit` of them, and beyond that only the rest of the last batch that
    /// it began.
    ///
    /// # Errors
    ///
    /// The store failed; some holders may be removed. Call it again.
    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept>;
}
