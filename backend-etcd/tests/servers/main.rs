//! What servers may refuse, lack or forget. Every test has servers of its own.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod line;
mod requests;
mod restored;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Client, CompactionOptions, ConnectOptions, GetOptions, Txn, TxnOp,
};
use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, Adopt, ClaimStore as _, End, Incarnation, Inspect as _, IntentChange,
    Registered, Renewed, SessionStore as _, Sweep, Wakeups as _,
};
use lockcore::{ErrorKind, FencingToken, Intent, Label, LockKey, SessionId};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockkeeper_servers::etcd::{ETCD_3_6, Member};
use rustix::process::{Pid, Signal, kill_process};

use crate::steps::{TTL, ask, keep, opened, refused, renewed, token, url};
use crate::support::{Secured, Space, artefacts, client, member, restarted, until, waited};

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
    admin.put("t2/meta", "lockkeeper 4 x", None).await.unwrap();
    let error = EtcdBackend::remove(config("t2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_namespace_of_another_version_is_refused() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let mut client = client(&space.server).await;
    for (meta, says) in [
        ("lockkeeper 1 5 a", "of an older version"),
        ("lockkeeper 3 5 a", "of an older version"),
        ("lockkeeper 5 1", "a newer lockkeeper"),
        ("lockkeeper 4 x", "of another version"),
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
    let older = "lockkeeper 3 5 a";
    client.put(space.key("meta"), older, None).await.unwrap();
    let asked = backend.acquire(&ask(session, 1, "k")).await;
    let renewed = backend.renew(session, &keep(1)).await;
    for error in [asked.unwrap_err(), renewed.unwrap_err()] {
        assert!(error.to_string().contains("of an older version"), "{error}");
    }
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
    // One that is executed, and uses up what is left, is answered so, too.
    let acquired = backend.acquire(&ask(session, 2, "b")).await.map(drop);
    // Those that go together, too.
    let several: Vec<Acquire> = (10..16)
        .map(|n| ask(session, n, &format!("c{n}")))
        .collect();
    let answers = join_all(several.iter().map(|request| backend.acquire(request))).await;
    for (request, answer) in several.iter().zip(answers) {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains("space"), "{request:?}: {error}");
    }
    let renewed = backend.renew(session, &keep(1)).await.map(drop);
    let label = Label::parse("").unwrap();
    let opened = backend.open(SessionId::new(1), &label, TTL).await.map(drop);
    for (answer, kind) in [
        (acquired, ErrorKind::Indeterminate),
        (renewed, ErrorKind::Unavailable),
        (opened, ErrorKind::Unavailable),
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
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

/// Renewals come every ten seconds at least, and each has a lease of its own.
#[tokio::test]
async fn a_long_lease_is_revoked_when_the_next_one_stands() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    for seq in 1..6 {
        let renewed = backend.renew(session, &keep(seq)).await.unwrap();
        assert_eq!(renewed, Renewed::Living);
        assert_eq!(leases(&space).await, 1);
    }
    // A lock that was kept for long is released like this.
    let short = keep(6).lasting(Duration::from_secs(2));
    assert_eq!(
        backend.renew(session, &short).await.unwrap(),
        Renewed::Living
    );
    assert_eq!(leases(&space).await, 1);
}

async fn leases(space: &Space) -> usize {
    let mut admin = client(&space.server).await;
    admin.leases().await.unwrap().leases().len()
}

/// What is left of a session that has ended goes with its lease.
#[tokio::test]
async fn what_is_given_up_late_does_not_outlive_its_session() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (left, adopter) = (opened(&backend).await, opened(&backend).await);
    let mut registers = keep(1);
    registers.intent = IntentChange::Put(Registered {
        intent: Intent::new("change").unwrap(),
        token: FencingToken::new(1).unwrap(),
    });
    backend.renew(left, &registers).await.unwrap();
    backend.end(&[left], End::Close).await.unwrap();
    let here = Incarnation::UNKNOWN;
    let take = backend.adopt(left, 0, adopter, Adopt::Take, here);
    let number = take.await.unwrap().adoption().unwrap().number;
    let settled = backend.settle(left, number, adopter, here).await.unwrap();
    assert!(settled.is_settled());
    while backend.sweep(Sweep::All, 1_000).await.unwrap().more {}
    let late = backend.adopt(left, 0, adopter, Adopt::GiveUp, here);
    late.await.unwrap();
    let all = GetOptions::new().with_prefix();
    let mut admin = client(&space.server).await;
    let all = admin.get(space.key(""), Some(all)).await.unwrap();
    let own = |pair: &&etcd_client::KeyValue| {
        String::from_utf8_lossy(pair.key()).contains(&left.to_string())
    };
    let (own, stays): (Vec<_>, Vec<_>) =
        all.kvs().iter().filter(own).partition(|it| it.lease() > 0);
    assert!(own.len() >= 3, "it is buried: {own:?}");
    assert!(stays.is_empty(), "{stays:?}");
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
async fn who_listens_in_a_runtime_that_ends_goes_on_in_another() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let (config, key) = (space.config(), ask(SessionId::new(1), 1, "a").claims);
    let claims = key.clone();
    let elsewhere = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let backend = EtcdBackend::connect(config).await.unwrap();
            let watch = backend.watch(&claims).await.unwrap();
            (backend, watch)
        })
    });
    let is_told = async |watch| {
        let told = tokio::time::timeout(Duration::from_secs(5), watch).await;
        told.expect("it is told");
    };
    let (backend, watch) = elsewhere.await.unwrap();
    is_told(watch).await;
    let watch = until("somebody listens again", async || {
        backend.watch(&key).await.ok()
    });
    let watch = watch.await;
    let other = space.connect().await;
    let held = ask(opened(&other).await, 1, "a");
    token(&other, &held).await;
    other.release(held.grant, &held.claims).await.unwrap();
    is_told(watch).await;
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
    // A client of the program may still choose the one that does not answer.
    let confirmed = until("a confirmation is answered", async || {
        backend.confirm(held.grant, &held.claims).await.ok()
    });
    assert!(confirmed.await);
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
    let records = until("a list is answered", async || {
        backend.records(&key, None, 1).await.ok()
    });
    assert_eq!(records.await.items.len(), 1, "what was held is held");
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
