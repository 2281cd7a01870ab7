//! Measurements of lockkeeper: `cargo run --release -p lockkeeper-benches -- WHAT`.
//!
//! Every figure that is compared with another is measured in the same run, in rounds that take turns; medians of
//! rounds are printed, with the smallest and the greatest beside them.

mod contended;
mod guards;
mod handover;
mod memory;
mod million;
mod rounds;
mod sqlite;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measurements of lockkeeper, run on purpose")]
struct Cli {
    #[command(subcommand)]
    what: What,
    /// Rounds of each measurement.
    #[arg(long, global = true, default_value_t = 7)]
    rounds: usize,
}

#[derive(Subcommand)]
enum What {
    /// One lock on the memory store through the whole client: µs a pair, tasks and memory after 10⁶ pairs.
    Memory,
    /// One lock on SQLite against two bare transactions through the same thread.
    Sqlite,
    /// One key wanted by 8 tasks, then by 8 processes, on SQLite.
    Contended,
    /// One acquisition of 1,000,000 document ids on SQLite: acquire, release, refusal at the last id, abort.
    Million,
    /// 10,000 guards in one process: renewals counted.
    Guards,
    /// From a release in one process to the grant in another, on SQLite.
    Handover,
    /// A process of `contended` or `handover`.
    #[command(hide = true)]
    Worker {
        /// Which part it plays.
        part: String,
        /// The database file.
        file: std::path::PathBuf,
        /// For how many milliseconds.
        ms: u64,
    },
}

fn main() {
    let cli = Cli::parse();
    match cli.what {
        What::Memory => memory::run(cli.rounds),
        What::Sqlite => sqlite::run(cli.rounds),
        What::Contended => contended::run(),
        What::Million => million::run(),
        What::Guards => guards::run(),
        What::Handover => handover::run(),
        What::Worker { part, file, ms } => match part.as_str() {
            "contended" => contended::worker(&file, ms),
            "handover" => handover::worker(&file, ms),
            other => panic!("there is no part {other}"),
        },
    }
}
