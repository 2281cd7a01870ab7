//! A network that forgets connections and tells nobody: they cost one time-out together, however many are idle. Needs a
//! server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lockcore::Locks;
use lockcore_es::{EsBackend, EsConfig};
use support::{Space, connect, server};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use url::Url;

const TTL: Duration = Duration::from_secs(12);
/// A third of the renewals' interval would pass with each that is asked in vain.
const TIMEOUT_MS: u64 = 1_500;
/// So many outlast a TTL, if each costs a time-out.
const IDLE: usize = 12;

/// Passes connections on, until it forgets those that there are.
struct Way {
    port: u16,
    made: Arc<AtomicUsize>,
    /// So many of the first are forgotten.
    forgotten: watch::Sender<usize>,
}

impl Way {
    async fn new(to: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            made: Arc::default(),
            forgotten: watch::Sender::new(0),
        };
        let (made, forgotten) = (Arc::clone(&way.made), way.forgotten.subscribe());
        #[expect(
            clippy::disallowed_methods,
            reason = "the network of a test belongs to nobody else"
        )]
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let number = made.fetch_add(1, Ordering::Relaxed);
                let (mut forgotten, to) = (forgotten.clone(), to.clone());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(to).await.unwrap();
                    let forgets = async { drop(forgotten.wait_for(|first| number < *first).await) };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        // Both are kept.
                        () = forgets => std::future::pending().await,
                    }
                });
            }
        });
        way
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    fn forget(&self) {
        self.forgotten.send_replace(self.made());
    }
}

#[tokio::test]
async fn what_was_idle_costs_one_time_out() {
    let space = Space::new();
    drop(connect(&space).await);
    let url = Url::parse(&server()).unwrap();
    let to = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let way = Way::new(to).await;
    let namespace = &space.namespace;
    let url = format!(
        "elasticsearch://127.0.0.1:{}/?namespace={namespace}&timeout_ms={TIMEOUT_MS}&clock_skew_ms=0",
        way.port
    );
    let backend = EsBackend::connect(EsConfig::parse(&url).unwrap());
    let locks = Locks::builder(backend.await.unwrap()).ttl(TTL);
    let locks = locks.build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let mut keys = 0;
    while way.made() < IDLE {
        // Small requests would go together, on few connections.
        let some = (keys..keys + IDLE).map(|n| {
            let ids = (0..8).map(|id| format!("k{n}-{id}"));
            locks.documents(ids).acquire().into_future()
        });
        keys += IDLE;
        for acquired in join_all(some).await {
            drop(acquired.unwrap().release().await);
        }
    }
    for _ in 0..2 {
        way.forget();
        let lost = timeout(TTL + Duration::from_secs(2), guard.lost()).await;
        assert!(lost.is_err(), "the server can be reached: {lost:?}");
    }
    assert!(guard.is_valid() && guard.confirm().await.unwrap());
}
