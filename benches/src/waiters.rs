//! What very many waiters cost: the memory of the client, and of the store's server.

use std::fs;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Progress};
use tokio::task::JoinSet;

use crate::rounds::{one_thread, resident_mib, resident_mib_of};
use crate::store::{Store, backend};

/// Clients that wait in the store's lines.
const CLIENTS: usize = 100;

/// The most that stand in the store's lines. Each asks once a second at the latest, all through one connection.
const STANDING: usize = 10_000;

/// Nobody renews much meanwhile, so that what is measured is the waiters.
const TTL: Duration = Duration::from_secs(600);

pub(crate) fn run(store: &Store, waiters: usize) {
    one_thread().block_on(async {
        println!("{}, {waiters} waiters:", store.scheme());
        measure(store, "of one client for one key", waiters, 1, 1).await;
        let standing = waiters.min(STANDING);
        let keys = standing.div_ceil(CLIENTS);
        let name = format!("{standing} of {CLIENTS} clients for {keys} keys");
        measure(store, &name, standing, CLIENTS, keys).await;
    });
}

/// So many waiters of so many clients, for so many keys.
#[expect(clippy::cast_precision_loss, reason = "figures to read")]
async fn measure(store: &Store, name: &str, waiters: usize, clients: usize, keys: usize) {
    let backend = backend(store.url()).await;
    let client = || {
        let locks = Locks::builder(Arc::clone(&backend)).ttl(TTL);
        let locks = locks.max_attempts(waiters + 1).max_waiters(waiters + 1);
        locks.build().expect("the TTL and the limits are possible")
    };
    let holder = client();
    let names: Vec<String> = (0..keys).map(|key| format!("{name} {key}")).collect();
    let held = holder.documents(&names).acquire().await;
    let held = held.expect("nobody else wants them");
    let before = Memory::now();
    let start = Instant::now();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut each = names.iter().cycle();
    let per_client = waiters / clients;
    let clients: Vec<Locks> = (0..clients).map(|_| client()).collect();
    let in_store = clients.len() * keys.min(per_client);
    let mut standing = 0;
    for (at, locks) in clients.iter().enumerate() {
        for key in each.by_ref().take(per_client).cloned() {
            let (locks, tell, waits) = (locks.clone(), tell.clone(), Once::new());
            tasks.spawn(async move {
                let acquired = locks.documents([key]).observe(move |progress| {
                    if let Progress::Waiting(_) = progress {
                        waits.call_once(|| tell.send(()).unwrap_or_default());
                    }
                });
                acquired.acquire().await.map(drop)
            });
        }
        // A waiter behind others of its client does not ask the store.
        while standing < in_store * (at + 1) / clients.len() {
            tokio::select! {
                Some(()) = told.recv() => standing += 1,
                Some(ended) = tasks.join_next() => panic!("nobody gets it: {ended:?}"),
            }
        }
    }
    let took = start.elapsed();
    let after = Memory::now();
    let each = |more: f64| more * 1024.0 / waiters as f64;
    println!(
        "  {name}: {standing} stand in its lines after {:.1} s; client {:.2} KiB each ({:.0} MiB)",
        took.as_secs_f64(),
        each(after.client - before.client),
        after.client - before.client
    );
    if let (Some(after), Some(before)) = (after.server, before.server) {
        println!(
            "  {:width$}  server {:.2} KiB each ({:.0} MiB)",
            "",
            each(after - before),
            after - before,
            width = name.len()
        );
    }
    tasks.shutdown().await;
    drop(held);
}

/// MiB that are resident.
struct Memory {
    client: f64,
    /// Of the process in `LOCKKEEPER_SERVER_PID` and of those that it has started.
    server: Option<f64>,
}

impl Memory {
    fn now() -> Self {
        let pid = std::env::var("LOCKKEEPER_SERVER_PID").ok();
        Self {
            client: resident_mib(),
            server: pid.map(|pid| of_tree(&pid)),
        }
    }
}

fn of_tree(pid: &str) -> f64 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    resident_mib_of(pid) + children.split_whitespace().map(of_tree).sum::<f64>()
}
