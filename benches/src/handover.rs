//! From a release in one process to the grant in another.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::rounds::one_thread;
use crate::store::Store;
use lockkeeper_workloads::turns::now_us;

const TURNS: u32 = 200;

pub(crate) fn run(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let mut process = tokio::process::Command::new(std::env::current_exe().expect("the program's path"))
            .args(["--url", store.url(), "worker", "handover"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut ask = process.stdin.take().expect("piped");
        let mut answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut times: Histogram<u64> = Histogram::new(3).expect("three digits");
        for turn in 0..TURNS {
            let guard = locks.lock("hand over").acquire().await.expect("the store can be written");
            ask.write_all(b"go\n").await.expect("it listens");
            // Long enough that it waits, at no fixed phase of its polling.
            tokio::time::sleep(Duration::from_micros(20_000 + u64::from(turn) * 137)).await;
            let released = now_us();
            let _ = guard.release().await.expect("the store can be written");
            let granted: u64 =
                answers.next_line().await.expect("it answers").expect("it lives").parse().expect("a number");
            times.record(granted.saturating_sub(released)).expect("it resizes");
        }
        drop(ask);
        process.wait().await.expect("it ends");
        println!(
            "from the call of release to the grant in another process, µs, {TURNS} turns: p50 {}, p99 {}, longest {}",
            times.value_at_quantile(0.5),
            times.value_at_quantile(0.99),
            times.max()
        );
    });
}

/// The other process: acquires when told to, prints when it was granted, releases.
pub(crate) fn worker(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while lines.next_line().await.expect("it can be read").is_some() {
            let guard = locks
                .lock("hand over")
                .acquire()
                .await
                .expect("the store can be written");
            println!("{}", now_us());
            let _ = guard.release().await.expect("the store can be written");
        }
    });
}
