//! `cargo xtask mutants`: changes what the servers run, line by line, and sees whether a test notices.
//!
//! The texts stand in the test programs as they stand in their files, so a mutant is a copy of a program in which a text
//! is changed in place: nothing is built again.

mod checks;
mod explained;
mod operators;
mod programs;
pub(crate) mod rust;
mod state;
mod subjects;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use explained::Change;
use lockcore_conformance::servers::Server;
use operators::{Mutation, code_lines, mutations};
use programs::{Program, Ran};
use state::{Outcome, State, Tried, hash};
use subjects::{SUBJECTS, Subject};

/// Of the cases of a program so many run first, then so many, then the rest.
const FIRST: [usize; 2] = [16, 64];
/// Longest that the tests of a mutant take, beside five times what they take without it.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is done in one run.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// No mutant is begun later.
    pub(crate) until: Option<Instant>,
    /// Only these files, by their names.
    pub(crate) files: Vec<String>,
    /// No case is run whose name has one of these in it: on a machine that is too busy for it.
    pub(crate) skip: Vec<String>,
    /// So many at a time, each with a server of its own; 0 is 1.
    pub(crate) jobs: usize,
    /// Nothing is tried: what is known is shown, and of the files that are named what is left.
    pub(crate) list: bool,
}

/// A mutant that is to be tried.
#[derive(Debug)]
struct Mutant {
    file: usize,
    mutation: Mutation,
    text: String,
    id: u64,
    change: Change,
}

/// A file of the server's, and its mutants.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
    code: Vec<usize>,
    /// What could be changed, but not in a text of the same length.
    unfit: usize,
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
    let sources = sources(subject, &folder.join("server"))?;
    let (sources, mutants) = plan(subject, sources);
    let reasons = explained::read(&folder.join("mutants.txt"))?;
    let known: HashSet<&Change> = mutants.iter().map(|mutant| &mutant.change).collect();
    if let Some(stale) = reasons.keys().find(|change| !known.contains(change)) {
        return Err(format!("mutants.txt explains what is no mutant: {stale:?}"));
    }
    let scratch = root.join("target/mutants");
    let mut state = State::open(&scratch.join(format!("{store}.jsonl")))?;
    if !options.list {
        state = attempt(
            subject, options, &sources, &mutants, &reasons, state, &scratch,
        )?;
    }
    if options.list {
        for mutant in &mutants {
            let source = &sources[mutant.file];
            if options.files.contains(&source.name) && state.get(mutant.id).is_none() {
                println!(
                    "left: {}:{}  {}",
                    source.name,
                    mutant.mutation.line + 1,
                    shown(mutant)
                );
            }
        }
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

    let wanted = |mutant: &&Mutant| {
        options.files.is_empty() || options.files.contains(&sources[mutant.file].name)
    };
    let mut queue: Vec<(u8, &Mutant)> = Vec::new();
    for mutant in mutants.iter().filter(wanted) {
        let turn = match state.get(mutant.id) {
            None => 0,
            // There may be a test now that sees it.
            Some(tried)
                if tried.tests != tests && matches!(tried.outcome, Outcome::Survived(_)) =>
            {
                if reasons.contains_key(&mutant.change) {
                    2
                } else {
                    1
                }
            }
            Some(_) => continue,
        };
        queue.push((turn, mutant));
    }
    queue.sort_by_key(|(turn, _)| *turn);
    let queue: VecDeque<(&Mutant, Option<Duration>)> = queue
        .into_iter()
        .map(|(turn, mutant)| (mutant, (turn > 0).then_some(Duration::ZERO)))
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
        let mut used = 0;
        loop {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let Some((mutant, before)) = lock(&self.queue).pop_front() else {
                return Ok(());
            };
            if let Some(start) = self.subject.start
                && (server.is_none() || used >= self.subject.on_one_server)
            {
                drop(server.take());
                server = Some(start()?);
                used = 0;
            }
            used += 1;
            let since = Instant::now();
            let outcome = self.attempt(mutant, before.is_some(), server.as_ref(), worker)?;
            let took = since.elapsed() + before.unwrap_or_default();
            let Some(outcome) = outcome else {
                lock(&self.queue).push_back((mutant, Some(took)));
                continue;
            };
            if outcome == Outcome::Stuck {
                // What keeps it busy is ended with it.
                used = u32::MAX;
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
                shown(mutant),
            );
            lock(&self.state).put(Tried {
                id: mutant.id,
                file: source.name.clone(),
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
        server: Option<&Server>,
        worker: usize,
    ) -> Result<Option<Outcome>, String> {
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
        let environment = environment(self.subject, server);
        let url = environment.first().map_or("", |(_, url)| url.as_str());
        if !(self.subject.check)(url, file, &source)? {
            return Ok(Some(Outcome::Unviable));
        }
        let mut once = Vec::new();
        for (number, program) in self.programs.iter().enumerate() {
            let places = &self.places[&(number, mutant.file)];
            if places.is_empty() {
                continue;
            }
            let copy = format!("{}-{}-{worker}", self.subject.store, program.name);
            let copy = self.scratch.join(copy);
            program.write(&copy, places, &mutant.text)?;
            let mut cases: Vec<&str> = program.cases.iter().map(String::as_str).collect();
            let killers = lock(&self.state).order(&program.name, file, &mut cases);
            if !all {
                // The first program is the kit.
                let most = if number == 0 {
                    FIRST[0] + FIRST[1]
                } else {
                    killers
                };
                cases.truncate(most);
            }
            let limit = PATIENCE + self.takes[number] * 5;
            let at_a_time = self.subject.programs[number].2;
            let run =
                |cases: &mut Vec<&str>| program.run(&copy, cases, at_a_time, &environment, limit);
            let mut rest = cases.as_slice();
            for size in FIRST.into_iter().chain([usize::MAX]) {
                let (batch, behind) = rest.split_at(size.min(rest.len()));
                rest = behind;
                if let Some(killed) = kill(&program.name, batch, &run, &mut once)? {
                    return Ok(Some(killed));
                }
            }
        }
        Ok(all.then_some(Outcome::Survived(once)))
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

fn failed_once(once: &[String]) -> String {
    if once.is_empty() {
        String::new()
    } else {
        format!("  [once of three times: {}]", once.join(", "))
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

/// The files of a server, those first that come first.
fn sources(subject: &Subject, folder: &Path) -> Result<Vec<(String, String)>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let (Some(name), Some(stem), Some(ending)) = (name, stem, path.extension())
            && ending == subject.ending
        {
            let place = subject.first.iter().position(|first| *first == stem);
            let text = fs::read_to_string(&path).map_err(unreadable)?;
            files.push((place.unwrap_or(usize::MAX), name.to_owned(), text));
        }
    }
    files.sort();
    Ok(files
        .into_iter()
        .map(|(_, name, text)| (name, text))
        .collect())
}

/// All mutants of the files.
fn plan(subject: &Subject, files: Vec<(String, String)>) -> (Vec<Source>, Vec<Mutant>) {
    let (mut sources, mut mutants) = (Vec::new(), Vec::new());
    for (number, (name, text)) in files.into_iter().enumerate() {
        let lines: Vec<&str> = text.lines().collect();
        let mut unfit = 0;
        for mutation in mutations(subject.language, &text) {
            let Some(mutant) = operators::apply(subject.language, &text, &mutation) else {
                unfit += 1;
                continue;
            };
            let line = lines[mutation.line].trim();
            let before = lines[..mutation.line]
                .iter()
                .filter(|other| other.trim() == line);
            let change = Change {
                file: name.clone(),
                place: before.count() + 1,
                line: line.to_owned(),
                by: mutation.by.trim().to_owned(),
            };
            mutants.push(Mutant {
                file: number,
                id: hash(&[name.as_bytes(), mutant.as_bytes()]),
                mutation,
                text: mutant,
                change,
            });
        }
        let code = code_lines(subject.language, &text);
        sources.push(Source {
            name,
            text,
            code,
            unfit,
        });
    }
    (sources, mutants)
}

fn shown(mutant: &Mutant) -> String {
    let Change { line, by, .. } = &mutant.change;
    if by.is_empty() {
        format!("without {line}")
    } else {
        format!("{line}  ->  {by}")
    }
}

/// Shows what is known, and fails where a mutant survives that nobody has explained.
fn report(
    sources: &[Source],
    mutants: &[Mutant],
    reasons: &HashMap<Change, String>,
    state: &State,
) -> Result<(), String> {
    let mut times = Vec::new();
    let mut sums = [0; 9];
    let (mut survivors, mut wrong) = (Vec::new(), Vec::new());
    println!(
        "{:<24}{:>7}{:>9}{:>9}{:>8}{:>8}{:>7}{:>11}{:>10}{:>7}",
        "file",
        "lines",
        "mutated",
        "mutants",
        "viable",
        "killed",
        "stuck",
        "explained",
        "survived",
        "left"
    );
    for (number, source) in sources.iter().enumerate() {
        let mut counts = [0; 9];
        counts[0] = source.code.len();
        let mut mutated = HashSet::new();
        for mutant in mutants.iter().filter(|mutant| mutant.file == number) {
            counts[2] += 1;
            let Some(tried) = state.get(mutant.id) else {
                counts[8] += 1;
                continue;
            };
            if tried.outcome == Outcome::Unviable {
                continue;
            }
            counts[3] += 1;
            times.push(tried.ms);
            let first = mutant.mutation.line;
            mutated.extend(first..first + mutant.mutation.lines);
            let reason = reasons.get(&mutant.change);
            match &tried.outcome {
                Outcome::Unviable => {}
                Outcome::Killed(by) => {
                    counts[4] += 1;
                    if reason.is_some() {
                        wrong.push(format!(
                            "{}:{} is explained, but {by} kills it",
                            source.name,
                            first + 1
                        ));
                    }
                }
                Outcome::Stuck => counts[5] += 1,
                Outcome::Survived(_) if reason.is_some() => counts[6] += 1,
                Outcome::Survived(once) => {
                    counts[7] += 1;
                    survivors.push(format!(
                        "{}:{}  {}{}",
                        source.name,
                        first + 1,
                        shown(mutant),
                        failed_once(once)
                    ));
                }
            }
        }
        counts[1] = source
            .code
            .iter()
            .filter(|line| mutated.contains(line))
            .count();
        row(&source.name, &counts);
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    row("all", &sums);
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        let unfit: usize = sources.iter().map(|source| source.unfit).sum();
        #[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
        let seconds = *median as f64 / 1000.0;
        println!(
            "median of a viable mutant: {seconds:.1} s; {unfit} more changes need a longer text"
        );
    }
    if !survivors.is_empty() {
        println!("survivors:\n{}", survivors.join("\n"));
    }
    wrong.extend((!survivors.is_empty()).then(|| {
        format!(
            "{} mutants survive: write a test, or say in mutants.txt why there is none",
            survivors.len()
        )
    }));
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

fn row(
    name: &str,
    [
        lines,
        mutated,
        mutants,
        viable,
        killed,
        stuck,
        explained,
        survived,
        left,
    ]: &[usize; 9],
) {
    println!(
        "{name:<24}{lines:>7}{mutated:>9}{mutants:>9}{viable:>8}{killed:>8}{stuck:>7}{explained:>11}{survived:>10}{left:>7}"
    );
}
