//! One lock on SQLite, against two bare transactions through the same thread with the same settings.

use std::sync::Arc;
use std::time::Instant;

use lockcore::Locks;
use lockcore_sqlite::{SqliteBackend, SqliteConfig, Synchronous};

use crate::rounds::{Spread, micros, one_thread, ratios};

async fn pairs(locks: &Locks, count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        let guard = locks
            .global("bench")
            .acquire()
            .await
            .expect("nobody else wants it");
        let _ = guard.release().await.expect("the file can be written");
    }
    micros(start.elapsed()) / f64::from(count)
}

async fn bare(backend: &SqliteBackend, count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        backend
            .bare_transaction()
            .await
            .expect("the file can be written");
        backend
            .bare_transaction()
            .await
            .expect("the file can be written");
    }
    micros(start.elapsed()) / f64::from(count)
}

async fn nothing(backend: &SqliteBackend, count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        backend.bare_hop().await.expect("the thread answers");
        backend.bare_hop().await.expect("the thread answers");
    }
    micros(start.elapsed()) / f64::from(count)
}

pub(crate) fn run(rounds: usize) {
    for (name, synchronous, count) in [
        ("NORMAL", Synchronous::Normal, 5_000),
        ("FULL", Synchronous::Full, 1_000),
    ] {
        one_thread().block_on(async {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let config = SqliteConfig::new(folder.path().join("locks.db")).synchronous(synchronous);
            let backend = SqliteBackend::connect(config)
                .await
                .expect("the file can be made");
            let locks = Locks::builder(Arc::clone(&backend) as _)
                .build()
                .expect("the defaults can be used");
            pairs(&locks, 500).await;
            bare(&backend, 500).await;
            let (mut ours, mut floor, mut hops) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                ours.push(pairs(&locks, count).await);
                floor.push(bare(&backend, count).await);
                hops.push(nothing(&backend, count).await);
            }
            println!(
                "SQLite, synchronous {name}: acquire+release / two bare transactions = {}",
                ratios(&ours, &floor)
            );
            println!(
                "  µs: pair {}, two bare {}",
                Spread::of(ours),
                Spread::of(floor)
            );
            println!(
                "  µs: two hand-overs to the thread and back without a transaction {}",
                Spread::of(hops)
            );
        });
    }
}
