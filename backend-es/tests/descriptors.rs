//! A process that may open few files asks for many locks at once: its guard lives. Needs a server.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use lockcore::{Attempt, Locks, Released};
use support::{Space, connect};

/// So many files may be open.
const FILES: u32 = 256;
const ATTEMPTS: u32 = 10_000;
const TTL: Duration = Duration::from_secs(6);

#[test]
fn many_attempts_at_once_leave_the_guard_its_renewals() {
    let limited = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    let program = std::env::current_exe().unwrap();
    let status = Command::new("sh")
        .args(["-c", &limited])
        .arg(program)
        .args(["--exact", "in_a_process_of_few_files", "--ignored"])
        .status();
    assert!(status.unwrap().success(), "see above");
}

#[tokio::test]
#[ignore = "the test above runs it in a process of its own"]
async fn in_a_process_of_few_files() {
    let space = Space::new();
    let locks = Locks::builder(connect(&space).await).ttl(TTL);
    let locks = locks.build().unwrap();
    let guard = locks.lock("guard").acquire().await.unwrap();
    let attempt = async |n: u32| locks.lock(format!("k{n}")).try_acquire().await;
    let attempts = join_all((0..ATTEMPTS).map(attempt));
    let lost = guard.lost();
    let attempts = tokio::select! {
        attempts = attempts => attempts,
        reason = lost => panic!("the guard is lost: {reason}"),
    };
    let mut failed = Vec::new();
    let mut guards = Vec::new();
    for attempt in attempts {
        match attempt {
            Ok(Attempt::Acquired(guard)) => guards.push(guard),
            Ok(Attempt::Busy(busy)) => failed.push(format!("{busy:?}")),
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed, as {}",
        failed.len(),
        failed[0]
    );
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    drop(guards);
}
