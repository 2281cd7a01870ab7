//! A store that is restored from a snapshot, or comes back without data, under those who use it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{
    Acquired, ClaimStore as _, Incarnation, Opened, Ranges, Renewal, Renewed, SessionStore as _,
    Stood,
};
use lockcore::{Attempt, ErrorKind, Label, Locks, LostReason, SessionId};
use lockcore_etcd::EtcdBackend;
use lockkeeper_servers::etcd::Member;
use tempfile::TempDir;

use crate::steps::{TTL, ask, keep, opened, token, url};
use crate::support::{Space, client, etcdutl, member, restarted, until, waited};

/// Another name of the cluster than it has by itself.
const RENAMED: [&str; 2] = ["--initial-cluster-token", "restored"];
/// Revisions beyond all that the store may have had.
const BUMPED: [&str; 3] = ["--bump-revision", "1000000", "--mark-compacted"];

/// The server's state, as a file.
async fn snapshot(url: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = client(url).await.snapshot().await.unwrap();
    let mut all = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        all.extend_from_slice(part.blob());
    }
    std::fs::write(folder.path().join("snapshot"), all).unwrap();
    folder
}

/// The same server, with the state of the snapshot, or with none.
async fn restored(server: Member, snapshot: Option<(&TempDir, &[&str])>) -> Member {
    let prepared = tempfile::tempdir().unwrap();
    let data = prepared.path().join("data");
    match snapshot {
        Some((snapshot, options)) => restore(&snapshot.path().join("snapshot"), &data, options),
        None => std::fs::create_dir(&data).unwrap(),
    }
    let server = waited(move || {
        let mut server = server;
        server.stop();
        server.put_back(prepared.path()).unwrap();
        server
    });
    restarted(server.await).await
}

fn restore(snapshot: &Path, data: &Path, options: &[&str]) {
    let mut command = Command::new(etcdutl());
    command.args(["snapshot", "restore"]).arg(snapshot);
    command.arg("--data-dir").arg(data).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// A session that lives, in this incarnation of the store.
async fn opened_in(backend: &EtcdBackend) -> (SessionId, Incarnation) {
    let session = SessionId::new(rand::random());
    let label = Label::parse("test").unwrap();
    match backend.open(session, &label, TTL).await.unwrap() {
        Opened::Opened(incarnation) if incarnation.is_known() => (session, incarnation),
        other => panic!("{other:?}"),
    }
}

/// Renews until there is an answer, with a new number each time.
async fn answer(
    backend: &EtcdBackend,
    session: SessionId,
    seq: &mut u64,
    renewal: impl Fn(u64) -> Renewal,
) -> Renewed {
    until("a renewal is answered", async || {
        *seq += 1;
        match backend.renew(session, &renewal(*seq)).await {
            Ok(renewed) => Some(renewed),
            Err(error) => {
                let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                None
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_restored_store_says_so_or_is_taken_for_the_one_before() {
    for (renamed, bumped) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut server = member(&[]).await;
        let space = Space::at(url(&server));
        let backend = space.connect().await;
        let (session, before) = opened_in(&backend).await;
        let kept = ask(session, 1, "kept");
        token(&backend, &kept).await;
        let renewal = |acknowledged, incarnation, granted: &[u64]| {
            let granted = Ranges::of(granted.iter().copied());
            move |seq| {
                keep(seq)
                    .after(acknowledged)
                    .within(incarnation, granted.clone())
            }
        };
        let mut seq = 1;
        let first = backend.renew(session, &renewal(0, before, &[])(seq)).await;
        assert_eq!(first.unwrap(), Renewed::Living);
        let snapshot = snapshot(&space.server).await;
        let forgotten = ask(session, 2, "forgotten");
        let last = token(&backend, &forgotten).await;
        let mut options: Vec<&str> = Vec::new();
        options.extend(RENAMED.iter().filter(|_| renamed));
        options.extend(BUMPED.iter().filter(|_| bumped));
        server = restored(server, Some((&snapshot, &options))).await;

        let told = answer(&backend, session, &mut seq, renewal(1, before, &[])).await;
        let other = space.connect().await;
        let rival = opened(&other).await;
        if !renamed && bumped {
            // Nothing tells it from the one before but what is not there.
            assert_eq!(told, Renewed::Living, "{options:?}");
            assert!(
                !backend
                    .confirm(forgotten.grant, &forgotten.claims)
                    .await
                    .unwrap()
            );
            let stood = backend.release(forgotten.grant, &forgotten.claims).await;
            assert_eq!(stood.unwrap(), Stood::Absent);
        } else {
            let Renewed::Moved(now) = told else {
                panic!("{options:?}: {told:?}");
            };
            assert_ne!(now, before);
            // What is meant for the one before is not done.
            let late = ask(session, 3, "late");
            let asked = backend.acquire(&late.clone().within(before)).await.unwrap();
            assert_eq!(asked, Acquired::Moved);
            let all = answer(&backend, session, &mut seq, renewal(1, now, &[1, 2])).await;
            assert_eq!(all, Renewed::Forgotten, "{options:?}");
            let left = answer(&backend, session, &mut seq, renewal(1, now, &[1])).await;
            assert_eq!(left, Renewed::Living, "{options:?}");
            token(&backend, &late.within(now)).await;
        }
        assert!(backend.confirm(kept.grant, &kept.claims).await.unwrap());
        let next = token(&other, &ask(rival, 1, "forgotten")).await;
        assert!(next > last, "{options:?}: {next} after {last}");
        drop(server);
    }
}

#[tokio::test]
async fn a_renewal_that_was_lost_tells_in_any_case() {
    let mut server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (session, here) = opened_in(&backend).await;
    let snapshot = snapshot(&space.server).await;
    let mut seq = 1;
    let renewal = |seq| keep(seq).after(seq.min(1)).within(here, Ranges::EMPTY);
    let first = keep(seq).within(here, Ranges::EMPTY);
    assert_eq!(
        backend.renew(session, &first).await.unwrap(),
        Renewed::Living
    );
    server = restored(server, Some((&snapshot, &BUMPED))).await;
    let told = answer(&backend, session, &mut seq, renewal).await;
    assert_eq!(told, Renewed::Forgotten);
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn guards_are_told_what_a_restored_store_has_forgotten() {
    let mut server = member(&[]).await;
    let space = Space::at(url(&server));
    let locks = async || {
        let backend = space.connect().await as Arc<dyn lockcore::LockBackend>;
        Locks::builder(backend).ttl(TTL).build().unwrap()
    };
    let [keeps, loses] = [locks().await, locks().await];
    let kept = keeps.lock("kept").acquire().await.unwrap();
    let early = loses.lock("early").acquire().await.unwrap();
    let snapshot = snapshot(&space.server).await;
    let forgotten = loses.lock("forgotten").acquire().await.unwrap();
    server = restored(server, Some((&snapshot, &RENAMED))).await;
    // Long before the next renewals: by what they ask for next.
    for locks in [&keeps, &loses] {
        let told = async || locks.lock("next").wait(TTL).acquire().await.err();
        let told = until("something is answered", async || match told().await {
            Some(lockcore::AcquireError::Store(_)) => None,
            other => Some(other),
        });
        told.await;
    }
    let lost = async { tokio::join!(early.lost(), forgotten.lost()) };
    let lost = tokio::time::timeout(Duration::from_secs(30), lost).await;
    let reasons = (LostReason::Forgotten, LostReason::Forgotten);
    assert_eq!(lost.expect("they are told"), reasons);
    assert!(kept.is_valid() && kept.confirm().await.unwrap());
    let others = locks().await;
    let next = others.lock("forgotten").wait(TTL).acquire().await.unwrap();
    assert!(next.token() > forgotten.token());

    // And without data nobody has anything, and tokens rise.
    server = restored(server, None).await;
    let token = until("something is granted", async || {
        let again = others.lock("again").try_acquire().await.ok()?;
        match again {
            Attempt::Acquired(guard) => Some(guard.token()),
            Attempt::Busy(_) => None,
        }
    });
    assert!(token.await > next.token());
    let lost = tokio::time::timeout(Duration::from_secs(30), next.lost()).await;
    lost.expect("it is told");
    drop(server);
}
