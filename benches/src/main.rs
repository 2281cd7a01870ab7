//! Measurements of lockkeeper: `cargo run --release -p lockkeeper-benches -- WHAT`.
//!
//! Every figure that is compared with another is measured in the same run, in rounds that take turns; medians of
//! rounds are printed, with the smallest and the greatest beside them.

mod baseline;
mod bystander;
mod compare;
mod handover;
mod memory;
mod million;
mod peer;
mod relay;
mod rounds;
mod store;
mod turns;
mod waiters;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::compare::Plan;
use crate::store::Store;

#[derive(Parser)]
#[command(about = "Measurements of lockkeeper, run on purpose")]
struct Cli {
    #[command(subcommand)]
    what: What,
    /// The store; without, an SQLite file in a temporary folder.
    #[arg(long, env = "LOCKKEEPER_URL", hide_env_values = true)]
    url: Option<String>,
    /// Rounds of each measurement.
    #[arg(long, global = true, default_value_t = 7)]
    rounds: usize,
}

#[derive(Subcommand)]
enum What {
    /// One lock on the memory store through the whole client, beside `tokio::sync::Mutex`: µs a pair; tasks and memory after 10⁶ pairs.
    Memory,
    /// One acquisition of very many document ids, beside what the store itself needs: acquire, release, memory; how long
    /// another client's requests take meanwhile; refusal at the last id.
    Million {
        /// How many ids.
        #[arg(long, default_value_t = 1_000_000)]
        ids: u32,
    },
    /// Very many waiters: the memory of the client, and of the server in `LOCKKEEPER_SERVER_PID`.
    Waiters {
        /// How many.
        #[arg(long, default_value_t = 100_000)]
        waiters: usize,
    },
    /// From a release in one process to the grant in another.
    Handover,
    /// Every workload on every store, in turns, beside what the store itself needs and other libraries' locks: a report,
    /// with plots and the raw figures.
    Compare {
        /// memory, sqlite, or another one, whose URL stands in LOCKKEEPER_URL_NAME.
        #[arg(long = "store", required = true)]
        stores: Vec<String>,
        /// How long turns are taken in a round, in ms.
        #[arg(long, default_value_t = 500)]
        slice_ms: u64,
        /// The most document ids in one acquisition.
        #[arg(long, default_value_t = 1_000_000)]
        ids: u32,
        /// Only the figures that begin so, with semicolons between them.
        #[arg(long, value_name = "FIGURE;…", value_delimiter = ';')]
        figures: Vec<String>,
        /// Goes on with the comparison in the folder, which ended before its last round, or after that.
        #[arg(long)]
        resume: bool,
        /// Where the report is written.
        #[arg(long, default_value = "docs")]
        out: PathBuf,
    },
    /// The report once more, of the figures that are in the folder.
    Report {
        /// The folder.
        #[arg(long, default_value = "docs")]
        out: PathBuf,
    },
    /// A process of another measurement.
    #[command(hide = true)]
    Worker {
        /// Which part it plays.
        part: String,
        /// How many ids it acquires.
        #[arg(long, default_value_t = 0)]
        ids: u32,
        /// What it holds.
        #[arg(long, default_value = "")]
        key: String,
    },
}

fn main() {
    let cli = Cli::parse();
    let store = Store::new(cli.url);
    match cli.what {
        What::Memory => memory::run(cli.rounds),
        What::Million { ids } => million::run(&store, ids, cli.rounds),
        What::Waiters { waiters } => waiters::run(&store, waiters),
        What::Handover => handover::run(&store),
        What::Compare {
            stores,
            slice_ms,
            ids,
            figures,
            resume,
            out,
        } => {
            let plan = Plan {
                stores: &stores,
                rounds: cli.rounds,
                slice: Duration::from_millis(slice_ms),
                most_ids: ids,
                figures: &figures,
                resume,
            };
            compare::run(&plan, &out);
        }
        What::Report { out } => compare::rewrite(&out),
        What::Worker { part, ids, key } => match part.as_str() {
            "turns" => turns::worker(&store),
            "guards" => compare::processes::keep_guards(&store),
            "held" => compare::processes::hold(&store, &key),
            "handover" => handover::worker(&store),
            "many" => million::worker(&store, ids),
            other => panic!("there is no part {other}"),
        },
    }
}
