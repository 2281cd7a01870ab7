//! Checks every model with all rules, and without each of them: `cargo xtask model [--states N]`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::process::ExitCode;
use std::time::Instant;

use lockkeeper_model::line::{self, Line};
use lockkeeper_model::sessions::scenes;
use lockkeeper_model::shares::{self, Shares};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    // Without a number as many as there are.
    let most = args
        .next()
        .and_then(|it| it.parse().ok())
        .unwrap_or(usize::MAX);
    let only = args.next().unwrap_or_default();
    let begun = Instant::now();
    let mut table = Table {
        most,
        only,
        rows: 0,
        states: 0,
        wrong: 0,
    };
    table.row("line", Line::default(), None);
    for (without, breaks) in line::MUTANTS {
        let model = Line {
            without: Some(*without),
        };
        table.row(&format!("line without {without:?}"), model, Some(breaks));
    }
    table.row("shares", Shares::default(), None);
    for (without, breaks) in shares::MUTANTS {
        let model = Shares {
            without: Some(*without),
        };
        table.row(&format!("shares without {without:?}"), model, Some(breaks));
    }
    for scene in scenes::all() {
        let store = format!("{:?}", scene.model.store).to_lowercase();
        let what = match scene.model.without {
            Some(without) => format!("without {without:?}"),
            None => scene.name.to_owned(),
        };
        table.row(&format!("{store}: {what}"), scene.model, scene.breaks);
    }
    println!(
        "{} states, {:.0} s, {} not as expected",
        table.states,
        begun.elapsed().as_secs_f32(),
        table.wrong
    );
    if table.rows == 0 {
        eprintln!("no model's name has {:?} in it", table.only);
    }
    match table.rows > 0 && table.wrong == 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

struct Table {
    /// So many states of a model with all rules, and five times as many of one without.
    most: usize,
    only: String,
    /// Models whose name has that in it.
    rows: usize,
    states: usize,
    wrong: usize,
}

impl Table {
    /// Checks a model, and whether what is broken is what is expected.
    fn row<M>(&mut self, name: &str, model: M, breaks: Option<&'static str>)
    where
        M: Model + Send + Sync + 'static,
        M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
        M::Action: Clone + Debug + PartialEq,
    {
        if !name.contains(&self.only) {
            return;
        }
        self.rows += 1;
        let begun = Instant::now();
        let of = |expectation: Expectation| -> BTreeSet<&'static str> {
            let properties = model.properties().into_iter();
            let of_it = properties.filter(|it| it.expectation == expectation);
            of_it.map(|it| it.name).collect()
        };
        let (always, sometimes) = (of(Expectation::Always), of(Expectation::Sometimes));
        let builder = model.checker().threads(1);
        let builder = match breaks {
            Some(breaks) => builder
                .finish_when(HasDiscoveries::AllOf([breaks].into()))
                .target_state_count(self.most.saturating_mul(5)),
            None => builder.target_state_count(self.most),
        };
        let checker = builder.spawn_bfs().join();
        let found = checker.discoveries();
        let broken: Vec<String> = found
            .iter()
            .filter(|(name, _)| always.contains(*name))
            .map(|(name, path)| format!("{name}, in {} steps", path.clone().into_actions().len()))
            .collect();
        let is_as_expected = match breaks {
            Some(breaks) => found.contains_key(breaks),
            None => broken.is_empty() && sometimes.iter().all(|it| found.contains_key(it)),
        };
        let is_whole = breaks.is_some() || checker.state_count() < self.most;
        let outcome = match (&broken[..], is_whole) {
            ([], true) => "holds".to_owned(),
            ([], false) => "holds, as far as it was looked at".to_owned(),
            (broken, _) => format!("broken: {}", broken.join("; ")),
        };
        let mark = if is_as_expected { "  " } else { "!!" };
        println!(
            "{mark} {name:<48} {:>9} states {:>5.1} s  {outcome}",
            checker.unique_state_count(),
            begun.elapsed().as_secs_f32()
        );
        if !is_as_expected {
            self.wrong += 1;
            if let Some((_, path)) = found.into_iter().find(|(name, _)| always.contains(name)) {
                for step in path.into_actions() {
                    println!("     {step:?}");
                }
            }
        }
        self.states += checker.unique_state_count();
    }
}
