//! The store's time: tokio's, so that paused time drives it, plus what a test moves it by.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// When every store of this kind begins: 2024-01-01, so that runs are alike.
const EPOCH: Duration = Duration::from_secs(1_704_067_200);

#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    ahead: Duration,
    behind: Duration,
    /// The time of the action that goes on, once it was asked for.
    now: Cell<Option<Duration>>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            ahead: Duration::ZERO,
            behind: Duration::ZERO,
            now: Cell::new(None),
        }
    }

    /// Another action begins.
    pub(super) fn begin(&self) {
        self.now.set(None);
    }

    /// The time since the Unix epoch, the same for a whole action.
    pub(super) fn now(&self) -> Duration {
        let now = self.now.get().unwrap_or_else(|| {
            (EPOCH + self.start.elapsed())
                .saturating_add(self.ahead)
                .saturating_sub(self.behind)
        });
        self.now.set(Some(now));
        now
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.ahead = self.ahead.saturating_add(by);
    }

    pub(super) fn retreat(&mut self, by: Duration) {
        self.behind = self.behind.saturating_add(by);
    }

    /// The part of the base of all tokens that depends on when the namespace was made.
    pub(super) const fn created_ms() -> u64 {
        EPOCH.as_secs() * 1_000
    }
}
