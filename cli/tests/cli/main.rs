//! The `lockkeeper` command, run as its users run it, on SQLite files.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod handle;
mod harness;
mod input;
mod lost;
mod operate;
mod recovery;
mod run;
mod signals;
#[cfg(target_os = "linux")]
mod terminal;
mod tools;
#[cfg(all(feature = "verify", unix))]
mod verify;
mod watch;
