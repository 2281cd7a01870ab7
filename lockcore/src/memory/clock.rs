//! The store's time: tokio's, so that paused time drives it, plus what a test moves it by.

use std::time::Duration;

use tokio::time::Instant;

/// When every store of this kind begins: 2024-01-01, so that runs are alike.
const EPOCH: Duration = Duration::from_secs(1_704_067_200);

#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    ahead: Duration,
    behind: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            ahead: Duration::ZERO,
            behind: Duration::ZERO,
        }
    }

    /// The time since the Unix epoch.
    pub(super) fn now(&self) -> Duration {
        (EPOCH + self.start.elapsed())
            .saturating_add(self.ahead)
            .saturating_sub(self.behind)
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
