//! [`ClaimStore`]: acquiring, releasing, confirming and sweeping.

use std::time::SystemTime;

use async_trait::async_trait;

use crate::limits::MAX_LISTED;
use crate::session::Life;
use crate::store::Incarnation;
use crate::{Claim, FencingToken, Grant, LockKey, Mode, OwnerId, Result, SessionId};

/// A request for one step. Its claims are prepared: one for each key, in [path order](LockKey), and never both a read
/// path and a write path at or below it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The name of the request.
    pub grant: Grant,
    /// Who may re-enter; of the same session as the grant.
    pub owner: OwnerId,
    /// What is asked for, at least one claim.
    pub claims: Vec<Claim>,
    /// The guard has other steps.
    pub joined: bool,
    /// The incarnation that it is meant for.
    pub incarnation: Incarnation,
}

impl Acquire {
    /// A request that is all of its guard.
    #[must_use]
    pub fn new(grant: Grant, owner: OwnerId, claims: Vec<Claim>) -> Self {
        Self {
            grant,
            owner,
            claims,
            joined: false,
            incarnation: Incarnation::UNKNOWN,
        }
    }

    /// The same, for that incarnation only.
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
    /// The session is not living, or the number is over: nothing that counts is held.
    Void,
    /// The store is of another incarnation than the one that the request is meant for. This request has done nothing; an
    /// earlier copy of it, which was not answered, may have. A renewal says which one it is.
    Moved,
}

/// A refusal: who is in the way. At most 16 claims with at most 16 holders each, and no intent's payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// The refused claims, in the order of the request; the first one is the request's first refused claim.
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

    /// The refusal of these claims, if there are any, and as many as are listed of them; the rest is not looked at.
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

    /// The refused claims that are listed, in the order of the request.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }
}

/// A claim that was refused, and by whom. Every holder listed counted when it was met, after sessions that were due
/// had been made dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The claim.
    pub claim: Claim,
    /// Who is in the way.
    pub holders: Vec<Holder>,
    /// There are more holders in the way than are listed.
    pub more: bool,
}

/// Somebody who holds a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The key that is held: the refused claim's own, or one of its ancestors. Whoever holds something below a path
    /// holds that path in mode IX or IS.
    pub key: LockKey,
    /// The grant that names the holder; `None` for a foreign one, which nobody can judge and which stays until it is
    /// evicted.
    pub grant: Option<Grant>,
    /// Its owner; `None` for a foreign one.
    pub owner: Option<OwnerId>,
    /// How the key is held. A foreign record that cannot be understood holds X.
    pub mode: Mode,
    /// The session's label; what can be said of a foreign one.
    pub label: String,
    /// Since when, for people; not part of any decision.
    pub since: Option<SystemTime>,
    /// The session's state; a foreign holder is living.
    pub life: Life,
}

/// Which records [`ClaimStore::sweep`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sweep {
    /// Those of one session.
    Session(SessionId),
    /// Those of every session, and tombstones that are old enough: those of sessions without an intent that died
    /// [`TOMBSTONE_KEPT`](crate::limits::TOMBSTONE_KEPT) ago, or in that time after the first sweep that met them.
    All,
}

/// The answer to [`ClaimStore::release`]: what the grant's holders were until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stood {
    /// All of them were there, the session lived, as its record says, and the number was not over: it was held.
    Held,
    /// All of them were there and did not count any more: the session was dead or abandoned, or the number over.
    Fallen,
    /// Not all of them were there: they were released before, or evicted, or swept.
    Absent,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Holders removed; of [`Sweep::All`] also sessions forgotten, where the store forgets them in the call.
    pub removed: usize,
    /// There may be more: call again. If not, nothing was left that the call found not to count.
    pub more: bool,
}

/// Claims: granted whole or refused whole, one step at a time.
///
/// A holder **counts** if its number is not over and its session lives or is abandoned. One that does not count is as
/// good as absent, to everybody, wherever it turns up; what was once seen not to count never counts again.
///
/// # Laws
///
/// *At most one incompatible holder.* The store never has two holders that count and that the
/// [matrix](Mode::beside) forbids, unless they have one owner and the later one re-enters.
///
/// *One grant per request.* A request sent again under its grant, any number of times, in any interleaving, yields one
/// holder on each key. It may be answered with a greater token. Where a step is not [atomic](crate::Info::atomic), this
/// holds only for copies one after the other: one that is refused takes back what another one under way has written.
///
/// *Own claims only.* Release removes the holders of its grant and nothing else; a late release frees nobody else's
/// lock. It answers [`Held`](Stood::Held) only if the grant held all of the claims until then, and never for a holder
/// that had stopped counting.
///
/// *Tokens only rise.* For one key, of two grants the later has the greater token: across release, expiry, takeover,
/// deletion of the record, restart and failover of the store, and re-creation of the namespace. None is greater than
/// [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
///
/// *Shared holders are a set.* A share sent twice counts once; a dead holder's share stops counting when its session
/// is dead.
///
/// *Garbage is held.* A record that cannot be understood is treated as held by a foreign holder, never as free, and is
/// not changed.
#[async_trait]
pub trait ClaimStore: Send + Sync {
    /// Asks for one step, all or nothing.
    ///
    /// The backend judges the holders that it meets: in the same transaction where it has one, else by asking
    /// [`end`](crate::SessionStore::end) about their sessions and asking once more with what it learnt. A step
    /// that is written as several records (several claims, or one path where ancestors are records), or a joined one,
    /// is granted only if the session lived after the last of them was written. If it did not, only what this call
    /// wrote is given back: what stood before may belong to an abandoned session.
    ///
    /// # Errors
    ///
    /// The store failed; any of the claims may be held. Send the same request again, or release it.
    async fn acquire(&self, request: &Acquire) -> Result<Acquired>;

    /// Removes the holders of `grant` on the keys of these claims, and on their ancestors, and says what they were. Finding
    /// none is no error.
    ///
    /// Where a step is not [atomic](crate::Info::atomic) the session is looked at before the first holder is removed.
    ///
    /// # Errors
    ///
    /// The store failed; some may be removed. Send it again.
    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood>;

    /// Whether the grant still holds all of these claims and its session lives: a guarded write, not a read.
    ///
    /// # Errors
    ///
    /// The store failed; nothing was changed.
    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool>;

    /// Removes some holders that do not count: at most `limit` of them, and of the last step that it began the rest.
    ///
    /// # Errors
    ///
    /// The store failed; some may be removed. Call it again.
    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept>;
}
