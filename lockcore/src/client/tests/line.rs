//! The line in a process: who comes first is served first, whatever is wanted.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::tests::attempts::{asks, hold, ms, releases};
use crate::client::tests::notes::evict_from;
use crate::client::tests::spy::{Fate, Spy};
use crate::{AcquireError, Attempt, Guard, Locks, MemoryBackend, Released};

const HOLD: u64 = 10;

/// Holds and gives back, time and again, for so many milliseconds: how often.
async fn turns<A: Future<Output = Guard>>(acquire: impl Fn() -> A, end: Instant) -> usize {
    let mut turns = 0;
    while Instant::now() < end {
        let guard = acquire().await;
        sleep(ms(HOLD)).await;
        let _ = guard.release().await.unwrap();
        turns += 1;
    }
    turns
}

/// Several who read by turns, so that there is always one: whoever writes has it within two holds, and asks once.
async fn a_writer_has_its_turn<R, W>(read: impl Fn(Locks) -> R, write: impl Fn(Locks) -> W)
where
    R: Future<Output = Guard>,
    W: Future<Output = Guard>,
{
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let since = Instant::now();
    let readers = (0..4).map(async |n| {
        sleep(ms(n * HOLD / 4)).await;
        turns(|| read(locks.clone()), since + ms(500)).await
    });
    let writers = async {
        for n in 1..5 {
            sleep_until(since + ms(n * 100 + 1)).await;
            let (waits, before) = (Instant::now(), spy.count(asks));
            let guard = timeout(ms(2 * HOLD), write(locks.clone())).await.unwrap();
            assert!(waits.elapsed() >= ms(HOLD / 2), "{:?}", waits.elapsed());
            // Who reads has it already, or stands behind.
            assert_eq!(spy.count(asks) - before, 1);
            sleep(ms(HOLD)).await;
            drop(guard);
        }
    };
    let (turns, ()) = join(join_all(readers), writers).await;
    assert!(turns.iter().all(|turns| *turns > 30), "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn a_writer_beside_readers_without_a_gap_has_its_turn() {
    let shares = async |locks: Locks| locks.rwlock("k").read().acquire().await.unwrap();
    let global = async |locks: Locks| locks.lock("k").acquire().await.unwrap();
    a_writer_has_its_turn(shares, global).await;
    let read = async |locks: Locks| locks.tree().read("/a").acquire().await.unwrap();
    let write = async |locks: Locks| locks.tree().write("/a").acquire().await.unwrap();
    a_writer_has_its_turn(read, write).await;
}

/// Those who only try, and owners, do not stand in the process's line. The store keeps them out, once it knows who waits.
#[tokio::test(start_paused = true)]
async fn a_writer_beside_readers_out_of_line_has_its_turn() {
    for (write, read) in [("/a", "/a"), ("/a", "/a/b"), ("/a/b", "/a")] {
        for owns in [false, true] {
            let spy = Spy::new(MemoryBackend::new());
            let locks = spy.locks();
            let reads = || locks.tree().read(read);
            let writes = || locks.tree().write(write);
            let since = Instant::now();
            let readers = (0..4).map(async |n| {
                let owner = locks.owner();
                sleep(ms(n * HOLD / 4)).await;
                while since.elapsed() < ms(500) {
                    let guard = if owns {
                        reads().owner(&owner).acquire().await.unwrap()
                    } else if let Attempt::Acquired(guard) = reads().try_acquire().await.unwrap() {
                        guard
                    } else {
                        sleep(ms(1)).await;
                        continue;
                    };
                    sleep(ms(HOLD)).await;
                    drop(guard);
                }
            });
            let writer = async {
                sleep(ms(101)).await;
                let before = spy.count(asks);
                let guard = timeout(ms(100), writes().acquire()).await;
                drop(guard.expect("it is its turn").unwrap());
                spy.count(asks) - before
            };
            let (_, asked) = join(join_all(readers), writer).await;
            // Until it has a place, and when its turn has come.
            assert!(asked < 40, "{asked}");
        }
    }
}

/// They do not stand in the line either.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_beside_one_that_only_tries_has_its_turn() {
    let locks = Spy::new(MemoryBackend::new()).locks();
    let tries = async {
        loop {
            match locks.semaphore("s", 1).try_acquire().await.unwrap() {
                Attempt::Acquired(guard) => {
                    sleep(ms(60)).await;
                    let _ = guard.release().await.unwrap();
                }
                _ => sleep(ms(1)).await,
            }
        }
    };
    let waits = async {
        sleep(ms(10)).await;
        timeout(ms(500), locks.semaphore("s", 1).acquire()).await
    };
    tokio::select! {
        biased;
        () = tries => unreachable!("it goes on for ever"),
        place = waits => drop(place.expect("it is its turn").unwrap()),
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_below_what_somebody_waits_to_write_waits_behind() {
    for (held, waited_for) in [("/a/b", "/a"), ("/a", "/a/b")] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let read = || locks.tree().read(held).acquire();
        let first = read().await.unwrap();
        let write = async {
            let guard = locks.tree().write(waited_for).acquire().await.unwrap();
            sleep(ms(HOLD)).await;
            drop(guard);
            Instant::now()
        };
        let second = async {
            sleep(ms(1)).await;
            assert!(timeout(ms(1), read()).await.is_err());
            // The owner has it already.
            let same = locks.tree().read(held).owner(&first.owner());
            drop(timeout(ms(1), same.acquire()).await.unwrap().unwrap());
            // A path beside is free.
            let beside = locks.tree().write("/c").acquire();
            drop(timeout(ms(1), beside).await.unwrap().unwrap());
            let (_guard, ()) = join(read(), async { drop(first) }).await;
            Instant::now()
        };
        let (written, read) = join(write, second).await;
        assert!(written <= read, "{held} {waited_for}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_one_of_some_places_has_it_in_its_turn_and_nobody_asks_in_vain() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let held = AtomicUsize::new(0);
    let place = async || {
        let guard = locks.semaphore("k", 10).acquire().await.unwrap();
        assert!(held.fetch_add(1, Ordering::Relaxed) < 10);
        guard
    };
    let end = Instant::now() + ms(400);
    let all = (0..30).map(async |_| {
        let mut turns = 0;
        while Instant::now() < end {
            let guard = place().await;
            sleep(ms(HOLD)).await;
            held.fetch_sub(1, Ordering::Relaxed);
            let _ = guard.release().await.unwrap();
            turns += 1;
        }
        turns
    });
    let turns: Vec<usize> = join_all(all).await;
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(most - least <= 1, "{turns:?}");
    let all: usize = turns.iter().sum();
    assert!(all >= 400, "{all}: no place is idle");
    // A place is handed on for 50 ms.
    let asked = spy.count(asks);
    assert!(asked <= all / 4 + 20, "{asked} of {all}");
    // Each was granted.
    assert_eq!(asked, spy.count(releases));
}

#[tokio::test(start_paused = true)]
async fn one_share_asks_for_all_that_waited_for_the_same_writer() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    for foreign in [false, true] {
        let writer = hold(if foreign { &other } else { &locks }, &["k"]).await;
        spy.decide(|call| match asks(call) {
            true => Fate::AnsweredAfter(ms(20)),
            false => Fate::Answered,
        });
        let since = Instant::now();
        let before = spy.count(asks);
        let shares = (0..8).map(async |_| {
            let guard = locks.rwlock("k").read().acquire().await.unwrap();
            (guard, since.elapsed())
        });
        let ends = async {
            sleep(ms(100)).await;
            // The first one: at once, before it watches, and then.
            assert_eq!(spy.count(asks) - before, if foreign { 3 } else { 0 });
            drop(writer);
        };
        let (shares, ()) = join(join_all(shares), ends).await;
        let slowest = shares.iter().map(|(_, took)| *took).max().unwrap();
        // Where somebody else was in the way, the first one does so again.
        let asked = if foreign { 2 } else { 1 };
        assert!(slowest <= ms(100 + 20 * asked + 5), "{slowest:?}");
        drop(shares);
        spy.decide(|_| Fate::Answered);
        sleep(ms(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_of_who_was_evicted_is_free() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let evicted = locks.semaphore("k", 1).acquire().await.unwrap();
    sleep(ms(1_000)).await;
    let waits = locks.semaphore("k", 1).acquire();
    let evicts = async {
        sleep(ms(1)).await;
        let _ = evict_from(&spy, "k").await;
    };
    let (next, ()) = join(timeout(ms(1_000), waits), evicts).await;
    drop(next.unwrap().unwrap());
    assert!(!evicted.is_valid());
}

/// Whoever waits in line for what is evicted has it as soon as that is heard of, above it and below, too.
#[tokio::test(start_paused = true)]
async fn what_was_evicted_is_free_above_and_below_too() {
    for (held, waited_for) in [("/a/b", "/a/b"), ("/a/b", "/a"), ("/a", "/a/b")] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let evicted = locks.tree().write(held).acquire().await.unwrap();
        sleep(ms(1_000)).await;
        let waits = async {
            drop(locks.tree().write(waited_for).acquire().await.unwrap());
            Instant::now()
        };
        let evicts = async {
            sleep(ms(1)).await;
            let _ = evict_from(&spy, held).await;
            evicted.lost().await;
            Instant::now()
        };
        let (free, lost) = join(waits, evicts).await;
        assert!(
            free - lost < ms(5),
            "{held} {waited_for}: {:?}",
            free - lost
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_place_is_not_handed_another_one() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let place = || locks.semaphore("k", 2).acquire();
    let first = place().await.unwrap();
    sleep(ms(60)).await;
    let second = place().await.unwrap();
    let mut third = true;
    spy.decide(move |call| match asks(call) && std::mem::take(&mut third) {
        true => Fate::AnsweredAfter(ms(20)),
        false => Fate::Answered,
    });
    let rest = async {
        sleep(ms(1)).await;
        // Too old to be handed on: the store has it, and the first who waits asks.
        drop(first);
        sleep(ms(1)).await;
        second.release().await.unwrap()
    };
    let ((one, two), released) = join(join(place(), place()), rest).await;
    assert_eq!(released, Released::HandedOn);
    assert_eq!((spy.count(asks), spy.count(releases)), (3, 1));
    assert!(one.unwrap().is_valid() && two.unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_wait_for_what_it_holds_itself() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let read = || locks.tree().read("/a").acquire();
    let (mine, other) = (read().await.unwrap(), read().await.unwrap());
    let write = locks.tree().write("/a").owner(&mine.owner()).acquire();
    let ends = async {
        sleep(ms(1)).await;
        drop(other);
    };
    let (written, ()) = join(timeout(ms(100), write), ends).await;
    drop(written.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_stood_behind_a_wait_that_is_over_goes_on() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let read = || locks.tree().read("/a/b").acquire();
    let _first = read().await.unwrap();
    for path in ["/a/b", "/a", "/a/b/c"] {
        let write = locks.tree().write(path).acquire();
        let second = async {
            sleep(ms(1)).await;
            timeout(ms(20), read()).await
        };
        let (written, second) = join(timeout(ms(10), write), second).await;
        assert!(written.is_err());
        drop(second.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn readers_wait_for_as_long_as_their_own_process_keeps_the_writer_out() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    for (path, write) in [("/a", "/a"), ("/a/b", "/a")] {
        let read = || locks.tree().read(path).acquire();
        let first = read().await.unwrap();
        let asked = spy.count(asks);
        let writes = async {
            drop(locks.tree().write(write).acquire().await.unwrap());
            Instant::now()
        };
        let reads = async {
            sleep(ms(1)).await;
            drop(read().await.unwrap());
            Instant::now()
        };
        let ends = async {
            sleep(ms(5_000)).await;
            let late = locks.tree().write(write).wait(ms(1)).acquire().await;
            let Err(AcquireError::Busy(busy)) = late else {
                panic!("{late:?}");
            };
            let holder = &busy.first().holders[0];
            assert_eq!(holder.grant.unwrap().session, first.session());
            assert_eq!(holder.key.to_string(), write);
            assert_eq!(spy.count(asks), asked, "the process knows it");
            drop(first);
        };
        let (written, (read, ())) = join(writes, join(reads, ends)).await;
        assert!(written <= read, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_wants_more_keys_takes_the_first_of_them_in_its_turn() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let (first, foreign) = (hold(&locks, &["a"]).await, hold(&other, &["b"]).await);
    let since = Instant::now();
    let both = async {
        drop(hold(&locks, &["a", "b"]).await);
        assert!(since.elapsed() >= ms(5_000));
    };
    let ends = async {
        sleep(ms(2_000)).await;
        assert_eq!(
            spy.count(asks),
            2,
            "the process knows that it holds the first"
        );
        drop(first);
        sleep(ms(10)).await;
        let late = other.documents(["a"]).try_acquire().await.unwrap();
        assert!(matches!(late, Attempt::Busy(_)), "it is taken");
        sleep_until(since + ms(5_000)).await;
        drop(foreign);
    };
    join(both, ends).await;
}

/// They take another path at the same time, and stand in line for that.
#[tokio::test(start_paused = true)]
async fn a_writer_has_its_turn_beside_who_stands_in_line_for_another_path() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let end = Instant::now() + ms(2_000);
    let others = (0..4).map(async |n: u64| {
        sleep(ms(n * HOLD / 2)).await;
        let (first, second) = (format!("/a{}", n % 2), format!("/b/x{}", n % 2));
        let both = || async {
            let both = locks.tree().write(&first).write(&second);
            both.acquire().await.unwrap()
        };
        turns(both, end).await
    });
    let writes = async {
        sleep(ms(100)).await;
        let since = Instant::now();
        let guard = locks.tree().write("/b").acquire().await.unwrap();
        drop(guard.release().await);
        since.elapsed()
    };
    let (waited, _) = join(writes, join_all(others)).await;
    assert!(waited < ms(500), "{waited:?}");
}
