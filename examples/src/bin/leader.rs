//! A loop that only the leader runs.
//!
//! `cargo run -p lockkeeper-examples --bin leader -- --name one`, and another one beside it. Kill the leader, and the other
//! one leads when its lease is over.

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use lockkeeper::{Locks, Released};
use tokio::time::interval;

type BoxError = Box<dyn Error + Send + Sync>;

/// Works while it leads.
#[derive(Parser)]
struct Args {
    /// Where the locks are.
    #[arg(
        long,
        env = "LOCKKEEPER_URL",
        default_value = "sqlite:leader.db",
        hide_env_values = true
    )]
    url: String,
    /// What others are shown of this process.
    #[arg(long)]
    name: String,
    /// How long a leader that was killed still leads, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    ttl: u64,
    /// How often the leader works before it resigns.
    #[arg(long, default_value_t = u32::MAX)]
    turns: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let args = Args::parse();
    let locks = Locks::builder(lockkeeper::backend(&args.url).await?)
        .ttl(Duration::from_millis(args.ttl))
        .label(lockkeeper::Label::parse(&args.name)?)
        .build()?;
    let election = locks.election("leader")?;
    loop {
        let leadership = election.campaign().await?;
        // Whatever the leader changes has to refuse smaller tokens: a leader that was paused does not know.
        println!("{} leads, token {}", args.name, leadership.token());
        let mut ticks = interval(Duration::from_millis(100));
        let mut turns = 0;
        while turns < args.turns {
            tokio::select! {
                why = leadership.lost() => {
                    println!("{} leads no longer: {why}", args.name);
                    break;
                }
                _ = ticks.tick() => turns += 1, // Do the work here.
            }
        }
        if turns == args.turns {
            assert_eq!(leadership.resign().await?, Released::Released);
            println!("{} has resigned", args.name);
            locks.shutdown(Duration::from_secs(10)).await;
            return Ok(());
        }
    }
}
