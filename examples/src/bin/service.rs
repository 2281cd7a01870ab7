//! A service that ends well: SIGTERM lets its work finish, or stops it, and leaves nothing held.
//!
//! `cargo run -p lockkeeper-examples --bin service`, and Ctrl-C or `kill` from elsewhere. `--work` and `--grace` say how long
//! its work takes, and how long that may go on.
//!
//! In this order: nothing more is acquired, what is at work has its grace, what is not done then is stopped where it is,
//! everything is given back, and the sessions are closed. A service that is killed instead is freed by its TTL.

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use lockkeeper::{AcquireError, InputError, Locks, RunError};
use rand::RngExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type BoxError = Box<dyn Error + Send + Sync>;

/// Longest that the end waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// Works on accounts until it is told to stop.
#[derive(Parser)]
struct Args {
    /// Where the locks are.
    #[arg(
        long,
        env = "LOCKKEEPER_URL",
        default_value = "sqlite:service.db",
        hide_env_values = true
    )]
    url: String,
    /// How many work at the same time.
    #[arg(long, default_value_t = 3)]
    workers: u32,
    /// How long one account takes, in milliseconds.
    #[arg(long, default_value_t = 500)]
    work: u64,
    /// How long work may go on after SIGTERM, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    grace: u64,
}

/// One account after the other, until nothing more is acquired.
async fn works(locks: Locks, worker: u32, takes: Duration) -> Result<(), BoxError> {
    loop {
        let account = format!("account/{}", rand::rng().random_range(0..20));
        let work = async |_| {
            println!("worker {worker} begins {account}");
            sleep(takes).await;
            println!("worker {worker} has done {account}");
            Ok::<_, BoxError>(())
        };
        // Nobody holds an account for longer than ten times what it takes, not even one that hangs.
        let acquisition = locks.documents([&account]).max_hold(10 * takes);
        match acquisition.run(work).await {
            Ok(((), released)) => drop(released?),
            Err(RunError::Acquire(AcquireError::Input(InputError::ShutDown))) => return Ok(()),
            Err(RunError::Work(error)) => return Err(error),
            Err(error) => return Err(error.to_string().into()),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let args = Args::parse();
    // Before the first lock, so that the signal never finds nobody who listens.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let locks = lockkeeper::connect(&args.url).await?;
    let mut workers = JoinSet::new();
    for worker in 1..=args.workers {
        workers.spawn(works(
            locks.clone(),
            worker,
            Duration::from_millis(args.work),
        ));
    }
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
        Some(failed) = workers.join_next() => failed??,
    }
    println!("stopping");
    // From now on nothing is acquired, and who waits for a lock is told so.
    let all_done = locks.shutdown(Duration::from_millis(args.grace)).await;
    if !all_done {
        println!("stopped where it is: what is still at work");
        // What it holds is given back, but for an intent, which the next one finishes.
        workers.abort_all();
    }
    let ended = async { while workers.join_next().await.is_some() {} };
    timeout(PATIENCE, ended).await?;
    match all_done || locks.shutdown(PATIENCE).await {
        true => println!("nothing is held"),
        false => println!("what is still held goes free when the TTL is over"),
    }
    Ok(())
}
