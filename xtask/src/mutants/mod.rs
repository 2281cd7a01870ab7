//! `cargo xtask mutants`: changes what the servers run, line by line, and sees whether a test notices.
//!
//! The texts stand in the test programs as they stand in their files, so a mutant is a copy of a program in which a text
//! is changed in place: nothing is built again.

mod checks;
mod explained;
mod operators;
mod plan;
mod programs;
mod report;
pub(crate) mod rust;
mod state;
mod subjects;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use explained::Change;
use lockkeeper_servers::Server;
use plan::{Mutant, Source, plan};
use programs::{Program, Ran};
use report::{failed_once, report};
use state::{Outcome, State, Tried, hash};
use subjects::{SUBJECTS, Subject};

/// Of the cases of a program so many run first, then so many, then the rest.
const FIRST: [usize; 2] = [16, 64];
/// Longest that the tests of a mutant take, beside five times what they take without it.
const PATIENCE: Duration = Duration::from_secs(30);

/// So often a worker goes on after something has failed that is no mutant's doing.
const MOST_FAILURES: u32 = 3;

/// What is done in one run.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// No mutant is begun later.
    pub(crate) until: Option<Instant>,
    /// Only these files or functions, by their names.
    pub(crate) only: Vec<String>,
    /// No case is run whose name has one of these in it: on a machine that is too busy for it.
    pub(crate) skip: Vec<String>,
    /// So many at a time, each with a server of its own; 0 is 1.
    pub(crate) jobs: usize,
    /// Nothing is tried: what is known is shown, and of the files that are named what is left.
    pub(crate) list: bool,
    /// In the end what is known is written beside the store's code, to be committed.
    pub(crate) save: bool,
}

impl Options {
    /// Whether the mutant's file or function is named.
    fn names(&self, mutant: &Mutant, sources: &[Source]) -> bool {
        let (file, part) = (&sources[mutant.file].name, mutant.part(sources));
        self.only.iter().any(|only| only == file || only == part)
    }
}

/// What all who try mutants share.
struct Work<'a> {
    subject: &'a Subject,
    sources: &'a [Source],
    programs: &'a [Program],
    /// Where each file stands in each program.
    places: HashMap<(usize, usize), Vec<usize>>,
    /// How long each program takes, unchanged.
    takes: Vec<Duration>,
    tests: u64,
    scratch: PathBuf,
    /// And how long it was tried with the cases that mostly kill; all the others run behind all those of the rest.
    queue: Mutex<VecDeque<(&'a Mutant, Option<Duration>)>>,
    state: Mutex<State>,
    reasons: &'a HashMap<Change, String>,
    until: Option<Instant>,
}

/// Tries the mutants of a store's server code that were not tried yet, until all are or the time is over, and shows
/// what is known of all.
///
/// # Errors
///
/// One survives that is not explained, or an explanation belongs to none, or something is missing.
pub(crate) fn run(store: &str, options: &Options) -> Result<(), String> {
    let known = SUBJECTS.iter().find(|subject| subject.store == store);
    let subject = known.ok_or_else(|| {
        let stores: Vec<&str> = SUBJECTS.iter().map(|subject| subject.store).collect();
        format!(
            "no server code of that name; known is that of {}",
            stores.join(", ")
        )
    })?;
    let root = root();
    let folder = root.join(subject.folder);
    let (sources, mutants) = plan(subject, &folder.join("server"))?;
    let reasons = explained::read(&folder.join("mutants.txt"))?;
    let known: HashSet<&Change> = mutants.iter().map(|mutant| &mutant.change).collect();
    if let Some(stale) = reasons.keys().find(|change| !known.contains(change)) {
        return Err(format!("mutants.txt explains what is no mutant: {stale:?}"));
    }
    let scratch = root.join("target/mutants");
    let saved = folder.join("mutants.jsonl");
    let mut state = State::open(&scratch.join(format!("{store}.jsonl")), &saved)?;
    if !options.list {
        state = attempt(
            subject, options, &sources, &mutants, &reasons, state, &scratch,
        )?;
    }
    if options.list {
        for mutant in &mutants {
            let source = &sources[mutant.file];
            if options.names(mutant, &sources) && state.get(mutant.id).is_none() {
                println!(
                    "left: {}:{}  {}",
                    source.name,
                    mutant.mutation.line + 1,
                    mutant.shown()
                );
            }
        }
    }
    if options.save {
        state.save(&saved, mutants.iter().map(|mutant| mutant.id))?;
    }
    report(&sources, &mutants, &reasons, &state)
}

fn attempt(
    subject: &Subject,
    options: &Options,
    sources: &[Source],
    mutants: &[Mutant],
    reasons: &HashMap<Change, String>,
    mut state: State,
    scratch: &Path,
) -> Result<State, String> {
    if let Some((program, package)) = subject.needs {
        checks::needs(program, package)?;
    }
    let tests: Vec<&str> = subject.programs.iter().map(|(name, _, _)| *name).collect();
    let built = programs::build(subject.package, &tests)?;
    let server = subject.start.map(|start| start()).transpose()?;
    let environment = environment(subject, server.as_ref());
    let folder = root().join(subject.folder);
    let mut programs = Vec::new();
    for (name, begin, _) in subject.programs {
        let path = built
            .get(*name)
            .ok_or_else(|| format!("there is no test {name}"))?;
        let mut program = Program::new(name, path, &folder, begin, &environment)?;
        let skipped = |case: &String| options.skip.iter().any(|skip| case.contains(skip.as_str()));
        program.cases.retain(|case| !skipped(case));
        programs.push(program);
    }
    let tests: Vec<u64> = programs.iter().map(Program::hash).collect();
    let tests: Vec<[u8; 8]> = tests.iter().map(|hash| hash.to_le_bytes()).collect();
    let tests = hash(&tests.iter().map(<[u8; 8]>::as_slice).collect::<Vec<_>>());

    // What is told of a survivor has to be true of the tests as they are.
    const SURVIVED: u8 = 0;
    const NEW: u8 = 1;
    const EXPLAINED: u8 = 2;
    let wanted = |mutant: &&Mutant| options.only.is_empty() || options.names(mutant, sources);
    let mut queue: Vec<(u8, &Mutant)> = Vec::new();
    for mutant in mutants.iter().filter(wanted) {
        let turn = match state.get(mutant.id) {
            None => NEW,
            // There may be a test now that sees it.
            Some(tried)
                if tried.tests != tests && matches!(tried.outcome, Outcome::Survived(_)) =>
            {
                if reasons.contains_key(&mutant.change) {
                    EXPLAINED
                } else {
                    SURVIVED
                }
            }
            Some(_) => continue,
        };
        queue.push((turn, mutant));
    }
    queue.sort_by_key(|(turn, _)| *turn);
    let queue: VecDeque<(&Mutant, Option<Duration>)> = queue
        .into_iter()
        .map(|(turn, mutant)| (mutant, (turn != NEW).then_some(Duration::ZERO)))
        .collect();
    println!(
        "{} of {} mutants are to be tried",
        queue.len(),
        mutants.len()
    );
    if queue.is_empty() {
        return Ok(state);
    }

    let mut places = HashMap::new();
    for (file, source) in sources.iter().enumerate() {
        let mut found = false;
        for (program, of) in programs.iter().enumerate() {
            let at = of.places(&source.text);
            found |= !at.is_empty();
            places.insert((program, file), at);
        }
        if !found {
            return Err(format!("{} is in no test program", source.name));
        }
    }
    let mut takes = Vec::new();
    for (program, (_, _, at_a_time)) in programs.iter().zip(subject.programs) {
        let took = match state.unchanged(program.hash()) {
            Some(took) => took,
            None => {
                let took = unchanged(program, *at_a_time, &environment, scratch)?;
                state.put_unchanged(program.hash(), took)?;
                took
            }
        };
        takes.push(took);
    }
    drop(server);
    let work = Work {
        subject,
        sources,
        programs: &programs,
        places,
        takes,
        tests,
        scratch: scratch.to_owned(),
        queue: Mutex::new(queue),
        state: Mutex::new(state),
        reasons,
        until: options.until,
    };
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs.max(1))
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work.turns(number)
                })
            })
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .map(|ended| ended.unwrap_or_else(|_| Err("a worker panicked".to_owned())))
            .collect()
    });
    results.into_iter().collect::<Result<(), String>>()?;
    Ok(work
        .state
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Runs a program as it is, which has to pass, and says how long that takes.
fn unchanged(
    program: &Program,
    at_a_time: usize,
    environment: &[(&str, String)],
    scratch: &Path,
) -> Result<Duration, String> {
    let copy = scratch.join(format!("{}-unchanged", program.name));
    program.write(&copy, &[], "")?;
    let mut cases: Vec<&str> = program.cases.iter().map(String::as_str).collect();
    let limit = Duration::from_secs(3600);
    let since = Instant::now();
    loop {
        match program.run(&copy, &mut cases, at_a_time, environment, limit)? {
            Ran::Passed => break,
            Ran::Stuck => return Err(format!("{} is not done, unchanged", program.name)),
            Ran::Failed(case) => {
                let alone = program.run(&copy, &mut vec![&*case], 1, environment, limit)?;
                if alone != Ran::Passed {
                    return Err(format!("{} {case} fails, unchanged", program.name));
                }
                println!("{} {case} fails once, unchanged", program.name);
                cases.retain(|other| **other != case);
            }
        }
    }
    let took = since.elapsed();
    println!(
        "unchanged, {} passes in {:.1} s",
        program.name,
        took.as_secs_f64()
    );
    Ok(took)
}

impl Work<'_> {
    /// Tries one mutant after the other.
    fn turns(&self, worker: usize) -> Result<(), String> {
        let mut server: Option<Server> = None;
        let (mut used, mut failures) = (0, 0);
        loop {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let Some((mutant, before)) = lock(&self.queue).pop_front() else {
                return Ok(());
            };
            let used_up = server.is_none() || used >= self.subject.on_one_server;
            if self.subject.start.is_some() && used_up {
                server = None;
                used = 0;
            }
            used += 1;
            let since = Instant::now();
            let outcome = match self.attempt(mutant, before.is_some(), &mut server, worker) {
                Ok(outcome) => outcome,
                // Such as a server that does not start on a busy machine.
                Err(error) if failures < MOST_FAILURES => {
                    eprintln!("{error}; it is tried again");
                    failures += 1;
                    server = None;
                    lock(&self.queue).push_front((mutant, before));
                    continue;
                }
                Err(error) => {
                    lock(&self.queue).clear();
                    return Err(error);
                }
            };
            let took = since.elapsed() + before.unwrap_or_default();
            let Some(outcome) = outcome else {
                lock(&self.queue).push_back((mutant, Some(took)));
                continue;
            };
            if outcome == Outcome::Stuck {
                // What keeps it busy is ended with it.
                server = None;
            }
            let source = &self.sources[mutant.file];
            let (what, by) = match &outcome {
                Outcome::Unviable => ("unviable", String::new()),
                Outcome::Killed(by) => ("killed", format!("  [{by}]")),
                Outcome::Stuck => ("stuck", String::new()),
                Outcome::Survived(once) if self.reasons.contains_key(&mutant.change) => {
                    ("survived, as explained", failed_once(once))
                }
                Outcome::Survived(once) => ("SURVIVED", failed_once(once)),
            };
            println!(
                "{:6.1} s  {}:{}  {what}: {}{by}",
                took.as_secs_f64(),
                source.name,
                mutant.mutation.line + 1,
                mutant.shown(),
            );
            lock(&self.state).put(Tried {
                id: mutant.id,
                part: mutant.part(self.sources).to_owned(),
                line: mutant.mutation.line + 1,
                by: mutant.change.by.clone(),
                outcome,
                ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                tests: self.tests,
            })?;
        }
    }

    /// What comes of a mutant; `None` where it has to be tried with all cases.
    fn attempt(
        &self,
        mutant: &Mutant,
        all: bool,
        server: &mut Option<Server>,
        worker: usize,
    ) -> Result<Option<Outcome>, String> {
        if let (None, Some(start)) = (&server, self.subject.start) {
            *server = Some(start()?);
        }
        let file = &self.sources[mutant.file].name;
        let source = |name: &str| -> String {
            let name = format!("{name}.{}", self.subject.ending);
            let found = self.sources.iter().find(|source| source.name == name);
            let is_it = name == *file;
            if is_it {
                mutant.text.clone()
            } else {
                found.map_or(String::new(), |it| it.text.clone())
            }
        };
        let environment = environment(self.subject, server.as_ref());
        let url = environment.first().map_or("", |(_, url)| url.as_str());
        if !(self.subject.check)(url, file, &source)? {
            return Ok(Some(Outcome::Unviable));
        }
        let part = mutant.part(self.sources);
        let mut programs = self.programs.iter();
        let kit = programs.position(|program| program.name == "conformance");
        let kit = kit.unwrap_or_default();
        let mut once = Vec::new();
        let mut seen: HashSet<(usize, &str)> = HashSet::new();
        // First those that killed others of this part, of all programs.
        for quick in [true, false] {
            if !quick && !all {
                return Ok(None);
            }
            for (number, program) in self.programs.iter().enumerate() {
                let places = &self.places[&(number, mutant.file)];
                if places.is_empty() {
                    continue;
                }
                let mut cases: Vec<&str> = program.cases.iter().map(String::as_str).collect();
                let killers = lock(&self.state).order(&program.name, part, &mut cases);
                if quick {
                    // What stands behind the kit takes long, and kills what the kit does not see.
                    let more = if number <= kit { FIRST[0] } else { 0 };
                    cases.truncate(killers + more);
                }
                cases.retain(|case| seen.insert((number, case)));
                if cases.is_empty() {
                    continue;
                }
                let copy = format!("{}-{}-{worker}", self.subject.store, program.name);
                let copy = self.scratch.join(copy);
                program.write(&copy, places, &mutant.text)?;
                let limit = PATIENCE + self.takes[number] * 5;
                let at_a_time = self.subject.programs[number].2;
                let run = |cases: &mut Vec<&str>| {
                    program.run(&copy, cases, at_a_time, &environment, limit)
                };
                let mut rest = cases.as_slice();
                for size in FIRST.into_iter().chain([usize::MAX]) {
                    let (batch, behind) = rest.split_at(size.min(rest.len()));
                    rest = behind;
                    if let Some(killed) = kill(&program.name, batch, &run, &mut once)? {
                        return Ok(Some(killed));
                    }
                }
            }
        }
        Ok(Some(Outcome::Survived(once)))
    }
}

/// Runs cases until one has failed twice of three times.
fn kill(
    program: &str,
    batch: &[&str],
    run: &dyn Fn(&mut Vec<&str>) -> Result<Ran, String>,
    once: &mut Vec<String>,
) -> Result<Option<Outcome>, String> {
    let mut left = batch.to_vec();
    let mut stuck = false;
    loop {
        match run(&mut left)? {
            Ran::Passed => return Ok(None),
            Ran::Stuck if stuck => return Ok(Some(Outcome::Stuck)),
            Ran::Stuck => stuck = true,
            Ran::Failed(case) => {
                for _ in 0..2 {
                    if run(&mut vec![&*case])? != Ran::Passed {
                        return Ok(Some(Outcome::Killed(format!("{program} {case}"))));
                    }
                }
                left.retain(|other| **other != case);
                once.push(case);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(subject: &Subject, server: Option<&Server>) -> Vec<(&'static str, String)> {
    let url = server.map(|server| server.url().replacen("http", subject.store, 1));
    url.map(|url| (subject.variable, url)).into_iter().collect()
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
