//! The clock of this store: time since the machine's boot, which steps for nobody and goes on during suspend.

use std::io;
use std::time::{Duration, SystemTime};

/// The machine's time since boot, with the name of the boot. Where there is none (not Linux), the wall clock.
pub(crate) struct Clock {
    boot: Box<str>,
}

impl Clock {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { boot: boot()? })
    }

    /// The boot that [`now`](Self::now) counts from; of a lease of another boot the wall clock says what is left.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// The time since boot.
    #[cfg(target_os = "linux")]
    pub(crate) fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::try_from(now).unwrap_or_default()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn now(&self) -> Duration {
        since_1970()
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

/// The time since 1970: the least number of a new token, what people read, and what is left of a lease of another boot.
#[expect(
    clippy::disallowed_methods,
    reason = "tokens continue above those of a file that lost its last writes; a step back is made up for by counting"
)]
pub(crate) fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_and_names_one_boot() {
        let clock = Clock::new().unwrap();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(clock.now() >= before + Duration::from_millis(20));
        assert_eq!(clock.boot(), Clock::new().unwrap().boot());
        assert!(!clock.boot().is_empty() && !clock.boot().contains('\n'));
    }
}
