//! The figures, and how each of them is measured.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Attempt, LockBackend, Locks, Released};
use lockkeeper_workloads::processes::{Processes, Work};
use lockkeeper_workloads::{
    ACQUIRE, Failure, Measured, PAIR, REFUSED, RELEASE, SWEPT, WAIT, Workload,
};

/// A figure, and in how many slices of a round it is measured.
pub(crate) type Listed = (&'static str, u32);

/// Every figure. Where somebody waits for another one, short slices have too few turns.
pub(crate) const FIGURES: &[Listed] = &[
    ("pair", SHORT),
    ("pair of 16 tasks", SHORT),
    ("hand-over between 8 tasks", LONG),
    ("hand-over between 64 tasks", LONG),
    ("hand-over between 8 tasks of 2 processes", LONG),
    ("hand-over between 64 tasks of 2 processes", LONG),
    ("hand-over between 8 processes", LONG),
    ("hand-over between 64 tasks of 8 processes", LONG),
    (WAITER, LONG),
    ("share of 1", SHORT),
    ("share of 16", SHORT),
    ("pair of 16 tasks that share", SHORT),
    ("turn of 10 tasks at a semaphore of 10", LONG),
    ("turn of 100 tasks at a semaphore of 10", LONG),
    (WRITER, LONG),
    ("tree, depth 1", SHORT),
    ("tree, depth 32", SHORT),
    (DOCUMENTS, SHORT),
    (REFUSAL, SHORT),
    (WAKE_UP, LONG),
];

const SHORT: u32 = 6;
const LONG: u32 = 2;

const WAITER: &str = "wait of a process beside 8 tasks of another";
const WRITER: &str = "wait of a writer beside readers";
const DOCUMENTS: &str = "100 documents";
const REFUSAL: &str = "refusal";
const WAKE_UP: &str = "wake-up";

/// What those of them are that take one workload, in turns.
fn workload(figure: &str) -> Option<Workload> {
    Some(match figure {
        "pair" => Workload::Uncontended { tasks: 1 },
        "pair of 16 tasks" => Workload::Uncontended { tasks: 16 },
        "hand-over between 8 tasks" => Workload::Contended { tasks: 8 },
        "hand-over between 64 tasks" => Workload::Contended { tasks: 64 },
        "pair of 16 tasks that share" => Workload::Shared { tasks: 16 },
        "turn of 10 tasks at a semaphore of 10" => Workload::Semaphore {
            places: 10,
            takers: 10,
        },
        "turn of 100 tasks at a semaphore of 10" => Workload::Semaphore {
            places: 10,
            takers: 100,
        },
        WRITER => Workload::Writer { readers: 3 },
        "share of 1" => Workload::Share { holders: 1 },
        "share of 16" => Workload::Share { holders: 16 },
        "tree, depth 1" => Workload::Tree {
            depth: 1,
            siblings: 0,
        },
        "tree, depth 32" => Workload::Tree {
            depth: 32,
            siblings: 0,
        },
        _ => return None,
    })
}

/// What the processes of a figure do, if it takes any.
fn work(figure: &str, time: Duration) -> Option<Vec<Work>> {
    Some(match figure {
        "hand-over between 8 tasks of 2 processes" => Work::shared_out(8, 2, time),
        "hand-over between 64 tasks of 2 processes" => Work::shared_out(64, 2, time),
        "hand-over between 8 processes" => Work::shared_out(8, 8, time),
        "hand-over between 64 tasks of 8 processes" => Work::shared_out(64, 8, time),
        WAITER => vec![Work::of(8, time), Work::of(1, time)],
        _ => return None,
    })
}

/// How long somebody waits before the lock is released to them, at least.
const WAITED: Duration = Duration::from_millis(20);
/// Multiples of this are spread evenly over 0..1, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// What was found, in µs: by the figure, or by its parts.
pub(crate) type Found = BTreeMap<String, f64>;

/// Measures one store.
pub(crate) struct Measurer {
    url: String,
    backend: Arc<dyn LockBackend>,
    /// By how many there are; started when they are needed first.
    processes: BTreeMap<usize, Processes>,
    /// Wake-ups so far.
    wake_ups: u32,
}

impl Measurer {
    pub(crate) async fn new(url: String) -> Result<Self, Failure> {
        Ok(Self {
            backend: lockkeeper::backend(&url).await?,
            url,
            processes: BTreeMap::new(),
            wake_ups: 0,
        })
    }

    /// Measures a figure for about so long; nothing, where the store does not have it.
    pub(crate) async fn measure(&mut self, figure: &str, time: Duration) -> Result<Found, Failure> {
        let one = |us| Found::from([(figure.to_owned(), us)]);
        match figure {
            DOCUMENTS => self.documents(time).await,
            REFUSAL => self.refusal(time).await.map(one),
            WAKE_UP => self.wake_up(time).await.map(one),
            _ => {
                if let Some(work) = work(figure, time) {
                    return self.of_processes(figure, &work);
                }
                let workload = workload(figure).ok_or_else(|| format!("no figure {figure:?}"))?;
                let measured = workload.run(&self.backend, time).await?;
                match workload {
                    Workload::Contended { .. } | Workload::Semaphore { .. } => {
                        per_turn(&measured).map(one)
                    }
                    // What was given up counts for as long as it lasted.
                    Workload::Writer { .. } => Ok(one(usual(all(&measured, WAIT)))),
                    _ => Ok(one(usual(all(&measured, PAIR)))),
                }
            }
        }
    }

    /// Turns of processes, which do not reach the memory store. Of a process beside another: how long it waits.
    fn of_processes(&mut self, figure: &str, work: &[Work]) -> Result<Found, Failure> {
        if self.url.starts_with("memory:") {
            return Ok(Found::new());
        }
        let processes = match self.processes.remove(&work.len()) {
            Some(processes) => processes,
            // They find the store's URL in the environment, as this one did.
            None => {
                let program = std::env::current_exe()?;
                Processes::start(work.len(), || {
                    let mut command = Command::new(&program);
                    command.arg("worker");
                    command
                })?
            }
        };
        let processes = self.processes.entry(work.len()).or_insert(processes);
        let (each, time) = processes.take_turns(work)?;
        let us = match &each[..] {
            [_, waiter] if figure == WAITER => usual(all(&Measured::of_turns(waiter, time), WAIT)),
            _ => per_turn(&Measured::of_one_lock(&each.concat(), time))?,
        };
        Ok(Found::from([(figure.to_owned(), us)]))
    }

    /// The parts of an acquisition of many.
    async fn documents(&self, time: Duration) -> Result<Found, Failure> {
        let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let start = Instant::now();
        while all.is_empty() || start.elapsed() < time {
            let measured = Workload::Documents { ids: 100 }
                .run(&self.backend, time)
                .await?;
            for part in [ACQUIRE, REFUSED, RELEASE, SWEPT] {
                all.entry(part)
                    .or_default()
                    .push(measured.times[part].mean());
            }
        }
        Ok(all
            .into_iter()
            .map(|(part, times)| (format!("{DOCUMENTS}, {part}"), usual(times)))
            .collect())
    }

    /// Somebody who does not wait, refused by one who has the lock.
    async fn refusal(&self, time: Duration) -> Result<f64, Failure> {
        let (holder, other) = (self.client()?, self.client()?);
        let guard = holder.lock("refused").acquire().await?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            let start = Instant::now();
            match other.lock("refused").try_acquire().await? {
                Attempt::Acquired(_) => return Err("what is held was granted".into()),
                Attempt::Busy(_) => times.push(us(start.elapsed())),
            }
        }
        released(guard.release().await?)?;
        closed(&[holder, other]).await?;
        Ok(usual(times))
    }

    /// From the call of release to the grant of somebody who waits, on a connection of its own. Where the store
    /// is looked at, releases are spread over the time between two looks.
    async fn wake_up(&mut self, time: Duration) -> Result<f64, Failure> {
        let apart = if self.url.starts_with("memory:") {
            Arc::clone(&self.backend)
        } else {
            lockkeeper::backend(&self.url).await?
        };
        let poll = self.backend.info().poll.unwrap_or(WAITED);
        let (holder, waiter) = (self.client()?, Locks::builder(apart).build()?);
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            let guard = holder.lock("wake up").acquire().await?;
            let wait = async {
                let guard = waiter.lock("wake up").acquire().await;
                (guard, Instant::now())
            };
            self.wake_ups += 1;
            let phase = (f64::from(self.wake_ups) * GOLDEN).fract();
            let release = async {
                tokio::time::sleep(WAITED + poll.mul_f64(phase)).await;
                let start = Instant::now();
                guard.release().await.map(|answer| (answer, start))
            };
            let ((granted, then), done) = tokio::join!(wait, release);
            let (answer, start) = done?;
            released(answer)?;
            released(granted?.release().await?)?;
            times.push(us(then.saturating_duration_since(start)));
        }
        closed(&[holder, waiter]).await?;
        Ok(usual(times))
    }

    fn client(&self) -> Result<Locks, Failure> {
        Ok(Locks::builder(Arc::clone(&self.backend)).build()?)
    }
}

fn released(answer: Released) -> Result<(), Failure> {
    // Other answers are not of every version.
    if answer == Released::NotHeld {
        return Err("a lock was lost".into());
    }
    Ok(())
}

async fn closed(clients: &[Locks]) -> Result<(), Failure> {
    for client in clients {
        if !client.shutdown(Duration::from_secs(60)).await {
            return Err("the locks were not given back in time".into());
        }
    }
    Ok(())
}

/// All times of something.
fn all(measured: &Measured, what: &str) -> Vec<f64> {
    let times = measured.times.get(what).into_iter();
    times
        .flat_map(|times| times.iter_recorded())
        .flat_map(|it| (0..it.count_at_value()).map(move |_| it.value_iterated_to()))
        .filter_map(|us| u32::try_from(us).ok().map(f64::from))
        .collect()
}

/// The mean of the quicker three quarters: what else the machine does meets the others. There is at least one.
fn usual(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.truncate((times.len() * 3).div_ceil(4));
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    times.iter().sum::<f64>() / f64::from(count)
}

/// How long a hand-over took, with whatever came between.
fn per_turn(measured: &Measured) -> Result<f64, Failure> {
    match measured.per_second {
        Some(rate) if rate > 0.0 => Ok(1e6 / rate),
        _ => Err("nobody had a turn in the time given".into()),
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
