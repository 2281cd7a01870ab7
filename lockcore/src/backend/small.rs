//! [`SmallBatches`]: acquisitions and releases of one flat key each, sent together.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::backend::{Acquire, Acquired, Batch, Stood};
use crate::{Claim, Grant, Operation, Result};

/// Many requests, and the answers to them in order; `None` to one that has to be sent alone.
pub type SendMany<L, I, O> = fn(Arc<L>, Vec<I>) -> BoxFuture<'static, Result<Vec<Option<O>>>>;

/// Acquisitions and releases of one flat key each. Under load, those of one session go together, as a [`Batch`] sends
/// them.
#[derive(Debug)]
pub struct SmallBatches {
    acquiring: Batch<Acquire, Result<Option<Acquired>>>,
    releasing: Batch<(Grant, Claim), Result<Option<Stood>>>,
    backend: &'static str,
    timeout: Duration,
}

/// The limits of [`SmallBatches`].
#[derive(Debug, Clone, Copy)]
pub struct SmallLimits {
    /// The most requests that go together.
    pub together: usize,
    /// The most of these that are under way at once.
    pub at_once: usize,
    /// A request ends by itself within this time.
    pub timeout: Duration,
}

impl SmallBatches {
    /// Whether these claims are one of a flat key.
    #[must_use]
    pub fn fits(claims: &[Claim]) -> bool {
        matches!(claims, [claim] if !claim.key().is_path())
    }

    /// Batches that are sent over `link`, for the backend of that name.
    pub fn new<L: Send + Sync + 'static>(
        link: &Arc<L>,
        backend: &'static str,
        limits: SmallLimits,
        acquire: SendMany<L, Acquire, Acquired>,
        release: SendMany<L, (Grant, Claim), Stood>,
    ) -> Self {
        let SmallLimits {
            together,
            at_once,
            timeout,
        } = limits;
        let acquired = |one: &Acquire, other: &Acquire| {
            one.grant.session == other.grant.session && one.incarnation == other.incarnation
        };
        let released =
            |(one, _): &(Grant, Claim), (other, _): &(Grant, Claim)| one.session == other.session;
        let over = Arc::clone(link);
        let acquire = move |requests| acquire(Arc::clone(&over), requests);
        let over = Arc::clone(link);
        let release = move |releases| release(Arc::clone(&over), releases);
        Self {
            acquiring: Batch::of_some(together, at_once, acquired, acquire),
            releasing: Batch::of_some(together, at_once, released, release),
            backend,
            timeout,
        }
    }

    /// Acquires, with others if possible, else `alone`.
    ///
    /// # Errors
    ///
    /// The request's. Or [`Indeterminate`](crate::ErrorKind::Indeterminate), if the runtime that sent it with others
    /// hangs or has ended.
    ///
    /// # Cancel safety
    ///
    /// As [`Batch::ask`].
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn acquire<F: Future<Output = Result<Acquired>>>(
        &self,
        request: &Acquire,
        alone: impl Fn(Acquire) -> F,
    ) -> Result<Acquired> {
        let (timeout, operation) = (self.timeout, Operation::Acquire);
        let acquired = self
            .acquiring
            .answer(request, alone, timeout, self.backend, operation);
        acquired.await
    }

    /// Releases what the grant holds by this claim, with others if possible, else `alone`.
    ///
    /// # Errors
    ///
    /// The request's. Or [`Indeterminate`](crate::ErrorKind::Indeterminate), if the runtime that sent it with others
    /// hangs or has ended.
    ///
    /// # Cancel safety
    ///
    /// As [`Batch::ask`].
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn release<F: Future<Output = Result<Stood>>>(
        &self,
        grant: Grant,
        claim: &Claim,
        alone: impl Fn((Grant, Claim)) -> F,
    ) -> Result<Stood> {
        let (timeout, operation) = (self.timeout, Operation::Release);
        let release = (grant, claim.clone());
        let stood = self
            .releasing
            .answer(&release, alone, timeout, self.backend, operation);
        stood.await
    }
}
