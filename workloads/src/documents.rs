//! Document locks, all in one acquisition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockcore::{Attempt, LockBackend, Locks, Progress};
use tokio::sync::Notify;

use crate::measured::{ABORT, ACQUIRE, Measured, REFUSED, RELEASE, SWEPT};
use crate::ours::release;
use crate::turns::Failure;

/// How long one of them may take.
const LIMIT: Duration = Duration::from_secs(600);

/// The document id of a number.
#[must_use]
pub fn id(n: u32) -> String {
    format!("document-{n:07}-of-an-index")
}

/// Acquires so many and releases them; is refused at the last; gives up half-way. There is at least one.
pub(crate) async fn run(
    backend: &Arc<dyn LockBackend>,
    locks: &Locks,
    count: u32,
) -> Result<Measured, Failure> {
    let mut measured = Measured::default();
    let ids = || (0..count).map(id);

    // A client of its own, whose end shows when everything is swept.
    let first = client(backend).await?;
    let start = Instant::now();
    let guard = first.documents(ids()).acquire().await?;
    measured.note(ACQUIRE, start.elapsed());
    let start = Instant::now();
    release(guard).await?;
    measured.note(RELEASE, start.elapsed());
    if !first.shutdown(LIMIT).await {
        return Err("the records were not swept in time".into());
    }
    measured.note(SWEPT, start.elapsed());

    let second = client(backend).await?;
    let last = locks.documents(ids().next_back()).acquire().await?;
    let start = Instant::now();
    match second.documents(ids()).try_acquire().await? {
        Attempt::Acquired(_) => return Err("what is held was granted to another one".into()),
        Attempt::Busy(_) => measured.note(REFUSED, start.elapsed()),
    }
    release(last).await?;
    closed(&second).await?;

    let third = client(backend).await?;
    let half = Arc::new(Notify::new());
    let told = Arc::clone(&half);
    let acquiring = third.documents(ids()).observe(move |progress| {
        if matches!(progress, Progress::Granted { claims, of } if claims >= of / 2) {
            told.notify_one();
        }
    });
    let start = tokio::select! {
        biased;
        () = half.notified() => Instant::now(),
        guard = acquiring.acquire() => {
            let start = Instant::now();
            drop(guard?);
            start
        }
    };
    let guard = locks.documents(ids().next()).wait(LIMIT).acquire().await?;
    measured.note(ABORT, start.elapsed());
    release(guard).await?;
    closed(&third).await?;
    Ok(measured)
}

/// A client whose session is open.
pub(crate) async fn client(backend: &Arc<dyn LockBackend>) -> Result<Locks, Failure> {
    let locks = Locks::builder(Arc::clone(backend)).build()?;
    release(locks.lock("begin").acquire().await?).await?;
    Ok(locks)
}

/// Waits until nothing of a client is left.
async fn closed(locks: &Locks) -> Result<(), Failure> {
    if locks.shutdown(LIMIT).await {
        Ok(())
    } else {
        Err("what was granted was not given back in time".into())
    }
}
