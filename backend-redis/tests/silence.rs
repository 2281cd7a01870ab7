//! Connections that go silent: nothing passes, and nobody says so.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockcore::ErrorKind;
use lockcore::backend::{Acquired, ClaimStore, End, SessionStore, Wakeups};
use lockcore_trial::faults::{NetworkFault, Proxies};
use lockkeeper_servers::Server;
use support::servers::{node, port, replica_of, url};
use support::steps::{granted, open, renewal, request};
use support::{Place, Space};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A way to a server that forgets its connections, as a firewall does: nothing passes on those that there were, and
/// nobody is told. New ones are as good as ever.
struct Forgetful {
    port: u16,
    made: Arc<AtomicUsize>,
    forgotten: watch::Sender<usize>,
}

impl Forgetful {
    async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let made = Arc::new(AtomicUsize::new(0));
        let forgotten = watch::Sender::new(0);
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            made: Arc::clone(&made),
            forgotten: forgotten.clone(),
        };
        let server = format!("127.0.0.1:{}", port(server));
        let serving = async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let number = made.fetch_add(1, Ordering::SeqCst);
                let mut server = TcpStream::connect(&server).await.unwrap();
                let mut forgotten = forgotten.subscribe();
                let passing = async move {
                    let is_forgotten = async {
                        let known = forgotten.wait_for(|to| number < *to).await.is_ok();
                        assert!(known);
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        () = is_forgotten => {}
                    }
                    std::future::pending::<()>().await;
                };
                #[expect(clippy::disallowed_methods, reason = "a connection of its own")]
                tokio::spawn(passing);
            }
        };
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(serving);
        way
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    fn forget(&self) {
        self.forgotten.send_replace(self.made());
    }

    fn space(&self, server: &Server, options: &str) -> Space {
        Space::at(&Place {
            url: format!("redis://127.0.0.1:{}/?{options}", self.port),
            admin: url(server),
        })
    }
}

#[tokio::test]
async fn one_time_out_is_enough_for_all_connections_that_are_dead() {
    let primary = node(&[]).await;
    let _replica = replica_of(&primary, &[]).await;
    let way = Forgetful::to(&primary).await;
    let space = way.space(&primary, "replicas=1&timeout_ms=4000");
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    // Its renewals have a connection of their own, which stands by then.
    let made = way.made();
    backend.renew(session, &renewal(1)).await.unwrap();
    assert_eq!(way.made(), made);
    let asks = async |n: u64| {
        let request = request(session, n, &["c k"]);
        backend.confirm(request.grant, &request.claims).await
    };
    for n in 2..=33 {
        assert!(!asks(n).await.unwrap());
    }
    assert!(way.made() >= 17, "{}", way.made());
    way.forget();
    let mut failed = 0;
    for n in 34..=81 {
        failed += usize::from(asks(n).await.is_err());
    }
    backend.renew(session, &renewal(2)).await.unwrap();
    // A slow machine may be late once or twice.
    assert!((1..=4).contains(&failed), "{failed} requests have failed");
}

#[tokio::test]
async fn a_late_time_out_leaves_a_new_connection_alone() {
    let server = node(&[]).await;
    let way = Forgetful::to(&server).await;
    let space = way.space(&server, "timeout_ms=8000");
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    backend.renew(session, &renewal(1)).await.unwrap();
    way.forget();
    let made = way.made();
    let second = async {
        // Both are sent on the connection that is dead.
        tokio::time::sleep(Duration::from_secs(4)).await;
        backend.renew(session, &renewal(3)).await
    };
    let between = async {
        let error = backend.renew(session, &renewal(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        backend.renew(session, &renewal(4)).await.unwrap();
        assert_eq!(way.made(), made + 1);
    };
    let ((), late) = tokio::join!(between, second);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Indeterminate);
    backend.renew(session, &renewal(5)).await.unwrap();
    assert_eq!(way.made(), made + 1, "the new one is as good as before");
}

#[tokio::test]
async fn a_subscription_that_goes_silent_is_noticed_and_made_again() {
    let server = node(&[]).await;
    let proxies = Proxies::new().unwrap();
    let proxy = proxies.start(&format!("127.0.0.1:{}", port(&server)), 1);
    let proxy = proxy.unwrap();
    let place = Place {
        url: format!("redis://127.0.0.1:{}/?timeout_ms=10000", proxy.port()),
        admin: url(&server),
    };
    let space = Space::at(&place);
    // One waits behind the proxy, and another one holds and releases.
    let waits = space.connect().await;
    let holds = space.moved_to(&Place::of(url(&server))).connect().await;
    let session = open(&holds, 1).await;
    let held = request(session, 1, &["c k"]);
    granted(&holds, &held).await;
    let changed = waits.watch(&held.claims).await.unwrap();
    // It is probed twice, and stands.
    let mut changed = changed;
    let stands = tokio::time::timeout(Duration::from_secs(12), &mut changed).await;
    assert!(stands.is_err(), "nothing has happened");
    proxy.strike(NetworkFault::Silent);
    let noticed = tokio::time::timeout(Duration::from_secs(60), changed).await;
    assert!(noticed.is_ok(), "nothing passes any more");
    assert!(proxy.mend());
    // Made again, it is told at once.
    let since = Instant::now();
    let changed = loop {
        match waits.watch(&held.claims).await {
            Ok(changed) => break changed,
            Err(error) => assert!(since.elapsed() < Duration::from_secs(60), "{error}"),
        }
    };
    holds.release(held.grant, &held.claims).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), changed).await;
    assert!(told.is_ok(), "a release is told");
    let other = open(&waits, 2).await;
    let answer = waits.acquire(&request(other, 1, &["c k"])).await;
    assert!(matches!(answer, Ok(Acquired::Acquired(_))), "{answer:?}");
}

/// Its connection is driven by the runtime that it was made in, which another client of the process may outlive.
#[tokio::test]
async fn a_subscription_that_ends_with_its_runtime_is_noticed_and_made_again() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let held = request(session, 1, &["c k"]);
    granted(&backend, &held).await;
    let (watching, claims) = (Arc::clone(&backend), held.claims.clone());
    let elsewhere = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(watching.watch(&claims)).unwrap()
    });
    let changed = elsewhere.join().unwrap();
    let noticed = tokio::time::timeout(Duration::from_secs(30), changed).await;
    assert!(noticed.is_ok(), "its runtime is gone");
    let changed = backend.watch(&held.claims).await.unwrap();
    backend.release(held.grant, &held.claims).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), changed).await;
    assert!(told.is_ok(), "a release is told");
}

/// Whom its subscription tells of what: how many connections listen to each channel.
fn listeners(space: &Space) -> [u32; 2] {
    ["sessions", "wake"].map(|channel| {
        let mut count = redis::cmd("PUBSUB");
        count.arg("SHARDNUMSUB").arg(space.key(channel));
        let (_, listeners): (String, u32) = space.raw(&mut count).unwrap();
        listeners
    })
}

#[tokio::test]
async fn who_has_not_waited_is_told_of_its_sessions_alone() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let mut news = backend.watch_session(session).await.unwrap();
    assert_eq!(listeners(&space), [1, 0]);
    let held = request(session, 1, &["c k"]);
    granted(&backend, &held).await;
    let changed = backend.watch(&held.claims).await.unwrap();
    let since = Instant::now();
    while listeners(&space) != [1, 1] {
        assert!(since.elapsed() < Duration::from_secs(30), "there are two");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    backend.release(held.grant, &held.claims).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), changed).await;
    assert!(told.is_ok(), "a release is told");
    let woken = tokio::time::timeout(Duration::from_millis(100), &mut news).await;
    assert!(woken.is_err(), "nothing has happened to its session");
    backend.end(&[session], End::Revoke).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), news).await;
    assert!(told.is_ok(), "a revocation is told");
}

#[tokio::test]
async fn a_subscription_that_breaks_is_told_to_who_watches_a_session() {
    let server = node(&[]).await;
    let space = Space::at(&Place::of(url(&server)));
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let news = backend.watch_session(session).await.unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    assert_eq!(space.raw::<u32>(&mut kill).unwrap(), 1);
    let told = tokio::time::timeout(Duration::from_secs(30), news).await;
    assert!(told.is_ok(), "it may have missed something");
    let news = backend.watch_session(session).await.unwrap();
    backend.end(&[session], End::Revoke).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), news).await;
    assert!(told.is_ok(), "a revocation is told");
}
