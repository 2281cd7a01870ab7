//! `cargo xtask compare --against COMMIT`: two builds of ours, measured in the same rounds.

pub(crate) mod build;
mod place;
mod side;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lockkeeper_servers::etcd;

use crate::compare;
use crate::stores::Store;
use build::Built;
use place::Places;
use side::Side;
use verdict::{Figure, LIMIT, Outcome, Verdict, median};

/// Fewer rounds than this decide nothing.
const LEAST_ROUNDS: usize = 7;
/// So long each build measures a figure in a round, in slices that take turns.
const ROUND_MS: u32 = 600;

/// A figure, and the number of its slices.
type Listed = (String, u32);

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) commit: &'a str,
    /// All, where none is named.
    pub(crate) stores: &'a [&'static Store],
    pub(crate) rounds: Option<usize>,
    /// Those whose names begin so; all, where none is named.
    pub(crate) figures: &'a [String],
}

/// Measures the working tree against a commit, prints the ratios and keeps them beside the commit's build.
pub(crate) fn run(asked: &Asked<'_>) -> Result<(), String> {
    let stores = compare::chosen(asked.stores);
    if stores.iter().any(|store| store.name == "etcd") {
        etcd::protoc()?;
    }
    let (ours, theirs) = build::both(asked.commit, &stores)?;
    let figures = figures([&ours, &theirs], asked.figures)?;
    let rounds = asked.rounds.unwrap_or(LEAST_ROUNDS).max(1);
    let places = Places::get()?;
    places.servers()?;
    let servers = compare::start(&stores)?;
    places.programs()?;
    let mut found = Vec::new();
    for (store, url) in &servers.urls {
        let pair = Pair {
            builds: [&ours, &theirs],
            store,
            url,
        };
        found.extend(pair.compare(&figures, rounds)?);
    }
    let outcome = Outcome {
        ours: ours.name,
        against: theirs.name,
        rounds,
        decides: rounds >= LEAST_ROUNDS,
        limit: LIMIT,
        figures: found,
    };
    let file = theirs.folder.join("result.json");
    let json = serde_json::to_vec_pretty(&outcome).map_err(|error| error.to_string())?;
    std::fs::write(&file, json).map_err(|error| format!("{}: {error}", file.display()))?;
    print!("{}", outcome.table());
    println!("{}", file.display());
    if !outcome.decides {
        eprintln!("warning: fewer than {LEAST_ROUNDS} rounds decide nothing");
        return Ok(());
    }
    match outcome.worse() {
        worse if worse.is_empty() => Ok(()),
        worse => Err(format!(
            "worse than {}: {}",
            outcome.against,
            worse.join("; ")
        )),
    }
}

/// The names of the figures that were asked for; those that one of both builds does not have are left out.
fn figures(builds: [&Built; 2], wanted: &[String]) -> Result<Vec<Listed>, String> {
    let list = |built| Side::start(built, "memory:")?.ask("list");
    let [ours, theirs]: [Vec<Listed>; 2] = [list(builds[0])?, list(builds[1])?];
    let by_name = |listed: &[Listed]| listed.iter().cloned().collect();
    let (both, missing) = in_both(by_name(&ours), by_name(&theirs));
    missing.iter().for_each(|figure| note_left_out(figure));
    let known = ours.into_iter();
    let known: Vec<Listed> = known
        .filter(|(figure, _)| both.contains_key(figure))
        .collect();
    let is_wanted = |figure: &str| wanted.iter().any(|wanted| figure.starts_with(&**wanted));
    for wanted in wanted {
        if !known
            .iter()
            .any(|(figure, _)| figure.starts_with(&**wanted))
        {
            let known: Vec<&str> = known.iter().map(|(figure, _)| &**figure).collect();
            let known = known.join("; ");
            return Err(format!(
                "no figure begins with {wanted:?}; known are {known}"
            ));
        }
    }
    let all = known.into_iter();
    Ok(all
        .filter(|(figure, _)| wanted.is_empty() || is_wanted(figure))
        .collect())
}

/// What both have, by name, and the names of what only one of them has.
fn in_both<T>(
    ours: BTreeMap<String, T>,
    mut theirs: BTreeMap<String, T>,
) -> (BTreeMap<String, (T, T)>, BTreeSet<String>) {
    let (mut both, mut missing) = (BTreeMap::new(), BTreeSet::new());
    for (name, ours) in ours {
        match theirs.remove(&name) {
            Some(theirs) => drop(both.insert(name, (ours, theirs))),
            None => drop(missing.insert(name)),
        }
    }
    missing.extend(theirs.into_keys());
    (both, missing)
}

fn note_left_out(figure: &str) {
    eprintln!("{figure}: left out, because only one of both builds has it");
}

/// Two builds on one store.
struct Pair<'a> {
    builds: [&'a Built; 2],
    store: &'a str,
    url: &'a str,
}

impl Pair<'_> {
    /// Measures all figures, and those that are worse once more.
    fn compare(&self, figures: &[Listed], rounds: usize) -> Result<Vec<Figure>, String> {
        let first = self.rounds(figures, rounds, "first")?;
        let mut found: Vec<Figure> = first
            .into_iter()
            .map(|(figure, ratios)| Figure::new(self.store, figure, ratios))
            .collect();
        let is_worse = |name: &str| {
            let mut worse = found.iter().filter(|it| it.verdict() == Verdict::Worse);
            // A part of a figure has its name behind a comma.
            worse.any(|it| it.figure == name || it.figure.starts_with(&format!("{name}, ")))
        };
        let again = figures.iter().filter(|(name, _)| is_worse(name));
        let again: Vec<Listed> = again.cloned().collect();
        if !again.is_empty() {
            let mut second = self.rounds(&again, rounds, "second")?;
            for figure in &mut found {
                if figure.verdict() == Verdict::Worse {
                    figure.again(second.remove(&figure.figure).unwrap_or_default());
                }
            }
        }
        Ok(found)
    }

    /// The ratios of all rounds, by figure; a round before them does not count. Each build has programs, connections and a
    /// namespace of its own.
    fn rounds(
        &self,
        figures: &[Listed],
        rounds: usize,
        run: &str,
    ) -> Result<BTreeMap<String, Vec<f64>>, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let side = |at: usize, whose: &str| {
            let url = of_its_own(self.url, &format!("{whose}-{run}"), folder.path());
            // Where a program's file happens to be in memory makes some per cent: in another run it is elsewhere.
            let copy = self.builds[at].copy(run)?;
            Side::start(&copy, &url)
        };
        let mut sides = [side(0, "ours")?, side(1, "theirs")?];
        let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        for round in 0..=rounds {
            eprintln!("{}, {run} run: round {round} of {rounds}", self.store);
            for figure in figures {
                let (found, missing) = in_turns(&mut sides, figure, round)?;
                for name in missing {
                    if left_out.insert(name.clone()) {
                        note_left_out(&name);
                    }
                }
                for (name, ratio) in found {
                    if round > 0 {
                        ratios.entry(name).or_default().push(ratio);
                    }
                }
            }
        }
        Ok(ratios)
    }
}

/// One round of a figure, in slices of which two, one of each build, are beside each other: the median of the ratios of
/// ours to theirs, for each part of the figure that both have; and the names of those that only one has. They take turns at
/// being first.
fn in_turns(
    sides: &mut [Side; 2],
    (figure, slices): &Listed,
    round: usize,
) -> Result<(BTreeMap<String, f64>, BTreeSet<String>), String> {
    let mut left_out = BTreeSet::new();
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let request = format!("{figure} {}", ROUND_MS / slices);
    for slice in 0..*slices as usize {
        let first = (round + slice) % 2;
        let mut found: [BTreeMap<String, f64>; 2] = Default::default();
        for at in [first, 1 - first] {
            found[at] = sides[at].ask(&request)?;
        }
        let [ours, theirs] = found;
        let (both, missing) = in_both(ours, theirs);
        left_out.extend(missing);
        for (name, (ours, theirs)) in both {
            ratios.entry(name).or_default().push(ours / theirs);
        }
    }
    let medians = ratios.into_iter().map(|(name, all)| (name, median(&all)));
    Ok((medians.collect(), left_out))
}

/// The URL of a namespace, or of a file, that nothing else is in.
fn of_its_own(url: &str, name: &str, folder: &Path) -> String {
    let namespace = format!("against-{name}-{}", std::process::id());
    match url {
        "memory:" => url.to_owned(),
        "sqlite:" => format!(
            "sqlite:{}",
            folder.join(name).with_extension("db").display()
        ),
        _ if url.contains('?') => format!("{url}&namespace={namespace}"),
        _ => format!("{url}?namespace={namespace}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_of_both_lacks_is_left_out() {
        let of = |names: &[(&str, f64)]| -> BTreeMap<String, f64> {
            let names = names.iter();
            names.map(|(name, us)| ((*name).to_owned(), *us)).collect()
        };
        let ours = of(&[("pair", 3.0), ("new", 1.0), ("wake-up", 5.0)]);
        let theirs = of(&[("old", 1.0), ("pair", 2.0), ("wake-up", 4.0)]);
        let (both, missing) = in_both(ours, theirs);
        assert_eq!(both["pair"], (3.0, 2.0));
        assert_eq!(both["wake-up"], (5.0, 4.0));
        assert_eq!(both.len(), 2);
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["new", "old"]);
    }
}
