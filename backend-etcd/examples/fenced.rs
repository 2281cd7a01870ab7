//! A resource in etcd that checks the fencing token: the write of a holder that was paused too long is refused.
//!
//! `cargo xtask with etcd-3.6 -- cargo run -p lockcore-etcd --example fenced`
//!
//! The resource is a key in the same etcd as the locks, and beside it the greatest token that has written it. One
//! transaction, which comes with the backend, compares and writes. The first holder stands still for longer than its lease,
//! as a process does that is stopped or swapped out; the second one gets the lock meanwhile and writes; then the first
//! one goes on as if nothing had happened.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use etcd_client::{Client, TxnOp};
use lockcore::{FencingToken, Guard, Locks};
use lockcore_etcd::{EtcdBackend, EtcdConfig};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const ACCOUNT: &str = "account/1";
const BALANCE: &str = "account/1/balance";
const TOKEN: &str = "account/1/token";
/// No lease of etcd's is shorter.
const TTL: Duration = Duration::from_secs(2);

#[derive(Parser)]
#[command(about = "The write of a holder that was paused too long is refused")]
struct Options {
    /// The server, as etcd://HOST:PORT.
    #[arg(long, env = "LOCKKEEPER_URL", hide_env_values = true)]
    url: String,
}

/// A client of the program's own.
async fn client(url: &str) -> Result<Client, BoxError> {
    let (_, rest) = url.split_once("://").ok_or("no URL of a server")?;
    let hosts = rest.split(['/', '?']).next().unwrap_or_default();
    let urls: Vec<String> = hosts
        .split(',')
        .map(|host| format!("http://{host}"))
        .collect();
    Ok(Client::connect(urls, None).await?)
}

/// One of two programs that change the balance.
struct Program {
    locks: Locks,
    client: Client,
}

impl Program {
    async fn start(url: &str) -> Result<Self, BoxError> {
        let backend = EtcdBackend::connect(EtcdConfig::parse(url)?).await?;
        Ok(Self {
            locks: Locks::builder(backend).ttl(TTL).build()?,
            client: client(url).await?,
        })
    }

    async fn acquire(&self) -> Result<Guard, BoxError> {
        Ok(self.locks.documents([ACCOUNT]).acquire().await?)
    }

    /// Writes the balance with the writer's token. Whether it was written: a later holder may have been here.
    async fn set_balance(&mut self, balance: i64, token: FencingToken) -> Result<bool, BoxError> {
        let write = TxnOp::put(BALANCE, balance.to_string(), None);
        let answer = self
            .client
            .txn(lockcore_etcd::fenced(TOKEN, token, [write]))
            .await?;
        let refused = answer.succeeded();
        Ok(!refused)
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

#[tokio::main(flavor = "current_thread")]
async fn balance(url: &str) -> Result<i64, BoxError> {
    let mut client = client(url).await?;
    let found = client.get(BALANCE, None).await?;
    let found = found.kvs().first().ok_or("nobody has written it")?;
    Ok(found.value_str()?.parse()?)
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
    let balance = balance(&url)?;
    assert_eq!(balance, 150);
    println!("the balance is {balance}");
    Ok(())
}
