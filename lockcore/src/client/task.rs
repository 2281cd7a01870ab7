//! The one place where tasks are made.

use std::future::Future;

/// Runs a future on a task of its own.
///
/// # Panics
///
/// Panics outside a Tokio runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the place that the others go through"
)]
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    #[cfg(lockcore_sim)]
    let future = crate::client::sim::gated(future);
    // The task reports through its own channel; its handle is of no use.
    drop(tokio::spawn(future));
}
