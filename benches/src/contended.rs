//! One key wanted by many: by 8 tasks of one process, then by 8 processes.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockkeeper_workloads::processes::{self, Processes, Turns, Work};
use lockkeeper_workloads::{Hold, Kind, Ours, Turn};

use crate::peer::{self, Peer};
use crate::relay::Relay;
use crate::rounds::{Spread, one_thread, ratios};
use crate::store::Store;

const WANTED_BY: usize = 8;
/// How long each is measured in a round.
const SLICE: Duration = Duration::from_secs(2);
/// How long the processes take turns.
const TURNS_FOR: Duration = Duration::from_secs(10);
/// How long processes wait for what is not released, once they all wait.
const IDLE_FOR: Duration = Duration::from_secs(10);
/// By then they do.
const UNTIL_ALL_WAIT: Duration = Duration::from_secs(3);
const KEY: &str = "one key";

/// That key, once for each who wants it.
fn keys(count: usize) -> Vec<String> {
    vec![KEY.to_owned(); count]
}

/// Hand-overs a second to another one, and how many turns one task alone takes.
#[derive(Default)]
struct Measured {
    alone: Vec<f64>,
    handed_over: Vec<f64>,
    /// The longest wait of each round in mean waits.
    longest: Vec<f64>,
    each: Vec<Vec<Turn>>,
}

impl Measured {
    /// Measures both for a slice each.
    async fn round(&mut self, peer: &mut Peer) {
        self.alone.push(alone(peer).await);
        let (each, time) = peer.turns(&keys(WANTED_BY), Hold::Yield, SLICE).await;
        self.handed_over.push(rate(handed_over(&each), time));
        let waits = waits(&each);
        self.longest.push(ratio(waits.max(), waits.mean()));
        self.each.resize(WANTED_BY, Vec::new());
        for (all, some) in self.each.iter_mut().zip(each) {
            all.extend(some);
        }
    }

    fn print(self, name: &str) {
        println!("{name}:");
        println!(
            "  contended / uncontended: {}",
            ratios(&self.handed_over, &self.alone)
        );
        println!("  uncontended: {} pairs/s", Spread::of(self.alone));
        println!(
            "  {WANTED_BY} tasks of one process: {} hand-overs/s to another one",
            Spread::of(self.handed_over)
        );
        println!(
            "  longest wait / mean wait in each round: {}",
            Spread::of(self.longest)
        );
        print(&self.each);
    }
}

/// Pairs a second by one task.
async fn alone(peer: &mut Peer) -> f64 {
    let (turns, time) = peer.turns(&keys(1), Hold::None, SLICE).await;
    rate(turns[0].len(), time)
}

/// How often the next turn was another one's.
fn handed_over(each: &[Vec<Turn>]) -> usize {
    let turns = each.iter().enumerate();
    let mut granted: Vec<(u64, usize)> = turns
        .flat_map(|(who, turns)| turns.iter().map(move |turn| (turn.granted, who)))
        .collect();
    granted.sort_unstable();
    granted
        .windows(2)
        .filter(|two| two[0].1 != two[1].1)
        .count()
}

fn rate(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).expect("not that many")) / time.as_secs_f64()
}

fn histogram(values: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits");
    values.for_each(|value| histogram.record(value).expect("it resizes"));
    histogram
}

fn waits(each: &[Vec<Turn>]) -> Histogram<u64> {
    histogram(each.iter().flatten().map(|turn| turn.granted - turn.asked))
}

fn print(each: &[Vec<Turn>]) {
    let waits = waits(each);
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
        let mut ours = Peer::new("ours", Arc::new(Ours::new(&locks, Kind::Lock)));
        let mut peers = peer::of(store).await;
        for peer in peers.iter_mut().chain([&mut ours]) {
            alone(peer).await;
        }
        let mut measured = Measured::default();
        let mut of_peers: Vec<Measured> = peers.iter().map(|_| Measured::default()).collect();
        for _ in 0..rounds {
            measured.round(&mut ours).await;
            for (peer, measured) in peers.iter_mut().zip(&mut of_peers) {
                measured.round(peer).await;
            }
        }
        println!("medians of {rounds} rounds (least to greatest)");
        let pair = 1.0 / Spread::of(measured.alone.clone()).median();
        for (peer, other) in peers.iter().zip(&of_peers) {
            println!(
                "ours / {}: uncontended {}, contended {}",
                peer.name,
                ratios(&measured.alone, &other.alone),
                ratios(&measured.handed_over, &other.handed_over)
            );
        }
        measured.print(store.scheme());
        for (peer, measured) in peers.iter().zip(of_peers) {
            measured.print(peer.name);
        }
        locks.shutdown(Duration::from_secs(5)).await;
        Duration::from_secs_f64(pair)
    });
    by_processes(store, pair);
    idle(store);
}

/// A process that waits for what is held.
fn process_that_waits(url: &str) -> Child {
    let program = std::env::current_exe().expect("the program's path");
    Command::new(program)
        .args(["worker", "waiting"])
        .env("LOCKKEEPER_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// Processes that take turns at one lock, each as its work says; and how long they did.
pub(crate) fn turns_of_processes(store: &Store, work: &[Work]) -> (Turns, Duration) {
    let program = std::env::current_exe().expect("the program's path");
    let command = || {
        let mut command = Command::new(&program);
        command.args(["worker", "turns"]);
        command.env("LOCKKEEPER_URL", store.url());
        command
    };
    let processes = Processes::start(work.len(), command);
    let turns = processes.and_then(|mut processes| processes.take_turns(work));
    turns.unwrap_or_else(|failure| panic!("{}: {failure}", store.scheme()))
}

/// One task in each of so many processes, with a pause between release and retry.
pub(crate) fn with_pauses(processes: usize, pause: Duration, time: Duration) -> Vec<Work> {
    let work = Work {
        tasks: 1,
        hold: Hold::None,
        pause,
        time,
    };
    vec![work; processes]
}

/// Processes take turns, each with a pause of one pair between release and retry.
fn by_processes(store: &Store, pause: Duration) {
    let (each, time) = turns_of_processes(store, &with_pauses(WANTED_BY, pause, TURNS_FOR));
    let each = each.concat();
    let mut turns: Vec<Turn> = each.iter().flatten().copied().collect();
    turns.sort_unstable_by_key(|turn| turn.granted);
    println!(
        "{WANTED_BY} processes, {} µs between release and retry: {:.0} hand-overs/s",
        pause.as_micros(),
        rate(turns.len(), time)
    );
    let gaps = turns
        .windows(2)
        .map(|two| two[1].granted.saturating_sub(two[0].granted));
    let gaps = histogram(gaps);
    println!(
        "  from the call of release to the next grant, µs: p50 {}, p99 {}, longest {}",
        gaps.value_at_quantile(0.5),
        gaps.value_at_quantile(0.99),
        gaps.max()
    );
    print(&each);
}

/// Processes wait for what is not released: what they ask of a server meanwhile.
fn idle(store: &Store) {
    let Some(relay) = Relay::before(store.url()) else {
        return;
    };
    one_thread().block_on(async {
        let locks = store.locks().await;
        let guard = locks.lock(KEY).acquire().await.expect("nobody has it");
        let processes: Vec<Child> = (0..WANTED_BY)
            .map(|_| process_that_waits(relay.url()))
            .collect();
        tokio::time::sleep(UNTIL_ALL_WAIT).await;
        let (start, before) = (Instant::now(), relay.round_trips());
        tokio::time::sleep(IDLE_FOR).await;
        let asked = usize::try_from(relay.round_trips() - before).expect("not that many");
        println!(
            "{WANTED_BY} processes that wait: {:.1} requests a second of each",
            rate(asked, start.elapsed()) / to_f64(WANTED_BY as u64)
        );
        let _ = guard.release().await.expect("the store can be written");
        for process in processes {
            let output = process.wait_with_output().expect("it ends");
            assert!(output.status.success());
        }
        locks.shutdown(Duration::from_secs(5)).await;
    });
}

/// One of the processes that take turns.
pub(crate) fn worker(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let done = processes::work(&locks).await;
        done.unwrap_or_else(|failure| panic!("{}: {failure}", store.scheme()));
    });
}

/// One of the processes that wait: waits for one turn.
pub(crate) fn waiting(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let guard = locks
            .lock(KEY)
            .acquire()
            .await
            .expect("the store can be written");
        let _ = guard.release().await.expect("the store can be written");
        locks.shutdown(Duration::from_secs(5)).await;
    });
}
