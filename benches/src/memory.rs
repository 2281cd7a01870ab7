//! One lock on the memory store, through the whole client, beside `tokio::sync::Mutex`; nothing of a turn is written down.

use std::hint::black_box;
use std::time::Instant;

use lockkeeper::{Locks, MemoryBackend};

use tokio::sync::Mutex;

use crate::rounds::{Spread, micros, one_thread, ratios, resident_mib};

const PAIRS: u32 = 100_000;

async fn pairs(locks: &Locks, count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        let guard = locks
            .lock("bench")
            .acquire()
            .await
            .expect("nobody else wants it");
        let _ = guard.release().await.expect("memory does not fail");
    }
    micros(start.elapsed()) / f64::from(count)
}

async fn pairs_of_mutex(mutex: &Mutex<()>, count: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        drop(black_box(mutex).lock().await);
    }
    micros(start.elapsed()) / f64::from(count)
}

fn locks() -> Locks {
    Locks::builder(MemoryBackend::new())
        .build()
        .expect("the defaults can be used")
}

pub(crate) fn run(rounds: usize) {
    let multi = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (mut current, mut spawned, mut main) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_mutex = Vec::new();
    for _ in 0..rounds {
        current.push(one_thread().block_on(async { pairs(&locks(), PAIRS).await }));
        of_mutex.push(one_thread().block_on(pairs_of_mutex(&Mutex::new(()), PAIRS)));
        spawned.push(multi.block_on(async {
            let locks = locks();
            #[expect(clippy::disallowed_methods, reason = "a task of the measurement")]
            tokio::spawn(async move { pairs(&locks, PAIRS).await })
                .await
                .expect("it does not panic")
        }));
        main.push(multi.block_on(async { pairs(&locks(), PAIRS).await }));
    }
    println!(
        "acquire+release, memory store, µs a pair, medians of {rounds} rounds (least to greatest):"
    );
    println!(
        "  to tokio::sync::Mutex, of one task {}",
        ratios(&current, &of_mutex)
    );
    println!(
        "  on a current-thread runtime        {}",
        Spread::of(current)
    );
    println!(
        "  tokio::sync::Mutex, lock, unlock   {:.4}",
        Spread::of(of_mutex).median()
    );
    println!(
        "  from a task, multi-thread runtime  {}",
        Spread::of(spawned)
    );
    println!("  from main, multi-thread runtime    {}", Spread::of(main));

    one_thread().block_on(async {
        let locks = locks();
        pairs(&locks, 10_000).await;
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        let memory = resident_mib();
        pairs(&locks, 1_000_000).await;
        let after = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        println!(
            "after 10⁶ pairs: tasks {tasks} -> {after}, resident {memory:.1} -> {:.1} MiB",
            resident_mib()
        );
    });
}
