//! [`Recorder`]: where everybody writes down what happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Event, History, What};

/// A history that is being made, on Tokio's clock from when the recorder was made.
#[derive(Debug, Clone)]
pub struct Recorder {
    start: Instant,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    /// An empty history that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            history: Arc::default(),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the beginning.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many events there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.history().events.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes down that something happens now.
    pub fn record(&self, process: u32, what: What) {
        let at = self.now();
        self.history().events.push(Event { at, process, what });
    }

    /// Looks at the history so far.
    pub fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history())
    }

    /// The history so far; the recorder begins anew.
    #[must_use]
    pub fn take(&self) -> History {
        std::mem::take(&mut self.history())
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}
