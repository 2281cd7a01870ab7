//! Runs seeds of the simulation, or looks for broken clients.

use std::process::ExitCode;

#[cfg(not(lockcore_sim))]
fn main() -> ExitCode {
    eprintln!(
        "the simulation needs clients that can be paused and killed: build with RUSTFLAGS=\"--cfg lockcore_sim\" \
         and a target directory of its own"
    );
    ExitCode::FAILURE
}

#[cfg(lockcore_sim)]
fn main() -> ExitCode {
    simulate::main()
}

#[cfg(lockcore_sim)]
mod simulate {
    use std::collections::BTreeMap;
    use std::io::BufWriter;
    use std::ops::Range;
    use std::process::ExitCode;
    use std::time::Instant;

    use lockcore::sim::{Rule, break_rule, keep_all_rules};
    use lockcore_conformance::simulation::{Run, find, run, seeds_for};

    const USAGE: &str = "\
usage: simulate --seeds FROM..TO [--threads N]   run seeds, and check each
       simulate --seed N [--lines] [--rule RULE] run one seed, and show what breaks, or all events as lines
       simulate --broken [RULE] [--first N]      look for clients that break a rule";

    pub(super) fn main() -> ExitCode {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = match args.as_slice() {
            ["--seeds", range] => parsed(range).map(|range| seeds(range, 1)),
            ["--seeds", range, "--threads", threads] => parsed(range)
                .zip(threads.parse().ok())
                .map(|(range, threads)| seeds(range, threads)),
            ["--seed", seed, rest @ ..] => seed.parse().ok().and_then(|seed| one(seed, rest)),
            ["--broken"] => Some(broken(&Rule::ALL, 0)),
            ["--broken", "--first", first] => {
                first.parse().ok().map(|first| broken(&Rule::ALL, first))
            }
            ["--broken", rule] => rule_named(rule).map(|rule| broken(&[rule], 0)),
            ["--broken", rule, "--first", first] => rule_named(rule)
                .zip(first.parse().ok())
                .map(|(rule, first)| broken(&[rule], first)),
            _ => None,
        };
        done.unwrap_or_else(|| {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        })
    }

    fn parsed(range: &str) -> Option<Range<u64>> {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    }

    fn rule_named(name: &str) -> Option<Rule> {
        Rule::ALL
            .into_iter()
            .find(|rule| format!("{rule:?}") == name)
    }

    #[derive(Default)]
    struct Sum {
        seeds: u64,
        events: usize,
        guards: usize,
        refused: usize,
        adoptions: usize,
        stale: usize,
        losses: usize,
        violations: usize,
        failed: Vec<u64>,
    }

    impl Sum {
        fn add(&mut self, run: &Run) {
            let report = &run.report;
            self.seeds += 1;
            self.events += report.events;
            self.guards += report.guards;
            self.refused += report.refused;
            self.adoptions += report.adoptions;
            self.stale += report.stale;
            self.losses += report.losses;
            self.violations += report.violations.len();
            if !report.violations.is_empty() {
                self.failed.push(run.plan.seed);
            }
        }

        fn join(&mut self, other: Sum) {
            self.seeds += other.seeds;
            self.events += other.events;
            self.guards += other.guards;
            self.refused += other.refused;
            self.adoptions += other.adoptions;
            self.stale += other.stale;
            self.losses += other.losses;
            self.violations += other.violations;
            self.failed.extend(other.failed);
        }
    }

    fn seeds(range: Range<u64>, threads: u64) -> ExitCode {
        let started = Instant::now();
        let threads = threads.max(1);
        let parts = (0..threads).map(|thread| {
            let range = range.clone();
            std::thread::spawn(move || {
                let mut sum = Sum::default();
                for seed in range.filter(|seed| seed % threads == thread) {
                    let run = run(seed);
                    match run.report.violations.first() {
                        Some(_) if sum.failed.is_empty() => show(&run),
                        Some(first) if sum.failed.len() < 100 => println!("seed {seed}: {first}"),
                        _ => {}
                    }
                    sum.add(&run);
                }
                sum
            })
        });
        let parts: Vec<_> = parts.collect();
        let mut sum = Sum::default();
        for part in parts {
            sum.join(part.join().expect("a seed panicked"));
        }
        println!(
            "{} seeds, {} events, {} guards, {} refusals, {} adoptions, {} stale writes refused, \
             {} unfenced writes lost (explained), {} violations, {:.1} s",
            sum.seeds,
            sum.events,
            sum.guards,
            sum.refused,
            sum.adoptions,
            sum.stale,
            sum.losses,
            sum.violations,
            started.elapsed().as_secs_f64()
        );
        if sum.failed.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("seeds that failed: {:?}", sum.failed);
        ExitCode::FAILURE
    }

    fn one(seed: u64, rest: &[&str]) -> Option<ExitCode> {
        let mut lines = false;
        let mut rest = rest.iter();
        keep_all_rules();
        while let Some(arg) = rest.next() {
            match *arg {
                "--lines" => lines = true,
                "--rule" => break_rule(rule_named(rest.next()?)?),
                _ => return None,
            }
        }
        let run = run(seed);
        if lines {
            let out = BufWriter::new(std::io::stdout().lock());
            run.history.write_lines(out).ok()?;
        } else {
            show(&run);
        }
        Some(if run.report.violations.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn show(run: &Run) {
        println!("seed {}: {:?}", run.plan.seed, run.plan);
        println!(
            "digest {:016x}, {} events",
            run.history.digest(),
            run.report.events
        );
        for violation in run.report.violations.iter().take(5) {
            println!("{violation}");
        }
        if let Some(first) = run.report.violations.first() {
            println!("{}", first.around(&run.history, 30, 2));
        }
    }

    fn broken(rules: &[Rule], first: u64) -> ExitCode {
        let mut missed = 0;
        println!("| broken rule | seeds needed | of at most | what shows it |");
        println!("|---|---|---|---|");
        for rule in rules {
            match find(*rule, first) {
                Some(found) => {
                    let mut laws: BTreeMap<_, usize> = BTreeMap::new();
                    for violation in &found.run.report.violations {
                        *laws.entry(violation.law).or_default() += 1;
                    }
                    let first = &found.run.report.violations[0];
                    println!(
                        "| {rule:?} | {} | {} | {} |",
                        found.seeds,
                        seeds_for(*rule),
                        first.law
                    );
                    if rules.len() == 1 {
                        show(&found.run);
                    }
                }
                None => {
                    println!("| {rule:?} | not found | {} | |", seeds_for(*rule));
                    missed += 1;
                }
            }
        }
        if missed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
