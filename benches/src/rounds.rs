//! Rounds that take turns, and what is printed of them.

use std::time::Duration;

/// Median, least and greatest.
pub(crate) struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    pub(crate) fn median(&self) -> f64 {
        self.median
    }

    /// The median with the others behind it, each with three digits or so.
    pub(crate) fn short(&self) -> String {
        let number = |value: f64| match value.abs() {
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            100.0.. => format!("{value:.0}"),
            10.0.. => format!("{value:.1}"),
            0.1.. => format!("{value:.2}"),
            _ => format!("{value:.4}"),
        };
        let [median, least, greatest] = [self.median, self.least, self.greatest].map(number);
        if least == greatest {
            median
        } else {
            format!("{median} ({least}–{greatest})")
        }
    }

    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Self {
            median,
            least: values[0],
            greatest: values[values.len() - 1],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.least, self.greatest
        )
    }
}

/// The ratios of two series, round by round.
pub(crate) fn ratios(of: &[f64], to: &[f64]) -> Spread {
    Spread::of(of.iter().zip(to).map(|(of, to)| of / to).collect())
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A runtime on one thread.
pub(crate) fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The memory of this process that is resident, in MiB.
pub(crate) fn resident_mib() -> f64 {
    resident_mib_of("self")
}

/// The same, of another process.
pub(crate) fn resident_mib_of(pid: &str) -> f64 {
    status_mib(pid, "VmRSS:")
}

/// The most that was resident so far, in MiB.
pub(crate) fn peak_mib() -> f64 {
    status_mib("self", "VmHWM:")
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn status_mib(pid: &str, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = kib.and_then(|rest| {
        rest.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) as f64 / 1024.0
}
