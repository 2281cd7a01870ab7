//! Measurements of lockkeeper: `cargo run --release -p lockkeeper-benches -- WHAT`.
//!
//! Every figure that is compared with another is measured in the same run, in rounds that take turns; medians of
//! rounds are printed, with the smallest and the greatest beside them.

mod bystander;
mod contended;
mod floor;
mod guards;
mod handover;
mod memory;
mod million;
mod pairs;
mod peer;
mod relay;
mod rounds;
mod store;

use std::time::Duration;

use clap::{Parser, Subcommand};

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
    /// One lock on the memory store through the whole client: µs a pair, tasks and memory after 10⁶ pairs.
    Memory,
    /// Acquire and release of a global lock, tree locks and a document lock, beside what the store itself needs and
    /// other libraries' locks.
    Pairs,
    /// One key wanted by 8 tasks, beside other libraries' locks, then by 8 processes.
    Contended,
    /// One acquisition of very many document ids, beside what the store itself needs: acquire, release, memory; how long
    /// another client's requests take meanwhile; refusal at the last id.
    Million {
        /// How many ids.
        #[arg(long, default_value_t = 1_000_000)]
        ids: u32,
    },
    /// 10,000 guards in one process: renewals counted.
    Guards,
    /// From a release in one process to the grant in another.
    Handover,
    /// A process of another measurement.
    #[command(hide = true)]
    Worker {
        /// Which part it plays.
        part: String,
        /// Its pause between release and retry.
        #[arg(long, default_value_t = 0)]
        pause_us: u64,
        /// How many ids it acquires.
        #[arg(long, default_value_t = 0)]
        ids: u32,
    },
}

fn main() {
    let cli = Cli::parse();
    let store = Store::new(cli.url);
    match cli.what {
        What::Memory => memory::run(cli.rounds),
        What::Pairs => pairs::run(&store, cli.rounds),
        What::Contended => contended::run(&store, cli.rounds),
        What::Million { ids } => million::run(&store, ids, cli.rounds),
        What::Guards => guards::run(&store),
        What::Handover => handover::run(&store),
        What::Worker {
            part,
            pause_us,
            ids,
        } => match part.as_str() {
            "contended" => contended::worker(&store, Duration::from_micros(pause_us)),
            "waiting" => contended::waiting(&store),
            "handover" => handover::worker(&store),
            "many" => million::worker(&store, ids),
            other => panic!("there is no part {other}"),
        },
    }
}
