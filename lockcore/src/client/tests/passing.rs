//! The line between processes, as the client stands in it: who passes whom, and after how long.
#![expect(clippy::disallowed_methods, reason = "these tasks are the tests' own")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};

use crate::client::tests::attempts::{ms, secs};
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::store::Inspect as _;
use crate::{
    AcquireError, Filter, Guard, LockKey, Locks, MemoryBackend, Owner, Recover, RecoverError,
    Recovery,
};

/// Stores that keep a line: one that is atomic, and one that keeps its records one by one.
fn stores() -> [Arc<MemoryBackend>; 2] {
    [MemoryBackend::new(), MemoryBackend::records()]
}

/// A process.
fn client(store: &Arc<MemoryBackend>) -> Locks {
    Spy::new(Arc::clone(store)).locks()
}

/// `d k`, `s k`, `x k`, `w /p` or `r /p`.
async fn take(locks: Locks, owner: Option<Owner>, what: &str) -> Result<Guard, AcquireError> {
    let (want, key) = what.split_once(' ').unwrap();
    match want {
        "s" => return locks.rwlock(key).read().acquire().await,
        "x" => return locks.rwlock(key).write().acquire().await,
        _ => {}
    }
    if want == "d" {
        let asks = locks.documents([key]);
        return match &owner {
            Some(owner) => asks.owner(owner).acquire().await,
            None => asks.acquire().await,
        };
    }
    let asks = match want {
        "w" => locks.tree().write(key),
        _ => locks.tree().read(key),
    };
    match &owner {
        Some(owner) => asks.owner(owner).acquire().await,
        None => asks.acquire().await,
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_what_it_holds_though_others_wait() {
    for store in stores() {
        for [first, again, theirs] in [
            ["d k", "d k", "d k"],
            ["w /a", "w /a", "w /a"],
            ["w /a", "r /a", "w /a"],
            ["w /a/x", "w /a/y", "w /a"],
        ] {
            let (one, other) = (client(&store), client(&store));
            let owner = Some(one.owner());
            let held = take(one.clone(), owner.clone(), first).await.unwrap();
            let waiter = tokio::spawn(take(other, None, theirs));
            sleep(ms(100)).await;
            let again = timeout(secs(4), take(one, owner, again)).await;
            let again = again.expect("it passes").unwrap();
            assert!(!waiter.is_finished());
            drop((again, held));
            drop(waiter.await.unwrap().unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_for_itself_is_told_though_others_wait() {
    for store in stores() {
        let (one, other) = (client(&store), client(&store));
        let owner = one.owner();
        let held = one.lock("k").owner(&owner).acquire().await.unwrap();
        let waiter = tokio::spawn(other.lock("k").acquire());
        sleep(ms(100)).await;
        let again = one.lock("k").owner(&owner).acquire();
        let again = timeout(secs(1), again).await.expect("it is told");
        assert!(matches!(again, Err(AcquireError::WouldDeadlock(_))));
        drop(held);
        drop(waiter.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_given_back_is_in_nobodys_way_for_long() {
    for store in stores() {
        let locks = client(&store);
        let owner = locks.owner();
        for _ in 0..3 {
            drop(locks.lock("k").owner(&owner).acquire().await.unwrap());
            drop(locks.rwlock("r").read().owner(&owner).acquire().await);
            let again = locks.rwlock("r").write().owner(&owner).acquire();
            drop(again.await.unwrap());
        }
    }
}

/// Readers that hold for longer than a waiter's patience, and leave no gap. Those of a lock share what one of them is granted;
/// those of a path may each ask for themselves.
#[tokio::test(start_paused = true)]
async fn a_writer_has_its_turn_also_if_readers_hold_for_longer_than_it_takes_to_pass() {
    for (store, read, write) in stores()
        .into_iter()
        .flat_map(|it| [(it.clone(), "s k", "x k"), (it, "r /k", "w /k")])
    {
        for held in [secs(3), secs(5), secs(7)] {
            let (readers, writer) = (client(&store), client(&store));
            let ends = Arc::new(AtomicBool::new(false));
            let source = {
                let (readers, ends) = (readers.clone(), Arc::clone(&ends));
                tokio::spawn(async move {
                    while !ends.load(Ordering::Relaxed) {
                        let readers = readers.clone();
                        tokio::spawn(async move {
                            let guard = take(readers, None, read).await.unwrap();
                            sleep(held).await;
                            drop(guard.release().await);
                        });
                        sleep(secs(1)).await;
                    }
                })
            };
            sleep(held * 2).await;
            let writes = take(writer, None, write);
            let written = timeout(held * 10, writes).await;
            drop(written.expect("they come to an end").unwrap());
            ends.store(true, Ordering::Relaxed);
            source.await.unwrap();
            sleep(held * 2).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_passes_two_that_came_apart_goes_on_naming_both() {
    for store in (0..20).flat_map(|_| stores()) {
        let (one, other, third) = (client(&store), client(&store), client(&store));
        let held = one.tree().write("/r/2/x").acquire().await.unwrap();
        let beside = tokio::spawn(other.tree().write("/r/2/x").acquire());
        sleep(ms(10)).await;
        let above = tokio::spawn(third.tree().write("/r").acquire());
        sleep(ms(10)).await;
        // Passes the one above alone, whose clock begins anew.
        let passes = tokio::spawn(one.tree().write("/r/1").acquire());
        sleep(secs(1)).await;
        let nested = one.tree().write("/r/2/x/n").owner(&held.owner());
        let nested = timeout(secs(10), nested.acquire()).await;
        drop(nested.expect("it passes both").unwrap());
        drop(passes.await.unwrap().unwrap());
        drop(held);
        drop(beside.await.unwrap().unwrap());
        drop(above.await.unwrap().unwrap());
    }
}

/// The other permit is free, and who waits for the lock and for a permit behind it waits for the one that is held.
#[tokio::test(start_paused = true)]
async fn who_holds_a_permit_passes_who_waits_for_it() {
    for store in stores() {
        let [one, other, third] = [(); 3].map(|()| client(&store));
        let held = one.semaphore("s", 2).acquire().await.unwrap();
        let locks = tokio::spawn(other.lock("s").acquire());
        sleep(ms(10)).await;
        let behind = tokio::spawn(third.semaphore("s", 2).acquire());
        sleep(ms(10)).await;
        let again = timeout(secs(8), one.semaphore("s", 2).acquire()).await;
        let again = again.expect("it passes both").unwrap();
        let more = one.semaphore("s", 2).wait(secs(20)).acquire().await;
        assert!(matches!(more, Err(AcquireError::Busy(_))));
        assert!(!locks.is_finished() && !behind.is_finished());
        drop((held, again));
        drop(locks.await.unwrap().unwrap());
        drop(behind.await.unwrap().unwrap());
    }
}

struct Takes500Ms;

#[async_trait::async_trait]
impl Recover for Takes500Ms {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        sleep(ms(500)).await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn who_recovers_what_a_dead_holder_left_keeps_its_place() {
    for (store, first) in stores()
        .into_iter()
        .flat_map(|it| [(it.clone(), &["k"][..]), (it, &["k", "z"])])
    {
        let dies = client(&store);
        let guard = dies.lock("k").intent(&"x").unwrap().acquire();
        let guard = guard.await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        for n in 0..4 {
            let spy = Spy::new(Arc::clone(&store));
            let locks = spy.builder().recovery(Takes500Ms).build().unwrap();
            let order = Arc::clone(&order);
            let keys = if n == 0 { first } else { &["k"] };
            all.push(tokio::spawn(async move {
                let guard = locks.documents(keys).acquire().await.unwrap();
                order.lock().unwrap().push(n);
                sleep(ms(10)).await;
                drop(guard.release().await);
            }));
            sleep(ms(200)).await;
        }
        drop(guard);
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    }
}

/// However many hold: only those who wait are ahead of it.
#[tokio::test(start_paused = true)]
async fn who_is_first_behind_many_holders_asks_every_second() {
    let (permits, ttl) = (20, secs(2));
    for _ in 0..20 {
        let store = MemoryBackend::new();
        let dies = Spy::new(Arc::clone(&store));
        let locks = dies.builder().ttl(ttl).build().unwrap();
        let mut held = Vec::new();
        for _ in 0..permits {
            held.push(locks.semaphore("s", permits).acquire().await.unwrap());
        }
        let waits = client(&store);
        let waiter = tokio::spawn(waits.semaphore("s", permits).acquire());
        sleep(secs(20)).await;
        dies.decide(|call| match call {
            Call::Renew(..) | Call::End(..) | Call::Release(..) => Fate::Hangs,
            _ => Fate::Answered,
        });
        let since = Instant::now();
        drop(waiter.await.unwrap().unwrap());
        assert!(since.elapsed() < ttl + ms(1_200), "{:?}", since.elapsed());
        held.into_iter().for_each(std::mem::forget);
    }
}

/// Whoever breaks it sees that no process hears of it.
#[tokio::test(start_paused = true)]
async fn what_is_kept_without_a_handle_is_known_to_be_kept() {
    let spy = Spy::new(MemoryBackend::new());
    let (one, other) = (spy.locks(), spy.locks());
    let hour = Duration::from_secs(3_600);
    let long = one.schedule("dropped").at_least(hour).run(async |_| {
        sleep(hour).await;
        Ok::<_, Infallible>(())
    });
    assert!(timeout(secs(60), long).await.is_err());
    let panics = one.schedule("panicked").at_least(hour);
    let panics = panics.run(async |_| -> Result<(), Infallible> { panic!("on purpose") });
    let panicked = std::panic::AssertUnwindSafe(panics).catch_unwind().await;
    assert!(panicked.is_err());
    sleep(secs(60)).await;
    for name in ["dropped", "panicked"] {
        let key = Filter::Key(LockKey::parse(name).unwrap());
        let held = spy.records(&key, None, 10).await.unwrap().items;
        let grant = held[0].holders[0].grant.unwrap();
        assert!(other.is_kept(grant.session).await.unwrap(), "{name}");
    }
}
