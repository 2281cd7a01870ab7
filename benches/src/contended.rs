//! One key wanted by many, on SQLite: by 8 tasks of one process, then by 8 processes.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockcore::Locks;

use crate::rounds::{micros, one_thread, sqlite};

const WANTED_BY: usize = 8;
const MS: u64 = 10_000;

/// Takes turns for a while; the waits in µs.
async fn take_turns(locks: &Locks, until: Instant, pause: Duration) -> Histogram<u64> {
    let mut waits = Histogram::new(3).expect("three digits");
    while Instant::now() < until {
        let asked = Instant::now();
        let guard = locks
            .global("one key")
            .acquire()
            .await
            .expect("the file can be written");
        waits
            .record(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX))
            .expect("it resizes");
        let _ = guard.release().await.expect("the file can be written");
        if !pause.is_zero() {
            // Shorter than a timer can wait.
            let until = Instant::now() + pause;
            while Instant::now() < until {
                tokio::task::yield_now().await;
            }
        }
    }
    waits
}

fn print(what: &str, each: &[Histogram<u64>]) {
    let mut all: Histogram<u64> = Histogram::new(3).expect("three digits");
    for waits in each {
        all.add(waits).expect("it resizes");
    }
    let share = all.len() / each.len() as u64;
    let least = each.iter().map(Histogram::len).min().unwrap_or(0);
    println!("{what}: {} hand-overs/s", all.len() * 1_000 / MS);
    println!(
        "  waits in µs: mean {:.0}, p50 {}, p99 {} ({:.1} × mean), longest {} ({:.1} × mean)",
        all.mean(),
        all.value_at_quantile(0.5),
        all.value_at_quantile(0.99),
        ratio(all.value_at_quantile(0.99), all.mean()),
        all.max(),
        ratio(all.max(), all.mean()),
    );
    println!(
        "  least turns of one: {least} of a share of {share} ({:.2})",
        ratio(least, to_f64(share))
    );
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

fn ratio(value: u64, to: f64) -> f64 {
    to_f64(value) / to
}

pub(crate) fn run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("locks.db");
    let pair = one_thread().block_on(async {
        let locks = Locks::builder(sqlite(&file).await)
            .build()
            .expect("the defaults can be used");
        let start = Instant::now();
        let pairs = take_turns(&locks, start + Duration::from_secs(2), Duration::ZERO)
            .await
            .len();
        println!("uncontended: {} pairs/s", pairs / 2);
        let pair = start.elapsed() / u32::try_from(pairs).unwrap_or(u32::MAX);
        let until = Instant::now() + Duration::from_millis(MS);
        let tasks = (0..WANTED_BY).map(|_| {
            let locks = locks.clone();
            #[expect(clippy::disallowed_methods, reason = "a task of the measurement")]
            tokio::spawn(async move { take_turns(&locks, until, Duration::ZERO).await })
        });
        let mut each = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            each.push(task.await.expect("it does not panic"));
        }
        print("8 tasks of one process", &each);
        pair
    });
    println!(
        "a pause of one pair between release and retry: {:.0} µs",
        micros(pair)
    );
    let program = std::env::current_exe().expect("the program's path");
    let processes: Vec<_> = (0..WANTED_BY)
        .map(|_| {
            std::process::Command::new(&program)
                .args(["worker", "contended"])
                .arg(&file)
                .arg(MS.to_string())
                .env("PAUSE_US", pair.as_micros().to_string())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("the program starts")
        })
        .collect();
    let each: Vec<Histogram<u64>> = processes
        .into_iter()
        .map(|process| {
            let output = process.wait_with_output().expect("it ends");
            let mut waits = Histogram::new(3).expect("three digits");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let (value, count) = line.split_once(' ').expect("a value and a count");
                let (value, count) = (
                    value.parse().expect("a number"),
                    count.parse().expect("a number"),
                );
                waits.record_n(value, count).expect("it resizes");
            }
            waits
        })
        .collect();
    print("8 processes", &each);
}

/// One of the processes: prints its waits.
pub(crate) fn worker(file: &Path, ms: u64) {
    let pause = std::env::var("PAUSE_US")
        .ok()
        .and_then(|us| us.parse().ok())
        .map_or(Duration::ZERO, Duration::from_micros);
    one_thread().block_on(async {
        let locks = Locks::builder(sqlite(file).await)
            .build()
            .expect("the defaults can be used");
        let waits = take_turns(&locks, Instant::now() + Duration::from_millis(ms), pause).await;
        for step in waits.iter_recorded() {
            println!("{} {}", step.value_iterated_to(), step.count_at_value());
        }
        locks.shutdown(Duration::from_secs(5)).await;
    });
}
