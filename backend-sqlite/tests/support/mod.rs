//! What the tests share: a fresh file, sessions with rising numbers, claims from short texts.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, ClaimStore, IntentChange, Opened, Ranges, Registered, Renewal, Renewed,
    SessionStore,
};
use lockcore::{
    Busy, Claim, FencingToken, Grant, Intent, Label, LockKey, OwnerId, SessionId, Want,
};
use lockcore_sqlite::{SqliteBackend, SqliteConfig};

/// A fresh file of locks.
pub struct Space {
    pub directory: tempfile::TempDir,
    pub path: PathBuf,
}

impl Space {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        Self { directory, path }
    }

    pub async fn connect(&self) -> Arc<SqliteBackend> {
        SqliteBackend::connect(SqliteConfig::new(&self.path))
            .await
            .unwrap()
    }

    /// Runs statements on the file, as somebody else might.
    pub fn sql(&self, statements: &str) {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        conn.execute_batch(statements).unwrap();
    }

    pub fn count(&self, query: &str) -> i64 {
        let conn = rusqlite::Connection::open(&self.path).unwrap();
        conn.query_row(query, [], |row| row.get(0)).unwrap()
    }

    /// Lets the lease of a session run out.
    pub fn make_due(&self, session: SessionId) {
        self.sql(&format!(
            "UPDATE sessions SET expires_ms = 0 WHERE id = x'{session}'"
        ));
    }
}

pub fn id(number: u128) -> SessionId {
    SessionId::new(number)
}

pub async fn open(backend: &SqliteBackend, number: u128) -> SessionId {
    let label = Label::parse(format!("session {number}")).unwrap();
    let opened = backend.open(id(number), &label, Duration::from_secs(30));
    assert_ne!(opened.await.unwrap(), Opened::Used);
    id(number)
}

/// `create k`, `upsert k`, `share k`, `share/3 k`, `write /p`, `read /p`.
pub fn claim(text: &str) -> Claim {
    let (want, key) = text.split_once(' ').unwrap();
    let want = match want {
        "create" => Want::Create,
        "upsert" => Want::Upsert,
        "share" => Want::Share { limit: None },
        "write" => Want::Write,
        "read" => Want::Read,
        limited => Want::Share {
            limit: NonZeroU32::new(limited.strip_prefix("share/").unwrap().parse().unwrap()),
        },
    };
    Claim::new(LockKey::parse(key).unwrap(), want).unwrap()
}

pub fn claims(texts: &[&str]) -> Vec<Claim> {
    texts.iter().map(|text| claim(text)).collect()
}

pub fn grant(session: SessionId, n: u64) -> Grant {
    Grant { session, n }
}

/// A request under number `n`, by an owner of its own.
pub fn request(session: SessionId, n: u64, texts: &[&str]) -> Acquire {
    Acquire::new(grant(session, n), OwnerId { session, m: n }, claims(texts))
}

pub async fn acquire(
    backend: &SqliteBackend,
    session: SessionId,
    n: u64,
    texts: &[&str],
) -> Acquired {
    backend.acquire(&request(session, n, texts)).await.unwrap()
}

pub async fn granted(
    backend: &SqliteBackend,
    session: SessionId,
    n: u64,
    texts: &[&str],
) -> FencingToken {
    match acquire(backend, session, n, texts).await {
        Acquired::Acquired(token) => token,
        other => panic!("{texts:?} not granted: {other:?}"),
    }
}

pub async fn refused(backend: &SqliteBackend, session: SessionId, n: u64, texts: &[&str]) -> Busy {
    match acquire(backend, session, n, texts).await {
        Acquired::Busy(busy) => busy,
        other => panic!("{texts:?} not refused: {other:?}"),
    }
}

pub async fn release(backend: &SqliteBackend, session: SessionId, n: u64, texts: &[&str]) {
    backend
        .release(grant(session, n), &claims(texts))
        .await
        .unwrap();
}

pub fn renewal(seq: u64, retired: &str, intent: IntentChange) -> Renewal {
    let retired: Ranges = retired.parse().unwrap();
    Renewal::new(seq, retired, intent)
}

pub fn intent(text: &str) -> IntentChange {
    IntentChange::Put(Registered {
        token: FencingToken::new(5).unwrap(),
        intent: Intent::new(text).unwrap(),
    })
}

pub async fn renew(
    backend: &SqliteBackend,
    session: SessionId,
    seq: u64,
    retired: &str,
    change: IntentChange,
) -> Renewed {
    backend
        .renew(session, &renewal(seq, retired, change))
        .await
        .unwrap()
}
