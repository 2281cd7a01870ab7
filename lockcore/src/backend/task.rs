//! [`Task`], [`Standing`]: background work of a backend.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
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

/// A task that goes on in another runtime when that in which it was begun has ended.
pub struct Standing {
    work: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    task: Mutex<Task>,
}

impl Standing {
    /// Begins the task in the runtime of the caller.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub fn begin(work: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        let task = Mutex::new(Task::begin(work()));
        let work = Box::new(work);
        Self { work, task }
    }

    /// Begins it anew in the runtime of the caller if it has ended. Call it whenever the backend is used.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if it has ended.
    pub fn stands(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.0.is_finished() {
            *task = Task::begin((self.work)());
        }
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Standing").field(&self.task).finish()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
