//! [`Wakeups`]: hints that a wait may have ended.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use crate::{Claim, Grant, OwnerId, Result, SessionId};

/// Resolves when one of the watched claims may have become free, or when the watched session has news.
///
/// The client does other things between two polls of this future. Meanwhile the future must not hold anything that
/// other requests need: a watch that polls the store over one of a few connections does so in a task of its own.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A watch that never resolves: for a session, in a store that does not push.
#[must_use]
pub fn never() -> Changed {
    Box::pin(std::future::pending())
}

/// Wake-ups: a hint, never a proof. The client asks the store again once the watch stands, and polls besides.
///
/// # Laws
///
/// A release, a death, a settlement, a discard or an eviction that is acknowledged after [`watch`](Self::watch) has
/// returned, and that frees one of the claims, resolves the returned future within the time of
/// [`Info::poll`](crate::Info::poll), unless the way to the store breaks. Without push the watch polls the store
/// itself, at that interval.
///
/// A watch over claims that others hold *sleeps*: it does not resolve while nothing happens in the namespace. It may
/// resolve for other keys, once for each time that something ceases to be live. A watch over something free may resolve
/// at once, or never.
///
/// A note for a session's owner, or a revocation, that is acknowledged after [`watch_session`](Self::watch_session) has
/// returned resolves the returned future as soon as a release would resolve a watch. If the way to the store breaks,
/// the future resolves once that is noticed. It rarely resolves for anything else, and not for other sessions and their
/// locks. A store that does not push has no such watch; there the future is [`never()`].
#[async_trait]
pub trait Wakeups: Send + Sync {
    /// Returns when the watch stands. The returned future resolves when one of the claims may have become free.
    /// Dropping the future ends the watch.
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the caller polls.
    async fn watch(&self, claims: &[Claim]) -> Result<Changed>;

    /// A watch for the turn of a [waiter](crate::backend::Acquire::waits), for a store without push that can look at the
    /// line. The returned future resolves when nobody is in the way of the waiter any more, also if that was so before
    /// the call, or when it is no waiter any more. So the caller need not ask once more when the watch stands. It has the
    /// bounds of [`watch`](Self::watch), but a waiter that others precede may learn later that it comes next, within
    /// 500 ms.
    ///
    /// `None`: the store has no such watch, and the caller uses [`watch`](Self::watch).
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the caller polls.
    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let _ = (grant, owner, claim);
        Ok(None)
    }

    /// Returns when the watch stands. The returned future resolves soon after the session was revoked, or a note was
    /// written for its owner; the owner then renews. Dropping the future ends the watch. Every living session is
    /// watched, so a watch must cost the store nothing beyond the one channel that notifies the process.
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the owner learns the news at its next renewal.
    async fn watch_session(&self, session: SessionId) -> Result<Changed>;
}
