//! The client's clock: monotonic, and running while the machine sleeps.

use std::time::Duration;

use tokio::time::Instant;

/// Now. Tokio's clock (so that paused time drives it in tests), ahead by the time that the machine has slept since
/// the first call: a lease goes on while a laptop is closed, `CLOCK_MONOTONIC` does not.
pub(crate) fn now() -> Instant {
    Instant::now() + suspended()
}

/// In that time from now; years from now, if that is no instant any more.
pub(crate) fn after(time: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
    let now = now();
    now.checked_add(time).unwrap_or(now + YEARS)
}

/// Resolves at `until`; at once if that has passed.
pub(crate) async fn sleep_until(until: Instant) {
    tokio::time::sleep_until(timer(until)).await;
}

/// When a timer has to fire for that instant. After a suspension it is late by as much; who must not be late looks at
/// `now` as well.
pub(crate) fn timer(at: Instant) -> Instant {
    Instant::now() + at.saturating_duration_since(now())
}

// In a simulation only virtual time passes.
#[cfg(all(target_os = "linux", not(lockcore_sim)))]
fn suspended() -> Duration {
    use std::sync::OnceLock;

    use rustix::time::{ClockId, clock_gettime};

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
    }
    // The clock that stops is read last: a pause between the two makes the difference too small, never too great.
    fn behind() -> Duration {
        let boot = read(ClockId::Boottime);
        boot.saturating_sub(read(ClockId::Monotonic))
    }
    static AT_START: OnceLock<Duration> = OnceLock::new();
    let asleep = behind().saturating_sub(*AT_START.get_or_init(behind));
    // Below this it is the time between two readings, not sleep.
    if asleep < Duration::from_millis(100) {
        Duration::ZERO
    } else {
        asleep
    }
}

#[cfg(any(not(target_os = "linux"), lockcore_sim))]
fn suspended() -> Duration {
    Duration::ZERO
}
