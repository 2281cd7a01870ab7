//! The line of a store: who comes first is served first, whatever process it is of.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep, timeout};

use crate::client::tests::attempts::{asks, hold, ms, secs};
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, End, ErrorKind, Filter, Guard, Inspect as _, Label, Locks,
    MemoryBackend, SessionId, SessionStore as _,
};

const HOLD: u64 = 10;

fn processes(count: usize) -> (Arc<MemoryBackend>, Vec<Locks>) {
    let store = MemoryBackend::new();
    let locks = (0..count).map(|_| Spy::new(Arc::clone(&store)).locks());
    let locks = locks.collect();
    (store, locks)
}

async fn is_empty(store: &MemoryBackend) -> bool {
    let all = Filter::Prefix(String::new());
    store
        .records(&all, None, 10)
        .await
        .unwrap()
        .items
        .is_empty()
}

#[tokio::test(start_paused = true)]
async fn processes_have_it_in_the_order_in_which_they_came() {
    let (_, processes) = processes(6);
    for _ in 0..3 {
        let first = hold(&processes[0], &["d"]).await;
        let others = processes[1..].iter().enumerate().map(async |(at, locks)| {
            sleep(ms(at as u64 + 1)).await;
            let guard = hold(locks, &["d"]).await;
            let when = Instant::now();
            sleep(ms(HOLD)).await;
            let _ = guard.release().await.unwrap();
            when
        });
        // Whoever has had it stands at the end.
        let again = async {
            sleep(ms(100)).await;
            let _ = first.release().await.unwrap();
            let _guard = hold(&processes[0], &["d"]).await;
            Instant::now()
        };
        let (others, again) = join(join_all(others), again).await;
        assert!(others.is_sorted(), "{others:?}");
        assert!(
            others.iter().all(|when| *when < again),
            "{others:?} {again:?}"
        );
    }
}

/// Readers of four processes who take turns, so that there is always one; how long each writer waits.
async fn writers_wait<R, W>(read: impl Fn(Locks) -> R, write: impl Fn(Locks) -> W) -> Vec<u128>
where
    R: Future<Output = Guard>,
    W: Future<Output = Guard>,
{
    let (_, processes) = processes(5);
    let end = Instant::now() + secs(2);
    let readers = processes[..4].iter().enumerate().map(async |(at, locks)| {
        sleep(ms(at as u64 * HOLD / 4)).await;
        let mut turns = 0;
        while Instant::now() < end {
            let guard = read(locks.clone()).await;
            sleep(ms(HOLD)).await;
            let _ = guard.release().await.unwrap();
            turns += 1;
        }
        turns
    });
    let writers = async {
        let mut waits = Vec::new();
        for _ in 0..5 {
            sleep(ms(101)).await;
            let since = Instant::now();
            let guard = timeout(secs(1), write(processes[4].clone())).await.unwrap();
            waits.push(since.elapsed().as_millis());
            sleep(ms(HOLD)).await;
            let _ = guard.release().await.unwrap();
        }
        waits
    };
    let (turns, waits) = join(join_all(readers), writers).await;
    assert!(turns.iter().all(|turns| *turns > 100), "{turns:?}");
    waits
}

#[tokio::test(start_paused = true)]
async fn a_writer_beside_readers_of_other_processes_has_its_turn() {
    let read = async |locks: Locks| locks.rwlock("k").read().acquire().await.unwrap();
    let write = async |locks: Locks| locks.rwlock("k").write().acquire().await.unwrap();
    let waits = writers_wait(read, write).await;
    assert!(
        waits.iter().all(|waited| *waited <= 2 * u128::from(HOLD)),
        "{waits:?}"
    );
    let read = async |locks: Locks| locks.tree().read("/a/b").acquire().await.unwrap();
    let write = async |locks: Locks| locks.tree().write("/a").acquire().await.unwrap();
    let waits = writers_wait(read, write).await;
    assert!(
        waits.iter().all(|waited| *waited <= 2 * u128::from(HOLD)),
        "{waits:?}"
    );
}

/// What this client asks for stands still for a while from now on; it renews as ever.
fn stands_still(spy: &Spy) {
    spy.decide(|call| match call {
        Call::Acquire(_) => Fate::FailsAfter(secs(20), ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
}

#[tokio::test(start_paused = true)]
async fn who_stands_still_in_line_holds_up_the_others_for_a_moment() {
    let store = MemoryBackend::new();
    let still = Spy::new(Arc::clone(&store));
    let locks = [
        &still,
        &Spy::new(Arc::clone(&store)),
        &Spy::new(Arc::clone(&store)),
    ]
    .map(|spy| spy.locks());
    let held = hold(&locks[1], &["d"]).await;
    let first = locks[0].documents(["d"]).wait(secs(60)).acquire();
    let others = async {
        sleep(ms(100)).await;
        stands_still(&still);
        let next = async {
            let guard = hold(&locks[2], &["d"]).await;
            (Instant::now(), guard)
        };
        let frees = async {
            sleep(secs(5)).await;
            drop(held);
            Instant::now()
        };
        let ((had, guard), freed) = join(next, frees).await;
        let waited = had - freed;
        assert!(waited >= secs(2) && waited <= ms(3_500), "{waited:?}");
        // Nobody waits any more, so the next one has it at once.
        drop(guard);
        let since = Instant::now();
        drop(hold(&locks[1], &["d"]).await);
        assert!(since.elapsed() <= ms(100), "{:?}", since.elapsed());
        // Once it goes on it is served as anybody.
        still.decide(|_| Fate::Answered);
    };
    let (first, ()) = join(first, others).await;
    drop(first.unwrap());
    sleep(ms(1)).await;
    assert!(is_empty(&store).await);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_more_does_not_wait_for_who_waits_for_it() {
    for (held, waited_for, more) in [("/a/x", "/a", "/a/y"), ("/a", "/a", "/a/b")] {
        let (store, processes) = processes(2);
        let first = processes[0].tree().read(held).acquire().await.unwrap();
        let writes = async {
            let guard = processes[1]
                .tree()
                .write(waited_for)
                .acquire()
                .await
                .unwrap();
            drop(guard);
            Instant::now()
        };
        let reads = async {
            sleep(ms(100)).await;
            let since = Instant::now();
            let second = processes[0].tree().read(more).acquire().await.unwrap();
            let waited = since.elapsed();
            assert!(
                waited >= secs(2) && waited <= ms(3_500),
                "{more}: {waited:?}"
            );
            drop((first, second));
            Instant::now()
        };
        let (written, read) = join(writes, reads).await;
        assert!(written >= read && written <= read + ms(100));
        sleep(ms(1)).await;
        assert!(is_empty(&store).await);
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_the_line() {
    let (store, processes) = processes(3);
    let reads = async || processes[2].rwlock("k").read().try_acquire().await.unwrap();
    let held = processes[0].rwlock("k").read().acquire().await.unwrap();
    // Its wait is over.
    let write = processes[1].rwlock("k").write().wait(ms(500)).acquire();
    let (late, ()) = join(write, async {
        sleep(ms(100)).await;
        let refused = reads().await;
        let Attempt::Busy(busy) = refused else {
            panic!("{refused:?}");
        };
        let waits = |holder: &crate::Holder| holder.waiting.is_some();
        assert!(busy.first().holders.iter().all(waits), "{busy:?}");
    })
    .await;
    assert!(matches!(late, Err(AcquireError::Busy(_))), "{late:?}");
    sleep(ms(10)).await;
    drop(reads().await.acquired().expect("nobody waits"));
    // It is dropped.
    let write = processes[1].rwlock("k").write().acquire();
    assert!(timeout(ms(100), write).await.is_err());
    sleep(ms(10)).await;
    drop(reads().await.acquired().expect("nobody waits"));
    drop(held);
    sleep(ms(10)).await;
    assert!(is_empty(&store).await);
}

#[tokio::test(start_paused = true)]
async fn who_waits_asks_under_one_number_and_is_released_once() {
    let store = MemoryBackend::new();
    let (spy, other) = (Spy::new(Arc::clone(&store)), Spy::new(Arc::clone(&store)));
    let locks = spy.locks();
    drop(hold(&locks, &["opens"]).await);
    let held = hold(&other.locks(), &["d"]).await;
    let (guard, ()) = join(hold(&locks, &["d"]), async {
        sleep(secs(5)).await;
        drop(held);
    })
    .await;
    let asked: Vec<(SessionId, u64, bool)> = spy
        .sent(asks)
        .into_iter()
        .filter_map(|(_, call)| match call {
            Call::Acquire(request) if request.claims[0].key().as_str() == "d" => {
                Some((request.grant.session, request.grant.n, request.waits))
            }
            _ => None,
        })
        .collect();
    assert!(asked.len() > 3, "{asked:?}");
    assert!(asked.iter().all(|it| *it == asked[0] && it.2), "{asked:?}");
    let _ = guard.release().await.unwrap();
    assert!(is_empty(&store).await);
}

#[tokio::test(start_paused = true)]
async fn who_wants_many_stands_in_the_line_of_the_one_that_is_held() {
    let (store, processes) = processes(3);
    let held = hold(&processes[0], &["b"]).await;
    let many = async {
        let guard = hold(&processes[1], &["a", "b", "c"]).await;
        let when = Instant::now();
        sleep(ms(HOLD)).await;
        let _ = guard.release().await.unwrap();
        when
    };
    let one = async {
        sleep(ms(100)).await;
        drop(hold(&processes[2], &["b"]).await);
        Instant::now()
    };
    let frees = async {
        sleep(ms(200)).await;
        drop(held);
    };
    let (many, (one, ())) = join(many, join(one, frees)).await;
    assert!(many < one, "{many:?} {one:?}");
    sleep(ms(1)).await;
    assert!(is_empty(&store).await);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_twice_does_not_wait_for_itself() {
    let (store, processes) = processes(2);
    let owner = processes[1].owner();
    let held = processes[0].lock("k").acquire().await.unwrap();
    let waits = async |after: u64| {
        sleep(ms(after)).await;
        let guard = processes[1]
            .lock("k")
            .owner(&owner)
            .acquire()
            .await
            .unwrap();
        sleep(ms(HOLD)).await;
        let _ = guard.release().await.unwrap();
    };
    let frees = async {
        sleep(ms(2_000)).await;
        drop(held);
    };
    // The second one may be refused by the first one alone, which holds nothing.
    join(join(waits(1), waits(50)), frees).await;
    assert!(is_empty(&store).await);
}

/// One process asks for several paths and holds the first of them; others ask to write above them all. How long the first
/// one waits for the rest, once nobody else holds anything.
async fn waits_among_writers(
    store: Arc<MemoryBackend>,
    writers: usize,
    paths: &[&str],
) -> Duration {
    let client = || Spy::new(Arc::clone(&store)).locks();
    let (holder, several) = (client(), client());
    let held = holder.tree().write(paths[1]).acquire().await.unwrap();
    let own = several.tree();
    let own = paths[1..]
        .iter()
        .fold(own.write(paths[0]), |own, path| own.write(path));
    let own = async {
        drop(
            timeout(secs(120), own.acquire())
                .await
                .expect("it is served")
                .unwrap(),
        );
        Instant::now()
    };
    let writes = (0..writers).map(async |at| {
        sleep(ms(100 + at as u64)).await;
        let guard = timeout(secs(120), client().tree().write("/r").acquire()).await;
        drop(guard.expect("it is served").unwrap());
    });
    let frees = async {
        sleep(secs(1)).await;
        drop(held);
        Instant::now()
    };
    let (had, (freed, _)) = join(own, join(frees, join_all(writes))).await;
    had - freed
}

/// More than a refusal names, so that it cannot pass all of them.
#[tokio::test(start_paused = true)]
async fn who_cannot_pass_a_crowd_comes_after_it() {
    for store in [MemoryBackend::new(), MemoryBackend::records()] {
        waits_among_writers(store, 20, &["/r/1", "/r/5", "/r/6"]).await;
    }
}

/// Waiters that stop asking, one after the other: each keeps the rest for a few seconds at most.
#[tokio::test(start_paused = true)]
async fn several_that_have_stopped_hold_up_nobody_for_long() {
    for store in [MemoryBackend::new(), MemoryBackend::records()] {
        let client = || Spy::new(Arc::clone(&store)).locks();
        let held = hold(&client(), &["d"]).await;
        let stills: Vec<_> = (0..3).map(|_| Spy::new(Arc::clone(&store))).collect();
        let mut stopped = Vec::new();
        for spy in &stills {
            let mut waits = Box::pin(spy.locks().documents(["d"]).acquire());
            assert!(timeout(ms(100), &mut waits).await.is_err());
            spy.decide(|call| match call {
                Call::Acquire(_) => Fate::Hangs,
                _ => Fate::Answered,
            });
            stopped.push(waits);
        }
        let last = client();
        let frees = async {
            sleep(secs(1)).await;
            drop(held);
        };
        let next = timeout(secs(12), last.documents(["d"]).acquire());
        let (next, ()) = join(next, frees).await;
        drop(next.expect("it is served").unwrap());
    }
}

/// How often a waiter asks in a minute with so many before it, and whether it has its turn soon when they have gone.
async fn asks_behind(others: usize) -> usize {
    let store = MemoryBackend::new();
    let held = hold(&Spy::new(Arc::clone(&store)).locks(), &["d"]).await;
    let before: Vec<_> = (0..others)
        .map(|_| Spy::new(Arc::clone(&store)).locks())
        .collect();
    let before = before.iter().map(async |locks| {
        let guard = hold(locks, &["d"]).await;
        let _ = guard.release().await.unwrap();
    });
    let spy = Spy::new(Arc::clone(&store));
    let last = async {
        sleep(ms(100)).await;
        let locks = spy.locks();
        let guard = hold(&locks, &["d"]).await;
        let _ = guard.release().await.unwrap();
        Instant::now()
    };
    let frees = async {
        sleep(secs(60)).await;
        let asked = spy.count(|call| matches!(call, Call::Acquire(_)));
        let since = Instant::now();
        let _ = held.release().await.unwrap();
        (asked, since)
    };
    let ((asked, since), (_, had)) = join(frees, join(join_all(before), last)).await;
    assert!(had - since < secs(1), "{:?}", had - since);
    asked
}

#[tokio::test(start_paused = true)]
async fn who_is_far_behind_asks_seldom() {
    let (near, far) = (asks_behind(3).await, asks_behind(30).await);
    assert!((60..200).contains(&near), "{near}");
    assert!((15..50).contains(&far), "{far}");
}

/// The end of any session wakes whoever waits for anything.
#[tokio::test(start_paused = true)]
async fn who_is_woken_for_others_asks_once() {
    const ENDS: u128 = 60;
    let store = MemoryBackend::new();
    let held = hold(&Spy::new(Arc::clone(&store)).locks(), &["d"]).await;
    let spy = Spy::new(Arc::clone(&store));
    let waits = async { drop(hold(&spy.locks(), &["d"]).await) };
    let ends = async {
        let label = Label::parse("").unwrap();
        for n in 1..=ENDS {
            sleep(secs(1)).await;
            let session = SessionId::new(n);
            store.open(session, &label, secs(60)).await.unwrap();
            store.end(&[session], End::Close).await.unwrap();
        }
        let asked = spy.count(|call| matches!(call, Call::Acquire(_)));
        drop(held);
        asked
    };
    let ((), asked) = join(waits, ends).await;
    assert!((60..200).contains(&asked), "{asked}");
}

/// One has the only permit, one waits for it, and one wants the name for itself: who came first is served first.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_permit_keeps_its_place_before_who_excludes_it() {
    for store in [MemoryBackend::new(), MemoryBackend::records()] {
        let client = || Spy::new(Arc::clone(&store)).locks();
        let held = client().semaphore("k", 1).acquire().await.unwrap();
        let permit = async {
            let guard = client().semaphore("k", 1).acquire().await.unwrap();
            sleep(secs(1)).await;
            drop(guard);
            Instant::now()
        };
        let exclusive = async {
            sleep(ms(200)).await;
            drop(client().lock("k").acquire().await.unwrap());
            Instant::now()
        };
        let frees = async {
            sleep(secs(10)).await;
            drop(held);
        };
        let (permit, (exclusive, ())) = join(permit, join(exclusive, frees)).await;
        assert!(permit <= exclusive, "the exclusive one had it first");
    }
}
