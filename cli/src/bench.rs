//! `lockkeeper bench`: what locks cost in the user's own store.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::{ConnectError, ErrorKind, Scratch};
use lockkeeper_workloads::{
    ABORT, ACQUIRE, HAND_OVER, Measured, PAIR, REFUSED, RELEASE, SWEPT, WAIT, Workload,
};
use serde::Serialize;

use crate::args::{BenchArgs, Common};
use crate::failure::{Failure, chain, say, status, tell};
use crate::output::Output;
use crate::signals::Signals;
use crate::{runtime, store};

/// So much longer than it is to run a workload may take, to begin and to end; the document locks altogether.
const PATIENCE: Duration = Duration::from_secs(30);

/// So long the removal waits for what was asked before.
const BEHIND: Duration = Duration::from_secs(1);

/// Measures the store in a namespace of its own, and removes that, however the measuring ends.
pub(crate) fn bench(common: &Common, args: &BenchArgs) -> Result<u8, Failure> {
    let url = store::url(common)?;
    let measuring = runtime()?;
    // What may be in the store.
    let mut place = None;
    let done = measuring.block_on(async {
        let mut signals = Signals::listen()?;
        let scratch = tokio::select! {
            biased;
            signal = signals.ending() => return Err(Failure::signal(signal.as_raw())),
            scratch = make(&url, &mut place) => scratch?,
        };
        store::warn(common);
        let done = tokio::select! {
            biased;
            signal = signals.ending() => Err(Failure::signal(signal.as_raw())),
            done = measure(&scratch, args, common.json) => done,
        };
        // Behind what was asked of it before, which would make it anew. How it ends is no matter.
        let _ = tokio::time::timeout(BEHIND, scratch.backend().sessions(None, 1)).await;
        done
    });
    // What a workload that was given up still does in the background ends here.
    measuring.shutdown_background();
    let Some((name, url)) = place else {
        return done;
    };
    let removed = runtime().and_then(|removing| {
        let removed = removing.block_on(remove(&name, &url));
        removing.shutdown_background();
        removed
    });
    match (done, removed) {
        (Ok(status), Ok(())) => Ok(status),
        (Ok(_), Err(failure)) | (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(other)) => {
            say(other.message().unwrap_or_default());
            Err(failure)
        }
    }
}

/// Makes a namespace, and says where it is before it is there.
async fn make(url: &str, place: &mut Option<(String, String)>) -> Result<Scratch, Failure> {
    let made = Scratch::announced(url, |name, url| {
        *place = Some((name.to_owned(), url.to_owned()));
    });
    made.await.map_err(|error| match error {
        ConnectError::Store(error) if error.kind() == ErrorKind::Unauthorized => Failure::new(
            status::UNAVAILABLE,
            format!(
                "{}; it takes the rights to make and to remove a namespace lockkeeper-scratch-…",
                chain(&error)
            ),
        ),
        error => error.into(),
    })
}

async fn remove(name: &str, url: &str) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let left = |why: String| {
        let what =
            format!("the namespace {name} may be in the store still, remove it there: {why}");
        Failure::new(status::UNAVAILABLE, what)
    };
    tokio::select! {
        biased;
        _ = signals.ending() => Err(left("it was interrupted".to_owned())),
        removed = lockkeeper::remove(url) => removed.map(drop).map_err(|error| left(chain(&error))),
    }
}

async fn measure(scratch: &Scratch, args: &BenchArgs, json: bool) -> Result<u8, Failure> {
    let time = args.seconds;
    let workloads = [
        Workload::Uncontended { tasks: 1 },
        Workload::Uncontended { tasks: 16 },
        Workload::Contended { tasks: 8 },
        Workload::Semaphore {
            places: 10,
            takers: 30,
        },
        Workload::Tree {
            depth: 5,
            siblings: 0,
        },
        Workload::Documents { ids: args.keys },
    ];
    let backend = scratch.backend();
    let store = backend.info().name;
    tell(&format!(
        "measuring {store} in a namespace of its own, {}",
        scratch.name()
    ));
    let mut output = Output::new();
    if !json {
        output.line(&row("", "p50", "p99", "longest", "a second"))?;
        output.flush()?;
    }
    let mut all = Vec::new();
    for workload in workloads {
        let failed = |why: String| {
            let (name, size) = (workload.name(), workload.size());
            Failure::new(status::UNAVAILABLE, format!("{name}, {size}: {why}"))
        };
        let limit = time + PATIENCE;
        let measured = tokio::time::timeout(limit, workload.run(&backend, time))
            .await
            .map_err(|_| failed(format!("not done within {limit:?}: try fewer --keys")))?
            .map_err(|error| failed(chain(&*error)))?;
        if json {
            all.push(WorkloadJson::new(workload, &measured));
        } else {
            for line in rows(workload, &measured) {
                output.line(&line)?;
            }
            output.flush()?;
        }
    }
    if json {
        output.json(&BenchJson {
            store,
            seconds: time.as_secs_f64(),
            workloads: all,
        })?;
    }
    output.finish()
}

fn row(what: &str, p50: &str, p99: &str, longest: &str, a_second: &str) -> String {
    let row = format!("{what:<30}{p50:>10}{p99:>10}{longest:>10}  {a_second}");
    row.trim_end().to_owned()
}

/// The lines of the table.
fn rows(workload: Workload, measured: &Measured) -> Vec<String> {
    let (name, times): (String, &[&str]) = match workload {
        Workload::Uncontended { tasks: 1 } => ("1 task, 1 lock".to_owned(), &[PAIR]),
        Workload::Uncontended { tasks } => (format!("{tasks} tasks, a lock each"), &[PAIR]),
        Workload::Contended { tasks } => (format!("{tasks} tasks, 1 lock"), &[HAND_OVER, WAIT]),
        Workload::Shared { tasks } => (format!("{tasks} tasks, 1 key shared"), &[PAIR]),
        Workload::Writer { readers } => (format!("a writer, {readers} readers"), &[WAIT]),
        Workload::Share { holders } => (format!("a share, {holders} holders"), &[PAIR]),
        Workload::Semaphore { places, takers } => {
            (format!("{takers} tasks, {places} places"), &[PAIR])
        }
        Workload::Tree { depth, .. } => (format!("a path of depth {depth}"), &[PAIR]),
        Workload::Documents { ids } => (
            format!("{ids} documents"),
            &[ACQUIRE, REFUSED, ABORT, RELEASE, SWEPT],
        ),
    };
    let shown = times.iter().filter_map(|what| {
        let times = measured.times.get(what)?;
        let [p50, p99, longest] = [
            times.value_at_quantile(0.5),
            times.value_at_quantile(0.99),
            times.max(),
        ]
        .map(|us| format!("{:.1?}", Duration::from_micros(us)));
        let name = format!("{name}: {what}");
        if times.len() == 1 {
            return Some(row(&name, &p50, "", "", ""));
        }
        let per_second = measured
            .per_second
            .filter(|_| [PAIR, HAND_OVER].contains(what));
        let per_second = per_second.map(|number| format!("{number:.0} {what}s"));
        let per_second = per_second.unwrap_or_default();
        Some(row(&name, &p50, &p99, &longest, &per_second))
    });
    shown.collect()
}

/// What was measured, for programs.
#[derive(Serialize)]
struct BenchJson {
    store: &'static str,
    seconds: f64,
    workloads: Vec<WorkloadJson>,
}

#[derive(Serialize)]
struct WorkloadJson {
    workload: &'static str,
    size: u32,
    per_second: Option<f64>,
    fairness: Option<f64>,
    least_share: Option<f64>,
    times: BTreeMap<&'static str, TimesJson>,
}

#[derive(Serialize)]
struct TimesJson {
    count: u64,
    p50_us: u64,
    p99_us: u64,
    longest_us: u64,
}

impl WorkloadJson {
    fn new(workload: Workload, measured: &Measured) -> Self {
        let times = measured.times.iter().map(|(what, times)| {
            let times = TimesJson {
                count: times.len(),
                p50_us: times.value_at_quantile(0.5),
                p99_us: times.value_at_quantile(0.99),
                longest_us: times.max(),
            };
            (*what, times)
        });
        Self {
            workload: workload.name(),
            size: workload.size(),
            per_second: measured.per_second,
            fairness: measured.fairness,
            least_share: measured.least_share,
            times: times.collect(),
        }
    }
}
