//! [`Wakeups`]: hints that waiting may be over.

use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

use crate::{Claim, Result};

/// Resolves when one of the watched claims may have become free.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wake-ups: a hint, never a proof. The client looks again after the watch stands, and polls besides.
///
/// # Laws
///
/// A release or a death that is acknowledged after [`watch`](Self::watch) has returned, and that frees one of the
/// claims, resolves what it returned, unless the way to the store breaks. Without
/// push the watch looks at the store itself, as often as [`Info::poll`](crate::Info::poll) tells.
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
