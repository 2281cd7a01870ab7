//! A file that is put back to an older state, under clients that live.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use lockcore::{Guard, Locks, LostReason};
use rusqlite::Connection;
use rusqlite::backup::Backup;
use support::Space;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(3);
/// Several renewals, and a slow machine.
const SOON: Duration = Duration::from_secs(20);

async fn client(space: &Space) -> Locks {
    let builder = Locks::builder(space.connect().await);
    builder.ttl(TTL).build().unwrap()
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let acquisition = locks.lock(name).wait(SOON);
    acquisition.acquire().await.unwrap()
}

async fn told(guard: &Guard) -> LostReason {
    let why = timeout(SOON, guard.lost()).await;
    why.unwrap_or_else(|_| panic!("nobody is told: {guard:?}"))
}

/// A copy of the file as it is now, in one piece.
fn backed_up(space: &Space) -> PathBuf {
    let copy = space.directory.path().join("copy.db");
    space.sql(&format!("VACUUM INTO '{}'", copy.display()));
    copy
}

/// One who holds since before the copy was made, one who has held since, and what happens to them when it is put back.
async fn restored(restore: impl FnOnce(&Space, PathBuf)) {
    let space = Space::new();
    let (first, second, third) = (
        client(&space).await,
        client(&space).await,
        client(&space).await,
    );
    let before = hold(&first, "before").await;
    let copy = backed_up(&space);
    let since = hold(&second, "since").await;
    let last = since.token().max(before.token());
    // Renewals that the copy does not have.
    sleep(TTL).await;
    assert!(before.is_valid() && since.is_valid());
    restore(&space, copy);
    assert!(matches!(
        told(&since).await,
        LostReason::Dead | LostReason::Forgotten
    ));
    assert!(matches!(
        told(&before).await,
        LostReason::Dead | LostReason::Forgotten
    ));
    // Whoever comes next holds with a greater token, and so do those who have lost.
    for (locks, name) in [(&third, "since"), (&third, "before"), (&first, "more")] {
        let next = hold(locks, name).await;
        assert!(next.token() > last, "{name}");
        drop(next);
    }
}

#[tokio::test]
async fn an_older_state_that_is_restored_in_place_is_told_by_a_renewal() {
    restored(|space, copy| {
        let from = Connection::open(copy).unwrap();
        let mut to = Connection::open(&space.path).unwrap();
        to.busy_timeout(SOON).unwrap();
        let backup = Backup::new(&from, &mut to).unwrap();
        // All pages at once, or again where others write.
        backup
            .run_to_completion(i32::MAX, Duration::from_millis(10), None)
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_older_file_that_is_put_in_its_place_is_told_by_a_renewal() {
    restored(|space, copy| {
        for companion in ["locks.db-wal", "locks.db-shm"] {
            std::fs::remove_file(space.directory.path().join(companion)).unwrap();
        }
        std::fs::rename(copy, &space.path).unwrap();
    })
    .await;
}
