//! [`Wakeups`]: hints that waiting may be over.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use crate::{Claim, Result, SessionId};

/// Resolves when one of the watched claims may have become free, or when the watched session has news.
///
/// The client does other things between two polls. Meanwhile this must not hold what other requests need: a watch that looks
/// at the store over one of a few connections does so in a task of its own.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A watch that never resolves: over a session, in a store that does not push.
#[must_use]
pub fn never() -> Changed {
    Box::pin(std::future::pending())
}

/// Wake-ups: a hint, never a proof. The client looks again after the watch stands, and polls besides.
///
/// # Laws
///
/// A release, a death, a settlement, a discard or an eviction that is acknowledged after [`watch`](Self::watch) has
/// returned, and that frees one of the claims, resolves what it returned, unless the way to the store breaks: in the time
/// that [`Info::poll`](crate::Info::poll) tells. Without push the watch looks at the store itself, as often as that says.
///
/// A watch over claims that others hold *sleeps*: it does not resolve while nothing happens in the namespace. It may resolve
/// for what happens to other keys, once for each time that something stops counting. Over something free it may resolve at
/// once, or never.
///
/// A note for a session's owner and a revocation that are acknowledged after [`watch_session`](Self::watch_session) has
/// returned resolve what it returned, as soon as a release would. When the way to the store breaks, that resolves once it
/// is noticed. Anything else resolves it rarely, and what happens to other sessions and their locks does not. A store that
/// does not push has no such watch: there it [`never()`] resolves.
#[async_trait]
pub trait Wakeups: Send + Sync {
    /// Returns when the watch stands; what it returns resolves when one of the claims may have become free. Dropping
    /// that ends the watch.
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the caller polls.
    async fn watch(&self, claims: &[Claim]) -> Result<Changed>;

    /// Returns when the watch stands; what it returns resolves soon after the session was revoked, or something was noted
    /// for its owner, who then renews it. Dropping that ends the watch. Every session that lives is watched: so this asks
    /// the store for nothing but the one way on which a process is told.
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the owner hears of it at its next renewal.
    async fn watch_session(&self, session: SessionId) -> Result<Changed>;
}
