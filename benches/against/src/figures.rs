//! The figures, and how each of them is measured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Attempt, LockBackend, Locks, Released};
use lockkeeper_workloads::{ACQUIRE, Failure, Measured, REFUSED, RELEASE, SWEPT, Workload};

use crate::processes::Processes;

/// Every figure.
pub(crate) const FIGURES: &[&str] = &[
    "pair",
    "pair of 16 tasks",
    "hand-over between 8 tasks",
    PROCESSES,
    "share of 1",
    "share of 16",
    "tree, depth 1",
    "tree, depth 32",
    DOCUMENTS,
    REFUSAL,
    WAKE_UP,
];

const PROCESSES: &str = "hand-over between 8 processes";
const DOCUMENTS: &str = "100 documents";
const REFUSAL: &str = "refusal";
const WAKE_UP: &str = "wake-up";

/// What those of them are that take one workload, in turns.
fn workload(figure: &str) -> Option<Workload> {
    Some(match figure {
        "pair" => Workload::Uncontended { tasks: 1 },
        "pair of 16 tasks" => Workload::Uncontended { tasks: 16 },
        "hand-over between 8 tasks" => Workload::Contended { tasks: 8 },
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
    /// Started when they are needed first.
    processes: Option<Processes>,
    /// Wake-ups so far.
    wake_ups: u32,
}

impl Measurer {
    pub(crate) async fn new(url: String) -> Result<Self, Failure> {
        Ok(Self {
            backend: lockkeeper::backend(&url).await?,
            url,
            processes: None,
            wake_ups: 0,
        })
    }

    /// Measures a figure for about so long; nothing, where the store does not have it.
    pub(crate) async fn measure(&mut self, figure: &str, time: Duration) -> Result<Found, Failure> {
        let one = |us| Found::from([(figure.to_owned(), us)]);
        match figure {
            PROCESSES if self.url.starts_with("memory:") => Ok(Found::new()),
            PROCESSES => {
                let processes = match &mut self.processes {
                    Some(processes) => processes,
                    none => none.insert(Processes::start()?),
                };
                per_turn(&processes.take_turns(time)?).map(one)
            }
            DOCUMENTS => self.documents(time).await,
            REFUSAL => self.refusal(time).await.map(one),
            WAKE_UP => self.wake_up(time).await.map(one),
            _ => {
                let workload = workload(figure).ok_or_else(|| format!("no figure {figure:?}"))?;
                per_turn(&workload.run(&self.backend, time).await?).map(one)
            }
        }
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
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        Ok(all
            .into_iter()
            .map(|(part, times)| (format!("{DOCUMENTS}, {part}"), median(times)))
            .collect())
    }

    /// Somebody who does not wait, refused by one who has the lock: the mean.
    async fn refusal(&self, time: Duration) -> Result<f64, Failure> {
        let (holder, other) = (self.client()?, self.client()?);
        let guard = holder.global("refused").acquire().await?;
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            match other.global("refused").try_acquire().await? {
                Attempt::Acquired(_) => return Err("what is held was granted".into()),
                Attempt::Busy(_) => count += 1,
            }
        }
        let mean = us(start.elapsed()) / f64::from(count);
        released(guard.release().await?)?;
        closed(&[holder, other]).await?;
        Ok(mean)
    }

    /// From the call of release to the grant of somebody who waits, on a connection of its own: the mean. Where the store
    /// is looked at, releases are spread over the time between two looks.
    async fn wake_up(&mut self, time: Duration) -> Result<f64, Failure> {
        let apart = if self.url.starts_with("memory:") {
            Arc::clone(&self.backend)
        } else {
            lockkeeper::backend(&self.url).await?
        };
        let poll = self.backend.info().poll.unwrap_or(WAITED);
        let (holder, waiter) = (self.client()?, Locks::builder(apart).build()?);
        let (start, mut count, mut sum) = (Instant::now(), 0, Duration::ZERO);
        while start.elapsed() < time {
            let guard = holder.global("wake up").acquire().await?;
            let wait = async {
                let guard = waiter.global("wake up").acquire().await;
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
            sum += then.saturating_duration_since(start);
            count += 1;
        }
        closed(&[holder, waiter]).await?;
        Ok(us(sum) / f64::from(count))
    }

    fn client(&self) -> Result<Locks, Failure> {
        Ok(Locks::builder(Arc::clone(&self.backend)).build()?)
    }
}

fn released(answer: Released) -> Result<(), Failure> {
    match answer {
        Released::Released => Ok(()),
        Released::NotHeld => Err("a lock was lost".into()),
    }
}

async fn closed(clients: &[Locks]) -> Result<(), Failure> {
    for client in clients {
        if !client.shutdown(Duration::from_secs(60)).await {
            return Err("the locks were not given back in time".into());
        }
    }
    Ok(())
}

/// How long a turn took, or a hand-over.
fn per_turn(measured: &Measured) -> Result<f64, Failure> {
    match measured.per_second {
        Some(rate) if rate > 0.0 => Ok(1e6 / rate),
        _ => Err("nobody had a turn in the time given".into()),
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
