//! The client's clock: monotonic, and running while the machine sleeps.

use std::time::Duration;

use tokio::time::Instant;

/// Now. Tokio's clock (so that paused time drives it in tests), plus the time that the machine has slept since the
/// first call: a lease goes on while a laptop is closed, `CLOCK_MONOTONIC` does not.
pub(crate) fn now() -> Instant {
    #[cfg(test)]
    return awake_or_not() + tests::SLEPT.get();
    #[cfg(not(test))]
    return awake_or_not();
}

/// The instant after this time from now; years from now, if that is no valid instant.
pub(crate) fn after(time: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
    let now = now();
    now.checked_add(time).unwrap_or(now + YEARS)
}

/// Resolves at `until`; at once if that has passed. After a suspension it is late by as much.
pub(crate) async fn sleep_until(until: Instant) {
    tokio::time::sleep_until(timer(until)).await;
}

/// As [`sleep_until`], but not late after a suspension: it wakes twice a second.
pub(crate) async fn sleep_awake_until(until: Instant) {
    while now() < until {
        tokio::time::sleep_until(look(until)).await;
    }
}

/// When a timer must fire for that instant. After a suspension it is late by as much; a caller that must not be late
/// uses [`look`].
pub(crate) fn timer(at: Instant) -> Instant {
    Instant::now() + at.saturating_duration_since(now())
}

/// When a caller that must not be late checks `now` again: timers stand still while the machine sleeps.
pub(crate) fn look(at: Instant) -> Instant {
    match SLEEPS {
        true => timer(at).min(Instant::now() + BETWEEN_LOOKS),
        false => timer(at),
    }
}

/// Time between two checks, so that the end of a lease is noticed within a second of waking.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Whether the machine's sleep can be measured.
const SLEEPS: bool = cfg!(all(target_os = "linux", not(lockcore_sim)));

// In a simulation only virtual time passes.
#[cfg(any(not(target_os = "linux"), lockcore_sim))]
fn awake_or_not() -> Instant {
    Instant::now()
}

#[cfg(all(target_os = "linux", not(lockcore_sim)))]
fn awake_or_not() -> Instant {
    use std::sync::OnceLock;

    use rustix::time::{ClockId, clock_gettime};

    /// Below this it is the time between two readings, not sleep.
    const ASLEEP: Duration = Duration::from_millis(100);

    fn read(clock: ClockId) -> Duration {
        let time = clock_gettime(clock);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
    }
    struct Start {
        boot: Duration,
        here: Instant,
        behind: Duration,
    }
    static START: OnceLock<Start> = OnceLock::new();
    let start = START.get_or_init(|| {
        // A pause between the two makes sleep too long, never too short.
        let (boot, monotonic) = (read(ClockId::Boottime), read(ClockId::Monotonic));
        let (here, behind) = (Instant::now(), boot.saturating_sub(monotonic));
        Start { boot, here, behind }
    });
    let boot = read(ClockId::Boottime).saturating_sub(start.boot);
    let now = Instant::now();
    if boot < now.saturating_duration_since(start.here) + ASLEEP {
        return now;
    }
    // Tokio's clock may stand still in a test of a program; then it is not sleep.
    // A pause between the two is part of this call: it is not over before the time that it tells.
    let monotonic = read(ClockId::Monotonic);
    let boot = read(ClockId::Boottime);
    let asleep = boot.saturating_sub(monotonic).saturating_sub(start.behind);
    if asleep < ASLEEP { now } else { now + asleep }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        pub(super) static SLEPT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// The machine sleeps for so long, as the tasks of this thread see it: their timers stand still.
    pub(crate) fn suspend(time: Duration) {
        SLEPT.set(SLEPT.get() + time);
    }
}
