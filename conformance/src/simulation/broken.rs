//! Clients that break one of their rules, and how many seeds it takes to find out.

use lockcore::sim::{Rule, break_rule, keep_all_rules};

use super::{Run, run};

/// How a broken rule showed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Found {
    /// Seeds that were run, the one that shows it included.
    pub seeds: u64,
    /// The run that shows it.
    pub run: Run,
}

/// Within how many seeds the breach of a rule has to be found.
#[must_use]
pub const fn seeds_for(rule: Rule) -> u64 {
    match rule {
        // It takes a session that dies at one of a few moments.
        Rule::Latch
        | Rule::LookBeforeHandingOut
        | Rule::LostReleasesNothing
        | Rule::StepsDieWithSession => 1_000,
        // It takes a refusal by somebody who holds nothing a moment later.
        Rule::HoldersLookThemselves => 20_000,
        _ => 300,
    }
}

/// Runs seeds from the first with clients that break the rule, until one shows it. `None` if none does within the
/// stated number.
#[must_use]
pub fn find(rule: Rule, first: u64) -> Option<Found> {
    let mut found = None;
    for seeds in 1..=seeds_for(rule) {
        break_rule(rule);
        let run = run(first + seeds - 1);
        keep_all_rules();
        if !run.report.violations.is_empty() {
            found = Some(Found { seeds, run });
            break;
        }
    }
    found
}
