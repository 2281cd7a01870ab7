//! `ClaimStore` on a file.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::time::Duration;

use lockcore::backend::{Acquired, ClaimStore, End, IntentChange, SessionStore, Sweep, Wakeups};
use lockcore::limits::MAX_OWN_BELOW;
use lockcore::{Claim, ErrorKind, LockPath, Mode, OwnerId};
use support::*;
use tokio::time::timeout;

#[tokio::test]
async fn what_is_listed_has_an_end() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let keys: Vec<String> = (10..30).map(|n| format!("upsert k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    granted(&backend, one, 1, &keys).await;
    let busy = refused(&backend, two, 1, &keys).await;
    assert_eq!((busy.refused().len(), busy.more), (16, true));
    let busy = refused(&backend, two, 2, &keys[..16]).await;
    assert_eq!((busy.refused().len(), busy.more), (16, false));
    for (key, below) in [("share s", "upsert s"), ("read /s/x", "write /s")] {
        for n in 0..16 {
            granted(&backend, one, 100 + n, &[key]).await;
        }
        let busy = refused(&backend, two, 3, &[below]).await;
        let first = busy.first();
        assert_eq!((first.holders.len(), first.more), (16, false), "{key}");
        granted(&backend, one, 116, &[key]).await;
        let busy = refused(&backend, two, 4, &[below]).await;
        let first = busy.first();
        assert_eq!((first.holders.len(), first.more), (16, true), "{key}");
    }
    let busy = refused(&backend, two, 5, &["share/17 s"]).await;
    assert_eq!((busy.first().holders.len(), busy.first().more), (16, true));
    granted(&backend, two, 6, &["share/18 s"]).await;
}

#[tokio::test]
async fn holders_are_listed_where_they_stand_in_the_way() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, one, 1, &["write /a/b/c", "write /a/b/d"]).await;
    let busy = refused(&backend, two, 1, &["write /a"]).await;
    let holders = &busy.first().holders;
    assert_eq!(holders.len(), 1, "one grant is in the way once");
    assert_eq!((holders[0].key.as_str(), holders[0].mode), ("/a", Mode::IX));
    let busy = refused(&backend, two, 2, &["read /a/b/c/d/e"]).await;
    let holders = &busy.first().holders;
    assert_eq!(
        (holders[0].key.as_str(), holders[0].mode),
        ("/a/b/c", Mode::X)
    );
    granted(&backend, one, 3, &["read /q"]).await;
    let below = ["write /q/1", "read /q/2", "write /q/3"];
    let busy = refused(&backend, two, 4, &below).await;
    let keys: Vec<&str> = busy
        .refused()
        .iter()
        .map(|refused| refused.claim.key().as_str())
        .collect();
    assert_eq!(keys, ["/q/1", "/q/3"], "one holder refuses several claims");
    granted(&backend, one, 2, &["read /r/x"]).await;
    let busy = refused(&backend, two, 3, &["write /r"]).await;
    assert_eq!(busy.first().holders[0].mode, Mode::IS);
}

#[tokio::test]
async fn what_is_over_or_dead_is_void_and_does_not_count() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, one, 1, &["create k"]).await;
    renew(&backend, one, 1, "1-1", IntentChange::Keep).await;
    assert_eq!(
        acquire(&backend, one, 1, &["create k"]).await,
        Acquired::Void
    );
    granted(&backend, two, 1, &["create k"]).await;
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key <> ''"),
        1,
        "cleared away"
    );
    backend.end(&[two], End::Revoke).await.unwrap();
    assert_eq!(
        acquire(&backend, two, 2, &["create k"]).await,
        Acquired::Void
    );
    granted(&backend, one, 2, &["create k"]).await;
    assert_eq!(
        acquire(&backend, id(9), 1, &["create x"]).await,
        Acquired::Void
    );
}

#[tokio::test]
async fn a_refused_acquire_still_ends_sessions_that_are_due() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let three = open(&backend, 3).await;
    granted(&backend, one, 1, &["upsert a"]).await;
    granted(&backend, two, 1, &["upsert b"]).await;
    space.make_due(one);
    let busy = refused(&backend, three, 1, &["upsert a", "upsert b"]).await;
    assert_eq!(busy.first().claim.key().as_str(), "b");
    assert_eq!(
        space.count("SELECT count(*) FROM sessions WHERE life = 'dead'"),
        1
    );
    // The mark was written: the lease is not what decides any more.
    space.sql("UPDATE sessions SET expires_ms = 9000000000000000");
    granted(&backend, three, 2, &["upsert a"]).await;
}

#[tokio::test]
async fn a_holder_without_a_session_is_dead_and_leaves_a_tombstone() {
    let space = Space::new();
    let backend = space.connect().await;
    space.sql(
        "INSERT INTO holders (key, session, n, m, want, since_ms)
         VALUES ('k', x'00000000000000000000000000000009', 1, 1, 'create', 0)",
    );
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["create k"]).await;
    assert_eq!(
        space.count("SELECT count(*) FROM sessions WHERE life = 'dead'"),
        1
    );
    let label = lockcore::Label::parse("").unwrap();
    let opened = backend.open(id(9), &label, std::time::Duration::from_secs(9));
    assert_eq!(opened.await.unwrap(), lockcore::backend::Opened::Used);
}

#[tokio::test]
async fn release_removes_its_own_grant_and_nothing_else() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, one, 1, &["share k", "share l"]).await;
    granted(&backend, one, 2, &["share k"]).await;
    granted(&backend, two, 1, &["share k"]).await;
    release(&backend, one, 1, &["share k"]).await;
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key = 'k'"),
        2
    );
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key = 'l'"),
        1
    );
}

#[tokio::test]
async fn confirm_wants_every_claim_and_a_living_session() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let confirm = async |n, texts: &[&str]| {
        let confirmed = backend.confirm(grant(session, n), &claims(texts)).await;
        confirmed.unwrap()
    };
    granted(&backend, session, 1, &["upsert a", "upsert b"]).await;
    assert!(confirm(1, &["upsert a", "upsert b"]).await);
    assert!(!confirm(1, &["upsert a", "upsert c"]).await);
    assert!(!confirm(2, &["upsert a"]).await);
    assert!(!confirm(1, &["share a"]).await, "it is held in another way");
    release(&backend, session, 1, &["upsert b"]).await;
    assert!(!confirm(1, &["upsert a", "upsert b"]).await);
    assert!(confirm(1, &["upsert a"]).await);
    renew(&backend, session, 1, "1-1", IntentChange::Keep).await;
    assert!(!confirm(1, &["upsert a"]).await);
    granted(&backend, session, 2, &["upsert a"]).await;
    backend.end(&[session], End::Close).await.unwrap();
    assert!(!confirm(2, &["upsert a"]).await);
}

#[tokio::test]
async fn sweeping_removes_what_does_not_count_and_nothing_else() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let three = open(&backend, 3).await;
    for (session, keys) in [
        (one, ["upsert a", "upsert b"]),
        (two, ["upsert c", "upsert d"]),
    ] {
        granted(&backend, session, 1, &keys).await;
        granted(&backend, session, 2, &["share s"]).await;
    }
    granted(&backend, three, 1, &["upsert e"]).await;
    renew(&backend, three, 1, "", intent("x")).await;
    space.sql(
        "INSERT INTO holders (key, session, n, m, want, since_ms)
         VALUES ('g', x'00000000000000000000000000000001', 1, 1, 'mystery', 0)",
    );
    let sweep = async |which, limit| backend.sweep(which, limit).await.unwrap();
    assert_eq!(sweep(Sweep::Session(one), 100).await.removed, 0);
    renew(&backend, one, 1, "2-2", IntentChange::Keep).await;
    assert_eq!(sweep(Sweep::Session(one), 100).await.removed, 1);
    backend.end(&[one, three], End::Close).await.unwrap();
    let swept = sweep(Sweep::Session(one), 1).await;
    assert_eq!((swept.removed, swept.more), (1, true));
    let swept = sweep(Sweep::Session(one), 100).await;
    assert_eq!((swept.removed, swept.more), (1, false));
    space.make_due(two);
    let swept = sweep(Sweep::All, 100).await;
    assert_eq!(
        (swept.removed, swept.more),
        (3, false),
        "a due session has died"
    );
    let left = space.count("SELECT count(*) FROM holders WHERE key IN ('e', 'g')");
    assert_eq!(left, 2, "abandoned and unreadable ones stay");
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key <> ''"),
        2
    );
}

#[tokio::test]
async fn tombstones_are_kept_for_a_day() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let held = open(&backend, 3).await;
    granted(&backend, held, 1, &["upsert a"]).await;
    renew(&backend, held, 1, "", intent("x")).await;
    backend.end(&[one, two, held], End::Close).await.unwrap();
    space.sql(
        "UPDATE sessions SET ended_ms = ended_ms - 24 * 3600 * 1000 - 1
         WHERE id <> x'00000000000000000000000000000002'",
    );
    backend.sweep(Sweep::All, 100).await.unwrap();
    let ids = space.count("SELECT sum(id = x'00000000000000000000000000000001') FROM sessions");
    assert_eq!((ids, space.count("SELECT count(*) FROM sessions")), (0, 2));
}

#[tokio::test]
async fn tokens_go_on_above_the_counter_and_the_clock() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let first = granted(&backend, session, 1, &["upsert k"]).await;
    assert!(
        first.get() > 1_600_000_000_000_000,
        "microseconds since 1970"
    );
    space.sql("UPDATE holders SET m = 8000000000000000000 WHERE key = ''");
    let ahead = granted(&backend, session, 2, &["upsert l"]).await;
    assert_eq!(ahead.get(), 8_000_000_000_000_000_001);
    space.sql("UPDATE holders SET m = 0 WHERE key = ''");
    assert!(granted(&backend, session, 3, &["upsert m"]).await > first);
    space.sql("DELETE FROM holders WHERE key = ''");
    let error = backend.acquire(&request(session, 4, &["upsert n"])).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        space.count("SELECT count(*) FROM holders WHERE key = 'n'"),
        0,
        "rolled back"
    );
}

/// One transaction writes at a time, so that it looks at so much and no more.
#[tokio::test]
async fn who_holds_very_much_below_a_path_is_refused_that_path() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let owned = |n: u64, claims: Vec<Claim>| {
        let mut request = request(session, n, &["write /a"]);
        request.owner = OwnerId { session, m: 1 };
        request.claims = claims;
        request
    };
    let write = |path: String| Claim::write(LockPath::parse(&path).unwrap());
    let all = |n| owned(n, vec![write("/a".into())]);
    let per_step = 2_000;
    for n in 0..MAX_OWN_BELOW / per_step {
        let claims = (0..per_step).map(|key| write(format!("/a/{n}/{key:04}")));
        let answer = backend
            .acquire(&owned(n as u64 + 1, claims.collect()))
            .await;
        assert!(matches!(answer, Ok(Acquired::Acquired(_))), "{answer:?}");
    }
    let answer = backend.acquire(&all(100)).await;
    assert!(matches!(answer, Ok(Acquired::Acquired(_))), "{answer:?}");
    release(&backend, session, 100, &["write /a"]).await;
    let more = backend
        .acquire(&owned(101, vec![write("/a/one more".into())]))
        .await;
    assert!(matches!(more, Ok(Acquired::Acquired(_))), "{more:?}");
    let error = backend.acquire(&all(102)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert_eq!(
        error.to_string(),
        "sqlite: acquire: over a limit: too many paths are held below: hold the path above them first"
    );
    // Nothing is written.
    let written = space.count("SELECT count(*) FROM holders WHERE key = '/a'");
    assert_eq!(written, 0);
}

/// In a file each commit of another process is a change, and what it was is not said.
#[tokio::test]
async fn who_waits_behind_many_is_not_woken_by_what_others_commit() {
    let space = Space::new();
    let (backend, other) = (space.connect().await, space.connect().await);
    let holder = open(&backend, 1_000).await;
    granted(&backend, holder, 1, &["upsert k"]).await;
    for n in 1..=100 {
        let session = open(&backend, n).await;
        let mut waits = request(session, 1, &["upsert k"]);
        waits.waits = true;
        let answer = backend.acquire(&waits).await.unwrap();
        assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
    }
    let stranger = open(&other, 2_000).await;
    let mut changed = backend.watch(&claims(&["upsert k"])).await.unwrap();
    for n in 1..=20 {
        granted(&other, stranger, n, &[&format!("upsert other{n}")]).await;
        let woken = timeout(Duration::from_millis(10), &mut changed).await;
        assert!(woken.is_err(), "by what another process was granted");
    }
    // All the others stand in front of the holder.
    release(&other, holder, 1, &["upsert k"]).await;
    let woken = timeout(Duration::from_secs(10), changed).await;
    assert!(woken.is_ok());
}

/// What its own owner holds is not in its way, and is all that is followed.
#[tokio::test]
async fn who_holds_much_below_a_path_is_woken_by_whoever_is_behind_that() {
    let space = Space::new();
    let (backend, other) = (space.connect().await, space.connect().await);
    let (own, stranger) = (open(&backend, 1).await, open(&other, 2).await);
    let paths: Vec<String> = (0..1_000).map(|n| format!("write /a/{n:04}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    granted(&backend, own, 1, &paths).await;
    granted(&other, stranger, 1, &["write /a/zz"]).await;
    let changed = backend.watch(&claims(&["write /a"])).await.unwrap();
    release(&other, stranger, 1, &["write /a/zz"]).await;
    let woken = timeout(Duration::from_secs(10), changed).await;
    assert!(woken.is_ok());
}
