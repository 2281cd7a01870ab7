//! The file: whose it is, what it may be, and what happens when it changes under the backend.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use lockcore::backend::{
    Acquired, ClaimStore, End, Filter, Inspect, IntentChange, Renewed, SessionStore, Sweep,
};
use lockcore::{ErrorKind, LockBackend, LockKey, Mode};
use lockcore_sqlite::{SqliteBackend, SqliteConfig, Synchronous};
use support::*;

async fn refuses(path: &Path, words: &str) {
    let before = std::fs::read(path).ok();
    let error = SqliteBackend::connect(SqliteConfig::new(path))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(std::fs::read(path).ok(), before, "nothing was written");
}

#[tokio::test]
async fn what_is_no_file_of_ours_is_refused() {
    let space = Space::new();
    let directory = space.directory.path();
    refuses(&directory.join("missing/locks.db"), "make it first").await;
    refuses(directory, "is a directory").await;
    let text = directory.join("text");
    std::fs::write(
        &text,
        "not a database, but long enough to look at".repeat(100),
    )
    .unwrap();
    refuses(&text, "not an SQLite database").await;
    refuses(&text.join("locks.db"), "mend the path").await;
    let other = directory.join("other.db");
    let conn = rusqlite::Connection::open(&other).unwrap();
    conn.execute_batch("CREATE TABLE t (x)").unwrap();
    refuses(&other, "something else").await;
    let versioned = directory.join("versioned.db");
    let conn = rusqlite::Connection::open(&versioned).unwrap();
    conn.execute_batch("PRAGMA user_version = 4").unwrap();
    refuses(&versioned, "something else").await;
    assert!(
        std::fs::metadata(directory.join("missing")).is_err(),
        "no directory is made"
    );
}

#[tokio::test]
async fn a_newer_version_is_refused_by_its_number() {
    let space = Space::new();
    drop(space.connect().await);
    space.sql("PRAGMA user_version = 4; PRAGMA wal_checkpoint(TRUNCATE)");
    refuses(&space.path, "version 4").await;
}

/// Its tokens are those of the file, and ours are 64 times as large.
#[tokio::test]
async fn an_older_version_is_refused_by_who_connects_and_by_who_is_connected() {
    let (space, older) = (Space::new(), Space::new());
    drop(older.connect().await);
    older.sql("PRAGMA user_version = 2; PRAGMA wal_checkpoint(TRUNCATE)");
    refuses(&older.path, "use another file").await;
    // Whoever uses the default one does not know where it is.
    refuses(&older.path, &older.path.display().to_string()).await;
    let removal = SqliteBackend::remove(SqliteConfig::new(&older.path)).await;
    assert_eq!(removal.unwrap_err().kind(), ErrorKind::Config);
    assert!(older.path.exists());
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    std::fs::rename(&older.path, &space.path).unwrap();
    let renewal = renewal(1, "", IntentChange::Keep);
    let error = backend.renew(session, &renewal).await.unwrap_err();
    assert!(error.to_string().contains("use another file"), "{error}");
    refuses(&space.path, "version 2").await;
}

fn nothing_is_left(space: &Space) {
    let left = std::fs::read_dir(space.path.parent().unwrap()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What it leads to is removed, not the link alone.
#[tokio::test]
async fn a_file_that_a_link_leads_to_is_removed_with_its_log_and_the_link() {
    let space = Space::new();
    drop(space.connect().await);
    let link = space.path.with_extension("link");
    std::os::unix::fs::symlink(&space.path, &link).unwrap();
    let backend = SqliteBackend::connect(SqliteConfig::new(&link))
        .await
        .unwrap();
    open(&backend, 1).await;
    drop(backend);
    SqliteBackend::remove(SqliteConfig::new(&link))
        .await
        .unwrap();
    nothing_is_left(&space);
}

/// The process that removed it before has died in between.
#[tokio::test]
async fn a_removal_through_a_link_is_done_again() {
    let space = Space::new();
    let link = space.path.with_extension("link");
    std::os::unix::fs::symlink(space.path.file_name().unwrap(), &link).unwrap();
    for suffix in ["-wal", "-shm"] {
        let mut companion = space.path.clone().into_os_string();
        companion.push(suffix);
        std::fs::write(companion, "left").unwrap();
    }
    SqliteBackend::remove(SqliteConfig::new(&link))
        .await
        .unwrap();
    nothing_is_left(&space);
}

#[tokio::test]
async fn a_file_is_made_where_a_link_leads_to() {
    let space = Space::new();
    let link = space.path.with_extension("link");
    std::os::unix::fs::symlink(space.path.file_name().unwrap(), &link).unwrap();
    for _ in 0..2 {
        let backend = SqliteBackend::connect(SqliteConfig::new(&link))
            .await
            .unwrap();
        open(&backend, 1).await;
        // While it is used, too.
        std::fs::remove_file(&space.path).unwrap();
        open(&backend, 2).await;
        assert!(space.path.exists() && link.is_symlink());
        drop(backend);
        std::fs::remove_file(&space.path).unwrap();
    }
}

/// It is the turn of the folder in which the file is to be made.
#[tokio::test]
async fn a_removal_through_a_link_waits_for_who_makes_the_file() {
    let (space, other) = (Space::new(), Space::new());
    let link = other.path.with_extension("link");
    std::os::unix::fs::symlink(&space.path, &link).unwrap();
    let folder = std::fs::File::open(space.path.parent().unwrap()).unwrap();
    folder.lock().unwrap();
    let config = SqliteConfig::new(&link).timeout(Duration::from_millis(200));
    let removed = SqliteBackend::remove(config).await;
    let error = removed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(folder);
    SqliteBackend::remove(SqliteConfig::new(&link))
        .await
        .unwrap();
    assert!(!link.is_symlink());
}

#[tokio::test]
async fn a_new_file_and_an_empty_one_are_made_ours_for_their_user_alone() {
    let space = Space::new();
    std::fs::write(&space.path, "").unwrap();
    std::fs::set_permissions(&space.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let new = Space::new();
    for space in [&space, &new] {
        let backend = space.connect().await;
        open(&backend, 1).await;
        for suffix in ["", "-wal", "-shm"] {
            let name = format!("{}{suffix}", space.path.display());
            let mode = std::fs::metadata(&name).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
    // What its user has given to others since stays given.
    std::fs::set_permissions(&new.path, std::fs::Permissions::from_mode(0o660)).unwrap();
    new.connect().await;
    assert_eq!(std::fs::metadata(&new.path).unwrap().mode() & 0o777, 0o660);
}

#[tokio::test]
async fn many_may_make_the_file_at_once() {
    let space = Space::new();
    let backends: Vec<_> = (0..8)
        .map(|_| {
            let config = SqliteConfig::new(&space.path);
            #[expect(clippy::disallowed_methods, reason = "they begin at once")]
            tokio::spawn(SqliteBackend::connect(config))
        })
        .collect();
    for (number, backend) in (1..).zip(backends) {
        let backend = backend.await.unwrap().unwrap();
        open(&backend, number).await;
    }
    assert_eq!(space.count("SELECT count(*) FROM sessions"), 8);
}

#[tokio::test]
async fn what_it_is_like() {
    let space = Space::new();
    let info = space.connect().await.info();
    assert_eq!((info.name, info.atomic), ("sqlite", true));
    assert!(info.poll.is_some(), "nobody is told of anything");
    assert!(info.durability.crash && info.durability.failover && !info.durability.power_loss);
    let full = SqliteConfig::new(&space.path).synchronous(Synchronous::Full);
    let info = SqliteBackend::connect(full).await.unwrap().info();
    assert!(info.durability.power_loss);
}

#[tokio::test]
async fn a_name_that_sqlite_would_read_is_a_name() {
    let space = Space::new();
    let path = space.directory.path().join("file:x%20y#z");
    let backend = SqliteBackend::connect(SqliteConfig::new(&path))
        .await
        .unwrap();
    open(&backend, 1).await;
    assert!(path.is_file());
}

#[tokio::test]
async fn two_backends_share_a_file() {
    let space = Space::new();
    let (here, there) = (space.connect().await, space.connect().await);
    let (one, two) = (open(&here, 1).await, open(&there, 2).await);
    let first = granted(&here, one, 1, &["upsert k"]).await;
    refused(&there, two, 1, &["upsert k"]).await;
    release(&here, one, 1, &["upsert k"]).await;
    assert!(granted(&there, two, 2, &["upsert k"]).await > first);
}

#[tokio::test]
async fn the_log_is_written_back_before_it_is_long() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    for n in 1..=500 {
        granted(&backend, session, n, &["upsert k"]).await;
        release(&backend, session, n, &["upsert k"]).await;
    }
    let log = space.path.with_file_name("locks.db-wal");
    let length = std::fs::metadata(&log).unwrap().len();
    // Whoever fills it waits until all of it is on the disk.
    assert!((1 << 20..3 << 20).contains(&length), "{length}");
}

#[tokio::test]
async fn a_file_that_was_removed_takes_its_sessions_with_it() {
    let space = Space::new();
    let (here, there) = (space.connect().await, space.connect().await);
    let (one, two) = (open(&here, 1).await, open(&there, 2).await);
    granted(&here, one, 1, &["upsert k"]).await;
    // The log and its index are left behind, in use by both.
    std::fs::remove_file(&space.path).unwrap();
    assert_eq!(
        renew(&here, one, 1, "", IntentChange::Keep).await,
        Renewed::Dead
    );
    let three = open(&here, 3).await;
    granted(&here, three, 1, &["upsert k"]).await;
    assert_eq!(
        renew(&there, two, 1, "", IntentChange::Keep).await,
        Renewed::Dead
    );
    let four = open(&there, 4).await;
    let busy = refused(&there, four, 1, &["upsert k"]).await;
    assert_eq!(busy.first().holders[0].grant, Some(grant(three, 1)));
    let check =
        space.count("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'");
    assert_eq!(check, 0);
}

#[tokio::test]
async fn a_file_that_was_replaced_is_the_one_that_counts() {
    let (space, other) = (Space::new(), Space::new());
    let new = other.connect().await;
    let holder = open(&new, 9).await;
    granted(&new, holder, 1, &["upsert k"]).await;
    other.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["upsert k"]).await;
    std::fs::rename(&other.path, &space.path).unwrap();
    assert_eq!(
        acquire(&backend, one, 2, &["upsert l"]).await,
        Acquired::Void
    );
    let two = open(&backend, 2).await;
    let busy = refused(&backend, two, 1, &["upsert k"]).await;
    assert_eq!(busy.first().holders[0].grant, Some(grant(holder, 1)));
    let check =
        space.count("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'");
    assert_eq!(check, 0);
}

#[tokio::test]
async fn a_directory_that_is_gone_is_an_error_until_it_is_back() {
    let space = Space::new();
    let directory = space.directory.path().join("sub");
    std::fs::create_dir(&directory).unwrap();
    let config = SqliteConfig::new(directory.join("locks.db"));
    let backend = SqliteBackend::connect(config).await.unwrap();
    let one = open(&backend, 1).await;
    std::fs::remove_dir_all(&directory).unwrap();
    let error = backend.sessions(None, 1).await.unwrap_err();
    assert!(error.is_certainly_without_effect(), "{error}");
    std::fs::create_dir(&directory).unwrap();
    assert_eq!(
        acquire(&backend, one, 1, &["upsert l"]).await,
        Acquired::Void
    );
    open(&backend, 2).await;
}

#[tokio::test]
async fn a_locked_file_is_waited_for_and_then_unavailable() {
    let space = Space::new();
    let config = SqliteConfig::new(&space.path).timeout(Duration::from_millis(300));
    let backend = SqliteBackend::connect(config).await.unwrap();
    let one = open(&backend, 1).await;
    let conn = rusqlite::Connection::open(&space.path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let request = request(one, 1, &["upsert k"]);
    let error = backend.acquire(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    // Looking needs no lock.
    assert_eq!(backend.sessions(None, 9).await.unwrap().items.len(), 1);
    conn.execute_batch("COMMIT").unwrap();
    granted(&backend, one, 1, &["upsert k"]).await;
}

#[tokio::test]
async fn what_was_begun_is_finished_when_nobody_waits_for_it() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    let request = request(one, 1, &["upsert k"]);
    let conn = rusqlite::Connection::open(&space.path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    {
        let acquire = backend.acquire(&request);
        let mut acquire = std::pin::pin!(acquire);
        let polled = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::future::Future::poll(acquire.as_mut(), cx).is_ready())
        });
        assert!(!polled.await, "it waits for the file");
    }
    conn.execute_batch("COMMIT").unwrap();
    // Behind it in the queue.
    let page = backend
        .records(&Filter::Session(one), None, 9)
        .await
        .unwrap();
    assert_eq!(page.items.len(), 1);
}

const GARBAGE: &str = "INSERT INTO holders (key, session, n, m, want, since_ms) VALUES
    ('k', x'00', 1, 1, 'create', 0), ('/a/b', x'0000', 2, 1, 'mystery', 0)";

#[tokio::test]
async fn garbage_is_held_and_not_changed() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    space.sql(GARBAGE);
    for (n, asked, key, mode) in [
        (1, "create k", "k", Mode::X),
        (2, "upsert k", "k", Mode::X),
        (3, "share k", "k", Mode::X),
        (4, "share/9 k", "k", Mode::X),
        (5, "read /a/b", "/a/b", Mode::X),
        (6, "write /a/b/c", "/a/b", Mode::X),
        (7, "read /a/b/c", "/a/b", Mode::X),
        (8, "write /a", "/a", Mode::IX),
        (9, "read /a", "/a", Mode::IX),
    ] {
        let busy = refused(&backend, one, n, &[asked]).await;
        let holder = &busy.first().holders[0];
        assert_eq!((holder.key.as_str(), holder.mode), (key, mode), "{asked}");
        assert_eq!((holder.grant, holder.owner), (None, None));
        assert!(
            holder.label.starts_with("unreadable record"),
            "{}",
            holder.label
        );
        release(&backend, one, n, &[asked]).await;
    }
    granted(&backend, one, 10, &["read /a/c"]).await;
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key <> '' AND length(session) < 16"),
        2
    );
}

/// A statement leaves out what is certainly compatible; a row that only looks like it is not.
#[tokio::test]
async fn garbage_that_looks_like_a_share_is_held_against_shares() {
    let space = Space::new();
    let backend = space.connect().await;
    space.sql(
        "INSERT INTO holders (key, session, n, m, want, since_ms)
         VALUES ('k', x'09', 1, 1, 'share', 0), ('/a/b', x'', 1, 1, 'read', 0)",
    );
    let one = open(&backend, 1).await;
    for (n, asked) in ["share k", "read /a", "read /a/b", "read /a/b/c"]
        .iter()
        .enumerate()
    {
        let n = u64::try_from(n).unwrap() + 1;
        let busy = refused(&backend, one, n, &[asked]).await;
        assert_eq!(busy.first().holders[0].grant, None, "{asked}");
    }
}

#[tokio::test]
async fn garbage_under_a_grant_of_ours_is_garbage() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["upsert k"]).await;
    space.sql("UPDATE holders SET want = 'mystery' WHERE key = 'k'");
    refused(&backend, one, 1, &["upsert k"]).await;
    release(&backend, one, 1, &["upsert k"]).await;
    backend.end(&[one], End::Close).await.unwrap();
    backend.sweep(Sweep::All, 9).await.unwrap();
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE want = 'mystery'"),
        1
    );
}

#[tokio::test]
async fn garbage_goes_by_evict_if_it_is_as_it_was_seen() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["share k"]).await;
    space.sql(GARBAGE);
    let key = LockKey::parse("k").unwrap();
    let seen = async || {
        let page = backend.records(&Filter::Key(key.clone()), None, 9).await;
        page.unwrap().items.remove(0)
    };
    let record = seen().await;
    assert_eq!(record.holders.len(), 2);
    space.sql("UPDATE holders SET since_ms = 7 WHERE key = 'k' AND length(session) = 1");
    assert!(!backend.evict(&record).await.unwrap(), "it has changed");
    let record = seen().await;
    assert!(backend.evict(&record).await.unwrap());
    assert!(!backend.evict(&record).await.unwrap(), "it is gone");
    let record = seen().await;
    assert_eq!(record.holders.len(), 1, "holders of ours stay");
    assert!(!backend.evict(&record).await.unwrap());
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key <> ''"),
        2
    );
}

#[tokio::test]
async fn a_file_is_removed_and_its_neighbours_are_not() {
    let space = Space::new();
    let directory = space.directory.path();
    let neighbour = directory.join("locks.db2");
    drop(
        SqliteBackend::connect(SqliteConfig::new(&neighbour))
            .await
            .unwrap(),
    );
    let names = || {
        let files = directory.read_dir().unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.retain(|name| !name.starts_with("locks.db2"));
        names.sort();
        names
    };
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    granted(&backend, session, 1, &["create k"]).await;
    assert_eq!(names(), ["locks.db", "locks.db-shm", "locks.db-wal"]);
    for _ in 0..2 {
        SqliteBackend::remove(SqliteConfig::new(&space.path))
            .await
            .unwrap();
        assert_eq!(names(), [""; 0]);
    }
    assert!(neighbour.exists());
    // Interrupted between the one and the others.
    for name in ["locks.db-wal", "locks.db-shm"] {
        std::fs::write(directory.join(name), "x").unwrap();
    }
    SqliteBackend::remove(SqliteConfig::new(&space.path))
        .await
        .unwrap();
    assert_eq!(names(), [""; 0]);
    let void = backend
        .acquire(&request(session, 2, &["create k"]))
        .await
        .unwrap();
    assert_eq!(void, Acquired::Void, "its locks are lost");
}

#[tokio::test]
async fn what_is_no_file_of_ours_is_not_removed() {
    let space = Space::new();
    let other = space.directory.path().join("other.db");
    let conn = rusqlite::Connection::open(&other).unwrap();
    conn.execute_batch("CREATE TABLE t (x)").unwrap();
    let text = space.directory.path().join("text");
    std::fs::write(&text, "not a database".repeat(100)).unwrap();
    for path in [&other, &text, space.directory.path()] {
        let error = SqliteBackend::remove(SqliteConfig::new(path))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(path.exists());
    }
}
