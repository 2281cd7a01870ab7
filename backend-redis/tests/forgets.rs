//! A server that forgets, under living clients: who is told what, and tokens that rise all the same.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{
    Adopt, End, Incarnation, IntentChange, Opened, Registered, Renewed, SessionStore,
};
use lockcore::{
    FencingToken, Guard, Intent, Label, LockBackend, Locks, LostReason, Released, SessionId,
};
use lockkeeper_servers::Server;
use rustix::process::Signal;
use support::servers::{
    ask, caught_up, follow, has_replicas, node, node_at, port, promote, replica_of, signal, url,
};
use support::steps::{granted, open, renewal, request};
use support::{Place, Space};

/// Longer than a test takes, or a slow machine would end the session that it looks at: whoever is told before is told by
/// a renewal.
const TTL: Duration = Duration::from_secs(60);
/// Longest until something that a renewal brings: those come every third of the TTL.
const TOLD: Duration = Duration::from_secs(45);

async fn client(space: &Space) -> Locks {
    let locks = Locks::builder(space.connect().await as Arc<dyn LockBackend>);
    locks.ttl(TTL).build().unwrap()
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let waits = locks.lock(name).wait(TOLD);
    waits.acquire().await.unwrap()
}

/// Why the guard is lost, long before its deadline.
async fn told(guard: &Guard) -> LostReason {
    let told = tokio::time::timeout(TOLD, guard.lost()).await;
    told.expect("a renewal comes every 20 s")
}

fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000
}

/// A primary that was cut off goes on granting to whoever still reaches it.
#[tokio::test]
async fn what_a_new_primary_grants_is_greater_than_what_the_old_one_goes_on_granting() {
    let old = node(&[]).await;
    let new = replica_of(&old, &[]).await;
    let space = Space::at(&Place::of(url(&old)));
    let there = space.connect().await;
    let session = open(&there, 1).await;
    granted(&there, &request(session, 1, &["c k"])).await;
    caught_up(&new, &old).await;
    promote(&new).await;
    let here = space.moved_to(&Place::of(url(&new))).connect().await;
    let second = open(&here, 2).await;
    let mut last = FencingToken::new(1).unwrap();
    for n in 2..100 {
        let key = format!("c k{n}");
        let ours = granted(&here, &request(second, n, &[&key])).await;
        assert!(ours > last);
        last = ours;
        let theirs = granted(&there, &request(session, n, &[&key])).await;
        assert!(theirs < ours, "{n}: the old one has granted {theirs:?}");
    }
    assert!(last.get() < 1 << 57);
}

/// Makes the server another one that has granted nothing yet, as it is when it takes over from one whose last token was
/// drawn just now.
fn takes_over(space: &Space) -> u64 {
    let (seconds, micros): (u64, u64) = space.raw(&mut redis::cmd("TIME")).unwrap();
    let now = seconds * 1_000_000 + micros;
    let mut set = redis::cmd("HSET");
    space
        .raw::<()>(set.arg(space.key("records")).arg("///").arg(now))
        .unwrap();
    let mut change = redis::cmd("DEBUG");
    space.raw::<()>(change.arg("CHANGE-REPL-ID")).unwrap();
    now
}

#[tokio::test]
async fn whoever_meets_a_new_primary_first_raises_its_tokens() {
    let server = node(&[("enable-debug-command", "local")]).await;
    let _replica = replica_of(&server, &[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let left = open(&backend, 2).await;
    let mut registers = renewal(1);
    registers.intent = IntentChange::Put(Registered {
        intent: Intent::new("change").unwrap(),
        token: FencingToken::new(1).unwrap(),
    });
    backend.renew(left, &registers).await.unwrap();
    backend.end(&[left], End::Close).await.unwrap();
    // A session that is opened.
    let now = takes_over(&space);
    let third = SessionId::new(3);
    let opened = backend.open(third, &Label::parse("").unwrap(), TTL).await;
    let Opened::Opened(before) = opened.unwrap() else {
        panic!("nobody has used it");
    };
    let token = granted(&backend, &request(third, 1, &["c a"])).await;
    assert!(token.get() > now + seconds(3_500), "{token:?}");
    // One that goes on.
    let now = takes_over(&space);
    let mut moves = renewal(1);
    moves.incarnation = before;
    let Renewed::Moved(name) = backend.renew(third, &moves).await.unwrap() else {
        panic!("it is another one");
    };
    let mut asks = request(third, 2, &["c b"]);
    asks.incarnation = name;
    let token = granted(&backend, &asks).await;
    assert!(token.get() > now + seconds(3_500), "{token:?}");
    // Once is enough.
    let next = granted(&backend, &request(third, 3, &["c c", "w /p"])).await;
    assert_eq!(next.get(), token.get() + 1);
    // Who recovers what is abandoned.
    let now = takes_over(&space);
    let adopted = backend
        .adopt(left, 0, session, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption();
    let token = adopted.unwrap().token;
    assert!(token.get() > now + seconds(3_500), "{token:?}");
}

/// Everything is gone at once: sessions, grants and the last token.
async fn emptied(space: &Space, locks: &Locks, held: Guard, empty: impl AsyncFnOnce()) {
    let before = held.token();
    empty().await;
    // Whoever comes anew gets it, and the holder is told.
    let others = client(space).await;
    let again = hold(&others, "held").await;
    assert!(again.token() > before, "{:?}", again.token());
    assert!(matches!(
        told(&held).await,
        LostReason::Dead | LostReason::Forgotten
    ));
    assert_eq!(held.release().await.unwrap(), Released::NotHeld);
    assert!(again.is_valid() && again.confirm().await.unwrap());
    let more = hold(locks, "more").await;
    assert!(more.token() > again.token());
}

#[tokio::test]
async fn all_that_is_flushed_is_told_by_a_renewal() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let locks = client(&space).await;
    for _ in 0..2 {
        let held = hold(&locks, "held").await;
        let flush = async || ask(&server, &redis::cmd("FLUSHALL")).await;
        emptied(&space, &locks, held, flush).await;
    }
}

#[tokio::test]
async fn a_restart_without_data_is_told_by_a_renewal() {
    let mut server = Some(node(&[]).await);
    let space = Space::at(&Place::of(url(server.as_ref().unwrap())));
    let locks = client(&space).await;
    for _ in 0..2 {
        let held = hold(&locks, "held").await;
        let restart = async || {
            let at = server.as_ref().unwrap().port().unwrap();
            signal(server.as_ref().unwrap(), Signal::KILL);
            drop(server.take());
            server = Some(node_at(&at, &[]).await);
        };
        emptied(&space, &locks, held, restart).await;
    }
}

/// Whoever opens its session while a server loses nothing is told of what that server loses later.
#[tokio::test]
async fn who_was_covered_when_the_session_was_opened_is_told_all_the_same() {
    let primary = node(&[]).await;
    let (near, far) = (
        replica_of(&primary, &[]).await,
        replica_of(&primary, &[]).await,
    );
    follow(&far, 1).await;
    has_replicas(&primary, 1).await;
    let hosts = [&primary, &near, &far].map(|it| format!("127.0.0.1:{}", port(it)));
    let space = Space::at(&Place {
        url: format!("redis://{}/?replicas=1&timeout_ms=2000", hosts.join(",")),
        admin: url(&far),
    });
    let backend = space.connect().await;
    assert!(backend.info().durability.failover, "by all replicas");
    let (ours, theirs) = (client(&space).await, client(&space).await);
    let (before, other) = (hold(&ours, "before").await, hold(&theirs, "other").await);
    // The other one is back, and is behind again.
    follow(&far, port(&primary)).await;
    has_replicas(&primary, 2).await;
    caught_up(&far, &primary).await;
    follow(&far, 1).await;
    let forgotten = hold(&ours, "forgotten").await;
    signal(&primary, Signal::KILL);
    promote(&far).await;
    follow(&near, port(&far)).await;
    has_replicas(&far, 1).await;
    let again = hold(&theirs, "forgotten").await;
    assert!(again.token() > forgotten.token());
    let told_both = async { tokio::join!(told(&before), told(&forgotten)) };
    assert_eq!(
        told_both.await,
        (LostReason::Forgotten, LostReason::Forgotten)
    );
    assert!(other.is_valid() && other.confirm().await.unwrap());
    drop(space.moved_to(&Place::of(url(&far))));
}

/// Writes all that there is to its folder, and takes a copy of that.
async fn backed_up(server: &Server, folder: &Path, copy: &Path) {
    ask::<()>(server, &redis::cmd("SAVE")).await;
    copied(folder, copy);
}

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copied(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[tokio::test]
async fn an_older_state_that_is_restored_is_told_by_a_renewal() {
    an_older_state_is_told(&[]).await;
}

/// Also where the server itself loses nothing.
#[tokio::test]
async fn an_older_state_of_a_log_that_is_restored_is_told_by_a_renewal() {
    an_older_state_is_told(&[("appendonly", "yes"), ("appendfsync", "always")]).await;
}

async fn an_older_state_is_told(settings: &[(&str, &str)]) {
    let data = tempfile::tempdir().unwrap();
    let (live, copy) = (data.path().join("live"), data.path().join("copy"));
    std::fs::create_dir(&live).unwrap();
    let dir = live.display().to_string();
    let settings = [settings, &[("dir", dir.as_str())]].concat();
    let server = node(&settings).await;
    let at = server.port().unwrap();
    let space = Space::at(&Place::of(url(&server)));
    let (ours, theirs) = (client(&space).await, client(&space).await);
    let kept = hold(&theirs, "kept").await;
    let (first, given_back) = (hold(&ours, "first").await, hold(&ours, "given back").await);
    backed_up(&server, &live, &copy).await;
    // What comes now will be forgotten: a grant, and a release.
    let forgotten = hold(&ours, "forgotten").await;
    assert_eq!(given_back.release().await.unwrap(), Released::Released);
    let last = forgotten.token();
    signal(&server, Signal::KILL);
    drop(server);
    std::fs::remove_dir_all(&live).unwrap();
    copied(&copy, &live);
    let server = node_at(&at, &settings).await;
    // Of whoever has lost one all are lost; of the others none, if no renewal was, either.
    let told_both = async { tokio::join!(told(&first), told(&forgotten)) };
    assert_eq!(
        told_both.await,
        (LostReason::Forgotten, LostReason::Forgotten)
    );
    assert!(kept.confirm().await.unwrap() && kept.is_valid());
    let again = hold(&theirs, "forgotten").await;
    assert!(again.token() > last);
    assert_eq!(forgotten.release().await.unwrap(), Released::NotHeld);
    for guard in [kept, again] {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    drop(server);
}

#[tokio::test]
async fn an_older_state_that_is_restored_beside_it_grants_greater_tokens() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().display().to_string();
    let server = node(&[("dir", dir.as_str())]).await;
    let space = Space::at(&Place::of(url(&server)));
    let locks = client(&space).await;
    let _before = hold(&locks, "before").await;
    let beside = tempfile::tempdir().unwrap();
    backed_up(&server, data.path(), beside.path()).await;
    let held = hold(&locks, "held").await;
    let dir = beside.path().display().to_string();
    let other = node(&[("dir", dir.as_str())]).await;
    let there = client(&space.moved_to(&Place::of(url(&other)))).await;
    let theirs = hold(&there, "held").await;
    // As after every failover that forgot something, two hold it until the clients of one go to the other.
    assert!(theirs.token() > held.token());
    let later = hold(&locks, "later").await;
    assert!(theirs.token() > later.token());
    assert!(held.confirm().await.unwrap() && theirs.confirm().await.unwrap());
}
