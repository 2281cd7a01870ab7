//! Many tasks of several processes on few keys, checked by counters that only a lock keeps right.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use lockcore::{Acquisition, Guard, Locks};
use tokio::time::{Instant, sleep};

use crate::case::Case;
use crate::client::{SOON, acquired_within, ended, locks, release};
use crate::scene::Scene;
use crate::verdict::{Unpassed, Verdict, cases, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "many";
        AtMostOneHolder:
            tasks_on_one_key,
            tasks_on_few_keys,
            tasks_on_sets_of_documents,
            tasks_on_trees,
            tasks_that_give_up_waiting,
            readers_and_writers_of_a_tree;
        SharedAreASet:
            tasks_in_a_semaphore;
    }
}

/// Processes, and tasks of each.
const PROCESSES: usize = 3;
const TASKS: usize = 4;
/// Turns of each task.
const TURNS: usize = 5;

/// Counters that nothing protects but the locks, and how often each was counted up.
struct Counters([(AtomicUsize, AtomicUsize); 4]);

impl Counters {
    fn new() -> Self {
        Self([const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 4])
    }

    /// Reads, lets others run, and writes: two at once lose a count.
    async fn count(&self, scene: &Scene, which: &[usize]) {
        let read: Vec<usize> = which
            .iter()
            .map(|at| self.0[*at].0.load(Ordering::SeqCst))
            .collect();
        match scene.below(3) {
            0 => {}
            1 => tokio::task::yield_now().await,
            _ => sleep(Duration::from_millis(1)).await,
        }
        for (at, read) in which.iter().zip(read) {
            self.0[*at].0.store(read + 1, Ordering::SeqCst);
            self.0[*at].1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn check(&self, counted: usize) -> Verdict {
        let mut all = 0;
        for (at, (counter, turns)) in self.0.iter().enumerate() {
            let turns = turns.load(Ordering::SeqCst);
            ensure_eq!(counter.load(Ordering::SeqCst), turns, "counter {at}");
            all += turns;
        }
        ensure_eq!(all, counted, "turns of all counters");
        Ok(())
    }
}

/// The acquisition, after turns of others: who waits may be overtaken, so it may take as long as all of them.
async fn contended<S>(acquisition: Acquisition<S>) -> Verdict<Guard> {
    acquired_within(SOON * 2, acquisition).await
}

/// Every task of every process takes its turns. Then nothing of them is on its way any more: a waiter that was given its
/// lock by its own process may have asked the store meanwhile.
async fn contend(scene: &Scene, turn: impl AsyncFn(&Locks, usize) -> Verdict) -> Verdict {
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(locks(scene).await?);
    }
    let turn = &turn;
    let tasks = processes.iter().flat_map(|locks| {
        (0..TASKS).map(async move |task| -> Verdict {
            for n in 0..TURNS {
                turn(locks, task + n).await?;
            }
            Ok(())
        })
    });
    try_join_all(tasks).await?;
    ended(&processes).await
}

async fn tasks_on_one_key(scene: Scene) -> Verdict {
    let counters = Counters::new();
    let turn = async |locks: &Locks, _| {
        let guard = contended(locks.lock("k")).await?;
        counters.count(&scene, &[0]).await;
        release(guard).await
    };
    contend(&scene, turn).await?;
    counters.check(PROCESSES * TASKS * TURNS)?;
    scene.free("k").await
}

async fn tasks_on_few_keys(scene: Scene) -> Verdict {
    let counters = Counters::new();
    let turn = async |locks: &Locks, n: usize| {
        let key = n % 3;
        let guard = contended(locks.lock(format!("k{key}"))).await?;
        counters.count(&scene, &[key]).await;
        // Some are given back by dropping them.
        if n.is_multiple_of(2) {
            drop(guard);
            Ok(())
        } else {
            release(guard).await
        }
    };
    contend(&scene, turn).await?;
    counters.check(PROCESSES * TASKS * TURNS)
}

async fn tasks_on_sets_of_documents(scene: Scene) -> Verdict {
    let counters = Counters::new();
    let turn = async |locks: &Locks, n: usize| {
        let pair = [n % 4, (n + 1 + n / 4 % 3) % 4];
        let guard = contended(locks.documents(pair.map(|at| format!("d{at}")))).await?;
        counters.count(&scene, &pair).await;
        release(guard).await
    };
    contend(&scene, turn).await?;
    counters.check(2 * PROCESSES * TASKS * TURNS)
}

async fn tasks_on_trees(scene: Scene) -> Verdict {
    let counters = Counters::new();
    let turn = async |locks: &Locks, n: usize| {
        // The root's writer counts beside one of the leaves' writers.
        let (guard, which) = match n % 5 {
            0 => (contended(locks.tree().write("/t")).await?, 1),
            leaf => (
                contended(locks.tree().write(format!("/t/m/{leaf}")).read("/u")).await?,
                leaf - 1,
            ),
        };
        counters.count(&scene, &[which]).await;
        release(guard).await
    };
    contend(&scene, turn).await?;
    counters.check(PROCESSES * TASKS * TURNS)?;
    scene.free("/t").await
}

async fn tasks_that_give_up_waiting(scene: Scene) -> Verdict {
    let counters = Counters::new();
    let counted = AtomicUsize::new(0);
    // How long one takes that nobody is in the way of. The shortest waits are too short; the others get longer with each
    // that was, so that some are long enough, however many contend.
    let alone = locks(&scene).await?;
    let since = Instant::now();
    release(contended(alone.documents(["d1", "d2"])).await?).await?;
    let once = since.elapsed().max(Duration::from_millis(3));
    let given_up = AtomicU32::new(0);
    let turn = async |locks: &Locks, n: usize| {
        let longer = 4 + given_up.load(Ordering::Relaxed);
        let wait = once * longer * u32::try_from(n % 4).unwrap_or(0);
        let acquisition = locks.documents(["d1", "d2"]).acquire();
        // Dropped when the time is over, wherever it is.
        match tokio::time::timeout(wait, acquisition).await {
            Err(_) => {
                given_up.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(guard) => {
                let guard = guard?;
                counters.count(&scene, &[0]).await;
                counted.fetch_add(1, Ordering::SeqCst);
                release(guard).await
            }
        }
    };
    contend(&scene, turn).await?;
    let (counted, turns) = (counted.into_inner(), PROCESSES * TASKS * TURNS);
    counters.check(counted)?;
    if !(TURNS..turns).contains(&counted) {
        return Err(Unpassed::Inconclusive(format!(
            "too little to judge: of {turns} waits, {counted} were long enough"
        )));
    }
    let last = locks(&scene).await?;
    release(contended(last.documents(["d1", "d2"])).await?).await
}

async fn readers_and_writers_of_a_tree(scene: Scene) -> Verdict {
    let (readers, writers, mixed) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let turn = async |locks: &Locks, n: usize| {
        let writes = n.is_multiple_of(3);
        let (tree, mine) = if writes {
            (locks.tree().write("/t/m"), &writers)
        } else {
            (locks.tree().read("/t"), &readers)
        };
        let guard = contended(tree).await?;
        mine.fetch_add(1, Ordering::SeqCst);
        let (read, written) = (
            readers.load(Ordering::SeqCst),
            writers.load(Ordering::SeqCst),
        );
        if written > 1 || (written == 1 && read > 0) {
            mixed.fetch_add(1, Ordering::SeqCst);
        }
        sleep(Duration::from_millis(1)).await;
        mine.fetch_sub(1, Ordering::SeqCst);
        release(guard).await
    };
    contend(&scene, turn).await?;
    ensure_eq!(
        mixed.load(Ordering::SeqCst),
        0,
        "a writer met others inside"
    );
    Ok(())
}

async fn tasks_in_a_semaphore(scene: Scene) -> Verdict {
    let (inside, crowded) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let turn = async |locks: &Locks, _| {
        let guard = contended(locks.semaphore("s", 3)).await?;
        if inside.fetch_add(1, Ordering::SeqCst) >= 3 {
            crowded.fetch_add(1, Ordering::SeqCst);
        }
        sleep(Duration::from_millis(1)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        release(guard).await
    };
    contend(&scene, turn).await?;
    ensure_eq!(crowded.load(Ordering::SeqCst), 0, "more than three inside");
    scene.free("s").await
}
