//! The one place that creates tasks.

use std::future::Future;

use tokio::sync::oneshot;

use crate::client::thread::OwnThread;

/// Runs a future of the client's own, which no code of the program is part of, on a task of its own: on the client's thread
/// if it has one.
///
/// # Panics
///
/// Panics outside a Tokio runtime if there is no such thread.
pub(crate) fn spawn_on(
    thread: Option<&OwnThread>,
    future: impl Future<Output = ()> + Send + 'static,
) {
    match thread {
        // The task reports through its own channel; its handle is of no use.
        Some(thread) => drop(thread.runtime().spawn(future)),
        None => spawn(future),
    }
}

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

/// The same, with the future's output, if anybody waits for it.
pub(crate) fn answers<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, answer) = oneshot::channel();
    spawn(async move { drop(done.send(future.await)) });
    answer
}
