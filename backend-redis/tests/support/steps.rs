//! Single steps of a session, by the traits.

use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, ClaimStore, IntentChange, Opened, Ranges, Renewal, SessionStore,
};
use lockcore::{Claim, ErrorKind, FencingToken, Grant, Label, LockKey, OwnerId, SessionId, Want};
use lockcore_redis::RedisBackend;

pub async fn open(backend: &RedisBackend, number: u128) -> SessionId {
    let session = SessionId::new(number);
    let label = Label::parse("test").unwrap();
    let opened = backend
        .open(session, &label, Duration::from_secs(600))
        .await;
    assert_ne!(opened.unwrap(), Opened::Used);
    session
}

/// `c k`, `u k`, `s k`, `w /p`, `r /p`.
pub fn claim(text: &str) -> Claim {
    let (want, key) = text.split_once(' ').unwrap();
    let want = match want {
        "c" => Want::Create,
        "u" => Want::Upsert,
        "s" => Want::Share { limit: None },
        "w" => Want::Write,
        _ => Want::Read,
    };
    Claim::new(LockKey::parse(key).unwrap(), want).unwrap()
}

pub fn request(session: SessionId, n: u64, claims: &[&str]) -> Acquire {
    Acquire::new(
        Grant { session, n },
        OwnerId { session, m: n },
        claims.iter().map(|text| claim(text)).collect(),
    )
}

pub async fn granted(backend: &RedisBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{request:?}: {other:?}"),
    }
}

pub async fn kind_of_acquire(backend: &RedisBackend, request: &Acquire) -> ErrorKind {
    backend.acquire(request).await.unwrap_err().kind()
}

pub fn renewal(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}
