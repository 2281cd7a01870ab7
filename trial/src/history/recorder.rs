//! [`Recorder`]: records events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{Event, History, What};

/// A history in progress, on Tokio's clock from the creation of the recorder.
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

    /// The number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.history().events.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records an event that happens now.
    pub fn record(&self, process: u32, what: What) {
        let at = self.now();
        self.history().events.push(Event { at, process, what });
    }

    /// Reads the history so far.
    pub fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history())
    }

    /// The history so far. The recorder begins anew.
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
