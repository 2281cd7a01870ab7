//! Cases through the client, [`Locks`].

mod acquire;
mod cutting;
mod documents;
mod faults;
mod guards;
mod input;
mod intents;
mod lifetime;
mod many;
mod processes;
mod recovering;
mod reentry;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use lockcore::limits::DEFAULT_TTL;
use lockcore::{
    AcquireError, Acquisition, Attempt, Busy, ErrorKind, Guard, Info, Label, LockBackend, Locks,
    LocksBuilder, Recovery, Released,
};
use rand::RngExt;
use tokio::time::Instant;

use crate::case::Case;
use crate::decorator::Decorated;
use crate::scene::{Scene, short};
use crate::verdict::{Under, Unpassed, Verdict, Wrong, ensure, within};
use crate::wire::Wire;

pub(crate) fn cases() -> Vec<Case> {
    [
        input::cases(),
        acquire::cases(),
        documents::cases(),
        cutting::cases(),
        reentry::cases(),
        waiting::cases(),
        guards::cases(),
        lifetime::cases(),
        faults::cases(),
        intents::cases(),
        recovering::cases(),
        many::cases(),
        processes::cases(),
    ]
    .concat()
}

pub(crate) use processes::run as run_child;

/// Longest that something may take that should happen soon.
const SOON: Duration = Duration::from_secs(20);

/// How much later than it becomes free somebody who waits has it, at most: the store may say so late, and where it does
/// not push the watch looks; the client itself looks once in a second.
fn promptly(scene: &Scene, info: &Info) -> Duration {
    scene.space().allowance() + info.poll.unwrap_or_default() * 10 + Duration::from_secs(2)
}

/// A client of its own, as another process would have it.
async fn locks(scene: &Scene) -> Verdict<Locks> {
    let backend = scene.connect().await?;
    seeded(scene, backend, DEFAULT_TTL)
}

/// A client whose TTL is a few times the store's shortest, and that TTL.
async fn short_lived(scene: &Scene) -> Verdict<(Locks, Duration)> {
    let backend = scene.connect().await?;
    let ttl = short(&backend.info()) * 2;
    Ok((seeded(scene, backend, ttl)?, ttl))
}

/// A short-lived client whose way to the store can be cut.
async fn wired(scene: &Scene) -> Verdict<(Locks, Arc<Decorated<Wire>>, Duration)> {
    let wire = Wire::new(scene.connect().await?);
    let ttl = short(&wire.info()) * 2;
    Ok((seeded(scene, wire.clone(), ttl)?, wire, ttl))
}

/// A client whose choices follow from the scene's chance.
fn seeded(scene: &Scene, backend: Arc<dyn LockBackend>, ttl: Duration) -> Verdict<Locks> {
    let seed = scene.chance(|chance| chance.random());
    Ok(builder(backend, ttl)?.seed(seed).build()?)
}

fn locks_on(backend: Arc<dyn LockBackend>, ttl: Duration) -> Verdict<Locks> {
    Ok(builder(backend, ttl)?.build()?)
}

fn builder(backend: Arc<dyn LockBackend>, ttl: Duration) -> Verdict<LocksBuilder> {
    let info = backend.info();
    let ttl = ttl.clamp(info.min_ttl, info.max_ttl);
    let label = Label::parse("a process of the suite")?;
    Ok(Locks::builder(backend).ttl(ttl).label(label))
}

/// Ends these processes: nothing of them is on its way to the store any more.
async fn ended(processes: impl IntoIterator<Item = &Locks>) -> Verdict {
    for locks in processes {
        ensure!(locks.shutdown(SOON).await, "nothing is under way any more");
    }
    Ok(())
}

/// The acquisition, which has to be granted at once.
async fn granted<S>(acquisition: Acquisition<S>) -> Verdict<Guard> {
    match acquisition.try_acquire().await? {
        Attempt::Acquired(guard) => Ok(guard),
        Attempt::Busy(busy) => Err(Wrong(format!("this has to be granted: {busy:?}"))),
    }
}

/// The acquisition, which has to be refused at once.
async fn refused<S>(acquisition: Acquisition<S>) -> Verdict<Busy> {
    match acquisition.try_acquire().await? {
        Attempt::Acquired(guard) => Err(Wrong(format!("this has to be refused: {guard:?}"))),
        Attempt::Busy(busy) => Ok(busy),
    }
}

/// The acquisition, granted soon.
async fn acquired<S>(acquisition: Acquisition<S>) -> Verdict<Guard> {
    acquired_within(SOON, acquisition).await
}

/// The acquisition, granted within that time.
async fn acquired_within<S>(limit: Duration, acquisition: Acquisition<S>) -> Verdict<Guard> {
    let since = Instant::now();
    let guard = acquisition.wait(limit).acquire().await;
    guard.map_err(Unpassed::from).unless_late(since, limit / 4)
}

/// The refusal of a wait that is over. A store that is slow has perhaps not answered by then, and nothing can be told.
fn refusal(late: Result<Guard, AcquireError>) -> Verdict<Busy> {
    match late {
        Err(AcquireError::Busy(busy)) => Ok(busy),
        Err(AcquireError::Store(error)) if error.kind() == ErrorKind::Indeterminate => {
            Err(Unpassed::Inconclusive(error.to_string()))
        }
        other => Err(Wrong(format!("the wait is over: {other:?}"))),
    }
}

/// Its change is settled by this one.
async fn settles(recovery: Recovery) -> Verdict {
    ensure!(recovery.settle().await?, "the change is settled");
    Ok(())
}

/// Releases what has to be held.
async fn release(guard: Guard) -> Verdict {
    let released = guard.release().await?;
    // Where another task of the process waits for the same, it goes there.
    ensure!(
        matches!(released, Released::Released | Released::HandedOn),
        "the release of what is held said {released:?}"
    );
    Ok(())
}

/// Releases what has to be held, on a way that may lose or double the request: then it may be that nobody knows.
async fn given_back(guard: Guard) -> Verdict {
    let released = guard.release().await?;
    ensure!(released != Released::NotHeld, "what is released was held");
    Ok(())
}

/// What has to happen soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Verdict<T> {
    within(SOON, what, future).await
}
