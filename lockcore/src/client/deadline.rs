//! The instant until which a session's guards are valid, and the latch that it closes with.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// A deadline that can be moved on while it lies ahead. Once anybody has seen it passed, it has passed for good.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// Nothing is earlier than this.
    epoch: Instant,
    /// Nanoseconds after the epoch, or `PASSED`.
    at: AtomicU64,
}

const PASSED: u64 = 0;

impl Deadline {
    pub(crate) fn new(epoch: Instant, at: Instant) -> Self {
        let deadline = Self {
            epoch,
            at: AtomicU64::new(PASSED),
        };
        deadline.at.store(deadline.nanos(at), Ordering::Relaxed);
        deadline
    }

    fn nanos(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Whether it lies ahead of `now`. Closes the latch if not.
    pub(crate) fn is_ahead(&self, now: Instant) -> bool {
        self.update(now, None)
    }

    /// Moves the deadline on, if it still lies ahead of `now`, which was read when the answer was there. Never moves
    /// it back.
    pub(crate) fn extend(&self, now: Instant, to: Instant) -> bool {
        self.update(now, Some(self.nanos(to)))
    }

    fn update(&self, now: Instant, to: Option<u64>) -> bool {
        let now = self.nanos(now);
        let next = |at: u64| match to {
            // So it is when it has passed: nothing is earlier than `PASSED`.
            _ if now >= at => Some(PASSED),
            Some(to) if to > at => Some(to),
            _ => None,
        };
        match self
            .at
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
        {
            Ok(before) => now < before,
            Err(_) => true,
        }
    }

    /// Makes it passed, whatever the time.
    pub(crate) fn pass(&self) {
        self.at.store(PASSED, Ordering::Release);
    }

    /// The deadline, unless somebody has seen it passed.
    pub(crate) fn get(&self) -> Option<Instant> {
        match self.at.load(Ordering::Acquire) {
            PASSED => None,
            nanos => Some(self.epoch + std::time::Duration::from_nanos(nanos)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_seen_passed_stays_passed() {
        let epoch = Instant::now();
        let at = |ms| epoch + Duration::from_millis(ms);
        let deadline = Deadline::new(epoch, at(100));
        assert!(deadline.is_ahead(at(99)));
        assert!(
            deadline.extend(at(99), at(200)),
            "the answer was there in time"
        );
        assert!(deadline.extend(at(100), at(150)));
        assert_eq!(deadline.get(), Some(at(200)), "never back");
        assert!(!deadline.is_ahead(at(200)));
        assert!(
            !deadline.extend(at(199), at(300)),
            "an answer that arrives later revives nothing"
        );
        assert!(!deadline.is_ahead(at(0)));
        assert_eq!(deadline.get(), None);
    }

    #[test]
    fn an_answer_after_the_deadline_closes_the_latch() {
        let epoch = Instant::now();
        let deadline = Deadline::new(epoch, epoch + Duration::from_millis(100));
        assert!(!deadline.extend(
            epoch + Duration::from_millis(100),
            epoch + Duration::from_millis(300)
        ));
        assert!(!deadline.is_ahead(epoch));
    }
}
