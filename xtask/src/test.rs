//! `cargo xtask test`.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use lockkeeper_servers::{Server, etcd};

use crate::builds::{Programs, cargo, root};
use crate::plan::{self, Company, HERE, PLAN, Row, Scope};
use crate::simulate;
use crate::stores::{STORES, Servers, Startable, Store};
use crate::times::Times;

/// Places at a time. Most cases wait for a TTL or for an answer; two leave a processor each where there are two.
const PLACES: usize = 2;

/// Steps at a time of those that mostly wait.
const WAITING: usize = 4;

/// All packages with tests, with one set of features, so that nothing is built twice. A fuzz target is no test: its
/// properties are tested where their code is.
const SELECTED: [&str; 3] = ["--workspace", "--exclude=lockkeeper-fuzz", "--all-features"];
/// All their test programs. The star takes those too that `cargo test` leaves out by itself.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--test=*"];

/// What is left out of a run of one store.
const LOOP: &str = "left to the whole run";

/// Runs the tests of everything, or of one store, with the servers that they talk to, and prints how long each took.
pub(crate) fn run(only: Option<&'static Store>, on: &[&str]) -> Result<(), String> {
    reported(|times| match only {
        None => whole(times, on),
        Some(store) => one(times, store),
    })
}

/// Runs something that notes its steps; the table comes at the end, however that is.
pub(crate) fn reported(run: impl FnOnce(&Times) -> Result<(), String>) -> Result<(), String> {
    let times = Times::begin();
    let done = thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel();
        let times = &times;
        scope.spawn(move || times.tell(&stopped));
        let done = run(times);
        drop(stop);
        done
    });
    times.report();
    done
}

/// Runs everything, or only these places of the plan.
fn whole(times: &Times, on: &[&str]) -> Result<(), String> {
    etcd::protoc()?;
    let everywhere = on.is_empty() || on.contains(&HERE);
    let programs = build(times)?;
    let mut places = places(&programs, &|row| row.scope != Scope::Soak)?;
    if !everywhere {
        places.retain(|place| on.contains(&place.name));
        return run_places(times, places);
    }
    let here = Place::here(&mut places);
    // What takes the processors comes first, while the first server starts; after it, what mostly waits.
    let mut first = vec![documentation()];
    first.extend(rest(&programs)?);
    here.steps.splice(..0, first);
    let simulation = times.time("build", "simulation", simulate::build)?;
    times.time("build", "simulation, broken", simulate::build_broken)?;
    here.steps
        .push(Step::program(&simulation, &plan::SIMULATION, &[])?);
    let checks = simulate::checks().into_iter();
    here.steps.extend(checks.map(|(name, command)| Step {
        name,
        command,
        company: Company::Beside,
        planned: false,
    }));
    places.retain(|place| on.is_empty() || on.contains(&place.name));
    run_places(times, places)
}

/// Builds every test program of the workspace.
pub(crate) fn build(times: &Times) -> Result<Programs, String> {
    let everything = [SELECTED, TARGETS].concat();
    times.time("build", "workspace", || Programs::build(&everything, &[]))
}

/// The test programs of a store's package, and these besides.
fn tests_of(store: &Store, besides: &[&str]) -> Result<Programs, String> {
    let selected = store.selected();
    let mut args = vec![&*selected, "--test=*"];
    args.extend(besides);
    Programs::build(&args, &[])
}

/// The quick loop of one store: lockcore, and what the store's own package tests on one server.
fn one(times: &Times, store: &'static Store) -> Result<(), String> {
    if store.name == "etcd" {
        etcd::protoc()?;
    }
    let besides: &[&str] = match store.is_example() {
        true => &["--lib"],
        false => &["--lib", "--package=lockcore"],
    };
    let programs = times.time("build", store.name, || tests_of(store, besides))?;
    let first = PLAN.iter().find(|place| is_of(place.name, store));
    let quick = |row: &Row| row.package == store.directory && row.scope == Scope::Quick;
    let mut places = places(&programs, &quick)?;
    places
        .retain(|place| place.name == HERE || first.is_some_and(|first| first.name == place.name));
    Place::here(&mut places).steps.splice(..0, rest(&programs)?);
    for place in PLAN {
        for row in place
            .rows
            .iter()
            .filter(|row| row.package == store.directory)
        {
            let quick = place.name == HERE || first.is_some_and(|first| first.name == place.name);
            if row.scope == Scope::Test || row.scope == Scope::Quick && !quick {
                println!("{LOOP}: {}: {}", place.name, row.name());
            }
        }
    }
    run_places(times, places)
}

/// What `soak` runs beside one server, and `test` does not.
pub(crate) fn run_soak((store, server): (&'static Store, &Startable)) -> Result<(), String> {
    if store.name == "etcd" {
        etcd::protoc()?;
    }
    reported(|times| {
        let programs = times.time("build", store.name, || tests_of(store, &[]))?;
        let more = |row: &Row| row.package == store.directory && row.scope == Scope::Soak;
        let mut places = places(&programs, &more)?;
        places.retain(|place| place.name == server.name);
        if places.is_empty() {
            return Err(format!("{}: there is nothing more to run", server.name));
        }
        run_places(times, places)
    })
}

fn is_given(directory: &str) -> bool {
    let mut stores = STORES.iter().filter(|store| store.directory == directory);
    stores.any(|store| store.servers.as_ref().is_some_and(Servers::given))
}

fn is_of(server: &str, store: &Store) -> bool {
    let servers = store.servers.as_ref();
    servers.is_some_and(|servers| servers.each.iter().any(|it| it.name == server))
}

/// A place with what runs there.
pub(crate) struct Place {
    name: &'static str,
    /// The server to start; `None` where there is none, or where the environment names it.
    server: Option<(&'static Store, &'static Servers, &'static Startable)>,
    steps: Vec<Step>,
}

struct Step {
    name: String,
    command: Command,
    company: Company,
    /// Whether it is one of the plan, which has tests to run.
    planned: bool,
}

/// The places of the plan with those of their rows that are wanted. Where the environment names a store's server, that
/// one takes the place of the first, and the others are left out.
pub(crate) fn places(
    programs: &Programs,
    wanted: &dyn Fn(&Row) -> bool,
) -> Result<Vec<Place>, String> {
    let groups = plan::groups();
    let mut places: Vec<Place> = Vec::new();
    let mut given: Vec<&str> = Vec::new();
    for place in PLAN {
        let mut server = None;
        for store in STORES {
            let Some(servers) = &store.servers else {
                continue;
            };
            if let Some(startable) = servers.each.iter().find(|it| it.name == place.name) {
                server = Some((store, servers, startable));
            }
        }
        if let Some((store, servers, _)) = server
            && servers.given()
        {
            if given.contains(&store.name) {
                println!("left out, the server is given: {}", place.name);
                continue;
            }
            given.push(store.name);
            server = None;
        }
        let rows = place.rows.iter().filter(|row| wanted(row));
        // What starts servers of its own is left out where we are given one.
        let rows = rows.filter(|row| place.name != HERE || !is_given(row.package));
        let steps: Result<Vec<Step>, String> = rows
            .map(|row| Step::program(programs, row, &groups))
            .collect();
        let steps = steps?;
        if !steps.is_empty() || place.name == HERE {
            places.push(Place {
                name: place.name,
                server,
                steps,
            });
        }
    }
    Ok(places)
}

/// Every test program that the plan does not name.
fn rest(programs: &Programs) -> Result<Vec<Step>, String> {
    let planned = |package: &str, target: &str| {
        let rows = PLAN.iter().flat_map(|place| place.rows);
        rows.chain([&plan::SIMULATION])
            .any(|row| row.package == package && row.target == target)
    };
    let others = programs
        .all()
        .filter(|(package, target)| !planned(package, target));
    let steps = others.map(|(package, target)| Step::of(programs, package, target, &[]));
    steps.collect()
}

/// The examples in the documentation; cargo alone can run them.
fn documentation() -> Step {
    let mut command = cargo(&["test", "--doc"]);
    command.args(SELECTED).current_dir(root());
    Step {
        name: "documentation".to_owned(),
        command,
        company: Company::Any,
        planned: false,
    }
}

impl Place {
    fn here(places: &mut [Self]) -> &mut Self {
        let here = places.iter_mut().find(|place| place.name == HERE);
        here.expect("the plan has this place")
    }

    /// The steps with that company, in order.
    fn take(&mut self, company: Company) -> Vec<Step> {
        let of_it = |step: &mut Step| step.company == company;
        self.steps.extract_if(.., of_it).collect()
    }

    /// One place after the other: where a server is missing it is installed, and a JVM that starts takes the machine.
    fn start(&self, times: &Times) -> Result<Option<Server>, String> {
        static STARTING: Mutex<()> = Mutex::new(());
        let Some((_, _, startable)) = self.server else {
            return Ok(None);
        };
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        times.time(self.name, "start", startable.start).map(Some)
    }
}

impl Step {
    fn run(
        mut self,
        times: &Times,
        place: &Place,
        server: Option<&Server>,
        failed: &dyn Fn(String),
    ) {
        if let (Some((store, servers, _)), Some(server)) = (place.server, server) {
            let url = server.url().replacen("http", store.name, 1);
            self.command.env(servers.variable, url);
        }
        let pid = server.and_then(Server::pid);
        let command = &mut self.command;
        if let Err(error) = times.run(place.name, &self.name, command, pid, self.planned) {
            if let Some(server) = server {
                println!("{}: {}", place.name, last_words(server));
            }
            failed(error);
        }
    }

    fn program(programs: &Programs, row: &Row, groups: &[&str]) -> Result<Self, String> {
        let mut step = Self::of(programs, row.package, row.target, &row.arguments(groups))?;
        if row.quick_set {
            step.command.env("LOCKCORE_CONFORMANCE_SET", "quick");
        }
        Ok(Self {
            name: row.name(),
            company: row.company,
            planned: true,
            ..step
        })
    }

    /// Runs where cargo would run it.
    fn of(
        programs: &Programs,
        package: &str,
        target: &str,
        args: &[String],
    ) -> Result<Self, String> {
        let program = programs.find(package, target);
        let program = program.ok_or_else(|| format!("{package} has no test target {target}"))?;
        let directory = root().join(package);
        let mut command = Command::new(program);
        command
            .args(args)
            .env("CARGO_MANIFEST_DIR", &directory)
            .current_dir(directory);
        Ok(Self {
            name: format!("{package} {target}"),
            command,
            company: Company::Any,
            planned: false,
        })
    }
}

/// Runs what can have any company in a few places at a time, with what can run beside the rest of its place, and what changes
/// its server when those have ended; then what mostly waits, a few at a time; then the rest one by one. Everything runs, whatever fails.
pub(crate) fn run_places(times: &Times, mut places: Vec<Place>) -> Result<(), String> {
    let scratch = lockkeeper_servers::scratch()?;
    for step in places.iter_mut().flat_map(|place| &mut place.steps) {
        step.command.env("TMPDIR", scratch.path());
    }
    let failures = Mutex::new(Vec::new());
    let failed = |error: String| {
        println!("FAILED: {error}");
        locked(&failures).push(error);
    };
    let started = Mutex::new(Vec::new());
    for_each(places, PLACES, |mut place| {
        let server = match place.start(times) {
            Ok(server) => server,
            Err(error) => return failed(format!("{}: {error}", place.name)),
        };
        let lines = [Company::Any, Company::Beside].map(|company| place.take(company));
        let apart = place.take(Company::Apart);
        let run = |line: Vec<Step>| {
            for step in line {
                step.run(times, &place, server.as_ref(), &failed);
            }
        };
        for_each(lines.into(), 2, run);
        run(apart);
        if !place.steps.is_empty() {
            locked(&started).push((place, server));
        }
    });
    let mut started = started.into_inner().unwrap_or_else(PoisonError::into_inner);
    // What starts servers of its own takes longest, and is begun first.
    started.sort_by_key(|(place, _)| place.name != HERE);
    for (company, at_a_time) in [(Company::Waiting, WAITING), (Company::Nothing, 1)] {
        let taken = started.iter_mut().map(|(place, _)| place.take(company));
        let taken: Vec<Vec<Step>> = taken.collect();
        let steps = started.iter().zip(taken);
        let steps =
            steps.flat_map(|(place, steps)| steps.into_iter().map(move |step| (place, step)));
        for_each(steps.collect(), at_a_time, |((place, server), step)| {
            step.run(times, place, server.as_ref(), &failed);
        });
        started.retain(|(place, _)| !place.steps.is_empty());
    }
    match &locked(&failures)[..] {
        [] => Ok(()),
        failures => Err(format!(
            "{} failed:\n{}",
            failures.len(),
            failures.join("\n")
        )),
    }
}

/// Does something with each, in order, with so many at a time.
fn for_each<T: Send>(all: Vec<T>, at_a_time: usize, work: impl Fn(T) + Sync) {
    let waiting = Mutex::new(VecDeque::from(all));
    let next = || locked(&waiting).pop_front();
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(one) = next() {
                    work(one);
                }
            });
        }
    });
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a server has to say when a step on it fails.
fn last_words(server: &Server) -> String {
    format!(
        "the server was {}, at {}\n{}{}",
        server.how(),
        server.url(),
        server.says(),
        server.log_tail()
    )
}
