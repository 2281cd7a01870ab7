//! What is known of all mutants.

use std::collections::{HashMap, HashSet};

use super::explained::Change;
use super::plan::{Mutant, Source};
use super::state::{Outcome, State};

/// Of a part of the server's code, or of all of it.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    lines: usize,
    /// Lines that a viable mutant changes which was tried.
    mutated: usize,
    mutants: usize,
    viable: usize,
    killed: usize,
    stuck: usize,
    explained: usize,
    survived: usize,
    left: usize,
}

/// Shows what is known, and fails where a mutant survives that nobody has explained.
pub(super) fn report(
    sources: &[Source],
    mutants: &[Mutant],
    reasons: &HashMap<Change, String>,
    state: &State,
) -> Result<(), String> {
    let mut parts: Vec<(usize, &str)> = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        for &line in &source.code {
            let part = (number, source.parts[line].as_str());
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    println!(
        "{:<32}lines mutated mutants viable killed  stuck explained survived   left",
        "part"
    );
    let mut all = Counts::default();
    let (mut times, mut survivors, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (file, part) in parts {
        let source = &sources[file];
        let of_part = |line: &&usize| source.parts[**line] == part;
        let mut counts = Counts::default();
        let mut mutated = HashSet::new();
        for mutant in mutants {
            if mutant.file != file || mutant.part(sources) != part {
                continue;
            }
            counts.mutants += 1;
            let Some(tried) = state.get(mutant.id) else {
                counts.left += 1;
                continue;
            };
            if tried.outcome == Outcome::Unviable {
                continue;
            }
            counts.viable += 1;
            times.push(tried.ms);
            let first = mutant.mutation.line;
            mutated.extend(first..first + mutant.mutation.lines);
            let place = format!("{}:{}", source.name, first + 1);
            let reason = reasons.get(&mutant.change);
            match &tried.outcome {
                Outcome::Unviable => {}
                Outcome::Killed(by) => {
                    counts.killed += 1;
                    if reason.is_some() {
                        wrong.push(format!("{place} is explained, but {by} kills it"));
                    }
                }
                Outcome::Stuck => counts.stuck += 1,
                Outcome::Survived(_) if reason.is_some() => counts.explained += 1,
                Outcome::Survived(once) => {
                    counts.survived += 1;
                    survivors.push(format!("{place}  {}{}", mutant.shown(), failed_once(once)));
                }
            }
        }
        counts.lines = source.code.iter().filter(of_part).count();
        counts.mutated = source
            .code
            .iter()
            .filter(of_part)
            .filter(|line| mutated.contains(line))
            .count();
        let stem = source.name.rsplit_once('.').map_or("", |(stem, _)| stem);
        let name = if part == stem {
            source.name.clone()
        } else {
            format!("{} {part}", source.name)
        };
        counts.show(&name);
        all.add(&counts);
    }
    all.show("all");
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        let unfit: usize = sources.iter().map(|source| source.unfit).sum();
        println!("median of a viable mutant: {median} ms; {unfit} more changes need a longer text");
    }
    if !survivors.is_empty() {
        println!("survivors:\n{}", survivors.join("\n"));
        wrong.push(format!(
            "{} mutants survive: write a test, or say in mutants.txt why there is none",
            survivors.len()
        ));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

/// The cases that failed once and not again, for people.
pub(super) fn failed_once(once: &[String]) -> String {
    if once.is_empty() {
        String::new()
    } else {
        format!("  [once of three times: {}]", once.join(", "))
    }
}

impl Counts {
    fn show(&self, name: &str) {
        let Self {
            lines,
            mutated,
            mutants,
            viable,
            killed,
            stuck,
            explained,
            survived,
            left,
        } = self;
        println!(
            "{name:<32}{lines:>5}{mutated:>8}{mutants:>8}{viable:>7}{killed:>7}{stuck:>7}{explained:>10}{survived:>9}{left:>7}"
        );
    }

    fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.mutated += other.mutated;
        self.mutants += other.mutants;
        self.viable += other.viable;
        self.killed += other.killed;
        self.stuck += other.stuck;
        self.explained += other.explained;
        self.survived += other.survived;
        self.left += other.left;
    }
}
