//! A resource in Redis that checks the fencing token: the write of a holder that was paused too long is refused.
//!
//! `cargo xtask with redis -- cargo run -p lockkeeper-examples --bin fenced-redis`
//!
//! The resource is a value in the same Redis as the locks, and beside it the greatest token that has written it. One
//! script, which comes with the backend, compares and writes. The first holder stands still for longer than its lease,
//! as a process does that is stopped or swapped out; the second one gets the lock meanwhile and writes; then the first
//! one goes on as if nothing had happened.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use lockcore_redis::FENCED_SET;
use lockkeeper::{FencingToken, Guard, Locks};
use redis::Script;
use redis::aio::MultiplexedConnection;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const ACCOUNT: &str = "account/1";
/// Of a cluster, in one slot.
const BALANCE: &str = "{account/1}:balance";
const TOKEN: &str = "{account/1}:token";
const TTL: Duration = Duration::from_secs(1);

#[derive(Parser)]
#[command(about = "The write of a holder that was paused too long is refused")]
struct Options {
    /// The server, as redis://HOST:PORT.
    #[arg(long, env = "LOCKKEEPER_URL", hide_env_values = true)]
    url: String,
}

/// One of two programs that change the balance.
struct Program {
    locks: Locks,
    connection: MultiplexedConnection,
}

impl Program {
    async fn start(url: &str) -> Result<Self, BoxError> {
        let locks = Locks::builder(lockkeeper::backend(url).await?);
        let client = redis::Client::open(url.split('?').next().unwrap_or_default())?;
        Ok(Self {
            locks: locks.ttl(TTL).build()?,
            connection: client.get_multiplexed_async_connection().await?,
        })
    }

    async fn acquire(&self) -> Result<Guard, BoxError> {
        Ok(self.locks.documents([ACCOUNT]).acquire().await?)
    }

    /// Writes the balance with the writer's token. Whether it was written: a later holder may have been here.
    async fn set_balance(&mut self, balance: i64, token: FencingToken) -> Result<bool, BoxError> {
        let script = Script::new(FENCED_SET);
        let mut write = script.key(BALANCE);
        write.key(TOKEN).arg(token.get()).arg(balance);
        Ok(write.invoke_async(&mut self.connection).await?)
    }
}

/// Acquires, writes, stands still until the other one has written, and writes again.
#[tokio::main(flavor = "current_thread")]
async fn paused(
    url: &str,
    holds: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
) -> Result<(), BoxError> {
    let mut program = Program::start(url).await?;
    let guard = program.acquire().await?;
    assert!(program.set_balance(110, guard.token()).await?);
    holds.send(())?;
    // The whole thread waits here: nothing is renewed.
    go_on.recv()?;
    let written = program.set_balance(120, guard.token()).await?;
    assert!(!written, "the write of the one that was paused");
    println!("token {} was refused", guard.token());
    assert!(!guard.is_valid(), "whoever looks is told");
    Ok(())
}

/// Waits for the lock, and writes.
#[tokio::main(flavor = "current_thread")]
async fn next(
    url: &str,
    held: mpsc::Receiver<()>,
    written: mpsc::Sender<()>,
) -> Result<(), BoxError> {
    let mut program = Program::start(url).await?;
    held.recv()?;
    let guard = program.acquire().await?;
    assert!(program.set_balance(150, guard.token()).await?);
    println!("token {} has written 150", guard.token());
    written.send(())?;
    let _ = guard.release().await?;
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let url = Options::parse().url;
    let (holds, held) = mpsc::channel();
    let (written, go_on) = mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(|| paused(&url, holds, go_on));
        let second = scope.spawn(|| next(&url, held, written));
        let both = [first, second].map(|thread| thread.join().expect("what it asserts holds"));
        both.into_iter().collect::<Result<(), BoxError>>()
    })?;
    let mut connection =
        redis::Client::open(url.split('?').next().unwrap_or_default())?.get_connection()?;
    let balance: i64 = redis::cmd("GET").arg(BALANCE).query(&mut connection)?;
    assert_eq!(balance, 150);
    println!("the balance is {balance}");
    Ok(())
}
