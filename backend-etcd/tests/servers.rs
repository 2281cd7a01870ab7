//! What servers may refuse, lack or forget. Every test has servers of its own.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod restored;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Client, CompactionOptions, ConnectOptions, GetOptions, Txn, TxnOp,
};
use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore as _, End, Filter, Inspect as _, IntentChange, Namespace, Opened,
    Ranges, Renewal, Renewed, SessionStore as _, Stood, Sweep, Wakeups as _,
};
use lockcore::limits::MAX_WAITERS;
use lockcore::{
    Claim, Error, ErrorKind, FencingToken, Grant, Label, LockBackend as _, LockKey, Mode, OwnerId,
    SessionId, Want,
};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockkeeper_servers::etcd::{ETCD_3_4, ETCD_3_6, Member};
use rustix::process::{Pid, Signal, kill_process};
use support::{
    Secured, Space, artefacts, certificates, client, given, member, restarted, until, waited,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(600);

fn url(member: &Member) -> String {
    member.url().replacen("http", "etcd", 1)
}

async fn connect(url: &str) -> Result<Arc<EtcdBackend>, Error> {
    EtcdBackend::connect(EtcdConfig::parse(url).unwrap()).await
}

async fn refused(url: &str) -> Error {
    connect(url).await.expect_err("it is refused")
}

/// A session that lives.
async fn opened(backend: &EtcdBackend) -> SessionId {
    let session = SessionId::new(rand::random());
    let label = Label::parse("test").unwrap();
    let opened = backend.open(session, &label, TTL).await.unwrap();
    assert_ne!(opened, Opened::Used);
    session
}

fn asks(session: SessionId, n: u64, keys: &[String]) -> Acquire {
    let claim = |key: &String| Claim::new(LockKey::parse(key).unwrap(), Want::Upsert).unwrap();
    let mut claims: Vec<Claim> = keys.iter().map(claim).collect();
    claims.sort_by(|a, b| a.key().cmp(b.key()));
    Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims)
}

fn ask(session: SessionId, n: u64, key: &str) -> Acquire {
    asks(session, n, &[key.to_owned()])
}

fn keep(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}

async fn token(backend: &EtcdBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{other:?}"),
    }
}

/// Renews until there is an answer. Says the number of the renewal that was acknowledged.
async fn renewed(backend: &EtcdBackend, session: SessionId, mut seq: u64) -> u64 {
    until("a renewal is answered", async || {
        seq += 1;
        match backend.renew(session, &keep(seq)).await {
            Ok(renewed) => {
                assert_eq!(renewed, Renewed::Living);
                Some(seq)
            }
            Err(error) => {
                let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                None
            }
        }
    })
    .await
}

fn signal(member: &Member, signal: Signal) {
    let pid = i32::try_from(member.pid()).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap(), signal).unwrap();
    // Its threads stop one after the other, and those that run may still answer.
    let stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
        stat.is_ok_and(|stat| stat.contains(") T "))
    };
    let threads = format!("/proc/{}/task", member.pid());
    while signal == Signal::STOP && !std::fs::read_dir(&threads).unwrap().all(stopped) {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn users_are_known_and_held_to_their_rights() {
    let server = Secured::start().await;
    for (user, kind) in [
        ("lockkeeper:other", ErrorKind::Unauthorized),
        ("nobody:s3cret", ErrorKind::Unauthorized),
    ] {
        let error = refused(&format!("{}&namespace=t1", server.url(user))).await;
        assert_eq!(error.kind(), kind, "{error}");
    }
    let host = server.member.url().replacen("https", "etcds", 1);
    let nobody = format!("{host}/?ca={}&namespace=t1", server.ca);
    assert_eq!(refused(&nobody).await.kind(), ErrorKind::Unauthorized);
    // Another namespace than those that begin as it may.
    let elsewhere = refused(&format!("{}&namespace=other", server.least())).await;
    assert_eq!(elsewhere.kind(), ErrorKind::Unauthorized, "{elsewhere}");

    let backend = connect(&format!("{}&namespace=t1", server.least()))
        .await
        .unwrap();
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    let mut admin = server.admin().await;
    admin
        .user_revoke_role("lockkeeper", "lockkeeper")
        .await
        .unwrap();
    let errors = [
        backend
            .acquire(&ask(session, 2, "b"))
            .await
            .map(drop)
            .unwrap_err(),
        backend
            .renew(session, &keep(1))
            .await
            .map(drop)
            .unwrap_err(),
        backend.release(held.grant, &held.claims).await.unwrap_err(),
        backend
            .confirm(held.grant, &held.claims)
            .await
            .map(drop)
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    }
    admin
        .user_grant_role("lockkeeper", "lockkeeper")
        .await
        .unwrap();
    assert_eq!(
        backend.renew(session, &keep(2)).await.unwrap(),
        Renewed::Living
    );
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
}

#[tokio::test]
async fn a_namespace_is_removed_and_its_neighbours_are_not() {
    let server = Secured::start().await;
    let config = |namespace: &str| {
        let url = format!("{}&namespace={namespace}", server.least());
        EtcdConfig::parse(&url).unwrap()
    };
    let [ours, before, behind] = ["t1", "t", "t1-"].map(config);
    let backend = EtcdBackend::connect(ours.clone()).await.unwrap();
    let session = opened(&backend).await;
    token(&backend, &ask(session, 1, "a")).await;
    let mut others = Vec::new();
    for neighbour in [before, behind] {
        let backend = EtcdBackend::connect(neighbour).await.unwrap();
        let held = ask(opened(&backend).await, 1, "a");
        token(&backend, &held).await;
        others.push((backend, held));
    }
    // More than is removed at once.
    let mut admin = server.admin().await;
    for hundred in 0..120 {
        let put = |n| TxnOp::put(format!("t1/lock/k{hundred}-{n}\0v2"), "{}", None);
        let all: Vec<TxnOp> = (0..100).map(put).collect();
        admin.txn(Txn::new().and_then(all)).await.unwrap();
    }
    let left = async |mut admin: etcd_client::Client| {
        let all = GetOptions::new().with_prefix().with_count_only();
        admin.get("t1/", Some(all)).await.unwrap().count()
    };
    assert!(left(admin.clone()).await > 12_000);
    for _ in 0..2 {
        EtcdBackend::remove(ours.clone()).await.unwrap();
        assert_eq!(left(admin.clone()).await, 0);
    }
    for (backend, held) in others {
        assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    }
    assert_eq!(
        backend.renew(session, &keep(1)).await.unwrap(),
        Renewed::Dead
    );

    let error = EtcdBackend::remove(config("other")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    admin.put("t2/meta", "lockkeeper 3 x", None).await.unwrap();
    let error = EtcdBackend::remove(config("t2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_server_that_forgets_who_we_are_is_told_again() {
    let mut server = Secured::start().await;
    let [by_url, by_client] = both_ways(&server).await;
    let sessions = [opened(&by_url).await, opened(&by_client).await];
    // The names by which it knows us are in its memory.
    server.member = restarted(server.member).await;
    renewed(&by_url, sessions[0], 1).await;
    renewed(&by_client, sessions[1], 1).await;
}

/// A backend of the user with the least rights by its URL, and one by a client that the program has; each with a namespace
/// of its own.
async fn both_ways(server: &Secured) -> [Arc<EtcdBackend>; 2] {
    let by_url = connect(&format!("{}&namespace=t1", server.least())).await;
    let own = EtcdConfig::with_client(&client(&server.least()).await);
    let own = own.namespace(Namespace::parse("t2").unwrap());
    [by_url.unwrap(), EtcdBackend::connect(own).await.unwrap()]
}

#[tokio::test]
async fn a_client_of_the_program_has_its_own_credentials() {
    let own = client(&given()).await;
    let config = || EtcdConfig::with_client(&own);
    for config in [
        config().password("u", "secret"),
        config().ca("/ca.pem"),
        config().certificate("/cert.pem", "/key.pem"),
    ] {
        let error = EtcdBackend::connect(config.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!format!("{error:?} {config:?}").contains("secret"));
    }
}

/// Where the server signs the names that it gives out, none of them is good any more after a change of users or roles.
#[tokio::test]
async fn a_change_of_users_cuts_nobody_off() {
    for version in [&ETCD_3_6, &ETCD_3_4] {
        let server = Secured::signing(version).await;
        let mut changes = 0;
        // Each by a client of its own: the administrator's name is as old afterwards.
        let mut changed = async || {
            changes += 1;
            let role = format!("role{changes}");
            server.admin().await.role_add(role).await.unwrap();
        };
        for backend in both_ways(&server).await {
            is_not_cut_off(backend, &mut changed).await;
        }
    }
}

async fn is_not_cut_off(backend: Arc<EtcdBackend>, changed: &mut impl AsyncFnMut()) {
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    for seq in 1..4 {
        changed().await;
        let renewed = backend.renew(session, &keep(seq)).await.unwrap();
        assert_eq!(renewed, Renewed::Living);
    }
    changed().await;
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    changed().await;
    let watch = backend.watch(&held.claims).await.unwrap();
    changed().await;
    backend.release(held.grant, &held.claims).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(5), watch).await;
    told.expect("it is told");
    changed().await;
    token(&backend, &ask(session, 2, "a")).await;
    // And many at once.
    changed().await;
    let many = (3..40).map(|n| {
        let (backend, request) = (Arc::clone(&backend), ask(session, n, &format!("k{n}")));
        async move { token(&backend, &request).await }
    });
    many.collect::<JoinSet<_>>().join_all().await;
}

#[tokio::test]
async fn tls_takes_the_authority_that_is_named_and_no_other() {
    let server = Secured::start().await;
    let other = tempfile::tempdir().unwrap();
    let [ca, ..] = certificates(other.path(), 1);
    let named = server.least().replace(&server.ca, &ca);
    for url in [named, server.least().split('?').next().unwrap().to_owned()] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let missing = server.least().replace(&server.ca, "/nonexistent");
    assert_eq!(refused(&missing).await.kind(), ErrorKind::Config);
    let plain = server.member.url().replacen("https", "etcd", 1);
    let error = refused(&format!("{plain}/?timeout_ms=2000")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_certificate_that_is_over_is_refused_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(folder.path(), -1);
    let server = member(&[("cert-file", &cert), ("key-file", &key)]).await;
    let url = server.url().replacen("https", "etcds", 1);
    let error = refused(&format!("{url}/?ca={ca}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // And one of ours, by a server that asks for it.
    let (good, bad) = (tempfile::tempdir().unwrap(), folder);
    let [ca, cert, key] = certificates(good.path(), 1);
    let server = member(&[
        ("cert-file", &cert),
        ("key-file", &key),
        ("trusted-ca-file", &ca),
        ("client-cert-auth", "true"),
    ])
    .await;
    let url = server.url().replacen("https", "etcds", 1);
    let ours = |folder: &Path| {
        let at = |name: &str| folder.join(name).display().to_string();
        format!(
            "{url}/?ca={ca}&cert={}&key={}&timeout_ms=2000",
            at("cert.pem"),
            at("key.pem")
        )
    };
    let error = refused(&ours(bad.path())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = refused(&format!("{url}/?ca={ca}&timeout_ms=2000")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // As long as a slow machine needs.
    let patient = ours(good.path()).replace("&timeout_ms=2000", "&timeout_ms=30000");
    connect(&patient).await.unwrap();
}

#[tokio::test]
async fn a_user_where_the_server_has_none() {
    let server = member(&[]).await;
    let url = url(&server).replacen("etcd://", "etcd://me:secret@", 1);
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_namespace_of_another_version_is_refused() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let mut client = client(&space.server).await;
    for (meta, says) in [
        ("lockkeeper 1 5 a", "of version 1"),
        ("lockkeeper 2 5 a", "of version 2"),
        ("lockkeeper 4 1", "a newer lockkeeper"),
        ("lockkeeper 3 x", "of another version"),
        ("other", "of another version"),
    ] {
        let put = client.put(space.key("meta"), meta, None).await.unwrap();
        let error = refused(&space.url()).await;
        let removal = EtcdBackend::remove(space.config()).await;
        for error in [error, removal.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let said = error.to_string();
            assert!(said.contains(says), "{meta}: {said}");
            assert!(said.contains("use another namespace"), "{meta}: {said}");
        }
        let put = put.header().unwrap().revision();
        let found = client.get(space.key("meta"), None).await.unwrap();
        let last = found.header().unwrap().revision();
        assert_eq!(last, put, "nothing was written");
    }
    client.delete(space.key("meta"), None).await.unwrap();
    // Nor is it used by who is connected when a program of before makes it anew.
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let older = "lockkeeper 2 5 a";
    client.put(space.key("meta"), older, None).await.unwrap();
    let asked = backend.acquire(&ask(session, 1, "k")).await;
    let renewed = backend.renew(session, &keep(1)).await;
    for error in [asked.unwrap_err(), renewed.unwrap_err()] {
        assert!(error.to_string().contains("of version 2"), "{error}");
    }
}

#[tokio::test]
async fn batches_are_as_large_as_the_server_takes() {
    let server = member(&[("max-txn-ops", "70")]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let keys = |count: usize| (0..count).map(|n| format!("d{n}")).collect::<Vec<_>>();
    let error = backend
        .acquire(&asks(session, 1, &keys(100)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("txn_ops"), "{error}");
    let config = space.config().operations(70);
    let fewer = EtcdBackend::connect(config).await.unwrap();
    let most = fewer.info().keys_per_batch;
    assert_eq!(most, 67);
    token(&fewer, &asks(session, 2, &keys(most))).await;
    // And as many that were refused, and as are gone past.
    let other = opened(&fewer).await;
    assert!(matches!(
        fewer.acquire(&asks(other, 1, &keys(most))).await.unwrap(),
        Acquired::Busy(_)
    ));
    fewer.end(&[session], End::Close).await.unwrap();
    let held = asks(other, 2, &keys(most));
    token(&fewer, &held).await;
    assert!(fewer.confirm(held.grant, &held.claims).await.unwrap());
    fewer.release(held.grant, &held.claims).await.unwrap();
    assert!(!fewer.confirm(held.grant, &held.claims).await.unwrap());
}

/// A server that takes many operations takes no longer requests.
/// With as few operations in a transaction as we take.
#[tokio::test]
async fn what_is_asked_meanwhile_is_one_transaction_for_all_and_answered_alike() {
    let server = member(&[("max-txn-ops", "67")]).await;
    let backend = connect(&format!("{}/?txn_ops=67", url(&server)))
        .await
        .unwrap();
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let dead = opened(&backend).await;
    backend.end(&[dead], End::Close).await.unwrap();
    let mut retired = keep(1);
    retired.retired = Ranges::of([100]);
    assert_eq!(backend.renew(one, &retired).await.unwrap(), Renewed::Living);
    token(&backend, &ask(other, 100, "held")).await;

    let small =
        |session, from: u64| (from..from + 40).map(move |n| ask(session, n, &format!("k{n}")));
    let mut requests: Vec<Acquire> = small(one, 1).chain(small(other, 50)).collect();
    let all = requests.len();
    let mut shares = ask(one, 45, "shared");
    shares.claims[0] =
        Claim::new(shares.claims[0].key().clone(), Want::Share { limit: None }).unwrap();
    requests.extend([
        shares,
        // Another one asks for it in the same transaction.
        ask(one, 46, "k40"),
        ask(one, 47, "held"),
        ask(one, 100, "over"),
        ask(dead, 1, "dead"),
    ]);
    let mut client = client(&url(&server)).await;
    let mut revision = async || {
        let got = client.get("none", None).await.unwrap();
        got.header().unwrap().revision()
    };
    let before = revision().await;
    let answers = join_all(requests.iter().map(|request| backend.acquire(request))).await;
    let answers: Vec<Acquired> = answers.into_iter().map(Result::unwrap).collect();
    let sent = revision().await - before;
    // The first, 16 at once of the others of either session, and each of those that are refused by itself.
    assert!(sent <= 1 + 3 + 3 + 4, "{sent} transactions");
    let granted = |answer: &Acquired| matches!(answer, Acquired::Acquired(_));
    assert!(answers[..=all].iter().all(granted), "{answers:?}");
    let [twice, held, retired, dead] = &answers[all + 1..] else {
        panic!("{answers:?}");
    };
    assert!(matches!(twice, Acquired::Busy(_)), "{twice:?}");
    assert!(matches!(held, Acquired::Busy(_)), "{held:?}");
    assert!(matches!(retired, Acquired::Void), "{retired:?}");
    assert!(matches!(dead, Acquired::Void), "{dead:?}");
    for (request, answer) in requests.iter().zip(&answers) {
        let confirmed = backend.confirm(request.grant, &request.claims).await;
        assert_eq!(confirmed.unwrap(), granted(answer), "{}", request.grant);
    }

    let mut retired = keep(2);
    retired.retired = Ranges::of([3, 100]);
    assert_eq!(backend.renew(one, &retired).await.unwrap(), Renewed::Living);
    let before = revision().await;
    let released = requests
        .iter()
        .map(|request| backend.release(request.grant, &request.claims));
    let released = join_all(released).await;
    let sent = revision().await - before;
    assert!(sent <= 1 + 3 + 3 + 5, "{sent} transactions");
    for ((request, answer), stood) in requests.iter().zip(&answers).zip(released) {
        let expected = match (granted(answer), request.grant.n) {
            (true, 3) => Stood::Fallen,
            (true, _) => Stood::Held,
            (false, _) => Stood::Absent,
        };
        assert_eq!(stood.unwrap(), expected, "{}", request.grant);
    }
    // Nothing is left of any of them, as who asks for the same keys finds.
    let again = (201..).zip(["k1", "k3", "k40", "shared"]);
    let again = join_all(again.map(|(n, key)| {
        let request = ask(one, n, key);
        let backend = &backend;
        async move { backend.acquire(&request).await }
    }));
    let again = again.await;
    assert!(again.iter().flatten().all(granted), "{again:?}");
}

#[tokio::test]
async fn batches_of_long_keys_fit_into_a_request() {
    let server = member(&[("max-txn-ops", "10000")]).await;
    let space = Space::at(url(&server));
    for operations in [2_000, 10_000] {
        let config = space.config().operations(operations);
        let backend = EtcdBackend::connect(config).await.unwrap();
        let info = backend.info();
        assert!(
            info.keys_per_batch > 1_500,
            "short ones as many as before: {info:?}"
        );
        for (kind, bytes) in [("long", 1_024), ("medium", 100), ("short", 12)] {
            let most = info.keys_per_batch.min(info.bytes_per_batch / bytes);
            let keys: Vec<String> = (0..most)
                .map(|n| format!("{kind}{n:0>width$}", width = bytes - kind.len()))
                .collect();
            let share = |session, n| {
                let mut shares = asks(session, n, &keys);
                let want = Want::Share { limit: None };
                let claim = |claim: &Claim| Claim::new(claim.key().clone(), want).unwrap();
                shares.claims = shares.claims.iter().map(claim).collect();
                shares
            };
            // Numbers as long as they can be.
            let (first, next) = (u64::MAX - 2, u64::MAX - 1);
            let alive = opened(&backend).await;
            let rival = asks(alive, first, &keys);
            let mut dead = Vec::new();
            for _ in 0..8 {
                dead.push(opened(&backend).await);
                token(&backend, &share(dead[dead.len() - 1], first)).await;
            }
            for exclusive in [false, true] {
                if exclusive {
                    dead = vec![opened(&backend).await];
                    token(&backend, &asks(dead[0], first, &keys)).await;
                }
                // Who is refused reads who is there, and who comes after the dead removes some of them.
                let refused = backend.acquire(&rival).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                backend.end(&dead, End::Close).await.unwrap();
                token(&backend, &rival).await;
                assert!(backend.confirm(rival.grant, &rival.claims).await.unwrap());
                let stood = backend.release(rival.grant, &rival.claims).await.unwrap();
                assert_eq!(stood, Stood::Held);
                backend.sweep(Sweep::All, 100_000).await.unwrap();
            }
            let again = asks(alive, next, &keys);
            token(&backend, &again).await;
            backend.end(&[alive], End::Close).await.unwrap();
            let swept = backend.sweep(Sweep::Session(alive), 10_000).await.unwrap();
            assert_eq!((swept.removed, swept.more), (keys.len(), false));
        }
    }
    // The client cuts by both.
    let config = space.config().operations(2_000);
    let backend = EtcdBackend::connect(config).await.unwrap() as Arc<dyn lockcore::LockBackend>;
    let locks = lockcore::Locks::builder(backend).build().unwrap();
    let ids = (0..2_000).map(|n| format!("{n:0>1024}"));
    let guard = locks.documents(ids).acquire().await.unwrap();
    assert!(guard.confirm().await.unwrap());
    let released = guard.release().await.unwrap();
    assert_eq!(released, lockcore::Released::Released);
}

#[tokio::test]
async fn who_holds_a_key_exclusively_stands_at_one_name() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let first = ask(session, 1, "a");
    let again = |n| {
        let mut again = ask(session, n, "a");
        again.owner = first.owner;
        again
    };
    let (one, beside) = (space.key("lock/a\0x"), |n: u64| {
        space.key(&format!("lock/a\0x{session}/{n}"))
    });
    let mut admin = client(&space.server).await;
    let mut stand = async |names: &[Vec<u8>]| {
        let all = GetOptions::new().with_prefix();
        let found = admin.get(space.key("lock/"), Some(all)).await.unwrap();
        let found: Vec<Vec<u8>> = found.kvs().iter().map(|pair| pair.key().to_vec()).collect();
        assert_eq!(found, names);
    };
    token(&backend, &first).await;
    stand(std::slice::from_ref(&one)).await;
    // Sent again, and once more by the same owner.
    token(&backend, &first).await;
    stand(std::slice::from_ref(&one)).await;
    for _ in 0..2 {
        token(&backend, &again(2)).await;
        stand(&[one.clone(), beside(2)]).await;
    }
    // A copy that comes when the place is free finds itself beside it.
    backend.release(first.grant, &first.claims).await.unwrap();
    token(&backend, &again(2)).await;
    stand(&[beside(2)]).await;
    assert!(!backend.confirm(first.grant, &first.claims).await.unwrap());
    let second = again(2);
    assert!(backend.confirm(second.grant, &second.claims).await.unwrap());
    token(&backend, &again(3)).await;
    stand(&[one.clone(), beside(2)]).await;
    // A late copy of a release leaves the next one.
    backend.release(first.grant, &first.claims).await.unwrap();
    stand(&[one.clone(), beside(2)]).await;
    for n in [2, 3] {
        let held = again(n);
        backend.release(held.grant, &held.claims).await.unwrap();
    }
    stand(&[]).await;
    // One that does not count is replaced.
    token(&backend, &again(4)).await;
    backend.end(&[session], End::Close).await.unwrap();
    let other = opened(&backend).await;
    token(&backend, &ask(other, 1, "a")).await;
    let late = Sweep::Session(session);
    assert_eq!(backend.sweep(late, 10).await.unwrap().removed, 0);
    stand(&[one]).await;
    backend
        .release(again(4).grant, &again(4).claims)
        .await
        .unwrap();
    let next = ask(other, 1, "a");
    assert!(backend.confirm(next.grant, &next.claims).await.unwrap());
}

/// Those who are in the way of a refused request, and how many of them hold it.
async fn in_the_way(backend: &EtcdBackend, request: &Acquire) -> (Vec<Grant>, usize) {
    match backend.acquire(request).await.unwrap() {
        Acquired::Busy(busy) => {
            let holders = &busy.first().holders;
            let grants = holders.iter().filter_map(|holder| holder.grant).collect();
            let holds = holders.iter().filter(|holder| holder.waiting.is_none());
            (grants, holds.count())
        }
        other => panic!("{other:?}"),
    }
}

/// Whoever waits stands at the name at which it holds then, and leaves nothing behind.
#[tokio::test]
async fn who_has_waited_holds_where_it_has() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let mut admin = client(&space.server).await;
    let mut stand = async |names: &[(Vec<u8>, bool)]| {
        for prefix in ["lock/", "step/"] {
            let all = GetOptions::new().with_prefix();
            let found = admin.get(space.key(prefix), Some(all)).await.unwrap();
            let found = found.kvs().iter();
            let waits = |value: &[u8]| value.contains(&b'.');
            let found: Vec<_> = found
                .map(|pair| (pair.key().to_vec(), waits(pair.value())))
                .collect();
            let prefix = space.key(prefix);
            let wanted: Vec<_> = names
                .iter()
                .filter(|(name, _)| name.starts_with(&prefix))
                .cloned()
                .collect();
            assert_eq!(found, wanted);
        }
    };
    let step = |session, n: u64| (space.key(&format!("step/{session}/{n:020}")), false);
    let waiting = |session, n: u64| (space.key(&format!("step/{session}/~{n:020}")), false);
    for want in [Want::Upsert, Want::Share { limit: None }] {
        let asks = |session, n, want| {
            let mut request = ask(session, n, "a");
            request.claims[0] = Claim::new(request.claims[0].key().clone(), want).unwrap();
            request
        };
        let holds = asks(one, 1, Want::Upsert);
        let waits = asks(other, 1, want).waiting();
        let class = if want == Want::Upsert { 'x' } else { '\0' };
        let holder = (space.key("lock/a\0x"), false);
        let beside = |waits| (space.key(&format!("lock/a\0{class}{other}/1")), waits);
        token(&backend, &holds).await;
        assert_eq!(in_the_way(&backend, &waits).await, (vec![holds.grant], 1));
        let mut all = vec![holder, beside(true), step(one, 1), waiting(other, 1)];
        all.sort();
        stand(&all).await;
        // Nobody has forgotten what it never had.
        let mut granted = keep(1);
        granted.granted = Ranges::of([1]);
        assert_eq!(
            backend.renew(other, &granted).await.unwrap(),
            Renewed::Forgotten
        );
        backend.release(holds.grant, &holds.claims).await.unwrap();
        stand(&[beside(true), waiting(other, 1)]).await;
        token(&backend, &waits).await;
        // Who shares was not in its own way, so that nobody knew that it had waited.
        let left = want.mode() == Mode::IS;
        let left = left.then(|| waiting(other, 1)).into_iter();
        let all = [beside(false), step(other, 1)].into_iter();
        stand(&all.chain(left).collect::<Vec<_>>()).await;
        assert!(backend.confirm(waits.grant, &waits.claims).await.unwrap());
        let before = transactions(&server).await;
        let stood = backend.release(waits.grant, &waits.claims).await.unwrap();
        assert_eq!(stood, Stood::Held);
        let sent = transactions(&server).await - before;
        assert!(sent < 1.5, "{sent} transactions");
        stand(&[]).await;
    }
    // Who does not come any more leaves nothing, either: when it gives up, when its number is over, and when it is dead.
    let holds = ask(one, 2, "a");
    token(&backend, &holds).await;
    let waits = |n| ask(other, n, "a").waiting();
    let stays = [(space.key("lock/a\0x"), false), step(one, 2)];
    for n in 2..5 {
        in_the_way(&backend, &waits(n)).await;
    }
    let gives_up = waits(2);
    let stood = backend.release(gives_up.grant, &gives_up.claims).await;
    assert_eq!(stood.unwrap(), Stood::Absent);
    let mut retired = keep(1);
    retired.retired = Ranges::of([2, 3]);
    assert_eq!(
        backend.renew(other, &retired).await.unwrap(),
        Renewed::Living
    );
    let (found, _) = in_the_way(&backend, &ask(one, 3, "a")).await;
    assert_eq!(found, [holds.grant, waits(4).grant]);
    backend.end(&[other], End::Close).await.unwrap();
    let swept = backend.sweep(Sweep::All, 10).await.unwrap();
    assert_eq!(swept.removed, 1);
    stand(&stays).await;
}

/// Those who have waited share a transaction, too.
#[tokio::test]
async fn what_was_waited_for_is_released_together() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let mut held = Vec::new();
    for n in 1..=8 {
        let key = format!("k{n}");
        let holds = ask(one, n, &key);
        token(&backend, &holds).await;
        let waits = ask(other, n, &key).waiting();
        in_the_way(&backend, &waits).await;
        backend.release(holds.grant, &holds.claims).await.unwrap();
        token(&backend, &waits).await;
        held.push(waits);
    }
    let before = transactions(&server).await;
    let released = held
        .iter()
        .map(|held| backend.release(held.grant, &held.claims));
    let stood = join_all(released).await;
    let sent = transactions(&server).await - before;
    assert!(stood.into_iter().all(|it| it.unwrap() == Stood::Held));
    assert!(sent < 3.5, "{sent} transactions");
}

/// One request each, as where there is no line.
#[tokio::test]
async fn where_nobody_waits_the_line_costs_nothing() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let session = opened(&backend).await;
    for (n, (key, want)) in (1..).zip([
        ("a", Want::Create),
        ("b", Want::Share { limit: None }),
        ("/a/b/c", Want::Write),
    ]) {
        let claim = Claim::new(LockKey::parse(key).unwrap(), want).unwrap();
        let owner = OwnerId { session, m: n };
        let request = Acquire::new(Grant { session, n }, owner, vec![claim]).waiting();
        let before = transactions(&server).await;
        token(&backend, &request).await;
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
        let sent = transactions(&server).await - before;
        assert!(sent < 2.5, "{want:?}: {sent} transactions");
    }
}

/// So many wait for a key at most, and whoever comes later waits all the same, and comes when there is a place.
#[tokio::test]
async fn where_too_many_wait_who_comes_later_has_no_place() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (one, many) = (opened(&backend).await, opened(&backend).await);
    let holds = ask(one, 1, "a");
    token(&backend, &holds).await;
    let mut admin = client(&space.server).await;
    for n in 1..=MAX_WAITERS {
        let name = space.key(&format!("lock/a\0\0{many}/{n}"));
        let value = format!("~{many}/{n}.0/s/{n}/5");
        admin.put(name, value, None).await.unwrap();
    }
    let later = ask(one, 2, "a").waiting();
    let waits = async || {
        let (found, holds) = in_the_way(&backend, &later).await;
        assert_eq!((found.len(), holds), (16, 1));
        let page = backend
            .records(&Filter::Session(one), None, 10)
            .await
            .unwrap();
        let name = space.key(&format!("lock/a\0x{}", later.grant));
        let found = client(&space.server).await.get(name, None).await.unwrap();
        let listed: Vec<bool> = page.items[0]
            .holders
            .iter()
            .map(|holder| holder.waiting.is_some())
            .collect();
        assert_eq!(listed.len(), 16);
        assert!(!listed[0] && listed[1..].iter().all(|waits| *waits));
        found.kvs().len()
    };
    assert_eq!(waits().await, 0, "as many wait as may");
    let mut last = ask(many, MAX_WAITERS as u64, "a");
    let share = Want::Share { limit: None };
    last.claims[0] = Claim::new(last.claims[0].key().clone(), share).unwrap();
    backend.release(last.grant, &last.claims).await.unwrap();
    assert_eq!(waits().await, 1, "there is a place");
    // It comes when all before it have gone.
    backend.release(holds.grant, &holds.claims).await.unwrap();
    let (_, holds) = in_the_way(&backend, &later).await;
    assert_eq!(holds, 0);
    backend.end(&[many], End::Close).await.unwrap();
    token(&backend, &later).await;
}

/// Many wait for a key while others come and go, and each comes in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_comes_in_turn_however_many_ask() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let one = opened(&backend).await;
    let holds = ask(one, 1, "a");
    token(&backend, &holds).await;
    let (held, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut waiting = Vec::new();
    for _ in 0..24 {
        let backend = space.connect().await;
        let session = opened(&backend).await;
        let waits = ask(session, 1, "a").waiting();
        in_the_way(&backend, &waits).await;
        waiting.push((backend, session, waits));
    }
    let mut tasks = JoinSet::new();
    for (turn, (backend, session, waits)) in (0..).zip(waiting) {
        let (held, turns) = (Arc::clone(&held), Arc::clone(&turns));
        tasks.spawn(async move {
            for tries in 0.. {
                assert!(tries < 3_000, "its turn does not come");
                // Others, who do not wait, ask besides, and some wait for a moment.
                let barges = ask(session, 2, "a");
                let refused = backend.acquire(&barges).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                let gives_up = ask(session, 3, "a").waiting();
                let refused = backend.acquire(&gives_up).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                let (grant, claims) = (gives_up.grant, &gives_up.claims);
                let stood = backend.release(grant, claims).await.unwrap();
                assert_eq!(stood, Stood::Absent);
                let asked = backend.acquire(&waits).await.unwrap();
                if matches!(asked, Acquired::Acquired(_)) {
                    break;
                }
            }
            assert_eq!(held.fetch_add(1, Ordering::AcqRel), 0, "it holds it alone");
            assert_eq!(turns.fetch_add(1, Ordering::AcqRel), turn, "its turn");
            assert!(backend.confirm(waits.grant, &waits.claims).await.unwrap());
            held.fetch_sub(1, Ordering::AcqRel);
            let stood = backend.release(waits.grant, &waits.claims).await.unwrap();
            assert_eq!(stood, Stood::Held);
        });
    }
    backend.release(holds.grant, &holds.claims).await.unwrap();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(turns.load(Ordering::Acquire), 24);
}

/// Each takes requests of its own: a sweep of a namespace with a million of them would not end.
#[tokio::test]
async fn a_sweep_buries_as_many_of_the_dead_as_it_may() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    for _ in 0..5 {
        let dead = opened(&backend).await;
        backend.end(&[dead], End::Revoke).await.unwrap();
    }
    let mut more = Vec::new();
    for _ in 0..4 {
        more.push(backend.sweep(Sweep::All, 2).await.unwrap().more);
    }
    assert_eq!(more, [true, true, false, false]);
}

/// So many bytes a member has sent to clients.
async fn sent(member: &Member) -> f64 {
    told(member, "etcd_network_client_grpc_sent_bytes_total ").await
}

/// So many transactions a member was asked for.
async fn transactions(member: &Member) -> f64 {
    told(member, "grpc_server_started_total{grpc_method=\"Txn\",").await
}

/// What a member tells of itself, in the first line that begins so.
async fn told(member: &Member, name: &str) -> f64 {
    let place = member.url().trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(place).await.unwrap();
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {place}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_sweep_reads_nothing_of_those_that_are_buried() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let mut dead = Vec::new();
    for _ in 0..200 {
        dead.push(opened(&backend).await);
    }
    backend.end(&dead, End::Close).await.unwrap();
    let living = opened(&backend).await;
    let mut cost = Vec::new();
    for _ in 0..2 {
        let before = sent(&server).await;
        backend.sweep(Sweep::All, 1_000).await.unwrap();
        cost.push(sent(&server).await - before);
    }
    let [first, then] = cost[..] else {
        unreachable!()
    };
    assert!(first > 20_000.0 && then < 2_000.0, "{cost:?}");
    let page = backend.sessions(None, 1_000).await.unwrap();
    assert_eq!(page.items.len(), 201, "they are remembered");
    backend.end(&[living], End::Close).await.unwrap();
}

/// Who reads above others who read is in nobody's way, and they are not in his, however quickly they come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_above_readers_who_come_and_go_is_granted() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let path = |session, n, key: &str, want| {
        let claim = Claim::new(LockKey::parse(key).unwrap(), want).unwrap();
        Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
    };
    let read = move |session, n, key: &str| path(session, n, key, Want::Read);
    let write = |session, n| path(session, n, "/a/w", Want::Write);
    let turns = Arc::new(AtomicU64::new(0));
    let mut churn = tokio::task::JoinSet::new();
    for one in 0..40 {
        let (backend, turns) = (Arc::clone(&backend), Arc::clone(&turns));
        churn.spawn(async move {
            let session = opened(&backend).await;
            for n in 1.. {
                // Now and then at a place where nobody has been.
                let key = format!("/a/{one}/{}", n / 4);
                let reads = read(session, n, &key);
                token(&backend, &reads).await;
                // It is held for a moment; how many turns there were is counted.
                tokio::time::sleep(Duration::from_millis(10)).await;
                backend.release(reads.grant, &reads.claims).await.unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let session = opened(&backend).await;
    for n in 1..4 {
        // Others read meanwhile.
        let before = turns.load(Ordering::Relaxed);
        until("others read", async || {
            (turns.load(Ordering::Relaxed) > before + 40).then_some(())
        })
        .await;
        if n == 2 {
            // One who has written below and is dead is in nobody's way, either.
            let dead = opened(&backend).await;
            token(&backend, &write(dead, 1)).await;
            backend.end(&[dead], End::Close).await.unwrap();
        }
        let above = read(session, n, "/a");
        token(&backend, &above).await;
        // And who writes is in their way, and is kept out.
        let writes = write(session, 100 + n);
        let refused = backend.acquire(&writes).await.unwrap();
        assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
        backend.release(above.grant, &above.claims).await.unwrap();
        token(&backend, &writes).await;
        let above = read(session, 200 + n, "/a");
        let refused = backend.acquire(&above).await.unwrap();
        assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
        backend.release(writes.grant, &writes.claims).await.unwrap();
    }
    churn.abort_all();
}

#[tokio::test]
async fn a_request_that_is_too_large_is_a_limit() {
    let server = member(&[("max-request-bytes", "65536")]).await;
    let backend = Space::at(url(&server)).connect().await;
    let session = opened(&backend).await;
    let long = |n: usize| format!("{n:03}{}", "x".repeat(1_000));
    let keys: Vec<String> = (0..100).map(long).collect();
    let error = backend.acquire(&asks(session, 1, &keys)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error:?}");
    token(&backend, &asks(session, 2, &keys[..10])).await;
}

#[tokio::test]
async fn without_space_releases_go_on_and_nothing_is_granted() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    let mut admin = client(&space.server).await;
    let alarm = |action| admin_alarm(space.server.clone(), action);
    alarm(AlarmAction::Activate).await;
    for error in [
        backend
            .acquire(&ask(session, 2, "b"))
            .await
            .map(drop)
            .unwrap_err(),
        backend
            .renew(session, &keep(1))
            .await
            .map(drop)
            .unwrap_err(),
        backend
            .open(SessionId::new(1), &Label::parse("").unwrap(), TTL)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("space"), "{error}");
    }
    backend.release(held.grant, &held.claims).await.unwrap();
    let left = GetOptions::new().with_prefix().with_count_only();
    let left = admin.get(space.key("lock/"), Some(left)).await.unwrap();
    assert_eq!(left.count(), 0, "it was released");
    alarm(AlarmAction::Deactivate).await;
    assert_eq!(
        backend.renew(session, &keep(2)).await.unwrap(),
        Renewed::Living
    );
    token(&backend, &ask(session, 3, "a")).await;
}

async fn admin_alarm(server: String, action: AlarmAction) {
    let mut admin = client(&server).await;
    admin.alarm(action, AlarmType::Nospace, None).await.unwrap();
}

#[tokio::test]
async fn a_watch_is_told_over_compaction_and_restarts() {
    let mut server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let mut seq = 0;
    for round in 0..3 {
        let held = ask(session, 10 + round, "a");
        token(&backend, &held).await;
        // The first one on a connection that has just been lost fails.
        let watch = until("a watch stands", async || {
            backend.watch(&held.claims).await.ok()
        });
        let watch = watch.await;
        let mut admin = client(&space.server).await;
        let now = admin.get("x", None).await.unwrap();
        let revision = now.header().unwrap().revision();
        admin
            .compact(revision, None::<CompactionOptions>)
            .await
            .unwrap();
        backend.release(held.grant, &held.claims).await.unwrap();
        let told = tokio::time::timeout(Duration::from_secs(5), watch).await;
        told.expect("it is told");
        // Who waits is told to look again when nobody hears for it any more.
        let watch = backend.watch(&held.claims).await.unwrap();
        server = restarted(server).await;
        let told = tokio::time::timeout(Duration::from_secs(15), watch).await;
        told.expect("it is told");
        seq = renewed(&backend, session, seq).await;
    }
}

#[tokio::test]
async fn tokens_rise_over_an_older_state_and_a_new_namespace() {
    let mut server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let mut last = token(&backend, &ask(session, 1, "a")).await;
    let older = tempfile::tempdir().unwrap();
    // What was written before is in that copy, what comes after is not.
    let copy = older.path().to_owned();
    server = waited(move || {
        server.stop();
        server.keep(&copy).unwrap();
        server
    })
    .await;
    server = restarted(server).await;
    let mut n = 1;
    for _ in 0..50 {
        // The first ones find the server gone that they were connected to.
        let token = until("a grant", async || {
            n += 1;
            match backend.acquire(&ask(session, n, &format!("k{n}"))).await {
                Ok(Acquired::Acquired(token)) => Some(token),
                Ok(other) => panic!("{other:?}"),
                Err(_) => None,
            }
        });
        let token = token.await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    let copy = older.path().to_owned();
    server = waited(move || {
        server.stop();
        server.put_back(&copy).unwrap();
        server
    })
    .await;
    let _server = restarted(server).await;
    // The session that lived in the copy lives again; whoever knows later tokens raises the base.
    let token = until("a grant", async || {
        n += 1;
        match backend.acquire(&ask(session, n, &format!("l{n}"))).await {
            Ok(Acquired::Acquired(token)) => Some(token),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    });
    let token = token.await;
    assert!(token > last, "{token} after {last}");
    // An operator who removes the key that says so has the same effect, on those who are connected, too.
    let other = space.connect().await;
    let mut admin = client(&space.server).await;
    admin.delete(space.key("meta"), None).await.unwrap();
    for backend in [&backend, &other] {
        n += 1;
        let raised = self::token(backend, &ask(session, n, &format!("m{n}"))).await;
        assert!(
            raised.get() >> 10 > token.get() >> 10,
            "{raised} after {token}"
        );
    }
}

#[tokio::test]
async fn another_member_is_asked_where_one_fails() {
    let members = waited(|| ETCD_3_6.cluster(&artefacts()).expect("a cluster")).await;
    let hosts: Vec<&str> = members
        .iter()
        .map(|member| &member.url()["http://".len()..])
        .collect();
    let by_url = Space::at(format!("etcd://{}/?timeout_ms=1000", hosts.join(",")));
    outlives_members(by_url.connect().await, &members).await;
    // By a client that the program has, which chooses the members itself.
    let options = ConnectOptions::new()
        .with_require_leader(true)
        .with_keep_alive(Duration::from_secs(1), Duration::from_secs(1));
    let own = Client::connect(hosts, Some(options)).await.unwrap();
    let own = EtcdConfig::with_client(&own).timeout(Duration::from_secs(1));
    outlives_members(EtcdBackend::connect(own).await.unwrap(), &members).await;
}

async fn outlives_members(backend: Arc<EtcdBackend>, members: &[Member]) {
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    // The first one is asked until it fails; if it was the leader, the others have to elect another one first.
    signal(&members[0], Signal::STOP);
    let seq = renewed(&backend, session, 0).await;
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    // Without a majority nothing is granted, and nothing is said to be free.
    signal(&members[1], Signal::STOP);
    for n in 2..6 {
        let error = backend.acquire(&ask(session, n, "b")).await.unwrap_err();
        let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
    for member in &members[..2] {
        signal(member, Signal::CONT);
    }
    renewed(&backend, session, seq).await;
    let key = lockcore::backend::Filter::Key(LockKey::parse("a").unwrap());
    let records = backend.records(&key, None, 1).await.unwrap();
    assert_eq!(records.items.len(), 1, "what was held is held");
}

#[tokio::test]
async fn a_fenced_write_refuses_a_smaller_token() {
    let server = member(&[]).await;
    let mut client = client(&url(&server)).await;
    // By numbers, not by letters.
    for (number, value, written) in [
        (9, "first", true),
        (10, "second", true),
        (9, "late", false),
        (10, "second again", true),
        (8, "later", false),
        ((1 << 63) - 1, "last", true),
        (10, "late", false),
    ] {
        let before = client.get("value", None).await.unwrap();
        let before = before.kvs().first().map(|pair| pair.value().to_vec());
        let write = etcd_client::TxnOp::put("value", value, None);
        let token = FencingToken::new(number).unwrap();
        let answer = client
            .txn(lockcore_etcd::fenced("token", token, [write]))
            .await
            .unwrap();
        assert_eq!(!answer.succeeded(), written, "{number}");
        let after = client.get("value", None).await.unwrap();
        let after = after.kvs().first().map(|pair| pair.value().to_vec());
        let expected = if written {
            Some(value.as_bytes().to_vec())
        } else {
            before
        };
        assert_eq!(after, expected, "{number}");
    }
}
