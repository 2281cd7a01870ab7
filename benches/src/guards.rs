//! 10,000 guards in one process: how many requests keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockcore_conformance::{Decorated, Decorator};
use lockkeeper::backend::{Renewal, Renewed};
use lockkeeper::{LockBackend, Locks, Result, SessionId};

use crate::relay::Relay;
use crate::rounds::one_thread;
use crate::store::{Store, backend};

/// Counts renewals.
struct Counted(Arc<dyn LockBackend>, AtomicUsize);

#[async_trait]
impl Decorator for Counted {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.renew(session, renewal).await
    }
}

pub(crate) fn run(store: &Store) {
    one_thread().block_on(async {
        let relay = Relay::before(store.url());
        let url = relay.as_ref().map_or(store.url(), Relay::url);
        let round_trips = || relay.as_ref().map_or(0, Relay::round_trips);
        let backend = Arc::new(Decorated(Counted(backend(url).await, AtomicUsize::new(0))));
        let ttl = Duration::from_secs(3);
        let locks = Locks::builder(Arc::clone(&backend) as _)
            .ttl(ttl)
            .build()
            .expect("3 s is a TTL");
        for count in [1_usize, 100, 10_000] {
            let mut guards = Vec::new();
            for n in 0..count {
                guards.push(
                    locks
                        .documents([format!("{n}")])
                        .acquire()
                        .await
                        .expect("nobody else wants it"),
                );
            }
            let start = Instant::now();
            let before = (backend.1.load(Ordering::Relaxed), round_trips());
            tokio::time::sleep(4 * ttl).await;
            let renewals = backend.1.load(Ordering::Relaxed) - before.0;
            let round_trips = round_trips() - before.1;
            let thirds = start.elapsed().as_secs_f64() / (ttl.as_secs_f64() / 3.0);
            assert!(guards.iter().all(|guard| guard.is_valid()));
            println!(
                "{count} guards: {renewals} renewals in {thirds:.1} times TTL/3, all guards valid"
            );
            if relay.is_some() {
                println!("  round trips to the server: {round_trips}");
            }
        }
    });
}
