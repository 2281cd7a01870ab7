//! Many processes change one directory tree, file by file, while some of them are killed.
//!
//! `cargo run --release -p lockkeeper-examples --bin dirtree -- --tree /usr/share --seconds 60`
//!
//! The names of a real tree are laid out as small files, each of which says where it began. Several processes rename,
//! scan and delete subtrees and single files; a rename of a subtree moves its files one by one, so nothing makes it
//! atomic. Under tree locks, every finished operation is written to a journal with its fencing token, and what a
//! killed process left half-done is finished by the next holder, from the intent. At the end the tree must be exactly
//! what the journal says. `--without-locks` does the same with no lock at all, and counts what is lost.

mod layout;
mod operation;
mod verdict;
mod worker;

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser, Clone)]
#[command(
    about = "Many processes change one directory tree, file by file, while some of them are killed"
)]
pub(crate) struct Options {
    /// The real tree whose names are used.
    #[arg(long, default_value = "/usr/share")]
    tree: PathBuf,
    /// Entries to use at most.
    #[arg(long, default_value_t = 25_000)]
    entries: usize,
    /// How long to go on.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Processes at work.
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// Kill a process about this often; 0 never does.
    #[arg(long, default_value_t = 1_500)]
    kill_every_ms: u64,
    /// Take no locks, to see what is lost.
    #[arg(long)]
    without_locks: bool,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For the processes: the folder to work in.
    #[arg(long, hide = true)]
    work_in: Option<PathBuf>,
}

fn main() -> Result<(), BoxError> {
    let options = Options::parse();
    match &options.work_in {
        Some(folder) => worker::run(folder, &options),
        None => direct(&options),
    }
}

/// Lays the tree out, starts and kills the processes, and judges the end.
fn direct(options: &Options) -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let files = layout::lay_out(&options.tree, folder.path(), options.entries)?;
    println!(
        "{files} files laid out, named as in {}",
        options.tree.display()
    );
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let mut started = 0;
    let mut start = || {
        started += 1;
        start_process(options, folder.path(), options.seed * 1_000 + started)
    };
    let mut processes = (0..options.processes)
        .map(|_| start())
        .collect::<Result<Vec<_>, _>>()?;
    let mut killed = 0;
    while Instant::now() < until {
        let pause = if options.kill_every_ms == 0 {
            1_000
        } else {
            rng.random_range(1..2 * options.kill_every_ms)
        };
        let left = until.saturating_duration_since(Instant::now());
        // Real time passes while the processes work; this is no wait for a condition.
        std::thread::sleep(Duration::from_millis(pause).min(left));
        if options.kill_every_ms > 0 && Instant::now() < until {
            let victim = rng.random_range(0..processes.len());
            processes[victim].kill()?;
            processes[victim].wait()?;
            killed += 1;
            processes[victim] = start()?;
        }
    }
    std::fs::write(folder.path().join("stop"), "")?;
    let mut failed = 0;
    for mut process in processes {
        failed += usize::from(!process.wait()?.success());
    }
    println!(
        "{started} processes worked, {killed} of them were killed with SIGKILL, {failed} failed"
    );
    if !options.without_locks {
        // Whatever the last of the killed left is finished now.
        worker::finish_abandoned(folder.path())?;
    }
    let verdict = verdict::judge(folder.path())?;
    print!("{verdict}");
    if options.without_locks || (verdict.is_exact() && failed == 0) {
        return Ok(());
    }
    Err("the tree is not what the journal says".into())
}

fn start_process(options: &Options, folder: &std::path::Path, seed: u64) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--work-in")
        .arg(folder)
        .arg("--seed")
        .arg(seed.to_string());
    if options.without_locks {
        command.arg("--without-locks");
    }
    command.spawn()
}
