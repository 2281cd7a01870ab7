//! One key wanted by many: by 8 tasks of one process, then by 8 processes.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockkeeper::Locks;

use crate::handover::now_us;
use crate::relay::Relay;
use crate::rounds::{Spread, one_thread, ratios};
use crate::store::Store;

const WANTED_BY: u32 = 8;
/// How long each is measured in a round.
const SLICE: Duration = Duration::from_secs(2);
/// How long the processes take turns.
const TURNS_FOR: Duration = Duration::from_secs(10);
/// How long processes wait for what is not released, once they all wait.
const IDLE_FOR: Duration = Duration::from_secs(10);
/// By then they do.
const UNTIL_ALL_WAIT: Duration = Duration::from_secs(3);
const KEY: &str = "one key";

/// One turn: when it was asked for, granted, and the release called, in µs since 1970.
#[derive(Clone, Copy)]
struct Turn {
    asked: u64,
    granted: u64,
    released: u64,
}

/// Takes turns for a while.
async fn take_turns(locks: &Locks, until: Instant, pause: Duration) -> Vec<Turn> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let asked = now_us();
        let guard = locks.global(KEY).acquire().await;
        let guard = guard.expect("the store can be written");
        let granted = now_us();
        turns.push(Turn {
            asked,
            granted,
            released: now_us(),
        });
        let _ = guard.release().await.expect("the store can be written");
        // Shorter than a timer can wait.
        let again = Instant::now() + pause;
        while Instant::now() < again {
            tokio::task::yield_now().await;
        }
    }
    turns
}

/// Pairs a second by one task.
async fn alone(locks: &Locks) -> f64 {
    let start = Instant::now();
    let turns = take_turns(locks, start + SLICE, Duration::ZERO).await;
    rate(turns.len(), start.elapsed())
}

/// Hand-overs a second by tasks of one process, and the turns of each.
async fn by_tasks(locks: &Locks) -> (f64, Vec<Vec<Turn>>) {
    let start = Instant::now();
    let tasks: Vec<_> = (0..WANTED_BY)
        .map(|_| {
            let locks = locks.clone();
            #[expect(clippy::disallowed_methods, reason = "a task of the measurement")]
            tokio::spawn(async move { take_turns(&locks, start + SLICE, Duration::ZERO).await })
        })
        .collect();
    let mut each = Vec::new();
    for task in tasks {
        each.push(task.await.expect("it does not panic"));
    }
    let all = each.iter().map(Vec::len).sum();
    (rate(all, start.elapsed()), each)
}

fn rate(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).expect("not that many")) / time.as_secs_f64()
}

fn histogram(values: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits");
    values.for_each(|value| histogram.record(value).expect("it resizes"));
    histogram
}

fn print(each: &[Vec<Turn>]) {
    let waits = histogram(each.iter().flatten().map(|turn| turn.granted - turn.asked));
    println!(
        "  waits in µs: mean {:.0}, p50 {}, p99 {} ({:.1} × mean), longest {} ({:.1} × mean)",
        waits.mean(),
        waits.value_at_quantile(0.5),
        waits.value_at_quantile(0.99),
        ratio(waits.value_at_quantile(0.99), waits.mean()),
        waits.max(),
        ratio(waits.max(), waits.mean()),
    );
    let share = waits.len() / each.len() as u64;
    let least = each.iter().map(Vec::len).min().unwrap_or(0) as u64;
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

pub(crate) fn run(store: &Store, rounds: usize) {
    let pair = one_thread().block_on(async {
        let locks = store.locks().await;
        alone(&locks).await;
        let (mut uncontended, mut contended) = (Vec::new(), Vec::new());
        let mut each: Vec<Vec<Turn>> = vec![Vec::new(); WANTED_BY as usize];
        for _ in 0..rounds {
            uncontended.push(alone(&locks).await);
            let (rate, turns) = by_tasks(&locks).await;
            contended.push(rate);
            each.iter_mut()
                .zip(turns)
                .for_each(|(all, some)| all.extend(some));
        }
        let ratio = ratios(&contended, &uncontended);
        println!(
            "{}, medians of {rounds} rounds (least to greatest):",
            store.scheme()
        );
        let uncontended = Spread::of(uncontended);
        let pair = Duration::from_secs_f64(1.0 / uncontended.median());
        println!("uncontended: {uncontended} pairs/s");
        println!(
            "{WANTED_BY} tasks of one process: {} hand-overs/s",
            Spread::of(contended)
        );
        println!("  contended / uncontended: {ratio}");
        print(&each);
        locks.shutdown(Duration::from_secs(5)).await;
        pair
    });
    by_processes(store, pair);
    idle(store);
}

fn process(url: &str, part: &str, pause: Duration) -> Child {
    let program = std::env::current_exe().expect("the program's path");
    Command::new(program)
        .args(["--url", url, "worker", part])
        .args(["--pause-us", &pause.as_micros().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// Processes take turns, each with a pause of one pair between release and retry.
fn by_processes(store: &Store, pause: Duration) {
    let mut processes: Vec<Child> = (0..WANTED_BY)
        .map(|_| process(store.url(), "contended", pause))
        .collect();
    let each: Vec<Vec<Turn>> = processes
        .iter_mut()
        .map(|process| {
            let mut text = String::new();
            let mut output = process.stdout.take().expect("piped");
            output.read_to_string(&mut text).expect("it writes text");
            assert!(process.wait().expect("it ends").success());
            text.lines().map(turn).collect()
        })
        .collect();
    let mut turns: Vec<Turn> = each.iter().flatten().copied().collect();
    turns.sort_unstable_by_key(|turn| turn.granted);
    println!(
        "{WANTED_BY} processes, {} µs between release and retry: {:.0} hand-overs/s",
        pause.as_micros(),
        rate(turns.len(), TURNS_FOR)
    );
    let gaps = turns
        .windows(2)
        .map(|two| two[1].granted.saturating_sub(two[0].released));
    let gaps = histogram(gaps);
    println!(
        "  from the call of release to the next grant, µs: p50 {}, p99 {}, longest {}",
        gaps.value_at_quantile(0.5),
        gaps.value_at_quantile(0.99),
        gaps.max()
    );
    print(&each);
}

fn turn(line: &str) -> Turn {
    let mut numbers = line
        .split(' ')
        .map(|number| number.parse().expect("a number"));
    let mut next = || numbers.next().expect("three numbers");
    Turn {
        asked: next(),
        granted: next(),
        released: next(),
    }
}

/// Processes wait for what is not released: what they ask of a server meanwhile.
fn idle(store: &Store) {
    let Some(relay) = Relay::before(store.url()) else {
        return;
    };
    one_thread().block_on(async {
        let locks = store.locks().await;
        let guard = locks.global(KEY).acquire().await.expect("nobody has it");
        let processes: Vec<Child> = (0..WANTED_BY)
            .map(|_| process(relay.url(), "waiting", Duration::ZERO))
            .collect();
        tokio::time::sleep(UNTIL_ALL_WAIT).await;
        let (start, before) = (Instant::now(), relay.round_trips());
        tokio::time::sleep(IDLE_FOR).await;
        let asked = usize::try_from(relay.round_trips() - before).expect("not that many");
        println!(
            "{WANTED_BY} processes that wait: {:.1} requests a second of each",
            rate(asked, start.elapsed()) / f64::from(WANTED_BY)
        );
        let _ = guard.release().await.expect("the store can be written");
        for process in processes {
            let output = process.wait_with_output().expect("it ends");
            assert!(output.status.success());
        }
        locks.shutdown(Duration::from_secs(5)).await;
    });
}

/// One of the processes: prints its turns.
pub(crate) fn worker(store: &Store, pause: Duration) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let turns = take_turns(&locks, Instant::now() + TURNS_FOR, pause).await;
        for turn in turns {
            println!("{} {} {}", turn.asked, turn.granted, turn.released);
        }
        locks.shutdown(Duration::from_secs(5)).await;
    });
}

/// One of the processes that wait: waits for one turn.
pub(crate) fn waiting(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let guard = locks
            .global(KEY)
            .acquire()
            .await
            .expect("the store can be written");
        let _ = guard.release().await.expect("the store can be written");
        locks.shutdown(Duration::from_secs(5)).await;
    });
}
