//! Load stays load: a store that fails gets at most twice the requests that it gets when it does not, and a moment after it
//! is back everything goes as before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::client::task;
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{AcquireError, Attempt, ErrorKind, Guard, InputError, Locks, MemoryBackend, Released};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// When the store begins to fail, when it is back, when everything goes as before, and when the test ends.
const FAILS: Duration = secs(5);
const IS_BACK: Duration = secs(35);
const AS_BEFORE: Duration = secs(40);
const END: Duration = secs(50);
/// Fifty attempts a second.
const BETWEEN: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum How {
    /// A try for one document.
    Tries,
    /// Two documents, however long it takes.
    Waits,
    /// A document with an intent, which takes a session of its own.
    Intends,
}

impl How {
    async fn acquire(self, locks: &Locks, n: u32) -> Option<Guard> {
        let one = || locks.documents([format!("d{n}")]);
        match self {
            How::Tries => match one().try_acquire().await {
                Ok(Attempt::Acquired(guard)) => Some(guard),
                _ => None,
            },
            How::Waits => {
                let ids = [format!("d{n}"), format!("e{n}")];
                locks.documents(ids).acquire().await.ok()
            }
            How::Intends => one().intent(&n).unwrap().acquire().await.ok(),
        }
    }
}

/// What was seen of one run.
#[derive(Debug)]
struct Seen {
    /// Requests while the store failed, in the moment after, and then.
    requests: [usize; 3],
    /// The most within a tenth of a second.
    busiest: usize,
    /// The slowest of the attempts begun when everything goes as before, and how many of those failed.
    slowest: Duration,
    failed: usize,
    /// Whether what was held all the time is still held.
    kept: bool,
}

async fn seen(store: Arc<MemoryBackend>, ttl: Duration, how: How, fate: Option<Fate>) -> Seen {
    let spy = Spy::new(store);
    let locks = spy.builder().ttl(ttl).build().unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut fates = [(FAILS, fate), (IS_BACK, None)].into_iter().peekable();
    for n in 0.. {
        let at = spy.elapsed();
        if at >= END {
            break;
        }
        if let Some((_, fate)) = fates.next_if(|(from, _)| at >= *from) {
            spy.decide(move |_| fate.unwrap_or(Fate::Answered));
        }
        let (locks, tell) = (locks.clone(), tell.clone());
        task::spawn(async move {
            let begun = Instant::now();
            let guard = how.acquire(&locks, n).await;
            let acquired = guard.is_some();
            if let Some(guard) = guard {
                // The store may fail.
                drop(guard.release().await);
            }
            let _ = tell.send((at, begun.elapsed(), acquired));
        });
        sleep(BETWEEN).await;
    }
    drop(tell);
    let (mut slowest, mut failed) = (Duration::ZERO, 0);
    while let Some((begun, took, acquired)) = timeout(secs(60), told.recv()).await.unwrap() {
        if begun >= AS_BEFORE {
            slowest = slowest.max(took);
            failed += usize::from(!acquired);
        }
    }
    let sent = spy.sent(|_| true);
    let within = |from, to| {
        sent.iter()
            .filter(|(at, _)| (from..to).contains(at))
            .count()
    };
    let requests = [(FAILS, IS_BACK), (IS_BACK, AS_BEFORE), (AS_BEFORE, END)];
    let requests = requests.map(|(from, to)| within(from, to));
    let tenth = |at: Duration| at.as_millis() / 100;
    let busy = sent.chunk_by(|(a, _), (b, _)| tenth(*a) == tenth(*b));
    let busiest = busy.map(<[_]>::len).max().unwrap_or(0);
    let kept = kept.release().await.unwrap() == Released::Released;
    // Nothing is left.
    assert!(locks.shutdown(secs(60)).await, "{how:?}, {fate:?}");
    Seen {
        requests,
        busiest,
        slowest,
        failed,
        kept,
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_gets_no_storm_and_is_as_before_when_it_is_back() {
    let fails = [ErrorKind::Indeterminate, ErrorKind::Unavailable].map(Fate::Fails);
    let late = Fate::FailsAfter(secs(5), ErrorKind::Indeterminate);
    let runs = [
        (MemoryBackend::new as fn() -> _, How::Tries),
        (MemoryBackend::new, How::Waits),
        (MemoryBackend::new, How::Intends),
        // Two records are no batch there.
        (MemoryBackend::records, How::Waits),
    ];
    for (store, how) in runs {
        let healthy = seen(store(), secs(30), how, None).await;
        assert_eq!(healthy.failed, 0);
        // The session outlives the failure, or does not.
        for (fate, ttl) in [
            (fails[0], 300),
            (fails[1], 300),
            (late, 300),
            (Fate::AnswerLost, 30),
        ] {
            let failing = seen(store(), secs(ttl), how, Some(fate)).await;
            let what = format!("{how:?}, {ttl} s, {fate:?}: {failing:?} of {healthy:?}");
            assert!(failing.requests[0] <= 2 * healthy.requests[0], "{what}");
            assert!(
                failing.requests[2] <= healthy.requests[2] * 11 / 10,
                "{what}"
            );
            assert_eq!(failing.failed, 0, "{what}");
            let slower = failing.slowest.saturating_sub(healthy.slowest);
            assert!(slower < Duration::from_millis(100), "{what}");
            // Without anything in doubt: those who waited are spread.
            let spread = matches!(fate, Fate::Fails(ErrorKind::Unavailable));
            assert!(!spread || failing.busiest <= 800, "{what}");
            // What was kept meanwhile was renewed all the same, as soon as that went.
            assert_eq!(failing.kept, ttl == 300, "{what}");
        }
    }
}

/// Those who ask again take turns, and whoever's patience ends or who goes is in nobody's way.
#[tokio::test(start_paused = true)]
async fn many_who_ask_again_ask_as_often_as_one() {
    for many in [1, 200] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().ttl(secs(300)).build().unwrap();
        drop(locks.lock("g").acquire().await.unwrap());
        sleep(secs(1)).await;
        let since = spy.elapsed();
        spy.decide(|_| Fate::Fails(ErrorKind::Unavailable));
        for n in 0..many {
            let locks = locks.clone();
            task::spawn(async move {
                let waits = locks.documents([format!("d{n}")]).acquire();
                // Every other one is gone after a moment.
                let patience = if n % 2 == 0 { 60 } else { 1 };
                drop(timeout(secs(patience), waits).await);
            });
        }
        sleep(secs(9)).await;
        let asks = spy.sent(|call| matches!(call, Call::Acquire(_)));
        let again = asks.iter().filter(|(at, _)| *at > since + secs(3));
        let again = again.count();
        assert!((6..=24).contains(&again), "{many}: {again} in six seconds");
        spy.answer_all();
        sleep(secs(4)).await;
        assert_eq!(locks.core.waiters.load(Ordering::Relaxed), 0, "{many}");
    }
}

/// More than are released at once.
#[tokio::test(start_paused = true)]
async fn many_in_doubt_are_settled_as_soon_as_the_store_is_back() {
    let spy = Spy::new(MemoryBackend::new());
    let most = 300;
    let locks = spy.builder().ttl(secs(300)).patience(secs(1));
    let locks = locks.max_unsettled(most).build().unwrap();
    let kept = locks.lock("kept").acquire().await.unwrap();
    spy.decide(|_| Fate::Fails(ErrorKind::Indeterminate));
    let tries = (0..2 * most).map(|n| locks.documents([format!("d{n}")]).try_acquire());
    assert!(join_all(tries).await.iter().all(Result::is_err));
    // Their releases fail, too.
    sleep(secs(30)).await;
    let refused = locks.documents(["e"]).try_acquire().await;
    let many = matches!(
        refused,
        Err(AcquireError::Input(InputError::TooMany { .. }))
    );
    assert!(many, "{refused:?}");
    spy.answer_all();
    sleep(secs(5)).await;
    assert!(locks.documents(["e"]).try_acquire().await.is_ok());
    assert_eq!(kept.release().await.unwrap(), Released::Released);
}

/// A future that asks again and is not polled any more keeps nobody else from asking.
#[tokio::test(start_paused = true)]
async fn who_is_not_polled_has_no_turn() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    drop(locks.documents(["e"]).acquire().await.unwrap());
    spy.decide(|_| Fate::Fails(ErrorKind::Unavailable));
    // It waits for its turn in the caller's own future, where it opens a session of its own.
    let mut left = Box::pin(locks.documents(["d"]).own_session().acquire());
    assert!(timeout(secs(2), &mut left).await.is_err());
    let other = locks.documents(["f"]).own_session().acquire();
    let comes_back = async {
        sleep(secs(2)).await;
        spy.answer_all();
    };
    let (guard, ()) = tokio::join!(timeout(secs(8), other), comes_back);
    assert!(guard.expect("it is asked for again").unwrap().is_valid());
    drop(left);
}
