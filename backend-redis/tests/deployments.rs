//! A primary with replicas, a cluster, TLS, and servers that are killed: real processes.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, Filter, Inspect, IntentChange, Opened, Ranges, Renewal, Renewed,
    SessionStore,
};
use lockcore::{
    Attempt, Claim, ErrorKind, FencingToken, Grant, Label, LockBackend, LockKey, Locks, LostReason,
    OwnerId, Released, SessionId, Want,
};
use lockcore_redis::{RedisBackend, RedisConfig};
use lockkeeper_servers::Server;
use redis::{Client, ClientTlsConfig, TlsCertificates};
use rustix::process::Signal;
use support::servers::{
    NODE_TIMEOUT, agreed, ask, at_port, caught_up, cluster, node, node_at, order, port, promote,
    replica_of, replication, signal, until, url, within,
};
use support::{Place, Space};

/// Longest until a request is answered again. A node is taken for dead after its time-out, and an election takes two more
/// at most.
const ANSWERED: Duration = NODE_TIMEOUT.saturating_mul(6);
/// A server gives an ordered failover up after 5 s: then nothing more comes.
const ORDERED: Duration = Duration::from_secs(10);
/// Longer than a test waits for one thing, or a slow machine would end the session that it looks at.
const TTL: Duration = Duration::from_secs(180);

async fn open(backend: &RedisBackend, number: u128) -> SessionId {
    let session = SessionId::new(number);
    let label = Label::parse("test").unwrap();
    let opened = backend
        .open(session, &label, Duration::from_secs(600))
        .await;
    assert_ne!(opened.unwrap(), Opened::Used);
    session
}

fn request(session: SessionId, n: u64, key: &str) -> Acquire {
    Acquire::new(
        Grant { session, n },
        OwnerId { session, m: n },
        vec![Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap()],
    )
}

fn renewal(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}

async fn granted(backend: &RedisBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// Sends a request until it is answered, as the client does.
async fn answered(backend: &RedisBackend, request: &Acquire) -> Acquired {
    let since = Instant::now();
    loop {
        match backend.acquire(request).await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(since.elapsed() < ANSWERED, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A write that waits for replicas holds up what is behind it on its connection.
#[expect(clippy::disallowed_methods, reason = "requests of many tasks")]
#[tokio::test]
async fn a_renewal_waits_for_no_other_request() {
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &[]).await;
    let space = Space::at(&Place {
        url: format!(
            "{}/?replicas=1&wait_ms=1000&timeout_ms=20000",
            url(&primary)
        ),
        admin: url(&primary),
    });
    let (backend, other) = (space.connect().await, space.connect().await);
    let session = open(&backend, 1).await;
    let others: Vec<SessionId> = join_all((2..34).map(|n| open(&backend, n))).await;
    signal(&replica, Signal::STOP);
    // Paths, which no other request is sent together with.
    let paths = (2..130).map(|n| {
        let key = LockKey::parse(format!("/{n}")).unwrap();
        let claim = Claim::new(key, Want::Write).unwrap();
        Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
    });
    let under_way: Vec<_> = paths
        .map(|request| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { backend.acquire(&request).await })
        })
        .collect();
    // All of them are on their way as soon as one is through.
    let filter = Filter::Session(session);
    until("one is granted", async || {
        let granted = other.records(&filter, None, 1).await.unwrap();
        (!granted.items.is_empty()).then_some(())
    })
    .await;
    let since = Instant::now();
    let renewed = backend.renew(session, &renewal(1)).await.unwrap_err();
    assert!(renewed.to_string().contains("0 of 1 replicas"), "{renewed}");
    let took = since.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    let waiting = under_way.iter().filter(|one| !one.is_finished()).count();
    assert!(waiting > 16, "they wait behind each other: {waiting}");
    under_way.iter().for_each(|one| one.abort());
    // Nor do those of many sessions stand behind each other.
    let since = Instant::now();
    let renewed = join_all(others.into_iter().map(async |session| {
        let renewed = backend.renew(session, &renewal(1)).await;
        assert!(renewed.is_err(), "{renewed:?}");
    }));
    renewed.await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}

#[tokio::test]
async fn what_too_few_replicas_confirm_is_unknown_and_given_back() {
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &[]).await;
    let space = Space::at(&Place {
        url: format!("{}/?replicas=1&wait_ms=1000", url(&primary)),
        admin: url(&primary),
    });
    let backend = space.connect().await;
    assert!(
        backend.info().durability.failover,
        "every replica is waited for"
    );
    let session = open(&backend, 1).await;
    granted(&backend, &request(session, 1, "held")).await;
    let locks = Locks::builder(Arc::clone(&backend) as Arc<dyn LockBackend>);
    let locks = locks.ttl(Duration::from_secs(3)).build().unwrap();
    let guard = locks.lock("guarded").acquire().await.unwrap();
    signal(&replica, Signal::STOP);
    let error = backend
        .acquire(&request(session, 2, "k"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(
        backend
            .renew(session, &renewal(1))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Indeterminate
    );
    // Nothing new is promised, so a refusal is one.
    let busy = backend.acquire(&request(session, 3, "held")).await.unwrap();
    assert!(matches!(busy, Acquired::Busy(_)));
    // The client gives up, and gives back what was half granted.
    assert!(locks.lock("other").try_acquire().await.is_err());
    let filter = Filter::Key(LockKey::parse("other").unwrap());
    let since = Instant::now();
    while !backend
        .records(&filter, None, 1)
        .await
        .unwrap()
        .items
        .is_empty()
    {
        assert!(since.elapsed() < ANSWERED, "it is given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    guard.lost().await;
    signal(&replica, Signal::CONT);
    let acquired = answered(&backend, &request(session, 2, "k")).await;
    assert!(
        matches!(acquired, Acquired::Acquired(_)),
        "sent again, it is granted"
    );
    let durability = Space::at(&Place::of(url(&primary)))
        .connect()
        .await
        .info()
        .durability;
    assert!(
        !durability.failover,
        "there is another copy, and nobody waits for it"
    );
}

/// A primary with a replica, and a namespace whose URL names both, with these options.
async fn replicated(options: &str) -> (Server, Server, Space) {
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &[]).await;
    let hosts = format!("{},127.0.0.1:{}", url(&primary), port(&replica));
    let space = Space::at(&Place {
        url: format!("{hosts}/?timeout_ms=5000{options}"),
        admin: url(&primary),
    });
    (primary, replica, space)
}

/// A client that renews every third of that.
async fn client(space: &Space, ttl: Duration) -> Locks {
    let locks = Locks::builder(space.connect().await as Arc<dyn LockBackend>);
    locks.ttl(ttl).build().unwrap()
}

#[tokio::test]
async fn a_promoted_replica_is_found_and_has_what_it_confirmed() {
    let (primary, replica, space) = replicated("&replicas=1").await;
    let hosts = format!("{},127.0.0.1:{}", url(&primary), port(&replica));
    let (one, session, mut before) = {
        let backend = space.connect().await;
        let session = open(&backend, 1).await;
        let mut last = FencingToken::new(1).unwrap();
        for n in 1..=50 {
            last = granted(&backend, &request(session, n, &format!("k{n}"))).await;
        }
        (backend, session, last)
    };
    signal(&primary, Signal::KILL);
    promote(&replica).await;
    // From now on there is no replica to wait for.
    let space = space.moved_to(&Place {
        url: format!("{hosts}/?timeout_ms=5000"),
        admin: url(&replica),
    });
    let backend = space.connect().await;
    for n in 1..=50 {
        let busy = backend
            .acquire(&request(session, 100 + n, &format!("k{n}")))
            .await
            .unwrap();
        assert!(matches!(busy, Acquired::Busy(_)), "{n} was confirmed");
    }
    for n in 1..=20 {
        let token = granted(&backend, &request(session, 200 + n, &format!("new{n}"))).await;
        assert!(token > before, "tokens never go back");
        before = token;
    }
    // Who was connected before finds it, too, at the second request at the latest.
    let _ = one.renew(session, &renewal(1)).await;
    let error = one.renew(session, &renewal(2)).await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error:?}");
}

#[tokio::test]
async fn what_a_promoted_replica_lacks_is_lost_and_tokens_rise_all_the_same() {
    let (primary, replica, space) = replicated("").await;
    let backend = space.connect().await;
    assert!(!backend.info().durability.failover, "it says so");
    let session = open(&backend, 1).await;
    // The session is there, and what is granted now is not.
    caught_up(&replica, &primary).await;
    signal(&replica, Signal::STOP);
    let mut last = granted(&backend, &request(session, 1, "k")).await;
    for n in 2..=50 {
        last = granted(&backend, &request(session, n, &format!("k{n}"))).await;
    }
    signal(&primary, Signal::KILL);
    signal(&replica, Signal::CONT);
    // It may have read what the dead primary had sent.
    promote(&replica).await;
    let again = answered(&backend, &request(session, 51, "new")).await;
    let Acquired::Acquired(token) = again else {
        panic!("{again:?}");
    };
    assert!(token > last, "tokens never go back");
    drop(space.moved_to(&Place::of(url(&replica))));
}

#[tokio::test]
async fn a_holder_learns_at_its_next_renewal_that_a_failover_forgot_some() {
    let (primary, replica, space) = replicated("").await;
    let ttl = Duration::from_secs(15);
    let (ours, theirs) = (client(&space, ttl).await, client(&space, ttl).await);
    let kept = ours.lock("kept").acquire().await.unwrap();
    let record = async |server: &Server| {
        let mut record = redis::cmd("HGET");
        record.arg(space.key("sessions"));
        record.arg(kept.session().to_string());
        ask::<Option<String>>(server, &record).await
    };
    until("the replica has the session", async || {
        record(&replica).await.is_some().then_some(())
    })
    .await;
    // From here on it is behind.
    promote(&replica).await;
    let forgotten = ours.lock("forgotten").acquire().await.unwrap();
    assert_eq!(kept.session(), forgotten.session());
    let before = record(&primary).await;
    until("a renewal is acknowledged", async || {
        (record(&primary).await != before).then_some(())
    })
    .await;
    signal(&primary, Signal::KILL);
    let again = theirs.lock("forgotten").wait(ANSWERED).acquire();
    let again = again.await.expect("nothing is known of its holder");
    let told = tokio::time::timeout(ANSWERED, async {
        tokio::join!(kept.lost(), forgotten.lost())
    })
    .await
    .expect("a renewal comes every 5 s");
    assert_eq!(told, (LostReason::Forgotten, LostReason::Forgotten));
    assert!(again.confirm().await.unwrap());
    assert_eq!(forgotten.release().await.unwrap(), Released::NotHeld);
    drop(space.moved_to(&Place::of(url(&replica))));
}

#[tokio::test]
async fn a_grant_that_a_failover_forgot_is_told_though_no_renewal_is_missing() {
    let (primary, replica, space) = replicated("").await;
    let (ours, theirs) = (client(&space, TTL).await, client(&space, TTL).await);
    let kept = ours.lock("kept").acquire().await.unwrap();
    let session = kept.session();
    let mut step = redis::cmd("ZRANGEBYLEX");
    let (from, to) = (format!("[{session}/"), format!("({session}0"));
    step.arg(space.key("batches")).arg(from).arg(to);
    until("the replica has the grant", async || {
        let there = ask::<Vec<String>>(&replica, &step).await;
        (!there.is_empty()).then_some(())
    })
    .await;
    // From here on it is behind.
    promote(&replica).await;
    let forgotten = ours.lock("forgotten").acquire().await.unwrap();
    assert_eq!(forgotten.session(), session);
    signal(&primary, Signal::KILL);
    let again = theirs.lock("forgotten").wait(ANSWERED).acquire();
    let again = again.await.expect("nothing is known of its holder");
    assert!(again.token() > forgotten.token());
    // Who asks meets it before the next renewal, which comes within 10 s.
    let new = ours.lock("new").wait(ANSWERED).acquire().await.unwrap();
    assert_ne!(new.session(), session);
    let told = async { tokio::join!(kept.lost(), forgotten.lost()) };
    let told = tokio::time::timeout(ANSWERED, told).await.unwrap();
    assert_eq!(told, (LostReason::Forgotten, LostReason::Forgotten));
    assert!(again.confirm().await.unwrap());
    assert_eq!(forgotten.release().await.unwrap(), Released::NotHeld);
    drop(space.moved_to(&Place::of(url(&replica))));
}

#[tokio::test]
async fn guards_outlive_a_failover_and_a_restart_that_lose_nothing() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().display().to_string();
    let settings = [("dir", dir.as_str()), ("appendonly", "yes")];
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &settings).await;
    let place = replica.port().unwrap();
    let hosts = format!("{},127.0.0.1:{}", url(&primary), port(&replica));
    let space = Space::at(&Place {
        url: format!("{hosts}/?timeout_ms=5000"),
        admin: url(&primary),
    });
    let locks = client(&space, TTL).await;
    let one = locks.lock("one").acquire().await.unwrap();
    let many = locks.documents((0..2_500).map(|n| format!("d{n}")));
    let many = many.acquire().await.unwrap();
    let given_back = locks.lock("given back").acquire().await.unwrap();
    assert_eq!(given_back.release().await.unwrap(), Released::Released);
    until("the replica has it all", async || {
        let mut there = redis::cmd("HLEN");
        let there: u64 = ask(&replica, there.arg(space.key("records"))).await;
        (there == 2_502).then_some(())
    })
    .await;
    signal(&primary, Signal::KILL);
    promote(&replica).await;
    let two = locks.lock("two").wait(ANSWERED).acquire().await.unwrap();
    assert_eq!(two.session(), one.session());
    // As long as it writes its first file it does not end.
    until("the file is written", async || {
        let info: String = ask(&replica, redis::cmd("INFO").arg("persistence")).await;
        let idle = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
        idle.iter().all(|line| info.contains(line)).then_some(())
    })
    .await;
    // In order: it writes all of it to the disk before it ends.
    signal(&replica, Signal::TERM);
    let stat = format!("/proc/{}/stat", replica.pid().unwrap());
    until("it has ended", async || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
    drop(replica);
    let settings = [("dir", dir.as_str()), ("appendonly", "yes")];
    let again = node_at(&place, &settings).await;
    let three = locks.lock("three").wait(ANSWERED).acquire().await.unwrap();
    assert_eq!(three.session(), one.session());
    for guard in [one, many, two, three] {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    drop(space.moved_to(&Place::of(url(&again))));
}

/// Moves the namespace's slot to another primary, as an operator does; while it is on the way, nothing is done to it.
async fn move_slot(
    [from, to]: [&Server; 2],
    space: &Space,
    backend: &RedisBackend,
    session: SessionId,
) {
    let slot = slot_of(from, space).await;
    let mut ids = Vec::new();
    for server in [from, to] {
        let id: String = ask(server, redis::cmd("CLUSTER").arg("MYID")).await;
        ids.push(id);
    }
    order(to, &format!("SETSLOT {slot} IMPORTING {}", ids[0])).await;
    order(from, &format!("SETSLOT {slot} MIGRATING {}", ids[1])).await;
    for name in ["records", "sessions", "batches", "due", "meta"] {
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(port(to)).arg(space.key(name));
        let said: String = ask(from, migrate.arg(0).arg(5_000)).await;
        assert_eq!(said, "OK", "{name}");
        let error = backend
            .acquire(&request(session, 6, "k"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error}");
    }
    for server in [to, from] {
        order(server, &format!("SETSLOT {slot} NODE {}", ids[1])).await;
    }
}

async fn slot_of(server: &Server, space: &Space) -> u16 {
    let mut ask_slot = redis::cmd("CLUSTER");
    ask(server, ask_slot.arg("KEYSLOT").arg(space.key("meta"))).await
}

#[tokio::test]
async fn a_cluster_moves_and_fails_over_under_a_client() {
    let servers = cluster().await;
    let all: Vec<&Server> = servers.iter().collect();
    let mut space = Space::at(&Place::of(url(&servers[0])));
    let slot = slot_of(&servers[0], &space).await;
    // Roles are what the cluster says. The backend is told of a primary that keeps its own.
    let nodes = agreed(&all).await;
    let mut primaries: Vec<_> = nodes.iter().filter(|node| node.is_primary()).collect();
    primaries.sort_by_key(|node| !node.has(slot));
    let [from, to, other] = primaries[..] else {
        panic!("three primaries: {nodes:?}");
    };
    let follower = nodes
        .iter()
        .find(|node| node.follows.as_ref() == Some(&to.id));
    let follower = follower.expect("it has a replica");
    let [from, primary, replica] = [from, to, follower].map(|node| at_port(&servers, node.port));
    let other = url(at_port(&servers, other.port));
    space = space.moved_to(&Place {
        url: format!("{other}/?timeout_ms=5000"),
        admin: other,
    });
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let before = granted(&backend, &request(session, 1, "k")).await;
    let locks = Locks::builder(Arc::clone(&backend) as Arc<dyn LockBackend>);
    let locks = locks.ttl(TTL).build().unwrap();
    let guard = locks.lock("guarded").acquire().await.unwrap();
    move_slot([from, primary], &space, &backend, session).await;
    let moved = answered(&backend, &request(session, 5, "k5")).await;
    assert!(matches!(moved, Acquired::Acquired(token) if token > before));
    assert!(guard.confirm().await.unwrap());
    // In order, with the primary's consent. Who has not heard of the move does not vote for the replica, and is not asked
    // again before the order is given up.
    agreed(&all).await;
    order(replica, "FAILOVER").await;
    within(ORDERED, "the replica takes over", async || {
        let info = replication(replica).await;
        info.contains("role:master").then_some(())
    })
    .await;
    let moved = answered(&backend, &request(session, 2, "k2")).await;
    assert!(matches!(moved, Acquired::Acquired(token) if token > before));
    assert!(guard.confirm().await.unwrap());
    // And by a crash of the new one, whose replica the old one is.
    let nodes = agreed(&all).await;
    let old = nodes.iter().find(|node| node.port == port(primary));
    let new = nodes.iter().find(|node| node.port == port(replica));
    assert_eq!(old.unwrap().follows, Some(new.unwrap().id.clone()));
    let last = granted(&backend, &request(session, 3, "k3")).await;
    signal(replica, Signal::KILL);
    let after = answered(&backend, &request(session, 4, "k4")).await;
    assert!(
        matches!(after, Acquired::Acquired(token) if token > last),
        "{after:?}"
    );
    // Whoever comes anew asks any node, and each has to have heard of the new primary.
    let living: Vec<&Server> = servers
        .iter()
        .filter(|server| server.pid() != replica.pid())
        .collect();
    let nodes = agreed(&living).await;
    let owner = nodes.iter().find(|node| node.has(slot));
    assert_eq!(owner.map(|node| node.port), Some(port(primary)));
    // Known to nobody by name but the cluster: the host that was given is another node.
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let exists =
        async || -> bool { ask(primary, redis::cmd("EXISTS").arg(space.key("meta"))).await };
    assert!(exists().await);
    RedisBackend::remove(space.config()).await.unwrap();
    assert!(!exists().await);
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_where_every_write_is_synced() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().display().to_string();
    let settings = [
        ("dir", dir.as_str()),
        ("appendonly", "yes"),
        ("appendfsync", "always"),
    ];
    let server = node(&settings).await;
    let kept = server.port().unwrap();
    let space = Space::at(&Place {
        url: format!("{}/?timeout_ms=1000", url(&server)),
        admin: url(&server),
    });
    let mut server = Some(server);
    let backend = space.connect().await;
    let durability = backend.info().durability;
    assert!(durability.crash && durability.power_loss);
    let session = open(&backend, 1).await;
    let mut last = FencingToken::new(1).unwrap();
    let mut first = 1;
    for _ in 0..3 {
        // Load until the server is gone; what was granted and released last is known by what was acknowledged.
        let stop = Arc::new(AtomicBool::new(false));
        let workers = (0..8).map(|worker| {
            let (backend, stop) = (Arc::clone(&backend), Arc::clone(&stop));
            let load = async move {
                let (mut held, mut last) = (Vec::new(), None);
                let mut n = first + worker;
                while !stop.load(Ordering::Acquire) {
                    let request = request(session, n, &format!("k{n}"));
                    match backend.acquire(&request).await {
                        Ok(Acquired::Acquired(token)) => last = Some((n, token)),
                        Ok(other) => panic!("{other:?}"),
                        Err(_) => break,
                    }
                    held.push(n);
                    n += 8;
                    if n % 3 == 0 {
                        let released = held.remove(0);
                        let grant = Grant {
                            session,
                            n: released,
                        };
                        let claims = [Claim::new(
                            LockKey::parse(format!("k{released}")).unwrap(),
                            Want::Create,
                        )
                        .unwrap()];
                        if backend.release(grant, &claims).await.is_err() {
                            break;
                        }
                    }
                }
                (held, last, n)
            };
            #[expect(clippy::disallowed_methods, reason = "a load of its own")]
            tokio::spawn(load)
        });
        let workers: Vec<_> = workers.collect();
        // The kill may come at any moment of the load.
        tokio::time::sleep(Duration::from_millis(300)).await;
        signal(server.as_ref().unwrap(), Signal::KILL);
        stop.store(true, Ordering::Release);
        drop(server.take());
        let mut all = Vec::new();
        for worker in workers {
            let (held, token, n) = worker.await.unwrap();
            all.extend(held);
            last = last.max(token.map_or(last, |(_, token)| token));
            first = first.max(n + 8);
        }
        assert!(all.len() > 10, "there was load");
        server = Some(node_at(&kept, &settings).await);
        for n in &all {
            let again = answered(
                &backend,
                &request(session, 1_000_000 + first, &format!("k{n}")),
            )
            .await;
            assert!(
                matches!(again, Acquired::Busy(_)),
                "k{n} was acknowledged: {again:?}"
            );
        }
        first += 1;
        let acquired = answered(
            &backend,
            &request(session, 2_000_000 + first, &format!("after{first}")),
        )
        .await;
        let Acquired::Acquired(token) = acquired else {
            panic!("{acquired:?}");
        };
        assert!(token > last, "tokens never go back");
        last = token;
    }
    assert_eq!(
        backend.renew(session, &renewal(1)).await.unwrap(),
        Renewed::Living
    );
}

/// An authority, and a certificate of it for this machine: paths of the authority's, the certificate and its key.
fn certificates(folder: &std::path::Path) -> [String; 3] {
    let mut authority = rcgen::CertificateParams::new([]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertifiedIssuer::self_signed(authority, authority_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let names = ["127.0.0.1".to_owned()];
    let mut certificate = rcgen::CertificateParams::new(names).unwrap();
    // With the authority's name it is taken for one that has signed itself.
    let name = rcgen::DnType::CommonName;
    certificate.distinguished_name.push(name, "this machine");
    let certificate = certificate.signed_by(&key, &authority).unwrap();
    [
        ("ca.pem", authority.pem()),
        ("server.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ]
    .map(|(name, pem)| {
        let path = folder.join(name);
        fs::write(&path, pem).unwrap();
        path.display().to_string()
    })
}

#[tokio::test]
async fn tls_takes_the_authority_that_is_named_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificates(folder.path());
    let server = node(&[
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &ca),
        ("tls-auth-clients", "no"),
    ])
    .await;
    let port = port(&server);
    let base = format!("rediss://127.0.0.1:{port}/?namespace=tls");
    let connect =
        |url: String| async move { RedisBackend::connect(RedisConfig::parse(&url).unwrap()).await };
    let backend = connect(format!("{base}&ca={ca}")).await.unwrap();
    let locks = Locks::builder(backend as Arc<dyn LockBackend>)
        .build()
        .unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    // The subscription is encrypted as well.
    let waits = locks.lock("k").acquire();
    let released = async {
        // Sooner or later than the waiter's first look: it gets the lock either way.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    };
    let (waited, ()) = tokio::join!(waits, released);
    assert_eq!(waited.unwrap().release().await.unwrap(), Released::Released);
    let unknown = connect(base.clone()).await.unwrap_err();
    assert!(unknown.is_certainly_without_effect(), "{unknown}");
    let other = tempfile::tempdir().unwrap();
    let [other, ..] = certificates(other.path());
    let wrong = connect(format!("{base}&ca={other}")).await.unwrap_err();
    assert!(wrong.is_certainly_without_effect(), "{wrong}");
    let missing = connect(format!("{base}&ca=/nonexistent"))
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Config);
    let plain = format!("redis://127.0.0.1:{port}/?timeout_ms=2000");
    let plain = connect(plain).await.unwrap_err();
    assert!(plain.is_certainly_without_effect(), "{plain}");
}

#[tokio::test]
async fn a_client_shows_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificates(folder.path());
    let server = node(&[
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &ca),
        ("tls-auth-clients", "yes"),
    ])
    .await;
    let base = format!(
        "rediss://127.0.0.1:{}/?namespace=tls&ca={ca}",
        port(&server)
    );
    let connect =
        |url: String| async move { RedisBackend::connect(RedisConfig::parse(&url).unwrap()).await };
    let refused = connect(format!("{base}&timeout_ms=2000"))
        .await
        .unwrap_err();
    assert!(refused.is_certainly_without_effect(), "{refused}");
    let missing = connect(format!("{base}&cert=/nonexistent&key={key}")).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Config);
    let ours = format!("{base}&cert={certificate}&key={key}");
    let (one, other) = (
        connect(ours.clone()).await.unwrap(),
        connect(ours).await.unwrap(),
    );
    let locks = |backend: Arc<RedisBackend>| Locks::builder(backend).build().unwrap();
    let (one, other) = (locks(one), locks(other));
    let guard = one.lock("k").acquire().await.unwrap();
    // The subscription shows it as well.
    let waits = other.lock("k").acquire();
    let (waited, released) = tokio::join!(waits, guard.release());
    assert_eq!(released.unwrap(), Released::Released);
    assert_eq!(waited.unwrap().release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_client_of_the_program_says_where_and_who() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificates(folder.path());
    let socket = folder.path().join("redis.sock").display().to_string();
    let server = node(&[
        ("tls-cert-file", &certificate),
        ("tls-key-file", &key),
        ("tls-ca-cert-file", &ca),
        ("tls-auth-clients", "yes"),
        ("unixsocket", &socket),
        ("unixsocketperm", "700"),
    ])
    .await;
    let admin = Client::open(format!("redis+unix://{socket}?db=3")).unwrap();
    let mut admin = admin.get_multiplexed_async_connection().await.unwrap();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "me", "on", ">s3cret", "~*", "&*", "+@all"]);
    user.query_async::<()>(&mut admin).await.unwrap();
    let read = |path: &str| fs::read(path).unwrap();
    let certificates = TlsCertificates {
        client_tls: Some(ClientTlsConfig {
            client_cert: read(&certificate),
            client_key: read(&key),
        }),
        root_cert: Some(read(&ca)),
    };
    let url = format!("rediss://me:s3cret@127.0.0.1:{}/3", port(&server));
    let by_tls = Client::build_with_tls(url, certificates).unwrap();
    let by_socket = format!("redis+unix://{socket}?db=3&user=me&pass=s3cret");
    let by_socket = Client::open(by_socket).unwrap();
    let locks = async |client: &Client| {
        let config = RedisConfig::with_client(client);
        assert!(!format!("{config:?}").contains("s3cret"));
        let backend = RedisBackend::connect(config).await.unwrap();
        Locks::builder(backend).build().unwrap()
    };
    let (here, there) = (locks(&by_tls).await, locks(&by_socket).await);
    let guard = there.lock("k").acquire().await.unwrap();
    // The subscription goes the same way.
    let waits = here.lock("k").acquire();
    let (waited, released) = tokio::join!(waits, guard.release());
    assert_eq!(released.unwrap(), Released::Released);
    // In the client's database, as its user.
    let size = redis::cmd("DBSIZE");
    let keys: usize = size.query_async(&mut admin).await.unwrap();
    assert!(keys > 0, "the namespace is in another database");
    assert_eq!(waited.unwrap().release().await.unwrap(), Released::Released);
    // What is set afterwards counts.
    let refused = RedisBackend::connect(RedisConfig::with_client(&by_tls).password("me", "no"));
    let error = refused.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
}

#[tokio::test]
async fn a_socket_of_this_machine_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock").display().to_string();
    let server = node(&[("unixsocket", &socket), ("unixsocketperm", "700")]).await;
    let connect =
        |url: String| async move { RedisBackend::connect(RedisConfig::parse(&url).unwrap()).await };
    let here = connect(format!("valkey://localhost/?namespace=s&socket={socket}"));
    let there = connect(format!("{}/?namespace=s", url(&server)));
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    let locks = |backend: Arc<RedisBackend>| Locks::builder(backend).build().unwrap();
    let (here, there) = (locks(here), locks(there));
    let guard = there.lock("k").acquire().await.unwrap();
    assert!(matches!(
        here.lock("k").try_acquire().await,
        Ok(Attempt::Busy(_))
    ));
    let waits = here.lock("k").acquire();
    let (waited, released) = tokio::join!(waits, guard.release());
    assert_eq!(released.unwrap(), Released::Released);
    assert_eq!(waited.unwrap().release().await.unwrap(), Released::Released);
    let gone = connect("redis://localhost?socket=/nonexistent&timeout_ms=2000".to_owned()).await;
    assert!(gone.unwrap_err().is_certainly_without_effect());
}

#[tokio::test]
async fn try_acquire_is_busy_for_a_lock_of_another_host() {
    let primary = node(&[]).await;
    let replica = replica_of(&primary, &[]).await;
    let space = Space::at(&Place {
        url: format!("{},127.0.0.1:{}", url(&replica), port(&primary)),
        admin: url(&primary),
    });
    let locks = |backend: Arc<RedisBackend>| Locks::builder(backend).build().unwrap();
    let (one, other) = (locks(space.connect().await), locks(space.connect().await));
    let guard = one.lock("k").acquire().await.unwrap();
    assert!(matches!(
        other.lock("k").try_acquire().await,
        Ok(Attempt::Busy(_))
    ));
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(matches!(
        other.lock("k").try_acquire().await,
        Ok(Attempt::Acquired(_))
    ));
}
