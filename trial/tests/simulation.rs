//! The simulation itself: the same seed is the same run, and seeds break no law.

#![cfg(lockcore_sim)]

use lockcore_trial::simulation::{Failovers, Plan, run};

#[test]
fn a_seed_is_one_run() {
    let mut digests = Vec::new();
    for seed in 0..30 {
        let (first, again) = (run(seed), run(seed));
        assert_eq!(
            first.history.digest(),
            again.history.digest(),
            "seed {seed}"
        );
        assert!(first.history == again.history, "seed {seed}");
        digests.push(first.history.digest());
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 30, "other seeds are other runs");
}

#[test]
fn no_seed_breaks_a_law() {
    let (mut guards, mut adoptions, mut forms) = (0, 0, [0; 2]);
    let mut failovers = [0; 2];
    for seed in 0..200 {
        let run = run(seed);
        let wrong = run.report.violations.first().map(|first| {
            let around = first.around(&run.history, 30, 2);
            format!("seed {seed}: {first}\n{around}")
        });
        assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
        guards += run.report.guards;
        adoptions += run.report.adoptions;
        forms[usize::from(Plan::of(seed).atomic)] += 1;
        if let Some(failover) = Plan::of(seed).failovers {
            failovers[usize::from(failover == Failovers::Told)] += 1;
        }
    }
    assert!(guards > 5_000 && adoptions > 300, "{guards}, {adoptions}");
    assert!(forms.iter().all(|runs| *runs > 50), "{forms:?}");
    assert!(failovers.iter().all(|runs| *runs > 5), "{failovers:?}");
}
