//! On what it was measured.

use std::fs;
use std::thread::available_parallelism;

/// The day, of a clock that people read.
#[expect(
    clippy::disallowed_methods,
    reason = "a report says on which day it was made"
)]
pub(super) fn date() -> String {
    let now = std::time::SystemTime::now();
    let text = humantime::format_rfc3339_seconds(now).to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

/// Processor, memory and system, a line each.
pub(super) fn lines() -> Vec<String> {
    let cores = available_parallelism().map_or(1, usize::from);
    let cpu = value("/proc/cpuinfo", "model name");
    let memory = value("/proc/meminfo", "MemTotal");
    let kib: f64 = memory.trim_end_matches(" kB").parse().unwrap_or(0.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    vec![
        format!("{cores} cores of {cpu}"),
        format!("{:.0} GiB of memory", kib / 1024.0 / 1024.0),
        format!("Linux {}", kernel.trim()),
    ]
}

/// What stands behind a name and a colon.
fn value(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    });
    found.unwrap_or_else(|| "an unknown".to_owned())
}
