//! Several hosts in one URL: which of them is the primary, and who says so.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockcore::backend::{ClaimStore, End, Inspect, SessionStore, Sweep, Wakeups};
use lockcore::{Attempt, ErrorKind, LockBackend, Locks, Released};
use lockcore_redis::{RedisBackend, RedisConfig};
use lockkeeper_servers::Server;
use rustix::process::Signal;
use support::servers::{
    NODE_TIMEOUT, ask, caught_up, follow, node, node_at, port, promote, replica_of, replication,
    sentinel, sentinels, signal, until, url, watched, within,
};
use support::steps::{claim, granted, open, renewal, request};
use support::{Place, Space};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

/// A host has a fifth of this for an answer, after the first has answered: more than a busy machine takes.
const PATIENT: &str = "timeout_ms=60000";

/// The error of connecting so.
async fn refused(url: &str) -> lockcore::Error {
    let config = RedisConfig::parse(url).unwrap();
    RedisBackend::connect(config).await.unwrap_err()
}

#[tokio::test]
async fn two_primaries_are_refused_whichever_is_named_first() {
    let a = node(&[]).await;
    let b = replica_of(&a, &[]).await;
    let hosts = [&a, &b].map(|server| format!("127.0.0.1:{}", port(server)));
    let either = [0, 1].map(|first| {
        let (first, second) = (&hosts[first], &hosts[1 - first]);
        format!("redis://{first},{second}/?{PATIENT}")
    });
    let space = Space::at(&Place {
        url: either[0].clone(),
        admin: url(&b),
    });
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let kept = a.port().unwrap();
    signal(&a, Signal::KILL);
    promote(&b).await;
    drop(a);
    let a = node_at(&kept, &[]).await;
    for hosts_in_order in &either {
        let error = refused(hosts_in_order).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        for word in [&hosts[0], &hosts[1], "REPLICAOF", "redis+sentinel://"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    // Who was connected before has to find a primary again, and may not take either of them.
    let held = request(session, 1, &["c x"]);
    until("the lost connection is noticed", async || {
        let error = backend.acquire(&held).await.unwrap_err();
        (error.kind() == ErrorKind::Unavailable).then_some(error)
    })
    .await;
    let error = backend.acquire(&held).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&hosts[0]), "{error}");
    // An operator decides.
    follow(&a, port(&b)).await;
    drop(backend);
    let backend = space.connect().await;
    let session = open(&backend, 2).await;
    granted(&backend, &request(session, 1, &["c x"])).await;
    drop(space.moved_to(&Place::of(url(&b))));
}

/// An old primary that was only cut off goes on, and so does whoever is connected to it.
#[tokio::test]
async fn who_is_connected_to_an_old_primary_leaves_it_while_it_lives() {
    let a = node(&[]).await;
    let b = replica_of(&a, &[]).await;
    let hosts = [&a, &b].map(|server| format!("127.0.0.1:{}", port(server)));
    let space = Space::at(&Place {
        url: format!("redis://{},{}", hosts[0], hosts[1]),
        admin: url(&a),
    });
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    promote(&b).await;
    let mut seq = 0;
    let error = within(
        Duration::from_secs(30),
        "it hears of the other",
        async || {
            seq += 1;
            backend.renew(session, &renewal(seq)).await.err()
        },
    )
    .await;
    for host in &hosts {
        assert!(error.to_string().contains(host), "{error}");
    }
    drop(space.moved_to(&Place::of(url(&b))));
}

#[tokio::test]
async fn one_server_by_two_names_is_one_primary() {
    let server = node(&[]).await;
    let port = port(&server);
    let space = Space::at(&Place::of(format!(
        "redis://127.0.0.1:{port},localhost:{port}"
    )));
    space.connect().await;
}

#[tokio::test]
async fn a_host_that_does_not_answer_costs_no_time_out() {
    let primary = node(&[]).await;
    // Connections are made, and nobody ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let place = |timeout_ms: u32| Place {
        url: format!(
            "redis://{silent},127.0.0.1:{}/?timeout_ms={timeout_ms}",
            port(&primary)
        ),
        admin: url(&primary),
    };
    let since = Instant::now();
    Space::at(&place(60_000)).connect().await;
    let took = since.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
    // None of them is the primary.
    let replica = replica_of(&primary, &[]).await;
    signal(&primary, Signal::KILL);
    drop(primary);
    let hosts = format!("redis://{silent},127.0.0.1:{}/", port(&replica));
    let error = refused(&format!("{hosts}?timeout_ms=2000")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    let follows = format!("127.0.0.1:{} is a replica", port(&replica));
    for word in [format!("{silent} does not answer"), follows] {
        assert!(said.contains(&word), "{word}: {said}");
    }
}

/// Longest until a failover that sentinels decide is over.
const FAILED_OVER: Duration = NODE_TIMEOUT.saturating_mul(12);
const TTL: Duration = FAILED_OVER.saturating_mul(3);

/// A primary with a replica and three sentinels, and how a client reaches them.
struct Watched {
    a: Server,
    b: Server,
    sentinels: Vec<Server>,
    space: Space,
}

async fn watched_pair() -> Watched {
    let a = node(&[]).await;
    let b = replica_of(&a, &[]).await;
    let sentinels = sentinels("mymaster", &a).await;
    let hosts = sentinels.iter().map(|it| format!("127.0.0.1:{}", port(it)));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let space = Space::at(&Place {
        url: format!("redis+sentinel://{hosts}/mymaster/0?timeout_ms=5000"),
        admin: url(&a),
    });
    Watched {
        a,
        b,
        sentinels,
        space,
    }
}

async fn client(space: &Space) -> Locks {
    let locks = Locks::builder(space.connect().await as Arc<dyn LockBackend>);
    locks.ttl(TTL).build().unwrap()
}

/// All sentinels say that it is the primary, and so does it.
async fn took_over(sentinels: &[Server], new: &Server) {
    within(FAILED_OVER, "the sentinels agree", async || {
        for sentinel in sentinels {
            let known = watched(sentinel, "mymaster").await;
            if known.get("port")? != &port(new).to_string() {
                return None;
            }
        }
        let info = replication(new).await;
        info.contains("role:master").then_some(())
    })
    .await;
}

#[tokio::test]
async fn sentinels_lead_a_living_client_over_an_ordered_failover() {
    let Watched {
        a,
        b,
        sentinels,
        space,
    } = watched_pair().await;
    let locks = client(&space).await;
    let guard = locks.lock("kept").acquire().await.unwrap();
    let last = guard.token();
    caught_up(&b, &a).await;
    let mut failover = redis::cmd("SENTINEL");
    ask::<()>(&sentinels[0], failover.arg("FAILOVER").arg("mymaster")).await;
    took_over(&sentinels, &b).await;
    let after = locks.lock("after").wait(FAILED_OVER);
    let after = after.acquire().await.unwrap();
    assert!(after.token() > last);
    // Nothing was lost, so that the guard stays.
    assert!(guard.is_valid() && guard.confirm().await.unwrap());
    assert_eq!(after.release().await.unwrap(), Released::Released);
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let made: bool = ask(&b, redis::cmd("EXISTS").arg(space.key("meta"))).await;
    assert!(made, "it was at the new primary");
}

#[tokio::test]
async fn sentinels_lead_a_living_client_over_the_death_of_the_primary() {
    let Watched {
        a,
        b,
        sentinels,
        space,
    } = watched_pair().await;
    let locks = client(&space).await;
    let kept = locks.lock("kept").acquire().await.unwrap();
    caught_up(&b, &a).await;
    let at = a.port().unwrap();
    signal(&a, Signal::KILL);
    drop(a);
    took_over(&sentinels, &b).await;
    // The old one comes back, and says for a while that it is the primary, until a sentinel tells it otherwise.
    let back = node_at(&at, &[]).await;
    let mut last = kept.token();
    for number in 0..3 {
        let next = locks.lock(format!("k{number}")).wait(FAILED_OVER);
        let next = next.acquire().await.unwrap();
        assert!(next.token() > last, "{number}");
        last = next.token();
        assert_eq!(next.release().await.unwrap(), Released::Released);
    }
    // Who comes anew finds the same one.
    let other = client(&space).await;
    let busy = other.lock("kept").try_acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)));
    assert!(kept.is_valid() && kept.confirm().await.unwrap());
    assert_eq!(kept.release().await.unwrap(), Released::Released);
    drop((back, space.moved_to(&Place::of(url(&b)))));
}

/// What a sentinel answers that knows of so many failovers, after which the primary is this one.
fn named(epoch: u32, primary: &Server) -> String {
    let port = port(primary).to_string();
    format!(
        "*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n*2\r\n$12\r\nconfig-epoch\r\n$1\r\n{epoch}\r\n",
        port.len()
    )
}

/// The port of a sentinel, and what it answers from now on.
async fn says(answer: String) -> (u16, watch::Sender<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sentinel = listener.local_addr().unwrap().port();
    let (says, said) = watch::channel(answer);
    let serving = async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1_000];
            if client.read(&mut asked).await.is_ok() {
                let answer = said.borrow().clone();
                // Whoever has heard enough is gone.
                let _ = client.write_all(answer.as_bytes()).await;
            }
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(serving);
    (sentinel, says)
}

/// As a sentinel does that was away during a failover, whose old primary is back.
#[tokio::test]
async fn the_sentinel_that_knows_of_the_latest_failover_decides() {
    let (old, new) = (node(&[]).await, node(&[]).await);
    let (behind, _) = says(named(3, &old)).await;
    let (latest, _) = says(named(4, &new)).await;
    for hosts in [
        format!("127.0.0.1:{behind},127.0.0.1:{latest}"),
        format!("127.0.0.1:{latest},127.0.0.1:{behind}"),
    ] {
        let space = Space::at(&Place {
            url: format!("redis+sentinel://{hosts}/m?{PATIENT}"),
            admin: url(&new),
        });
        space.connect().await;
        let made: bool = ask(&new, redis::cmd("EXISTS").arg(space.key("meta"))).await;
        assert!(made, "{hosts}");
    }
}

/// As after a failover that leaves an old primary alive, and those connected that it serves.
#[tokio::test]
async fn who_watches_is_told_by_the_new_primary_while_the_old_one_lives() {
    let a = node(&[]).await;
    let b = replica_of(&a, &[]).await;
    let (sentinel, says) = says(named(1, &a)).await;
    let space = Space::at(&Place {
        url: format!("redis+sentinel://127.0.0.1:{sentinel}/m?{PATIENT}"),
        admin: url(&a),
    });
    let backend = space.connect().await;
    let own = open(&backend, 1).await;
    let claims = [claim("c k")];
    let left = backend.watch(&claims).await.unwrap();
    caught_up(&b, &a).await;
    promote(&b).await;
    says.send_replace(named(2, &b));
    let left = tokio::time::timeout(Duration::from_secs(30), left).await;
    left.expect("who watches looks when the old one is left");

    let there = space.moved_to(&Place::of(url(&b)));
    let other = there.connect().await;
    let held = request(open(&other, 2).await, 1, &["c k"]);
    granted(&other, &held).await;
    // Nothing else wakes anybody: neither of the two is near its deadline, and nobody looks by himself.
    let told = async |changed, what: &str| {
        let told = tokio::time::timeout(Duration::from_secs(3), changed).await;
        told.unwrap_or_else(|_| panic!("nobody tells of {what}"));
    };
    let released = backend.watch(&claims).await.unwrap();
    let revoked = backend.watch_session(own).await.unwrap();
    other.release(held.grant, &held.claims).await.unwrap();
    told(released, "a release").await;
    other.end(&[own], End::Revoke).await.unwrap();
    told(revoked, "a revocation").await;
    drop(there);
}

/// Whoever asks again and again does so in the runtime in which the program connected, which may end before its client.
#[tokio::test]
async fn sentinels_are_asked_again_also_where_the_runtime_of_the_connection_has_ended() {
    let a = node(&[]).await;
    let b = replica_of(&a, &[]).await;
    let (sentinel, says) = says(named(1, &a)).await;
    let space = Space::at(&Place {
        url: format!("redis+sentinel://127.0.0.1:{sentinel}/m?{PATIENT}"),
        admin: url(&a),
    });
    let config = space.config();
    let elsewhere = tokio::task::spawn_blocking(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(RedisBackend::connect(config)).unwrap()
    });
    let backend = elsewhere.await.unwrap();
    // The connection is gone with its runtime.
    let answers = async || backend.sweep(Sweep::All, 1).await.ok();
    until("there is one in this runtime", answers).await;
    let (opened, session) = (Instant::now(), open(&backend, 1).await);
    caught_up(&b, &a).await;
    promote(&b).await;
    says.send_replace(named(2, &b));
    // The old one lives, and serves whom it still reaches.
    let there = space.moved_to(&Place::of(url(&b)));
    let other = there.connect().await;
    let mut seq = 0;
    until("a renewal reaches the new primary", async || {
        seq += 1;
        backend.renew(session, &renewal(seq)).await.unwrap();
        let left = other.lease_left(&[session]).await.unwrap();
        // It was opened for ten minutes, and this was copied to the new one.
        let long_ago = opened.elapsed() > Duration::from_secs(8);
        left[0].filter(|left| long_ago && *left > Duration::from_secs(597))
    })
    .await;
    drop(there);
}

#[tokio::test]
async fn what_sentinels_do_not_know_is_said() {
    let primary = node(&[]).await;
    let watches = sentinel("mymaster", &primary, &["requirepass s:ecret"]).await;
    let sentinel = format!("127.0.0.1:{}", port(&watches));
    let good =
        format!("redis+sentinel://{sentinel}/mymaster?{PATIENT}&sentinel_password=s%3Aecret");
    let space = Space::at(&Place {
        url: good.clone(),
        admin: url(&primary),
    });
    space.connect().await;
    for (url, kind, word) in [
        (
            good.replace("mymaster", "other"),
            ErrorKind::Config,
            "\"other\"",
        ),
        (
            format!("redis+sentinel://{sentinel}/mymaster?{PATIENT}"),
            ErrorKind::Unauthorized,
            "sentinel_password",
        ),
        (
            format!("redis+sentinel://{sentinel}/mymaster?{PATIENT}&sentinel_password=secret"),
            ErrorKind::Unauthorized,
            "sentinel_password",
        ),
        (
            format!(
                "redis+sentinel://127.0.0.1:{}/mymaster?{PATIENT}",
                port(&primary)
            ),
            ErrorKind::Config,
            "no sentinel",
        ),
        (
            format!("redis://:s%3Aecret@{sentinel}/?{PATIENT}"),
            ErrorKind::Config,
            "redis+sentinel://",
        ),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), kind, "{url}: {error}");
        let said = error.to_string();
        assert!(said.contains(word), "{url}: {said}");
        assert!(!format!("{said} {error:?}").contains("ecret"), "{error:?}");
    }
}
