//! Waiting: woken in time, in order, no longer than asked, and leaving nothing behind.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select, try_join_all};
use futures_util::poll;
use lockcore::backend::Record;
use lockcore::limits::DEFAULT_TTL;
use lockcore::{Acquisition, Grant, Guard, Link, Locks, Progress, Tree, Want};
use tokio::time::{Instant, sleep};

use crate::case::Case;
use crate::client::{
    SOON, acquired, acquired_within, ended, granted, locks, locks_on, promptly, refusal, refused,
    release, soon, wired,
};
use crate::scene::{Scene, short};
use crate::verdict::{Under, Verdict, Wrong, at_most, cases, ensure, ensure_eq};
use crate::wire::Wire;

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "waiting";
        Waiting:
            a_release_ends_the_wait,
            a_release_of_the_same_process_ends_the_wait,
            a_dropped_guard_ends_the_wait,
            an_expiry_ends_the_wait,
            a_close_ends_the_wait,
            a_tree_waits_for_what_is_above_and_below,
            a_share_waits_for_room,
            documents_wait_for_one_after_the_other,
            the_wait_ends_at_its_limit,
            waiters_do_not_ask_again_and_again,
            local_waiters_go_in_order,
            waiters_of_several_processes_go_in_order,
            a_writer_beside_readers_of_other_processes_has_its_turn,
            waiters_of_several_processes_all_have_their_turn,
            crossing_sets_do_not_block_each_other,
            crossing_trees_do_not_block_each_other;
        NothingKept:
            a_cancelled_waiter_leaves_nothing,
            a_cancelled_waiter_for_documents_leaves_nothing,
            an_acquisition_cancelled_at_any_moment_leaves_nothing,
            an_acquisition_cancelled_after_any_answer_leaves_nothing,
            an_acquisition_cancelled_on_its_way_leaves_nothing,
            a_cancelled_waiter_does_not_hold_up_the_next;
        RefusalIsAValue:
            every_waiter_whose_wait_is_over_is_told_who_holds_it,
            a_refused_wait_finds_the_deadlock_that_it_is_part_of;
        AllowedIsGranted:
            a_waiter_keeps_what_it_was_granted;
    }
}

/// Waits while `before` happens a moment later.
async fn waits<S>(
    acquisition: Acquisition<S>,
    before: impl Future<Output = Verdict>,
) -> Verdict<Guard> {
    let (guard, done) = join(acquired(acquisition), async {
        sleep(Duration::from_millis(100)).await;
        before.await
    })
    .await;
    done?;
    guard
}

async fn a_release_ends_the_wait(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for _ in 0..3 {
        let guard = granted(a.lock("g")).await?;
        let next = waits(b.lock("g"), release(guard)).await?;
        refused(a.lock("g")).await?;
        release(next).await?;
    }
    Ok(())
}

async fn a_release_of_the_same_process_ends_the_wait(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    release(waits(a.lock("g"), release(guard)).await?).await
}

async fn a_dropped_guard_ends_the_wait(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for holder in [&a, &b] {
        let guard = granted(holder.documents(["d1", "d2"])).await?;
        let dropped = async {
            drop(guard);
            Ok(())
        };
        release(waits(b.documents(["d2", "d3"]), dropped).await?).await?;
    }
    Ok(())
}

async fn an_expiry_ends_the_wait(scene: Scene) -> Verdict {
    let b = locks(&scene).await?;
    let ttl = short(b.info());
    let dead = scene.actor_for(ttl).await?;
    dead.hold(&[(Want::Create, "g")]).await?;
    let since = Instant::now();
    let guard = acquired(b.lock("g")).await?;
    at_most(since, ttl + promptly(&scene, b.info()), "the wait")?;
    release(guard).await
}

async fn a_close_ends_the_wait(scene: Scene) -> Verdict {
    let b = locks(&scene).await?;
    let closed = scene.actor().await?;
    closed.hold(&[(Want::Write, "/t/m")]).await?;
    let close = async { closed.end(lockcore::backend::End::Close).await.map(drop) };
    release(waits(b.tree().write("/t"), close).await?).await
}

async fn a_tree_waits_for_what_is_above_and_below(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for (held, wanted) in [("/t", "/t/m/x"), ("/t/m/x", "/t"), ("/t/m", "/t/m")] {
        let guard = granted(a.tree().write(held)).await?;
        release(waits(b.tree().read(wanted), release(guard)).await?).await?;
    }
    Ok(())
}

async fn a_share_waits_for_room(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let (one, two) = (
        granted(a.semaphore("s", 2)).await?,
        granted(a.semaphore("s", 2)).await?,
    );
    let third = waits(b.semaphore("s", 2), release(one)).await?;
    refused(a.semaphore("s", 2)).await?;
    release(two).await?;
    release(third).await
}

async fn documents_wait_for_one_after_the_other(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let mut taken = Vec::new();
    for id in ["d2", "d4", "d5"] {
        taken.push(granted(a.documents([id])).await?);
    }
    let released = async {
        for guard in taken {
            sleep(Duration::from_millis(100)).await;
            release(guard).await?;
        }
        Ok(())
    };
    let guard = waits(b.documents(["d1", "d2", "d3", "d4", "d5", "d6"]), released).await?;
    ensure!(guard.confirm().await?, "all of it is held");
    release(guard).await
}

async fn the_wait_ends_at_its_limit(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.lock("g")).await?;
    release(granted(b.lock("h")).await?).await?;
    for limit in [700, 1_200].map(Duration::from_millis) {
        for locks in [&a, &b] {
            let since = Instant::now();
            let late = locks.lock("g").wait(limit).acquire().await;
            let took = since.elapsed();
            let in_time = at_most(since, limit + Duration::from_secs(2), "the wait");
            refusal(late)?;
            ensure!(took >= limit, "a wait of {limit:?} ended after {took:?}");
            in_time?;
        }
    }
    ensure!(guard.confirm().await?, "the holder keeps its lock");
    release(guard).await?;
    scene.free("g").await
}

async fn every_waiter_whose_wait_is_over_is_told_who_holds_it(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.lock("g")).await?;
    let limit = Duration::from_secs(1);
    // Waiters of one process stand in one queue; whoever is not first there is refused all the same.
    let waits = [&a, &a, &b, &b, &b].map(|locks| locks.lock("g").wait(limit).acquire());
    for late in join_all(waits).await {
        let busy = refusal(late)?;
        let session = busy.first().holders[0].grant.map(|grant| grant.session);
        ensure_eq!(session, Some(guard.session()), "who is in the way");
    }
    release(guard).await
}

async fn a_refused_wait_finds_the_deadlock_that_it_is_part_of(scene: Scene) -> Verdict {
    let (a, b, c) = (
        locks(&scene).await?,
        locks(&scene).await?,
        locks(&scene).await?,
    );
    let apart = granted(c.lock("z")).await?;
    let (x, y) = (granted(a.lock("x")).await?, granted(b.lock("y")).await?);
    let theirs = acquired(b.lock("x"));
    finds_the_deadlock(&scene, ("x", theirs), x, &apart, || a.lock("y")).await?;
    release(y).await?;
    // What is waited for stands above what is held.
    let (x, y) = (
        granted(a.tree().write("/x/1")).await?,
        granted(b.tree().write("/y")).await?,
    );
    let theirs = acquired(b.tree().write("/x"));
    let own = || a.tree().read("/y/2");
    finds_the_deadlock(&scene, ("/x", theirs), x, &apart, own).await?;
    release(y).await?;
    release(apart).await
}

/// Somebody waits for what `held` holds, and holds what `own` wants. Who holds `apart` is part of no deadlock.
async fn finds_the_deadlock<S>(
    scene: &Scene,
    (key, theirs): (&str, impl Future<Output = Verdict<Guard>>),
    held: Guard,
    apart: &Guard,
    own: impl Fn() -> Acquisition<S>,
) -> Verdict {
    let found = async {
        let stands = |record: &Record| record.holders.iter().any(|it| it.waiting.is_some());
        let until = Instant::now() + SOON;
        while !scene.record(key).await?.as_ref().is_some_and(stands) {
            ensure!(Instant::now() < until, "nobody stands in line for {key:?}");
            sleep(Duration::from_millis(20)).await;
        }
        let own = own().wait(Duration::from_millis(300));
        let busy = refusal(own.acquire().await)?;
        let sessions = |link: &Link| {
            let (waiter, holder) = (link.waiter.grant, link.holder.grant);
            (waiter.map(|it| it.session), holder.map(|it| it.session))
        };
        let cycle = held.find_deadlock(&busy).await?;
        let links: Option<Vec<_>> = cycle.map(|it| it.links.iter().map(sessions).collect());
        let other = busy.first().holders[0].grant.map(|it| it.session);
        let (one, other) = (Some(held.session()), other);
        let expected = vec![(one, other), (other, one)];
        ensure_eq!(links, Some(expected), "who waits for whom");
        ensure_eq!(
            apart.find_deadlock(&busy).await?.map(|it| it.to_string()),
            None,
            "the deadlock of one that nobody waits for"
        );
        release(held).await
    };
    let (next, found) = join(theirs, found).await;
    found?;
    release(next?).await
}

async fn waiters_do_not_ask_again_and_again(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.tree().write("/t")).await?;
    let (b, to_b, _) = wired(&scene).await?;
    let (c, to_c, _) = wired(&scene).await?;
    let limit = Duration::from_secs(2);
    // Where ancestors are records, each of these takes some and gives them back, in the sight of the other.
    let late = join(
        b.tree().read("/t/m/x").wait(limit).acquire(),
        c.tree().write("/t/m/y").wait(limit).acquire(),
    );
    let (for_b, for_c) = late.await;
    ensure!(
        for_b.is_err() && for_c.is_err(),
        "both waits are over: {for_b:?}, {for_c:?}"
    );
    for wire in [to_b, to_c] {
        let asked = wire.acquisitions();
        ensure!(
            asked <= 250,
            "asked {asked} times within {limit:?}, while nothing was released"
        );
    }
    release(guard).await
}

async fn local_waiters_go_in_order(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    go_in_order(&a, &vec![a.clone(); 5]).await
}

async fn waiters_of_several_processes_go_in_order(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let mut processes = Vec::new();
    for _ in 0..5 {
        processes.push(locks(&scene).await?);
    }
    go_in_order(&a, &processes).await
}

async fn go_in_order(a: &Locks, waiters: &[Locks]) -> Verdict {
    /// It is released when so many times the distance between two of five waiters have passed.
    const RELEASED: u32 = 6;
    let guard = granted(a.lock("g")).await?;
    // Several times what a refusal takes: they are served in the order in which they were refused.
    let asked = Instant::now();
    refused(a.lock("g")).await?;
    let apart = Duration::from_millis(200).max(asked.elapsed() * 10);
    let began = Instant::now();
    let order = Mutex::new(Vec::new());
    let waiter = async |(n, locks): (u32, &Locks)| -> Verdict {
        sleep(apart * n).await;
        let guard = acquired_within(apart * RELEASED + SOON, locks.lock("g")).await?;
        order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
        release(guard).await
    };
    let (all, first) = join(try_join_all((0..).zip(waiters).map(waiter)), async {
        sleep(apart * RELEASED).await;
        release(guard).await
    })
    .await;
    all?;
    first?;
    let order = order.into_inner().unwrap_or_else(PoisonError::into_inner);
    let in_order = if order == [0, 1, 2, 3, 4] {
        Ok(())
    } else {
        Err(Wrong(format!("waiters were served in the order {order:?}")))
    };
    in_order.unless_late(began, apart / 2)
}

/// Readers of three processes take turns without a gap. The writer waits for those who read, and
/// not for those who come later.
async fn a_writer_beside_readers_of_other_processes_has_its_turn(scene: Scene) -> Verdict {
    const HOLD: Duration = Duration::from_millis(200);
    let writer = locks(&scene).await?;
    for tree in [false, true] {
        let done = AtomicBool::new(false);
        let reads = Arc::new(AtomicUsize::new(0));
        let reader = async |(n, locks): (u32, Locks)| -> Verdict {
            sleep(HOLD * n / 3).await;
            while !done.load(Ordering::Relaxed) {
                let guard = match tree {
                    true => acquired(locks.tree().read("/t/m")).await?,
                    false => acquired(locks.rwlock("k").read()).await?,
                };
                reads.fetch_add(1, Ordering::Relaxed);
                sleep(HOLD).await;
                release(guard).await?;
            }
            Ok(())
        };
        let mut readers = Vec::new();
        for n in 0..3 {
            readers.push(reader((n, locks(&scene).await?)));
        }
        let writes = async || -> Verdict {
            for _ in 0..2 {
                sleep(HOLD * 2).await;
                let since = Instant::now();
                // How many there were when the writer was refused: from then on it stands in line.
                let before = Arc::new(OnceLock::new());
                let (reads_then, waits_from) = (Arc::clone(&reads), Arc::clone(&before));
                let observe = move |progress: Progress<'_>| {
                    if let Progress::Waiting(_) = progress {
                        waits_from.get_or_init(|| reads_then.load(Ordering::Relaxed));
                    }
                };
                let guard = match tree {
                    true => acquired(writer.tree().write("/t").observe(observe)).await?,
                    false => acquired(writer.rwlock("k").write().observe(observe)).await?,
                };
                // Each of the readers may have an answer under way then.
                let all = reads.load(Ordering::Relaxed);
                let passed = all - before.get().unwrap_or(&all);
                ensure!(
                    passed <= 3,
                    "{passed} readers came after the writer and read before it"
                );
                let most = HOLD + promptly(&scene, writer.info());
                at_most(since, most, "the writer's wait")?;
                release(guard).await?;
            }
            Ok(())
        };
        let writes = async {
            let written = writes().await;
            done.store(true, Ordering::Relaxed);
            written
        };
        let (read, written) = join(try_join_all(readers), writes).await;
        written?;
        read?;
    }
    Ok(())
}

async fn waiters_of_several_processes_all_have_their_turn(scene: Scene) -> Verdict {
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(locks(&scene).await?);
    }
    let inside = Mutex::new(false);
    let turns = async |locks: &lockcore::Locks| -> Verdict {
        for _ in 0..5 {
            let guard = acquired(locks.lock("g")).await?;
            let before = std::mem::replace(
                &mut *inside.lock().unwrap_or_else(PoisonError::into_inner),
                true,
            );
            ensure!(!before, "two hold the lock at once");
            tokio::task::yield_now().await;
            *inside.lock().unwrap_or_else(PoisonError::into_inner) = false;
            release(guard).await?;
        }
        Ok(())
    };
    try_join_all(processes.iter().map(turns)).await?;
    ended(&processes).await?;
    scene.free("g").await
}

async fn crossing_sets_do_not_block_each_other(scene: Scene) -> Verdict {
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(locks(&scene).await?);
    }
    let turns = async |(at, locks): (usize, &lockcore::Locks)| -> Verdict {
        for round in 0..5 {
            let ids: Vec<String> = (0..6)
                .map(|n| format!("d{}", (n * 5 + at + round) % 6))
                .collect();
            let guard = acquired(locks.documents(&ids)).await?;
            tokio::task::yield_now().await;
            release(guard).await?;
        }
        Ok(())
    };
    try_join_all(processes.iter().enumerate().map(turns)).await?;
    ended(&processes).await?;
    for n in 0..6 {
        scene.free(&format!("d{n}")).await?;
    }
    Ok(())
}

async fn crossing_trees_do_not_block_each_other(scene: Scene) -> Verdict {
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(locks(&scene).await?);
    }
    let turns = async |(at, locks): (usize, &lockcore::Locks)| -> Verdict {
        for round in 0..5 {
            let tree = match (at + round) % 3 {
                0 => locks.tree().write("/a/z").write("/a!"),
                1 => locks.tree().write("/a!").write("/a"),
                _ => locks.tree().read("/a/z/y").write("/a!/b").read("/b"),
            };
            let guard = acquired(tree).await?;
            tokio::task::yield_now().await;
            release(guard).await?;
        }
        Ok(())
    };
    try_join_all(processes.iter().enumerate().map(turns)).await?;
    ended(&processes).await?;
    for path in ["/a", "/a!", "/b"] {
        scene.free(path).await?;
    }
    Ok(())
}

/// Waits for a while in vain, and is dropped.
async fn cancelled<S>(acquisition: Acquisition<S>) -> Verdict {
    let waiter = tokio::time::timeout(Duration::from_millis(150), acquisition.acquire()).await;
    ensure!(waiter.is_err(), "it has to wait: {waiter:?}");
    Ok(())
}

async fn a_cancelled_waiter_leaves_nothing(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.lock("g")).await?;
    for locks in [&a, &b, &b] {
        cancelled(locks.lock("g")).await?;
    }
    release(guard).await?;
    // A cancelled waiter may just have been granted it: then it gives it back.
    release(acquired(a.lock("g")).await?).await?;
    ended([&a, &b]).await?;
    scene.free("g").await
}

async fn a_cancelled_waiter_for_documents_leaves_nothing(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.documents(["d5"])).await?;
    let ids = ["d1", "d2", "d3", "d4", "d5", "d6"];
    cancelled(b.documents(ids)).await?;
    release(acquired(a.documents(["d1", "d2", "d3", "d4", "d6"])).await?).await?;
    release(guard).await?;
    release(acquired(a.documents(ids)).await?).await?;
    ended([&b]).await?;
    for id in ids {
        scene.free(id).await?;
    }
    Ok(())
}

async fn an_acquisition_cancelled_at_any_moment_leaves_nothing(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for polls in 0..25 {
        let mut acquisition = Box::pin(a.documents(["d1", "d2", "d3"]).acquire());
        for _ in 0..polls {
            if poll!(&mut acquisition).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquisition);
        release(acquired(b.documents(["d1", "d2", "d3"])).await?).await?;
    }
    ended([&a]).await?;
    for id in ["d1", "d2", "d3"] {
        scene.free(id).await?;
    }
    Ok(())
}

const CANCELLED: [&str; 3] = ["/a/1", "/a/2", "/b/3"];

/// Writes to several paths: where the store takes little in a batch, several batches; where ancestors are records, more.
fn several(locks: &Locks) -> Acquisition<Tree> {
    let [one, two, three] = CANCELLED;
    locks.tree().write(one).write(two).write(three)
}

/// Gives the acquisition up as soon as that has happened; whether it was granted before.
async fn given_up(acquisition: Acquisition<Tree>, when: impl Future<Output = ()>) -> Verdict<bool> {
    let acquisition = pin!(acquisition.acquire());
    match select(acquisition, pin!(when)).await {
        Either::Left((granted, _)) => {
            drop(granted?);
            Ok(true)
        }
        Either::Right(((), _)) => Ok(false),
    }
}

async fn an_acquisition_cancelled_after_any_answer_leaves_nothing(scene: Scene) -> Verdict {
    let wire = Wire::new(scene.connect().await?);
    let a = locks_on(wire.clone(), DEFAULT_TTL)?;
    let b = locks(&scene).await?;
    for rival in [false, true] {
        let mut answers = 0;
        // Until it is granted before so many answers have come.
        loop {
            ensure!(answers < 100, "an acquisition asks {answers} times");
            // With a rival, what it has is given back, and asked for again.
            let taken = if rival {
                Some(granted(b.tree().write(CANCELLED[1])).await?)
            } else {
                None
            };
            let before = wire.answers();
            let released = async {
                if let Some(guard) = taken {
                    sleep(Duration::from_millis(50)).await;
                    drop(guard);
                }
            };
            let enough = wire.answered(before + answers);
            let (done, ()) = join(given_up(several(&a).wait(SOON), enough), released).await;
            let done = done?;
            release(acquired(several(&b)).await?).await?;
            answers += 1;
            if done || answers > 30 {
                break;
            }
        }
    }
    ended([&a]).await?;
    for path in CANCELLED {
        scene.free(path).await?;
    }
    Ok(())
}

async fn an_acquisition_cancelled_on_its_way_leaves_nothing(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    release(granted(several(&a)).await?).await?;
    let since = Instant::now();
    release(granted(several(&a)).await?).await?;
    let took = since.elapsed().max(Duration::from_millis(2));
    for sixteenths in 0..=16 {
        let after = sleep(took * sixteenths / 16);
        given_up(several(&a), after).await?;
        release(acquired(several(&b)).await?).await?;
    }
    ended([&a]).await?;
    for path in CANCELLED {
        scene.free(path).await?;
    }
    Ok(())
}

async fn a_cancelled_waiter_does_not_hold_up_the_next(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    let first = async {
        cancelled(a.lock("g")).await?;
        Ok(())
    };
    let second = async {
        sleep(Duration::from_millis(50)).await;
        release(acquired(a.lock("g")).await?).await
    };
    let released = async {
        sleep(Duration::from_millis(300)).await;
        release(guard).await
    };
    let ((first, second), released): ((Verdict, Verdict), Verdict) =
        join(join(first, second), released).await;
    first?;
    second?;
    released
}

async fn holder(scene: &Scene, key: &str) -> Verdict<Option<Grant>> {
    let record = scene.record(key).await?;
    Ok(record.and_then(|record| record.holders[0].grant))
}

async fn a_waiter_keeps_what_it_was_granted(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let taken = granted(a.documents(["d3"])).await?;
    let waiter = acquired(b.documents(["d1", "d2", "d3", "d4"]));
    let others = async {
        // While it waits for the third it holds the first two, and nobody overtakes it there. Where its first request
        // asks for all four, what that one holds for a moment, beside the refusal, is given back.
        let refused_first = b.info().keys_per_batch > 2;
        let passing = |grant: Grant| refused_first && grant.n == 1;
        soon("the waiter takes what is free", async {
            while holder(&scene, "d2").await?.is_none_or(passing) {
                sleep(Duration::from_millis(20)).await;
            }
            Verdict::Ok(())
        })
        .await??;
        refused(a.documents(["d1"])).await?;
        refused(a.documents(["d2"])).await?;
        release(granted(a.documents(["d4"])).await?).await?;
        release(taken).await
    };
    let (guard, others) = join(waiter, others).await;
    others?;
    let guard = guard?;
    let Some(held) = scene.record("d1").await? else {
        return Err(Wrong("d1 is held and not listed".to_owned()));
    };
    ensure_eq!(held.holders.len(), 1, "holders of d1");
    release(guard).await
}
