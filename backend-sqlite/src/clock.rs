//! The clock of this store: time since the machine's boot, which steps for nobody and goes on during suspend.

use std::io;

/// The machine's time since boot, with the name of the boot. Where there is none (not Linux), the wall clock.
pub(crate) struct Clock {
    boot: Box<str>,
}

impl Clock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { boot: boot()? })
    }

    /// The boot that [`now_ms`](Self::now_ms) counts from; a time of another boot is past.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Milliseconds since boot.
    #[cfg(target_os = "linux")]
    pub(crate) fn now_ms(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn now_ms(&self) -> i64 {
        unix_us() / 1_000
    }
}

#[cfg(target_os = "linux")]
fn boot() -> io::Result<Box<str>> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim_end()
        .into())
}

#[cfg(not(target_os = "linux"))]
fn boot() -> io::Result<Box<str>> {
    Ok("wall clock".into())
}

/// Microseconds since 1970: the least number of a new token, and what people read. No lease depends on it.
#[expect(
    clippy::disallowed_methods,
    reason = "tokens continue above those of a file that lost its last writes; a step back is made up for by counting"
)]
pub(crate) fn unix_us() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_and_names_one_boot() {
        let clock = Clock::new().unwrap();
        let before = clock.now_ms();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(clock.now_ms() >= before + 20);
        assert_eq!(clock.boot(), Clock::new().unwrap().boot());
        assert!(!clock.boot().is_empty() && !clock.boot().contains('\n'));
    }
}
