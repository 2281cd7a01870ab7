//! The stores side by side: every workload on every store, in rounds that take turns, beside what the store needs by
//! itself and other libraries' locks; then a report.

mod goals;
mod machine;
mod plot;
pub(crate) mod processes;
mod report;
mod result;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{LockBackend, Locks};
use lockkeeper_workloads::{ACQUIRE, Kind, Measured, Ours, SWEPT, Workload};

use crate::contended::turns_of_processes;
use crate::floor::{self, Floor};
use crate::peer::{self, Peer};
use crate::rounds::one_thread;
use crate::store::{Store, backend};

use result::{About, Comparison, FLOOR, OURS, Round, Series};

/// So many rounds are there of more ids than this, which take minutes.
const MANY: u32 = 100_000;
const ROUNDS_OF_MANY: usize = 2;
/// Locks that nobody else wants take turns so often in a round; in the first round, which does not count, for longer,
/// because servers get faster while they run.
const TURNS: u32 = 5;
const WARM_UP: u32 = 4;
/// How long processes take turns at one lock in a round, and how many.
pub(crate) const BY_PROCESSES: Duration = Duration::from_secs(3);
const PROCESSES: u32 = 8;
/// Names of workloads that take processes of their own.
pub(super) const CONTENDED_BY_PROCESSES: &str = "contended by processes";
pub(super) const KEPT: &str = "guards";
pub(super) const TAKEOVER: &str = "takeover";

/// Everything that is run with all stores in turn.
fn workloads(most_ids: u32) -> Vec<Workload> {
    let mut all = vec![
        Workload::Uncontended { tasks: 1 },
        Workload::Uncontended { tasks: 16 },
        Workload::Contended { tasks: 2 },
        Workload::Contended { tasks: 8 },
        Workload::Contended { tasks: 32 },
        Workload::Semaphore {
            places: 10,
            takers: 100,
        },
    ];
    all.extend([1, 10, 1_000].map(|holders| Workload::Share { holders }));
    for siblings in [0, 100] {
        all.extend([1, 5, 32].map(|depth| Workload::Tree { depth, siblings }));
    }
    let ids = [100, 10_000, 1_000_000].into_iter();
    all.extend(
        ids.filter(|ids| *ids <= most_ids)
            .map(|ids| Workload::Documents { ids }),
    );
    all
}

/// A store and what is measured beside it.
struct Subject {
    name: String,
    store: Store,
    backend: Arc<dyn LockBackend>,
    /// Our locks that nobody else wants.
    ours: Peer,
    floor: Option<Box<dyn Floor>>,
    /// The floor's pair.
    pair: Option<Peer>,
    peers: Vec<Peer>,
    server: String,
}

impl Subject {
    /// The store of that name; the URL of a server stands in the environment, where nobody else reads it.
    async fn new(name: &str) -> Self {
        let url = match name {
            "memory" => Some("memory:".to_owned()),
            "sqlite" => None,
            _ => {
                let variable = format!("LOCKKEEPER_URL_{}", name.to_uppercase());
                Some(std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set")))
            }
        };
        let store = Store::new(url);
        let mut floor = floor::of(&store).await;
        let server = match &mut floor {
            Some(floor) => floor.server().await,
            None => "in the program".to_owned(),
        };
        let backend = backend(store.url()).await;
        let locks = Locks::builder(Arc::clone(&backend)).build();
        let locks = locks.expect("the defaults can be used");
        Self {
            name: name.to_owned(),
            ours: Peer::new(OURS, Arc::new(Ours::new(&locks, Kind::Global))),
            backend,
            pair: floor.as_ref().map(|floor| Peer::new(FLOOR, floor.pair())),
            floor,
            peers: peer::of(&store).await,
            server,
            store,
        }
    }

    fn about(&self) -> About {
        let info = self.backend.info();
        let floor = self.floor.as_ref();
        About {
            name: self.name.clone(),
            server: self.server.clone(),
            clock: info.clock.to_owned(),
            poll_ms: info
                .poll
                .map(|poll| u64::try_from(poll.as_millis()).unwrap_or(u64::MAX)),
            survives_crash: info.survives.crash,
            survives_power_loss: info.survives.power_loss,
            floor: floor.map(|floor| [floor.pair_is().to_owned(), floor.many_is().to_owned()]),
        }
    }

    /// Whether other processes reach it.
    fn is_shared(&self) -> bool {
        self.store.scheme() != "memory"
    }

    /// One round of turns at locks that nobody else wants: ours, the floor's pairs and those of other libraries take turns
    /// within it, because what else the machine does is to meet all of them.
    async fn round_of_pairs(&mut self, keys: &[String], slice: Duration) -> Vec<(String, Round)> {
        let beside = self.pair.iter_mut().chain(&mut self.peers);
        let mut all: Vec<&mut Peer> = [&mut self.ours].into_iter().chain(beside).collect();
        let mut found = vec![(vec![Vec::new(); keys.len()], Duration::ZERO); all.len()];
        for turn in 0..TURNS {
            let mut order: Vec<usize> = (0..all.len()).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let (each, time) = all[at].turns(keys, slice / TURNS).await;
                let (turns, times) = &mut found[at];
                turns
                    .iter_mut()
                    .zip(each)
                    .for_each(|(all, some)| all.extend(some));
                *times += time;
            }
        }
        let names = all.iter().map(|peer| peer.name.to_owned());
        let measured = found
            .iter()
            .map(|(each, time)| Measured::of_turns(each, *time).into());
        names.zip(measured).collect()
    }

    /// One round of a workload: ours, then what is beside it.
    async fn round(&mut self, workload: Workload, slice: Duration) -> Vec<(String, Round)> {
        if matches!(workload, Workload::Uncontended { .. }) {
            return self.round_of_pairs(&workload.keys(), slice).await;
        }
        let ours = workload.run(&self.backend, slice).await;
        let ours = ours.unwrap_or_else(|failure| panic!("{} {workload:?}: {failure}", self.name));
        let mut found = vec![(OURS.to_owned(), ours.into())];
        if let Workload::Contended { .. } = workload {
            for peer in &mut self.peers {
                let (each, time) = peer.turns(&workload.keys(), slice).await;
                let measured = Measured::of_one_lock(&each, time);
                found.push((peer.name.to_owned(), measured.into()));
            }
        }
        if let (Workload::Documents { ids }, Some(floor)) = (workload, &mut self.floor) {
            let mut measured = Measured::default();
            let start = Instant::now();
            floor.put(ids).await;
            measured.note(ACQUIRE, start.elapsed());
            let start = Instant::now();
            floor.remove(ids).await;
            measured.note(SWEPT, start.elapsed());
            found.push((FLOOR.to_owned(), measured.into()));
        }
        found
    }

    /// One round of turns by processes, each with a pause of one pair between release and retry.
    fn round_of_processes(&self, pair: Duration) -> Round {
        let each = turns_of_processes(&self.store, PROCESSES as usize, pair, BY_PROCESSES);
        Measured::of_one_lock(&each, BY_PROCESSES).into()
    }
}

/// What is to be compared, and how.
pub(crate) struct Plan<'a> {
    pub(crate) stores: &'a [String],
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    pub(crate) most_ids: u32,
}

/// Runs everything and writes the report into a folder.
pub(crate) fn run(plan: &Plan<'_>, folder: &Path) {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    let found = one_thread().block_on(compare(plan));
    let json = serde_json::to_vec_pretty(&found).expect("it is JSON");
    std::fs::write(folder.join("compare.json"), json).expect("the folder can be written");
    write(&found, folder);
}

/// Writes the report of what was found before.
pub(crate) fn rewrite(folder: &Path) {
    let json = std::fs::read(folder.join("compare.json")).expect("there was a comparison");
    write(
        &serde_json::from_slice(&json).expect("it is a comparison"),
        folder,
    );
}

fn write(found: &Comparison, folder: &Path) {
    let plots = plot::all(found, folder);
    let report = report::markdown(found, &plots);
    std::fs::write(folder.join("compare.md"), report).expect("the folder can be written");
    println!("{}", folder.join("compare.md").display());
}

async fn compare(plan: &Plan<'_>) -> Comparison {
    let mut subjects = Vec::new();
    for store in plan.stores {
        subjects.push(Subject::new(store).await);
    }
    let mut series: Vec<Series> = Vec::new();
    // The first round is for the servers to get warm.
    for round in 0..=plan.rounds {
        for workload in workloads(plan.most_ids) {
            let many = matches!(workload, Workload::Documents { ids } if ids > MANY);
            if many && (round == 0 || round > ROUNDS_OF_MANY) {
                continue;
            }
            for subject in in_turn(&mut subjects, round) {
                let start = Instant::now();
                let warm_up = round == 0 && matches!(workload, Workload::Uncontended { .. });
                let slice = plan.slice * if warm_up { WARM_UP } else { 1 };
                let found = subject.round(workload, slice).await;
                eprintln!(
                    "round {round}: {}, {workload:?}: {:.1} s",
                    subject.name,
                    start.elapsed().as_secs_f64()
                );
                if round > 0 {
                    for (of, found) in found {
                        let (name, size) = (workload.name(), workload.size());
                        add(&mut series, &subject.name, of, name, size, found);
                    }
                }
            }
        }
        for subject in
            in_turn(&mut subjects, round).filter(|subject| round > 0 && subject.is_shared())
        {
            let pair = pair_of(&series, &subject.name);
            let found = subject.round_of_processes(pair);
            eprintln!("round {round}: {}, by processes", subject.name);
            let name = CONTENDED_BY_PROCESSES;
            add(
                &mut series,
                &subject.name,
                OURS.to_owned(),
                name,
                PROCESSES,
                found,
            );
        }
    }
    let shared: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| subject.is_shared())
        .collect();
    let urls: Vec<&str> = shared.iter().map(|subject| subject.store.url()).collect();
    eprintln!("{} guards for a minute", processes::GUARDS);
    for (subject, found) in shared.iter().zip(processes::guards(&urls).await) {
        let size = processes::GUARDS;
        add(
            &mut series,
            &subject.name,
            OURS.to_owned(),
            KEPT,
            size,
            found,
        );
    }
    for subject in shared {
        eprintln!("takeovers: {}", subject.name);
        let found = processes::takeovers(subject.store.url()).await;
        add(
            &mut series,
            &subject.name,
            OURS.to_owned(),
            TAKEOVER,
            1,
            found,
        );
    }
    Comparison {
        date: machine::date(),
        machine: machine::lines(),
        rounds: plan.rounds,
        slice_ms: u64::try_from(plan.slice.as_millis()).unwrap_or(u64::MAX),
        stores: subjects.iter().map(Subject::about).collect(),
        series,
    }
}

/// The stores take turns at being first.
fn in_turn(subjects: &mut [Subject], round: usize) -> impl Iterator<Item = &mut Subject> {
    let (before, from) = subjects.split_at_mut(round % subjects.len());
    from.iter_mut().chain(before)
}

fn add(series: &mut Vec<Series>, store: &str, of: String, workload: &str, size: u32, round: Round) {
    let known = series.iter_mut().find(|series| {
        (series.store.as_str(), series.of.as_str()) == (store, of.as_str())
            && (series.workload.as_str(), series.size) == (workload, size)
    });
    match known {
        Some(series) => series.rounds.push(round),
        None => series.push(Series {
            store: store.to_owned(),
            of,
            workload: workload.to_owned(),
            size,
            rounds: vec![round],
        }),
    }
}

/// How long a pair by one task takes.
fn pair_of(series: &[Series], store: &str) -> Duration {
    let alone = Workload::Uncontended { tasks: 1 };
    let found = series.iter().find(|series| {
        series.store == store && series.of == OURS && series.workload == alone.name()
    });
    let rounds = found.map_or(&[][..], |series| &series.rounds);
    let per_second = rounds.last().and_then(result::named(result::PER_SECOND));
    Duration::from_secs_f64(per_second.map_or(0.0, f64::recip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_two_embedded_stores() {
        let folder = tempfile::tempdir().unwrap();
        let stores = ["memory".to_owned(), "sqlite".to_owned()];
        let mut subjects = Vec::new();
        let found = one_thread().block_on(async {
            for store in &stores {
                subjects.push(Subject::new(store).await);
            }
            let mut series = Vec::new();
            for round in 0..2 {
                for workload in workloads(100) {
                    for subject in in_turn(&mut subjects, round) {
                        for (of, found) in subject.round(workload, Duration::from_millis(5)).await {
                            let (name, size) = (workload.name(), workload.size());
                            add(&mut series, &subject.name, of, name, size, found);
                        }
                    }
                }
            }
            Comparison {
                date: machine::date(),
                machine: machine::lines(),
                rounds: 2,
                slice_ms: 5,
                stores: subjects.iter().map(Subject::about).collect(),
                series,
            }
        });
        let json = serde_json::to_vec(&found).unwrap();
        std::fs::write(folder.path().join("compare.json"), json).unwrap();
        rewrite(folder.path());
        let report = std::fs::read_to_string(folder.path().join("compare.md")).unwrap();
        for wanted in [
            "| sqlite |",
            "| memory |",
            "tokio::sync::Mutex",
            "](compare-documents.svg)",
        ] {
            assert!(
                report.contains(wanted),
                "{wanted} is missing from\n{report}"
            );
        }
        let plot = std::fs::read_to_string(folder.path().join("compare-documents.svg")).unwrap();
        assert!(plot.contains("sqlite"), "{plot}");
    }
}
