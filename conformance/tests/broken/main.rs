//! Backends that are broken on purpose, and the case that rejects each of them: one of the law that it breaks.
//!
//! Each is the reference backend, in both of its forms, behind a decorator with one mistake. The run ends with the
//! table of what was found.

mod alias;
mod claims;
#[path = "../fixture/mod.rs"]
mod fixture;
mod incarnations;
mod line;
mod moments;
mod names;
mod notes;
mod paths;
mod quick;
mod random;
mod recovery;
mod sessions;
mod shares;
mod support;
mod sweeps;
mod tokens;
mod unwritten;
mod watches;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use fixture::{Memory, Wrap};
use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::MemoryBackend;
use lockcore_conformance::{
    Case, Decorated, Decorator, Failure, FailureKind, Fixture, Law, Layer, cases, check,
};
use support::{Store, lock};

/// One mistake.
struct Broken {
    name: String,
    /// The law that it breaks.
    law: Law,
    wrap: Arc<Wrap>,
}

impl Broken {
    fn new<D: Decorator + 'static>(
        name: impl Into<String>,
        law: Law,
        wrap: impl Fn(Store) -> D + Send + Sync + 'static,
    ) -> Self {
        let wrap = Arc::new(move |store| Arc::new(Decorated(wrap(store))) as Store);
        let name = name.into();
        Self { name, law, wrap }
    }
}

type Make = fn() -> Arc<MemoryBackend>;

/// Whether the mistake breaks only what one form of the backend has is not known to the kit, so both are asked.
const FORMS: [(&str, Make); 2] = [
    ("whole", MemoryBackend::new),
    ("records", MemoryBackend::records),
];

fn world_of(broken: &Broken, make: Make) -> Arc<dyn Fixture> {
    Arc::new(Memory {
        name: "broken".to_owned(),
        make: Arc::new(make),
        wrap: Arc::clone(&broken.wrap),
    })
}

/// A law is seen broken, or something is missing that the store should have. Whatever else fails is no rejection.
fn is_rejection(case: &Case, failure: &Failure, fixture: &dyn Fixture) -> bool {
    let should_have = |need| !fixture.lacks().contains(&need);
    match failure.kind {
        FailureKind::Broken => true,
        FailureKind::Lacking => case.needs().is_some_and(should_have),
        _ => false,
    }
}

/// The first case of the law that rejects the backend; without one, how many cases the law has.
fn rejecting(broken: &Broken, make: Make) -> Result<String, usize> {
    let fixture = world_of(broken, make);
    let of_law = |case: &Case| {
        case.law() == broken.law && matches!(case.layer(), Layer::Backend | Layer::Client)
    };
    let cases: Vec<Case> = cases().into_iter().filter(of_law).collect();
    let rejected = |case: Case| {
        let failure = check(&case, &fixture, 1).err()?;
        // A mistake that panics would be found by anybody.
        assert!(!failure.what.starts_with("panicked"), "{failure}");
        // To reject it takes that law.
        let rejects = is_rejection(&case, &failure, &*fixture) && failure.law == broken.law;
        rejects.then_some((case, failure))
    };
    let of = cases.len();
    let (case, failure): (Case, Failure) = cases.into_iter().find_map(rejected).ok_or(of)?;
    // Time is paused, so a seed is one run, request for request.
    let again = check(&case, &fixture, 1).err();
    assert_eq!(again.as_ref(), Some(&failure), "a seed repeats");
    Ok(failure.case)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let table: Arc<Mutex<Vec<String>>> = Arc::default();
    let all = [
        claims::all(),
        incarnations::all(),
        line::all(),
        moments::all(),
        names::all(),
        notes::all(),
        paths::all(),
        recovery::all(),
        sessions::all(),
        shares::all(),
        sweeps::all(),
        tokens::all(),
        unwritten::all(),
        watches::all(),
    ];
    let all: Vec<Arc<Broken>> = all.into_iter().flatten().map(Arc::new).collect();
    let mut trials = quick::trials(&all);
    trials.push(random::trial(&all));
    trials.extend(incarnations::well());
    for broken in all {
        for (form, make) in FORMS {
            let (broken, table) = (Arc::clone(&broken), Arc::clone(&table));
            let name = format!("{form}::{}", broken.name.replace(' ', "_"));
            trials.push(Trial::test(name, move || {
                let law = broken.law;
                let rejecting = rejecting(&broken, make);
                let case = rejecting
                    .map_err(|of| Failed::from(format!("none of {of} cases rejects it: {law}")))?;
                let line = format!("| {} | {form} | {law} | {case} |", broken.name);
                lock(&table).push(line);
                Ok(())
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("| mistake | form | law | the first case that rejects it |\n|---|---|---|---|");
        let mut lines = std::mem::take(&mut *lock(&table));
        lines.sort();
        for line in lines {
            println!("{line}");
        }
    }
    conclusion.exit_code()
}
