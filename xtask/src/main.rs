//! The developer's commands: `cargo xtask …`.

mod against;
mod api;
mod breaches;
mod builds;
mod compare;
mod deny;
mod fuzz;
#[cfg(test)]
mod layers;
mod lines;
mod model;
mod mutants;
#[cfg(test)]
mod observe;
mod older;
mod plan;
mod release;
mod simulate;
mod soak;
mod stores;
mod test;
mod times;
mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use lockkeeper_servers::{etcd, openssl};

/// The developer's commands.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Installs what the workspaces are built with besides Rust and C, where it is missing: protoc and OpenSSL's headers.
    Prepare {
        /// Instead builds the servers of the tests that are built from their sources, where they are missing.
        #[arg(long)]
        servers: bool,
    },
    /// Checks bans, licences and sources of the dependencies with cargo-deny, which it fetches where it is missing.
    Deny,
    /// Builds all documentation, with warnings denied, and compares the public API of the published crates
    /// with the listings in docs/api.
    Api {
        /// Writes it there instead.
        #[arg(long)]
        save: bool,
    },
    /// Runs the tests of the whole workspace, or what one store needs.
    Test {
        /// Only lockcore, and the conformance and own tests of this store.
        #[arg(long, value_name = "STORE", value_parser = stores::find)]
        only: Option<&'static stores::Store>,
        /// Only what the whole run does on this server, or here: without one.
        #[arg(long, value_name = "SERVER", value_parser = plan::find, conflicts_with = "only")]
        on: Vec<&'static str>,
        /// Only what `soak` runs beside this server.
        #[arg(long, value_name = "SERVER", value_parser = stores::find_server, conflicts_with_all = ["only", "on"])]
        soak: Option<(&'static stores::Store, &'static stores::Startable)>,
    },
    /// Runs the seeded simulation: `--seeds FROM..TO [--threads N]`, `--seed N`, or `--broken [RULE]`.
    #[command(disable_help_flag = true)]
    Simulate {
        /// What the simulation is given; `--help` tells. `--broken --save` writes the seeds that show the breaches into
        /// `trial/breaches.txt`, for the next run to begin with.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Checks the models of the protocol, with all rules and without each of them.
    Model {
        /// Looks at more states, which takes much longer.
        #[arg(long)]
        deep: bool,
        /// Only models with this in their names, as in `adopters` or `without Latch`.
        only: Option<String>,
    },
    /// Runs processes on one store that are killed, stopped and continued: `--seconds N [--processes N] [--seed S]
    /// [--kill-only] [--history FILE]`; or checks a history that was kept, `--check FILE`; or measures what it costs to
    /// keep one, `--cost`.
    Trial {
        /// Which store.
        #[arg(long, value_name = "STORE", value_parser = stores::find, default_value = "sqlite")]
        store: &'static stores::Store,
        /// What the trial is given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Measures every store beside the others and writes the report below docs/: `[--rounds N] [--slice-ms N] [--ids N]
    /// [--out FOLDER]`; or, with `--against`, the working tree beside another commit.
    Compare {
        /// Only these stores, with commas between them.
        #[arg(long, value_name = "STORE,…", value_parser = stores::find, value_delimiter = ',')]
        only: Vec<&'static stores::Store>,
        /// Measures the working tree and this commit in the same rounds; fails if a figure is worse in two runs.
        #[arg(long, value_name = "COMMIT")]
        against: Option<String>,
        /// How many rounds count: 7; fewer decide nothing against a commit.
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        /// Only figures that begin so, with semicolons between them; an unknown one is told the known ones.
        #[arg(long, value_name = "FIGURE;…", value_delimiter = ';')]
        figures: Vec<String>,
        /// What the comparison of the stores is given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Runs what takes too long for `test`: every case on every server, long trials, clusters under faults, more seeds,
    /// fuzzing and mutants. Goes on where the last one on this commit ended.
    Soak {
        /// Takes so long, and leaves what does not fit for the next time; without, hours.
        #[arg(long, value_name = "N")]
        minutes: Option<u64>,
        /// Only parts whose names begin so, with commas between them.
        #[arg(long, value_name = "PART,…", value_delimiter = ',')]
        only: Vec<String>,
        /// Shows the parts, and what came of them on this commit.
        #[arg(long)]
        list: bool,
        /// Only runs of faults on this store, first those that have run least. They are added to `docs/soak.md`.
        #[arg(long, value_name = "STORE", value_parser = stores::find, conflicts_with_all = ["only", "list"])]
        store: Option<&'static stores::Store>,
        /// Only runs of this kind of fault, as the tables in `docs/soak.md` have them.
        #[arg(long, value_name = "FAULT", value_parser = lockkeeper_servers::faults::find, conflicts_with_all = ["only", "list"])]
        fault: Option<&'static lockkeeper_servers::faults::Kind>,
        /// What chance in these runs follows from; a new one for each, if it is not given.
        #[arg(long, value_name = "S")]
        seed: Option<u64>,
    },
    /// Compares the table of faults in GUARANTEES.md, and `docs/soak.md`, with what they are written from.
    Faults {
        /// Writes them instead.
        #[arg(long)]
        save: bool,
    },
    /// Runs the command of another commit and that of the working tree in one namespace, on each store: either both are
    /// right, or the one that comes second is refused.
    Older {
        /// The other commit.
        #[arg(long, value_name = "COMMIT")]
        than: String,
        /// Only these stores, with commas between them.
        #[arg(long, value_name = "STORE,…", value_parser = stores::find, value_delimiter = ',')]
        only: Vec<&'static stores::Store>,
        /// How long they run beside each other, in each order.
        #[arg(long, value_name = "N", default_value_t = 10)]
        seconds: u64,
    },
    /// Counts code lines without docs, comments, blank lines and tests, by package and purpose.
    Lines {
        /// Of this folder, such as another commit's; else of the working tree.
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Checks what can be checked before a release: metadata, packages, changelog, links, the book; names what only the
    /// project's owner can fill in.
    Release {
        /// Checks, and publishes nothing; so far it does nothing else.
        #[arg(long, required = true)]
        check: bool,
        /// Also builds a program outside the workspace from the packages, and runs it on SQLite and Redis.
        #[arg(long)]
        build: bool,
    },
    /// Starts a server, runs a command that finds its URL in LOCKKEEPER_URL, and stops it.
    With {
        /// elasticsearch-7, elasticsearch-9, opensearch-2, opensearch-3, opensearch-3-secured, elasticsearch-9-secured,
        /// etcd-3.6, etcd-3.5, etcd-3.4, etcd-3.6-cluster, mariadb, postgres (the machine's own), postgres-14, postgres-16,
        /// postgres-17, postgres-18 or redis.
        #[arg(value_parser = stores::find_server)]
        server: (&'static stores::Store, &'static stores::Startable),
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Changes what a store's server runs, line by line, and sees whether a test notices; goes on where the last run
    /// ended.
    Mutants {
        /// redis, postgres, elasticsearch or sqlite; with --rust also etcd.
        #[arg(long, value_name = "STORE")]
        store: String,
        /// Instead, cargo-mutants on the backend's Rust.
        #[arg(long, conflicts_with_all = ["only", "minutes", "list", "save"])]
        rust: bool,
        /// Only this file or function, as in `renew.lua` or `end_sessions`.
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
        /// Leaves out the cases with this in their names: on a machine that is too busy for them.
        #[arg(long, value_name = "TEXT")]
        skip: Vec<String>,
        /// So many at a time, each with a server of its own.
        #[arg(long, value_name = "N", default_value_t = 2)]
        jobs: usize,
        /// Begins no mutant after so many minutes.
        #[arg(long, value_name = "N")]
        minutes: Option<u64>,
        /// Only shows what is known.
        #[arg(long)]
        list: bool,
        /// Writes what is known to `backend-STORE/mutants.jsonl`, so that another machine goes on there.
        #[arg(long)]
        save: bool,
        /// What cargo-mutants is given, as in `-- -F claims.rs`.
        #[arg(last = true, requires = "rust")]
        args: Vec<String>,
    },
    /// Runs the fuzz targets, one after the other. Needs a nightly toolchain and cargo-fuzz.
    Fuzz {
        /// Only this one.
        target: Option<String>,
        /// How long each of them runs.
        #[arg(long, value_name = "N", default_value_t = 60)]
        seconds: u32,
    },
}

fn main() -> ExitCode {
    if let Some(status) = api::as_rustdoc() {
        return status;
    }
    let done = match Args::parse().command {
        Command::Api { save } => api::run(save),
        Command::Prepare { servers: true } => stores::build_servers(),
        Command::Prepare { servers: false } => etcd::protoc().and_then(|()| openssl()),
        Command::Deny => deny::run(),
        Command::Test {
            soak: Some(server), ..
        } => test::run_soak(server),
        Command::Test { only, on, .. } => test::run(only, &on),
        Command::Older {
            than,
            only,
            seconds,
        } => older::run(&than, &only, seconds),
        Command::Lines { folder } => lines::run(&folder),
        Command::Fuzz { target, seconds } => fuzz::run(target.as_deref(), seconds),
        Command::Mutants {
            store,
            rust: true,
            args,
            ..
        } => mutants::rust::run(&store, &args),
        Command::Mutants {
            store,
            only,
            skip,
            jobs,
            minutes,
            list,
            save,
            ..
        } => {
            let now = Instant::now();
            let until = minutes.and_then(|it| now.checked_add(Duration::from_secs(60 * it)));
            let options = mutants::Options {
                until,
                only,
                skip,
                jobs,
                list,
                save,
            };
            mutants::run(&store, &options)
        }
        Command::With { server, command } => stores::with(server, &command),
        Command::Compare {
            only,
            against: Some(commit),
            rounds,
            figures,
            args,
        } => {
            let asked = against::Asked {
                commit: &commit,
                stores: &only,
                rounds,
                figures: &figures,
            };
            match args.as_slice() {
                [] => against::run(&asked),
                args => Err(format!("{}: not with --against", args.join(" "))),
            }
        }
        Command::Compare {
            only,
            rounds,
            figures,
            args,
            ..
        } => compare::run(&only, rounds, &figures, &args),
        Command::Soak {
            minutes,
            store,
            fault,
            seed,
            ..
        } if store.is_some() || fault.is_some() => soak::faults::run(&soak::faults::Asked {
            store,
            fault,
            seed,
            minutes,
        }),
        Command::Soak { seed: Some(_), .. } => Err("--seed is for --store or --fault".to_owned()),
        Command::Soak {
            minutes,
            only,
            list,
            ..
        } => soak::run(minutes, &only, list),
        Command::Model { deep, only } => model::run(deep, only.as_deref()),
        Command::Faults { save } => soak::faults::check(save),
        Command::Release { build, .. } => release::run(build),
        Command::Simulate { args } => {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            simulate::run(&args)
        }
        Command::Trial { store, args } => trial::run(store, &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
