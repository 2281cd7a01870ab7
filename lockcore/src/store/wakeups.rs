//! [`Wakeups`]: hints that waiting may be over.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use crate::{Claim, Result};

/// Resolves when one of the watched claims may have become free.
///
/// The client does other things between two polls. Meanwhile this must not hold what other requests need: a watch that looks
/// at the store over one of a few connections does so in a task of its own.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

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
#[async_trait]
pub trait Wakeups: Send + Sync {
    /// Returns when the watch stands; what it returns resolves when one of the claims may have become free. Dropping
    /// that ends the watch.
    ///
    /// # Errors
    ///
    /// The watch could not be set up; the caller polls.
    async fn watch(&self, claims: &[Claim]) -> Result<Changed>;
}
