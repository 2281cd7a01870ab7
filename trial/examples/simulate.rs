//! Runs seeds of the simulation, or looks for broken clients.

use std::process::ExitCode;

#[cfg(not(lockcore_sim))]
fn main() -> ExitCode {
    eprintln!(
        "the simulation needs clients that can be paused and killed: `cargo xtask simulate` builds it"
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

    use clap::{ArgGroup, Parser};
    use lockcore_trial::simulation::{Rule, Run, find, find_again, rules, run, run_broken};

    /// The seeded simulation: seeds, or broken clients.
    #[derive(Parser)]
    #[command(name = "cargo xtask simulate")]
    #[command(group = ArgGroup::new("what").required(true).args(["seeds", "seed", "broken"]))]
    struct Args {
        /// Runs these seeds, and checks what happened; the end is not among them.
        #[arg(long, value_name = "FROM..TO", value_parser = parse_range)]
        seeds: Option<Range<u64>>,
        /// So many at the same time.
        #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "seed")]
        threads: usize,
        /// Runs one seed, and shows what it breaks.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Prints all of its events instead.
        #[arg(long, requires = "seed")]
        lines: bool,
        /// With a client that breaks this rule.
        #[arg(long, value_parser = parse_rule, requires = "seed")]
        rule: Option<Rule>,
        /// Looks for clients that break this rule, or each of them.
        #[arg(long, value_name = "RULE", value_parser = parse_rule, num_args = 0..=1)]
        broken: Option<Option<Rule>>,
        /// From this seed on. Without it the seeds that have shown the breaches last come first.
        #[arg(long, value_name = "N", requires = "broken")]
        first: Option<u64>,
    }

    pub(super) fn main() -> ExitCode {
        let args = Args::parse();
        if let Some(range) = args.seeds {
            seeds(range, args.threads)
        } else if let Some(seed) = args.seed {
            one(seed, args.rule, args.lines)
        } else {
            match args.broken.flatten() {
                Some(rule) => broken(&[rule], args.first, args.threads),
                None => broken(&rules().collect::<Vec<_>>(), args.first, args.threads),
            }
        }
    }

    fn parse_range(range: &str) -> Result<Range<u64>, String> {
        let parsed = range.split_once("..").and_then(|(from, to)| {
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from < to).then_some(from..to)
        });
        parsed.ok_or_else(|| "two rising numbers with two dots between them, as 1..1001".to_owned())
    }

    fn parse_rule(name: &str) -> Result<Rule, String> {
        let found = rules().find(|rule| rule.name == name);
        let names = || rules().map(|rule| rule.name).collect::<Vec<_>>();
        found.ok_or_else(|| format!("one of {}", names().join(", ")))
    }

    #[derive(Default)]
    struct Sum {
        seeds: u64,
        events: usize,
        guards: usize,
        handed_on: usize,
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
            self.handed_on += report.handed_on;
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
            self.handed_on += other.handed_on;
            self.refused += other.refused;
            self.adoptions += other.adoptions;
            self.stale += other.stale;
            self.losses += other.losses;
            self.violations += other.violations;
            self.failed.extend(other.failed);
        }
    }

    fn seeds(range: Range<u64>, threads: usize) -> ExitCode {
        let started = Instant::now();
        let threads = u64::try_from(threads.max(1)).expect("a number of threads fits");
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
            "{} seeds, {} events, {} guards ({} handed on), {} refusals, {} adoptions, {} stale writes refused, \
             {} unfenced writes lost (explained), {} violations, {:.1} s",
            sum.seeds,
            sum.events,
            sum.guards,
            sum.handed_on,
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

    fn one(seed: u64, rule: Option<Rule>, lines: bool) -> ExitCode {
        let run = rule.map_or_else(|| run(seed), |rule| run_broken(rule, seed));
        if lines {
            let out = BufWriter::new(std::io::stdout().lock());
            if let Err(error) = run.history.write_lines(out) {
                eprintln!("simulate: cannot write the events: {error}");
                return ExitCode::FAILURE;
            }
        } else {
            show(&run);
        }
        if run.report.violations.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
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

    fn broken(rules: &[Rule], first: Option<u64>, threads: usize) -> ExitCode {
        let mut missed = 0;
        println!("| broken rule | seed | seeds run | of at most | what shows it |");
        println!("|---|---|---|---|---|");
        for rule in rules {
            let again = first.is_none().then(|| find_again(*rule)).flatten();
            match again.or_else(|| find(*rule, first.unwrap_or(0), threads)) {
                Some(found) => {
                    let mut laws: BTreeMap<_, usize> = BTreeMap::new();
                    for violation in &found.run.report.violations {
                        *laws.entry(violation.law).or_default() += 1;
                    }
                    let first = &found.run.report.violations[0];
                    println!(
                        "| {} | {} | {} | {} | {} |",
                        rule.name, found.seed, found.seeds, rule.seeds, first.law
                    );
                    if rules.len() == 1 {
                        show(&found.run);
                    }
                }
                None => {
                    println!("| {} | not found | | {} | |", rule.name, rule.seeds);
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
