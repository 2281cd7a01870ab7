//! What can go wrong on which store, and what a store then promises: the one table of `cargo xtask soak --fault`, of
//! the trials and of GUARANTEES.md. On Linux, what makes each fault.

#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
mod etcd;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod postgres;
#[cfg(target_os = "linux")]
mod preload;
mod record;
#[cfg(target_os = "linux")]
mod redis;
#[cfg(target_os = "linux")]
mod sqlite;
mod table;
#[cfg(target_os = "linux")]
mod trial;
#[cfg(target_os = "linux")]
mod victim;

pub use record::{Record, percentile};
pub use table::{Cell, Kind, LOSSES, Loss, STORES, TABLE, find};
#[cfg(target_os = "linux")]
pub use trial::main;

/// Runs the trials of the kit. The faults of the table are made on Linux.
#[cfg(all(unix, not(target_os = "linux")))]
#[must_use]
pub fn main(
    _store: &'static str,
    fixture: impl lockcore_conformance::Fixture,
) -> std::process::ExitCode {
    lockcore_trial::processes::main(fixture)
}
