//! A program that blocks its only runtime for longer than its TTL, on the store that a test's variable names, else on an
//! SQLite file: its locks are lost, unless they are renewed on a thread of their own.
#![cfg(feature = "sqlite")]
#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::thread;
use std::time::Duration;

use lockkeeper::{Guard, Locks, LocksBuilder, LostReason, OwnThread, Released, Scratch};
use tokio::time::sleep;

/// The shortest of every store.
const TTL: Duration = Duration::from_secs(2);

/// The server that the test runs beside, or a file.
fn url(folder: &tempfile::TempDir) -> String {
    const VARIABLES: [&str; 4] = [
        "LOCKKEEPER_TEST_ELASTICSEARCH",
        "LOCKKEEPER_TEST_ETCD",
        "LOCKKEEPER_TEST_POSTGRES",
        "LOCKKEEPER_TEST_REDIS",
    ];
    let server = VARIABLES.iter().find_map(|name| std::env::var(name).ok());
    server.unwrap_or_else(|| format!("sqlite:{}", folder.path().join("locks.db").display()))
}

/// Acquires, blocks the runtime with another acquisition under way, and returns both guards.
async fn blocks(builder: LocksBuilder) -> (Locks, [Guard; 2]) {
    let locks = builder.ttl(TTL).build().unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    // So old that its session is watched.
    sleep(TTL / 8).await;
    let other = tokio::join!(locks.lock("b").own_session().acquire(), async {
        tokio::task::yield_now().await;
        thread::sleep(2 * TTL);
    });
    (locks, [guard, other.0.unwrap()])
}

#[tokio::test]
async fn a_blocked_runtime_loses_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(&url(&folder)).await.unwrap();
    let (locks, [guard, _other]) = blocks(Locks::builder(scratch.backend())).await;
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await, LostReason::Deadline);
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    drop(_other);
    assert!(locks.shutdown(5 * TTL).await);
    scratch.remove().await.unwrap();
}

#[tokio::test]
async fn a_thread_of_its_own_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(&folder);
    let own = OwnThread::start().unwrap();
    let scratch = own.run(async move { Scratch::new(&url).await.unwrap() });
    let scratch = scratch.await;
    let builder = Locks::builder(scratch.backend()).own_thread(&own);
    let (locks, guards) = blocks(builder).await;
    for guard in guards {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    assert!(locks.shutdown(5 * TTL).await);
    own.run(async move { scratch.remove().await.unwrap() })
        .await;
}
