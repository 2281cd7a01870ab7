//! Many processes rename directories of thousands of documents, while others change single files below them: the
//! argument of *Elasticsearch: The Definitive Guide*, "Solving Concurrency Issues", measured.
//!
//! `cargo run --release -p lockkeeper-examples --bin rename -- --url elasticsearch://localhost:9200`, or with a server
//! of its own: `cargo xtask with opensearch-2 -- cargo run --release -p lockkeeper-examples --bin rename`
//!
//! The files of a real directory tree are documents of one index, each with its path. Several processes rename
//! directories (one update for each document below), and rename, add and delete single files. That is done without
//! locks, and then under each of the book's three schemes: one global lock, a lock for each document, and tree locks.
//! Under locks some processes are killed half-way; the next holder finishes what they began, from the intent, and every
//! write carries the fencing token. Finished operations are in a journal, and in the end the index must say what the
//! journal says; the run counts what does not.

mod files;
mod operation;
mod scheme;
mod verdict;
mod worker;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::files::Files;
use crate::scheme::Scheme;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser, Clone)]
#[command(about = "Many processes rename directories of thousands of documents of an index")]
pub(crate) struct Options {
    /// The server, as elasticsearch://HOST:PORT.
    #[arg(long, env = "LOCKKEEPER_URL")]
    url: String,
    /// The real tree whose names are used.
    #[arg(long, default_value = "/usr/share")]
    tree: PathBuf,
    /// Files to use at most.
    #[arg(long, default_value_t = 25_000)]
    entries: usize,
    /// How long each scheme is tried.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Processes at work.
    #[arg(long, default_value_t = 6)]
    processes: usize,
    /// Kill a process about this often, where there are locks; 0 never does.
    #[arg(long, default_value_t = 3_000)]
    kill_every_ms: u64,
    /// Only this scheme.
    #[arg(long)]
    scheme: Option<Scheme>,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For the processes: the folder of the journal.
    #[arg(long, hide = true)]
    work_in: Option<PathBuf>,
    /// For the processes: the index of the files.
    #[arg(long, hide = true, default_value = "")]
    index: String,
}

fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let Some(folder) = &options.work_in {
        return runtime.block_on(worker::run(folder, &options));
    }
    let schemes = match options.scheme {
        Some(scheme) => vec![scheme],
        None => Scheme::ALL.to_vec(),
    };
    let mut exact = true;
    for scheme in schemes {
        exact &= runtime.block_on(direct(&options, scheme))?;
    }
    if exact {
        return Ok(());
    }
    Err("under locks the index is not what the journal says".into())
}

/// Fills an index, has the processes work on it, and judges the end; whether nothing was lost, or nothing was locked.
async fn direct(options: &Options, scheme: Scheme) -> Result<bool, BoxError> {
    let folder = tempfile::tempdir()?;
    let mut options = options.clone();
    options.index = format!("lockkeeper-rename-{:016x}", rand::random::<u64>());
    options.scheme = Some(scheme);
    let files = Files::new(&options)?;
    let laid_out = files.lay_out(&options.tree, options.entries).await?;
    fs::write(folder.path().join("beginning"), laid_out.join("\n"))?;
    println!("## {scheme}: {} documents", laid_out.len());
    let began = Instant::now();
    let killed = work(&options, scheme, folder.path())?;
    let worked = began.elapsed();
    if scheme != Scheme::None {
        // What the last of the killed left is finished now.
        worker::finish_abandoned(folder.path(), &options).await?;
    }
    let verdict = verdict::judge(folder.path(), &files).await?;
    println!(
        "{killed} processes were killed with SIGKILL\n{}",
        verdict.told(worked)
    );
    files.remove().await?;
    scheme::remove_locks(&options).await?;
    Ok(scheme == Scheme::None || verdict.is_exact())
}

/// How many were killed.
fn work(options: &Options, scheme: Scheme, folder: &Path) -> Result<usize, BoxError> {
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut started = 0;
    let mut start = || {
        started += 1;
        start_process(options, scheme, folder, options.seed * 1_000 + started)
    };
    let mut processes = (0..options.processes)
        .map(|_| start())
        .collect::<Result<Vec<_>, _>>()?;
    let kills = scheme != Scheme::None && options.kill_every_ms > 0;
    let mut killed = 0;
    while Instant::now() < until {
        let pause = match kills {
            true => rng.random_range(1..2 * options.kill_every_ms),
            false => 1_000,
        };
        let left = until.saturating_duration_since(Instant::now());
        // Real time passes while the processes work; this is no wait for a condition.
        std::thread::sleep(Duration::from_millis(pause).min(left));
        if kills && Instant::now() < until {
            let victim = rng.random_range(0..processes.len());
            processes[victim].kill()?;
            processes[victim].wait()?;
            killed += 1;
            processes[victim] = start()?;
        }
    }
    fs::write(folder.join("stop"), "")?;
    for mut process in processes {
        if !process.wait()?.success() {
            return Err("a process failed that was not killed".into());
        }
    }
    Ok(killed)
}

fn start_process(
    options: &Options,
    scheme: Scheme,
    folder: &Path,
    seed: u64,
) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["--url", &options.url, "--index", &options.index])
        .args(["--scheme", scheme.as_str(), "--seed", &seed.to_string()])
        .arg("--work-in")
        .arg(folder)
        .spawn()
}
