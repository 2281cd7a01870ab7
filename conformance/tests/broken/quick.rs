//! The quick set: how many of the mistakes it rejects, and how its cases are chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use libtest_mimic::{Failed, Trial};
use lockcore_conformance::{Case, Layer, cases, check};

use crate::support::lock;
use crate::{Broken, FORMS, Make, is_rejection, world_of};

/// So many of a hundred mistakes are rejected by the quick set at least.
const REJECTED: usize = 95;

pub(crate) fn trials(all: &[Arc<Broken>]) -> Vec<Trial> {
    let (rejects, chosen) = (all.to_vec(), all.to_vec());
    vec![
        Trial::test("quick::rejects_nearly_all", move || {
            rejects_nearly_all(&rejects)
        }),
        // `--ignored`: for when cases or mistakes have changed.
        Trial::test("quick::choose", move || choose(&chosen)).with_ignored_flag(true),
    ]
}

/// Every mistake, in both forms.
fn mistakes(all: &[Arc<Broken>]) -> Vec<(String, &Broken, Make)> {
    let forms = all.iter().flat_map(|broken| {
        let forms = FORMS.into_iter();
        forms.map(move |(form, make)| (form, broken, make))
    });
    let named =
        forms.map(|(form, broken, make)| (format!("{form}: {}", broken.name), &**broken, make));
    named.collect()
}

fn rejects(case: &Case, broken: &Broken, make: Make) -> bool {
    let fixture = world_of(broken, make);
    let failure = check(case, &fixture, 1).err();
    failure.is_some_and(|failure| is_rejection(case, &failure, &*fixture))
}

fn rejects_nearly_all(all: &[Arc<Broken>]) -> Result<(), Failed> {
    let mut quick = lockcore_conformance::quick();
    quick.retain(|case| case.layer() != Layer::Processes);
    let mistakes = mistakes(all);
    let passes = |(_, broken, make): &&(String, &Broken, Make)| {
        !quick.iter().any(|case| rejects(case, broken, *make))
    };
    let passing: Vec<&str> = mistakes
        .iter()
        .filter(passes)
        .map(|(name, ..)| name.as_str())
        .collect();
    let (rejected, of) = (mistakes.len() - passing.len(), mistakes.len());
    let told = format!(
        "{} cases reject {rejected} of {of}; not {passing:?}",
        quick.len()
    );
    println!("{told}");
    if rejected * 100 < of * REJECTED {
        return Err(Failed::from(told));
    }
    Ok(())
}

/// Every case against every mistake, and a few that reject as many as all do: those first that reject most.
fn choose(all: &[Arc<Broken>]) -> Result<(), Failed> {
    let mut cases = cases();
    cases.retain(|case| case.layer() != Layer::Processes);
    let mistakes = mistakes(all);
    let (next, found) = (AtomicUsize::new(0), std::sync::Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let rejected = |at: &usize| {
                        let (_, broken, make) = &mistakes[*at];
                        rejects(case, broken, *make)
                    };
                    let rejected: BTreeSet<usize> = (0..mistakes.len()).filter(rejected).collect();
                    println!("{case}: {rejected:?}");
                    lock(&found).insert(case.to_string(), rejected);
                }
            });
        }
    });
    let found = found.into_inner().map_err(|_| "a case panicked")?;
    let mut left: BTreeSet<usize> = found.values().flatten().copied().collect();
    for (at, (name, ..)) in mistakes.iter().enumerate() {
        let by = found
            .values()
            .filter(|rejected| rejected.contains(&at))
            .count();
        println!("{name}: rejected by {by} of {}", found.len());
    }
    println!("| case | rejects | of which no case before it does |\n|---|---|---|");
    while let Some((case, rejected)) = found
        .iter()
        .max_by_key(|(_, rejected)| (rejected.intersection(&left).count(), rejected.len()))
    {
        let new = rejected.intersection(&left).count();
        if new == 0 {
            break;
        }
        println!("| {case} | {} | {new} |", rejected.len());
        left.retain(|at| !rejected.contains(at));
    }
    Ok(())
}
