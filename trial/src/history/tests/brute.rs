//! Small random histories: the sweep finds what comparing everybody with everybody finds.

use std::collections::BTreeSet;

use lockcore::{Claim, LockKey, Mode, Want};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::story::{Story, claims};
use crate::history::{How, Law, check};

const WANTED: [&[&str]; 11] = [
    &["create f"],
    &["upsert f"],
    &["share f"],
    &["share:1 f"],
    &["share:2 f"],
    &["upsert f", "upsert g"],
    &["write /a"],
    &["read /a"],
    &["write /a/b"],
    &["read /a/b", "write /c"],
    &["read /a", "write /a/b"],
];

/// One guard of such a history, by the numbers of its events.
struct Told {
    owner: u64,
    claims: Vec<Claim>,
    token: u64,
    asked: usize,
    start: usize,
    end: usize,
}

#[test]
fn the_sweep_finds_what_everybody_against_everybody_finds() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut seen = [0; 3];
    for round in 0..20_000 {
        let (mut story, told) = any(&mut rng);
        let history = story.end();
        let report = check(&history);
        let found: BTreeSet<Law> = report.violations.iter().map(|found| found.law).collect();
        let expected = expected(&told);
        let lines: Vec<_> = history.events.iter().map(|event| &event.what).collect();
        assert_eq!(found, expected, "round {round}: {lines:#?}");
        for (law, seen) in expected.iter().zip(&mut seen) {
            *seen += usize::from(*law >= Law::AtMostOneHolder);
        }
        seen[2] += usize::from(expected.is_empty());
    }
    assert!(seen.iter().all(|seen| *seen > 1_000), "{seen:?}");
}

/// Up to six guards; each is asked for, handed out and given back in an order of chance, and says that it is valid
/// for ever.
fn any(rng: &mut Xoshiro256PlusPlus) -> (Story, Vec<Told>) {
    let count = rng.random_range(2..=6);
    let mut tokens: Vec<u64> = (1..=count).collect();
    if rng.random_bool(0.3) {
        tokens.shuffle(rng);
    }
    let mut told: Vec<Told> = tokens
        .into_iter()
        .map(|token| Told {
            owner: if rng.random_bool(0.7) { 100 + token } else { 1 },
            claims: claims(WANTED.choose(rng).unwrap()),
            token,
            asked: 0,
            start: 0,
            end: usize::MAX,
        })
        .collect();
    let mut story = Story::new();
    let mut number = 0;
    let mut open: Vec<(usize, u8)> = (0..told.len()).map(|at| (at, 0)).collect();
    while !open.is_empty() {
        // Mostly one after the other, so that not everything is broken.
        let first = if rng.random_bool(0.75) {
            0
        } else {
            rng.random_range(0..open.len())
        };
        let (at, step) = open[first];
        let (attempt, guard) = (at as u64 + 1, &mut told[at]);
        number += 1;
        story.after(1);
        match step {
            0 => {
                guard.asked = number;
                let texts: Vec<String> = guard
                    .claims
                    .iter()
                    .map(crate::history::text::shown)
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                story.ask_as(attempt, guard.owner, &texts);
            }
            1 => {
                guard.start = number;
                story.granted(attempt, 1, guard.token, 100_000);
            }
            _ => {
                guard.end = number;
                story.back(attempt, How::Released);
            }
        }
        if step == 2 {
            open.remove(first);
        } else {
            open[first].1 += 1;
        }
    }
    (story, told)
}

/// What is wrong, by comparing everybody with everybody, record by record.
fn expected(told: &[Told]) -> BTreeSet<Law> {
    let mut laws = BTreeSet::new();
    for first in told {
        for later in told.iter().filter(|later| later.token > first.token) {
            let related = records(first)
                .iter()
                .any(|(key, _)| records(later).iter().any(|(other, _)| key == other));
            // The later token was handed out before the earlier one was even asked for.
            if related && later.start < first.asked {
                laws.insert(Law::TokensOnlyRise);
            }
            let reenters = first.owner == later.owner && later.claims[0].want().reenters();
            let conflict = records(first).iter().any(|(key, mode)| {
                records(later)
                    .iter()
                    .any(|(other, asked)| key == other && !asked.beside(*mode))
            });
            if conflict && !reenters && first.end > later.start {
                laws.insert(Law::AtMostOneHolder);
            }
        }
        if let Want::Share { limit: Some(limit) } = first.claims[0].want() {
            let beside = told.iter().filter(|other| {
                matches!(other.claims[0].want(), Want::Share { .. })
                    && other.token < first.token
                    && other.start < first.asked
                    && other.end > first.start
            });
            if beside.count() >= limit.get() as usize {
                laws.insert(Law::SharedAreASet);
            }
        }
    }
    laws
}

/// Every key and every ancestor with each mode in which it is held; S with IX is X.
fn records(told: &Told) -> Vec<(LockKey, Mode)> {
    let mut records: Vec<(LockKey, Mode)> = Vec::new();
    for claim in &told.claims {
        records.push((claim.key().clone(), claim.want().mode()));
        for above in claim.key().ancestors() {
            let mode = claim.want().above().unwrap();
            records.push((LockKey::parse(above).unwrap(), mode));
        }
    }
    let held = |key: &LockKey, mode| records.contains(&(key.clone(), mode));
    let both: Vec<LockKey> = records
        .iter()
        .map(|(key, _)| key.clone())
        .filter(|key| held(key, Mode::S) && held(key, Mode::IX))
        .collect();
    records.extend(both.into_iter().map(|key| (key, Mode::X)));
    records
}
