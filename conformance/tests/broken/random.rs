//! Requests by chance: what they find is told by the law that is broken, not by the one that the case bears.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use lockcore_conformance::{FailureKind, Law, cases, check};

use crate::{Broken, FORMS, world_of};

/// Of a hundred mistakes that they reject, so many are told as the law that the mistake is listed under; a few break
/// more than one, and are met at another first.
const NAMED: usize = 80;

pub(crate) fn trial(all: &[Arc<Broken>]) -> Trial {
    let all = all.to_vec();
    Trial::test("random::names_the_law", move || names_the_law(&all))
}

fn names_the_law(all: &[Arc<Broken>]) -> Result<(), Failed> {
    let mut random = cases();
    random.retain(|case| case.group() == "random");
    let (mut rejected, mut others) = (0, Vec::new());
    let mut laws: Vec<Law> = Vec::new();
    for broken in all {
        for (form, make) in FORMS {
            let fixture = world_of(broken, make);
            let failures = random
                .iter()
                .filter_map(|case| check(case, &fixture, 1).err())
                .filter(|failure| failure.kind == FailureKind::Broken);
            let told: Vec<Law> = failures.map(|failure| failure.law).collect();
            rejected += usize::from(!told.is_empty());
            if !told.is_empty() && !told.contains(&broken.law) {
                others.push(format!(
                    "{form}: {}: {} and not {}",
                    broken.name, told[0], broken.law
                ));
            }
            laws.extend(told.into_iter().filter(|law| *law == broken.law));
        }
    }
    laws.sort_unstable();
    laws.dedup();
    let named = rejected - others.len();
    let told = format!("{named} of {rejected}, {} laws; {others:#?}", laws.len());
    println!("{told}");
    if named * 100 < rejected * NAMED || laws.len() < 8 {
        return Err(Failed::from(told));
    }
    Ok(())
}
