//! Programs to start from, one for each kind of lock.
//!
//! `cargo run -p lockkeeper-examples --bin start -- lock` (or `documents`, `tree`, `rwlock`, `semaphore`, `schedule`, `recovery`,
//! `fenced`). The locks are in the store of `LOCKKEEPER_URL`, or in a file that is removed in the end.

mod documents;
mod fenced;
mod lock;
mod recovery;
mod rwlock;
mod schedule;
mod semaphore;
mod tree;

use clap::{Parser, ValueEnum};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
struct Args {
    example: Example,
}

#[derive(Clone, Copy, ValueEnum)]
enum Example {
    Lock,
    Documents,
    Tree,
    Rwlock,
    Semaphore,
    Schedule,
    Recovery,
    Fenced,
}

impl Example {
    async fn run(self, url: &str) -> Result<(), BoxError> {
        match self {
            Self::Lock => lock::run(url).await,
            Self::Documents => documents::run(url).await,
            Self::Tree => tree::run(url).await,
            Self::Rwlock => rwlock::run(url).await,
            Self::Semaphore => Box::pin(semaphore::run(url)).await,
            Self::Schedule => Box::pin(schedule::run(url)).await,
            Self::Recovery => recovery::run(url).await,
            Self::Fenced => fenced::run(url).await,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let url = std::env::var("LOCKKEEPER_URL").unwrap_or(file);
    args.example.run(&url).await
}

#[tokio::test]
async fn the_examples_hold() {
    for example in Example::value_variants() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        example.run(&url).await.unwrap();
    }
}
