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
use lockkeeper_workloads::processes::Work;
use lockkeeper_workloads::{ACQUIRE, Hold, Kind, Measured, Ours, SWEPT, WAIT, Workload};

use crate::baseline::{self, Baseline};
use crate::peer::{self, Peer};
use crate::rounds::one_thread;
use crate::store::{Store, backend};
use crate::turns::{turns_of_processes, with_pauses};

use result::{About, BASELINE, Comparison, OURS, Round, Series};

/// More ids than this take minutes, and are not warmed up.
const MANY: u32 = 100_000;
/// Locks that nobody else wants take turns so often in a round; in the first round, which does not count, for longer,
/// because servers get faster while they run.
const TURNS: u32 = 5;
const WARM_UP: u32 = 4;
/// The paths that are locked have so many components.
const DEPTHS: [u32; 3] = [1, 5, 32];
/// How long processes take turns at one lock in a round, and how many.
pub(crate) const BY_PROCESSES: Duration = Duration::from_secs(3);
const PROCESSES: u32 = 8;
/// How long the tasks of several processes take turns in a round.
pub(crate) const HAND_OVERS_FOR: Duration = Duration::from_secs(2);
/// So many processes, and tasks of all of them together.
const HAND_OVERS: [(&str, usize, u32); 4] = [
    (BY_2_PROCESSES, 2, 8),
    (BY_2_PROCESSES, 2, 64),
    (BY_8_PROCESSES, 8, 8),
    (BY_8_PROCESSES, 8, 64),
];
/// The tasks of the process that another one waits beside.
const BESIDE: u32 = 8;
/// Where many wait for few places, most of them would have no turn in a shorter time.
const LONGER: u32 = 4;
/// Names of workloads that take processes of their own.
pub(super) const BY_2_PROCESSES: &str = "contended by tasks of 2 processes";
pub(super) const BY_8_PROCESSES: &str = "contended by tasks of 8 processes";
pub(super) const WAITER: &str = "waiter of another process";
pub(super) const CONTENDED_BY_PROCESSES: &str = "contended by processes";
pub(super) const KEPT: &str = "guards";
pub(super) const TAKEOVER: &str = "takeover";

/// What a round of a workload found: of what, whose, and what it took.
type Found = (Workload, String, Round);

/// Everything that is run with all stores in turn. Tree locks that nobody else wants take turns with the others of one task.
fn workloads(most_ids: u32) -> Vec<Workload> {
    let mut all = vec![
        Workload::Uncontended { tasks: 1 },
        Workload::Uncontended { tasks: 16 },
        Workload::Contended { tasks: 2 },
        Workload::Contended { tasks: 8 },
        Workload::Contended { tasks: 32 },
        Workload::Contended { tasks: 64 },
        Workload::Semaphore {
            places: 10,
            takers: 100,
        },
        Workload::Shared { tasks: 16 },
        Workload::Writer { readers: 3 },
    ];
    all.extend([1, 10, 1_000].map(|holders| Workload::Share { holders }));
    let siblings = 100;
    all.extend(DEPTHS.map(|depth| Workload::Tree { depth, siblings }));
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
    /// Our locks that nobody else wants, and our tree locks.
    ours: Peer,
    paths: [Peer; DEPTHS.len()],
    baseline: Option<Box<dyn Baseline>>,
    /// The baseline's pair.
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
        let mut baseline = baseline::of(&store).await;
        let server = match &mut baseline {
            Some(baseline) => baseline.server().await,
            None => "in the program".to_owned(),
        };
        let backend = backend(store.url()).await;
        let locks = Locks::builder(Arc::clone(&backend)).build();
        let locks = locks.expect("the defaults can be used");
        Self {
            name: name.to_owned(),
            ours: Peer::new(OURS, Arc::new(Ours::new(&locks, Kind::Lock))),
            paths: DEPTHS.map(|_| Peer::new(OURS, Arc::new(Ours::new(&locks, Kind::Tree)))),
            backend,
            pair: baseline
                .as_ref()
                .map(|baseline| Peer::new(BASELINE, baseline.pair())),
            baseline,
            peers: peer::of(&store).await,
            server,
            store,
        }
    }

    fn about(&self) -> About {
        let info = self.backend.info();
        let baseline = self.baseline.as_ref();
        About {
            name: self.name.clone(),
            server: self.server.clone(),
            clock: info.clock.to_owned(),
            poll_ms: info
                .poll
                .map(|poll| u64::try_from(poll.as_millis()).unwrap_or(u64::MAX)),
            survives_crash: info.durability.crash,
            survives_power_loss: info.durability.power_loss,
            baseline: baseline
                .map(|baseline| [baseline.pair_is().to_owned(), baseline.many_is().to_owned()]),
        }
    }

    /// Whether other processes reach it.
    fn is_shared(&self) -> bool {
        self.store.scheme() != "memory"
    }

    /// One round of turns at locks that nobody else wants: ours, the baseline's pairs and those of other libraries take turns
    /// within it, and of one task tree locks, too, because what else the machine does is to meet all of them.
    async fn round_of_pairs(&mut self, workload: Workload, slice: Duration) -> Vec<Found> {
        let beside = self.pair.iter_mut().chain(&mut self.peers);
        let mut all: Vec<(Workload, &mut Peer)> = [&mut self.ours]
            .into_iter()
            .chain(beside)
            .map(|peer| (workload, peer))
            .collect();
        if workload == (Workload::Uncontended { tasks: 1 }) {
            let siblings = 0;
            let paths = DEPTHS.map(|depth| Workload::Tree { depth, siblings });
            all.extend(paths.into_iter().zip(&mut self.paths));
        }
        let mut found: Vec<_> = all
            .iter()
            .map(|(workload, _)| {
                let keys = workload.keys();
                (vec![Vec::new(); keys.len()], keys, Duration::ZERO)
            })
            .collect();
        for turn in 0..TURNS {
            let mut order: Vec<usize> = (0..all.len()).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let (turns, keys, times) = &mut found[at];
                let (workload, peer) = &mut all[at];
                let (each, time) = peer.turns(keys, workload.hold(), slice / TURNS).await;
                turns
                    .iter_mut()
                    .zip(each)
                    .for_each(|(all, some)| all.extend(some));
                *times += time;
            }
        }
        let measured = |((workload, peer), (each, _, time)): ((_, &mut Peer), (Vec<_>, _, _))| {
            let measured = Measured::of_turns(&each, time);
            (workload, peer.name.to_owned(), measured.into())
        };
        all.into_iter().zip(found).map(measured).collect()
    }

    /// One round of a workload, ours and what is beside it; of documents they take turns at being first.
    async fn round(&mut self, workload: Workload, slice: Duration, round: usize) -> Vec<Found> {
        if matches!(workload, Workload::Uncontended { .. }) {
            return self.round_of_pairs(workload, slice).await;
        }
        let mut found = Vec::new();
        if let (Workload::Documents { ids }, 1) = (workload, round % 2) {
            found.extend(self.round_of_floor(workload, ids).await);
        }
        let slice = match workload {
            Workload::Semaphore { .. } => slice * LONGER,
            _ => slice,
        };
        let before = self.baseline(workload, slice).await;
        let ours = self.ours(workload, slice).await;
        let after = self.baseline(workload, slice).await;
        let mut ours = Round::from(ours);
        ours.note_baseline(&[before, after]);
        found.push((workload, OURS.to_owned(), ours));
        if let (Workload::Documents { ids }, 0) = (workload, round % 2) {
            found.extend(self.round_of_floor(workload, ids).await);
        }
        if let Workload::Contended { .. } = workload {
            for peer in &mut self.peers {
                let (each, time) = peer.turns(&workload.keys(), workload.hold(), slice).await;
                let measured = Measured::of_one_lock(&each, time);
                found.push((workload, peer.name.to_owned(), measured.into()));
            }
        }
        found
    }

    async fn ours(&self, workload: Workload, slice: Duration) -> Measured {
        let measured = workload.run(&self.backend, slice).await;
        measured.unwrap_or_else(|failure| panic!("{} {workload:?}: {failure}", self.name))
    }

    /// The rate of what a workload is measured beside, if anything, in half a slice.
    async fn baseline(&self, workload: Workload, slice: Duration) -> Option<f64> {
        let measured = self.ours(workload.baseline()?, slice / 2).await;
        measured.per_second
    }

    /// As many bare records, if the store has any.
    async fn round_of_floor(&mut self, workload: Workload, ids: u32) -> Option<Found> {
        let baseline = self.baseline.as_mut()?;
        let mut measured = Measured::default();
        let start = Instant::now();
        baseline.put(ids).await;
        measured.note(ACQUIRE, start.elapsed());
        let start = Instant::now();
        baseline.remove(ids).await;
        measured.note(SWEPT, start.elapsed());
        Some((workload, BASELINE.to_owned(), measured.into()))
    }

    /// One round of turns by processes, each with a pause of one pair between release and retry.
    async fn round_of_processes(&mut self, slice: Duration) -> Round {
        let alone = Workload::Uncontended { tasks: 1 }.keys();
        let (each, time) = self.ours.turns(&alone, Hold::None, slice).await;
        let pairs = u32::try_from(each[0].len()).unwrap_or(u32::MAX).max(1);
        let work = with_pauses(PROCESSES as usize, time / pairs, BY_PROCESSES);
        let (each, time) = turns_of_processes(&self.store, &work);
        Measured::of_one_lock(&each.concat(), time).into()
    }

    /// One round of turns by the tasks of several processes, beside the pairs of one task.
    async fn round_of_hand_overs(
        &mut self,
        processes: usize,
        tasks: u32,
        slice: Duration,
    ) -> Round {
        let alone = Workload::Contended { tasks };
        let before = self.baseline(alone, slice).await;
        let work = Work::shared_out(tasks as usize, processes, HAND_OVERS_FOR);
        let (each, time) = turns_of_processes(&self.store, &work);
        let after = self.baseline(alone, slice).await;
        let mut round = Round::from(Measured::of_one_lock(&each.concat(), time));
        round.note_baseline(&[before, after]);
        round
    }

    /// One round of turns by the tasks of a process, and of a waiter in another one: what the waiter's took.
    fn round_of_waiter(&self) -> Round {
        let work = [
            Work::of(BESIDE as usize, BY_PROCESSES),
            Work::of(1, BY_PROCESSES),
        ];
        let (each, time) = turns_of_processes(&self.store, &work);
        let mut round = Round::from(Measured::of_turns(&each[1], time));
        round.times.retain(|what, _| what == WAIT);
        round
    }
}

/// What is to be compared, and how.
pub(crate) struct Plan<'a> {
    pub(crate) stores: &'a [String],
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    pub(crate) most_ids: u32,
    /// Those whose names begin so; all, where none is named.
    pub(crate) figures: &'a [String],
    /// Goes on with what the folder has of a comparison that did not come to its end.
    pub(crate) resume: bool,
}

/// Runs everything and writes the report into a folder.
pub(crate) fn run(plan: &Plan<'_>, folder: &Path) {
    if let Some((unknown, known)) = plan.unknown() {
        eprintln!(
            "no figure begins with {unknown:?}; known are {}",
            known.join("; ")
        );
        std::process::exit(2);
    }
    std::fs::create_dir_all(folder).expect("the folder can be made");
    one_thread().block_on(compare(plan, folder));
    rewrite(folder);
}

/// Writes the report of what was found before.
pub(crate) fn rewrite(folder: &Path) {
    let found = kept(folder);
    let plots = plot::all(&found, folder);
    let report = report::markdown(&found, &plots);
    std::fs::write(folder.join("compare.md"), report).expect("the folder can be written");
    println!("{}", folder.join("compare.md").display());
}

fn kept(folder: &Path) -> Comparison {
    let json = std::fs::read(folder.join("compare.json"))
        .expect("the folder has the compare.json of a comparison");
    serde_json::from_slice(&json).expect("it is a comparison")
}

impl Plan<'_> {
    fn wants(&self, workload: &str, size: u32) -> bool {
        let name = figure(workload, size);
        self.figures.is_empty()
            || self
                .figures
                .iter()
                .any(|wanted| name.starts_with(&**wanted))
    }

    /// The first that begins like no figure, if there is one, and all that there are.
    fn unknown(&self) -> Option<(&str, Vec<String>)> {
        let in_turns = workloads(self.most_ids).into_iter();
        let in_turns = in_turns.map(|it| figure(it.name(), it.size()));
        let of_processes = HAND_OVERS.map(|(workload, _, tasks)| figure(workload, tasks));
        let others = [
            (CONTENDED_BY_PROCESSES, PROCESSES),
            (WAITER, BESIDE),
            (KEPT, processes::GUARDS),
            (TAKEOVER, 1),
        ];
        let others = others.map(|(workload, size)| figure(workload, size));
        let known: Vec<String> = in_turns.chain(of_processes).chain(others).collect();
        let is_known = |wanted: &str| known.iter().any(|name| name.starts_with(wanted));
        let unknown = self.figures.iter().find(|wanted| !is_known(wanted))?;
        Some((unknown.as_str(), known))
    }
}

/// What a figure is called, on the command line.
fn figure(workload: &str, size: u32) -> String {
    format!("{workload}, {size}")
}

async fn compare(plan: &Plan<'_>, folder: &Path) {
    let mut subjects = Vec::new();
    for store in plan.stores {
        subjects.push(Subject::new(store).await);
    }
    let mut found = in_rounds(plan, &mut subjects, folder).await;
    subjects.retain(Subject::is_shared);
    by_processes(plan, &mut subjects, &mut found.series).await;
    found.keep(folder);
}

/// Runs what takes turns in this process, and keeps what was found after every round, so that nothing is lost if a store
/// fails.
async fn in_rounds(plan: &Plan<'_>, subjects: &mut [Subject], folder: &Path) -> Comparison {
    let stores = subjects.iter().map(Subject::about).collect();
    let mut found = Comparison::new(plan, stores);
    if plan.resume {
        found = kept(folder).resumed(&found);
    }
    if found.rounds < plan.rounds {
        in_turns(plan, 0, subjects, &mut found.series).await;
    }
    for round in found.rounds + 1..=plan.rounds {
        in_turns(plan, round, subjects, &mut found.series).await;
        found.rounds = round;
        found.keep(folder);
    }
    found
}

/// Runs every workload on every store; the first round is for the servers to get warm.
async fn in_turns(
    plan: &Plan<'_>,
    round: usize,
    subjects: &mut [Subject],
    series: &mut Vec<Series>,
) {
    let all = workloads(plan.most_ids).into_iter();
    for workload in all.filter(|it| plan.wants(it.name(), it.size())) {
        let many = matches!(workload, Workload::Documents { ids } if ids > MANY);
        if many && round == 0 {
            continue;
        }
        let warm_up = round == 0 && matches!(workload, Workload::Uncontended { .. });
        let slice = plan.slice * if warm_up { WARM_UP } else { 1 };
        for subject in in_turn(subjects, round) {
            eprintln!(
                "round {round} of {}: {workload:?}, {}",
                plan.rounds, subject.name
            );
            for (of_what, of, found) in subject.round(workload, slice, round).await {
                if round > 0 {
                    let (name, size) = (of_what.name(), of_what.size());
                    add(series, &subject.name, of, name, size, found);
                }
            }
        }
    }
}

/// Runs what takes processes on every store that they reach.
async fn by_processes(plan: &Plan<'_>, subjects: &mut [Subject], series: &mut Vec<Series>) {
    let mut ours = |subject: &Subject, workload, size, found| {
        add(
            series,
            &subject.name,
            OURS.to_owned(),
            workload,
            size,
            found,
        );
    };
    for round in 1..=plan.rounds {
        for subject in in_turn(subjects, round) {
            let name = subject.name.clone();
            let say = |what: &str| eprintln!("round {round} of {}: {what}, {name}", plan.rounds);
            if plan.wants(CONTENDED_BY_PROCESSES, PROCESSES) {
                say(&figure(CONTENDED_BY_PROCESSES, PROCESSES));
                let found = subject.round_of_processes(plan.slice).await;
                ours(subject, CONTENDED_BY_PROCESSES, PROCESSES, found);
            }
            for (workload, count, tasks) in HAND_OVERS {
                if plan.wants(workload, tasks) {
                    say(&figure(workload, tasks));
                    let found = subject.round_of_hand_overs(count, tasks, plan.slice).await;
                    ours(subject, workload, tasks, found);
                }
            }
            if plan.wants(WAITER, BESIDE) {
                say(&figure(WAITER, BESIDE));
                let found = subject.round_of_waiter();
                ours(subject, WAITER, BESIDE, found);
            }
        }
    }
    if plan.wants(KEPT, processes::GUARDS) {
        eprintln!("{} guards for a minute", processes::GUARDS);
        let urls: Vec<&str> = subjects.iter().map(|subject| subject.store.url()).collect();
        for (subject, found) in subjects.iter().zip(processes::guards(&urls).await) {
            ours(subject, KEPT, processes::GUARDS, found);
        }
    }
    for subject in subjects {
        if plan.wants(TAKEOVER, 1) {
            eprintln!("holders that are killed, {}", subject.name);
            let found = processes::takeovers(subject.store.url()).await;
            ours(subject, TAKEOVER, 1, found);
        }
    }
}

impl Comparison {
    fn new(plan: &Plan<'_>, stores: Vec<About>) -> Self {
        Self {
            date: machine::date(),
            machine: machine::lines(),
            rounds: 0,
            resumed_after: None,
            slice_ms: u64::try_from(plan.slice.as_millis()).unwrap_or(u64::MAX),
            stores,
            series: Vec::new(),
        }
    }

    /// Goes on where it ended, if that was before its end and everything is as it was.
    fn resumed(mut self, now: &Self) -> Self {
        let at_its_end = self.series.iter().any(|series| series.workload == TAKEOVER);
        assert!(
            !at_its_end,
            "the comparison is complete: there is nothing to resume"
        );
        assert!(
            (&self.machine, self.slice_ms, &self.stores)
                == (&now.machine, now.slice_ms, &now.stores),
            "the comparison was begun elsewhere or otherwise: begin it anew, without --resume"
        );
        self.resumed_after = Some(self.rounds);
        self
    }

    fn keep(&self, folder: &Path) {
        let json = serde_json::to_vec(self).expect("it is JSON");
        std::fs::write(folder.join("compare.json"), json).expect("the folder can be written");
    }
}

/// The stores take turns at being first.
fn in_turn(subjects: &mut [Subject], round: usize) -> impl Iterator<Item = &mut Subject> {
    let (before, from) = subjects.split_at_mut(round % subjects.len().max(1));
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

#[cfg(test)]
mod tests {
    use super::result::{PER_SECOND, TO_BASELINE};
    use super::*;

    #[test]
    fn figures_are_chosen_by_how_their_names_begin() {
        let plan = |figures: &'static [String]| Plan {
            stores: &[],
            rounds: 1,
            slice: Duration::ZERO,
            most_ids: 100,
            figures,
            resume: false,
        };
        let all = plan(&[]);
        assert!(all.wants("semaphore", 100) && all.wants(TAKEOVER, 1) && all.unknown().is_none());
        let some = vec!["contended, 8".to_owned(), "waiter".to_owned()];
        let some = plan(some.leak());
        assert!(some.wants("contended", 8) && some.wants(WAITER, BESIDE));
        assert!(!some.wants("contended", 64) && !some.wants("uncontended", 8));
        assert!(some.unknown().is_none());
        let wrong = vec!["waiter".to_owned(), "wating".to_owned()];
        let wrong = plan(wrong.leak());
        let (unknown, known) = wrong.unknown().unwrap();
        assert_eq!(unknown, "wating");
        for figure in [
            "contended, 64",
            "writer beside readers, 3",
            "contended by tasks of 8 processes, 64",
        ] {
            assert!(known.iter().any(|known| known == figure), "{known:?}");
        }
    }

    #[test]
    fn of_no_stores_none_is_first() {
        assert_eq!(in_turn(&mut [], 1).count(), 0);
    }

    #[test]
    fn a_rate_is_told_to_the_mean_of_its_baselines() {
        let ratio = |rates: &[Option<f64>]| {
            let mut round = Round::default();
            round.figures.insert(PER_SECOND.to_owned(), 30.0);
            round.note_baseline(rates);
            round.figures.get(TO_BASELINE).copied()
        };
        assert_eq!(ratio(&[Some(50.0), Some(70.0)]), Some(0.5));
        assert_eq!(ratio(&[None, None]), None);
    }

    #[test]
    fn a_report_of_two_embedded_stores() {
        let folder = tempfile::tempdir().unwrap();
        let stores = ["memory".to_owned(), "sqlite".to_owned()];
        let mut plan = Plan {
            stores: &stores,
            rounds: 1,
            slice: Duration::from_millis(5),
            most_ids: 100,
            figures: &[],
            resume: false,
        };
        one_thread().block_on(async {
            let mut subjects = Vec::new();
            for store in &stores {
                subjects.push(Subject::new(store).await);
            }
            in_rounds(&plan, &mut subjects, folder.path()).await;
            (plan.rounds, plan.resume) = (2, true);
            let found = in_rounds(&plan, &mut subjects, folder.path()).await;
            let rounds = found.series.iter().map(|series| series.rounds.len());
            assert_eq!(rounds.collect::<Vec<_>>(), vec![2; found.series.len()]);
        });
        rewrite(folder.path());
        let report = std::fs::read_to_string(folder.path().join("compare.md")).unwrap();
        for wanted in [
            "| sqlite |",
            "| memory |",
            "tokio::sync::Mutex",
            "](compare-documents.svg)",
            "| 8 tasks of one process | to uncontended |",
            "one key shared / a key each",
            "semaphore: 100 tasks / 10",
            "## A writer beside readers",
            "--rounds 2",
            "resumed after round 1",
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
