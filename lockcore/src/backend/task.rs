//! [`Task`]: background work of a backend.

use std::future::Future;

use tokio::task::AbortHandle;

/// A task of a backend. It ends when this is dropped, or with the runtime in which it was begun.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    /// Begins the task in the runtime of the caller.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub fn begin(work: impl Future<Output = ()> + Send + 'static) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the task belongs to the backend, and ends with it"
        )]
        let task = tokio::spawn(work);
        Self(task.abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
