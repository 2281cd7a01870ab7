//! One acquisition of very many document ids.

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockkeeper::{Attempt, Guard, Locks, Progress};
use lockkeeper_workloads::id;

use crate::baseline;
use crate::bystander::Bystander;
use crate::rounds::{Spread, one_thread, peak_mib, ratios, resident_mib};
use crate::store::Store;

/// How long the records of one may take to be swept.
const SWEPT_WITHIN: Duration = Duration::from_secs(600);

fn ids(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(id)
}

async fn all(locks: &Locks, count: u32) -> Guard {
    let guard = locks.documents(ids(count)).acquire().await;
    guard.expect("nobody else wants them")
}

/// When progress was told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Instant>>>);

impl Told {
    fn now(&self) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(Instant::now());
    }

    /// How often, and the longest time between two.
    fn often(&self) -> (usize, Duration) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let between = told.windows(2).map(|two| two[1] - two[0]);
        (told.len(), between.max().unwrap_or_default())
    }
}

/// What others wait for the store meanwhile.
struct Others<'a> {
    store: &'a Store,
    name: &'static str,
    times: Histogram<u64>,
    one: Option<Bystander>,
}

impl<'a> Others<'a> {
    fn new(store: &'a Store, name: &'static str) -> Self {
        Self {
            store,
            name,
            times: Histogram::new(3).expect("three digits"),
            one: None,
        }
    }

    fn begin(&mut self) {
        let request = baseline::request_of_another(self.store);
        self.one = request.map(Bystander::start);
    }

    fn end(&mut self) {
        if let Some(one) = self.one.take() {
            self.times.add(one.stop()).expect("it resizes");
        }
    }

    fn print(&self) {
        if !self.times.is_empty() {
            println!(
                "  another client's request meanwhile, {}, µs: p50 {}, p99 {}, longest {}",
                self.name,
                self.times.value_at_quantile(0.5),
                self.times.value_at_quantile(0.99),
                self.times.max()
            );
        }
    }
}

pub(crate) fn run(store: &Store, count: u32, rounds: usize) {
    one_thread().block_on(async {
        let mut baseline = baseline::of(store).await.expect("the store has a baseline");
        println!(
            "{}, {count} ids, s, medians of {rounds} rounds (least to greatest):",
            store.scheme()
        );
        let (mut put, mut removed) = (Vec::new(), Vec::new());
        let (mut acquired, mut released, mut swept) = (Vec::new(), Vec::new(), Vec::new());
        let told = Told::default();
        let mut others = ["put and removed", "acquire", "release and sweep"]
            .map(|name| Others::new(store, name));
        for round in 0..rounds {
            // They take turns at being first.
            for floors_turn in [round % 2 == 0, round % 2 == 1] {
                if floors_turn {
                    others[0].begin();
                    let start = Instant::now();
                    baseline.put(count).await;
                    put.push(start.elapsed().as_secs_f64());
                    let start = Instant::now();
                    baseline.remove(count).await;
                    removed.push(start.elapsed().as_secs_f64());
                    others[0].end();
                    continue;
                }
                let locks = store.locks().await;
                let telling = told.clone();
                others[1].begin();
                let start = Instant::now();
                let guard = locks
                    .documents(ids(count))
                    .observe(move |progress| {
                        if matches!(progress, Progress::Granted { .. }) {
                            telling.now();
                        }
                    })
                    .acquire()
                    .await
                    .expect("nobody else wants them");
                acquired.push(start.elapsed().as_secs_f64());
                others[1].end();
                if round == 0 {
                    let (often, between) = told.often();
                    println!(
                        "  progress was told {often} times, at most {} ms apart",
                        between.as_millis()
                    );
                }
                others[2].begin();
                let start = Instant::now();
                let _ = guard.release().await.expect("the store can be written");
                released.push(start.elapsed().as_secs_f64());
                assert!(locks.shutdown(SWEPT_WITHIN).await, "not swept in time");
                swept.push(start.elapsed().as_secs_f64());
                others[2].end();
            }
            println!(
                "  round {}: acquire / baseline {:.2}, release and sweep / baseline {:.2}",
                round + 1,
                acquired[round] / put[round],
                swept[round] / removed[round]
            );
        }
        println!("  acquire / baseline: {}", ratios(&acquired, &put));
        println!(
            "  release and sweep / baseline: {}",
            ratios(&swept, &removed)
        );
        println!("  acquire: {}", Spread::of(acquired));
        println!("  release, acknowledged: {}", Spread::of(released));
        println!("  release, every record swept: {}", Spread::of(swept));
        println!("  baseline, put: {}", Spread::of(put));
        println!("  baseline, removed: {}", Spread::of(removed));
        println!("  baseline: {}", baseline.many_is());
        others.iter().for_each(Others::print);
        refused(store, count).await;
    });
    for count in [count / 10, count] {
        let program = std::env::current_exe().expect("the program's path");
        let worker = Command::new(program)
            .args(["--url", store.url(), "worker", "many", "--ids"])
            .arg(count.to_string())
            .status();
        assert!(worker.expect("the program starts").success());
    }
}

/// What an acquisition costs that is refused at its last id.
async fn refused(store: &Store, count: u32) {
    let (locks, other) = (store.locks().await, store.locks().await);
    let last = ids(count).last().expect("there are some");
    let in_the_way = other.documents([&last]).acquire().await;
    let in_the_way = in_the_way.expect("it is free");
    let start = Instant::now();
    let tried = locks.documents(ids(count)).try_acquire().await;
    match tried.expect("the store can be written") {
        Attempt::Acquired(_) => panic!("the last id is held"),
        Attempt::Busy(busy) => assert_eq!(busy.first().claim.key().as_str(), last),
    }
    println!(
        "refused at the last id, with nothing held: {:.2} s",
        start.elapsed().as_secs_f64()
    );
    let start = Instant::now();
    for id in ids(count).step_by(99_991) {
        let tried = other.documents([id]).try_acquire().await;
        match tried.expect("the store can be written") {
            Attempt::Acquired(guard) => drop(guard),
            Attempt::Busy(busy) => panic!("left behind: {busy:?}"),
        }
    }
    println!(
        "spot checks that each can be had at once: {:.3} s",
        start.elapsed().as_secs_f64()
    );
    let _ = in_the_way
        .release()
        .await
        .expect("the store can be written");
    let start = Instant::now();
    let swept = locks.shutdown(SWEPT_WITHIN).await;
    println!(
        "shutdown, all records swept ({swept}): {:.2} s",
        start.elapsed().as_secs_f64()
    );
}

/// A process of its own, whose memory is that of one acquisition.
pub(crate) fn worker(store: &Store, count: u32) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let guard = locks.lock("bench").acquire().await;
        let _ = guard.expect("nobody has it").release().await;
        let before = resident_mib();
        let guard = all(&locks, count).await;
        let (peak, held) = (peak_mib(), resident_mib());
        let _ = guard.release().await.expect("the store can be written");
        println!(
            "client's memory with {count} ids, MiB: {before:.0} before, {held:.0} while they are held ({:.0} bytes an id), at \
             most {peak:.0} on the way",
            (held - before) * 1024.0 * 1024.0 / f64::from(count)
        );
        locks.shutdown(SWEPT_WITHIN).await;
    });
}
