//! A runtime that ends takes nothing with it but its tasks: what they were at is given back by the session that lives on
//! another one. A session of its own, as an acquisition with an intent has, ends within the TTL.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lockkeeper::{Locks, Released};

use crate::cases::{
    acquired, adopted, bound, confirmed, given_up, listed, ran, recovered, reentered, released,
    settled, tried, tried_in_vain, two_paths, waited, with_intent,
};
use crate::support::{
    At, How, Left, Store, forty, none, one, one_if_ended, sweep_runtimes, with_its_runtime,
};

fn nine() -> Vec<String> {
    forty()[..9].to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_of_every_scheme() {
    sweep_runtimes("global", none, |locks, at| async move {
        acquired(locks.lock("g"), at).await
    })
    .await;
    sweep_runtimes("documents", none, |locks, at| async move {
        acquired(locks.documents(nine()), at).await
    })
    .await;
    sweep_runtimes("share", none, |locks, at| async move {
        acquired(locks.semaphore("s", 1), at).await
    })
    .await;
    sweep_runtimes("tree", none, |locks, at| async move {
        acquired(two_paths(&locks), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_of_an_owner() {
    sweep_runtimes("owner", none, bound).await;
    sweep_runtimes("owner that re-enters", none, |locks, at| async move {
        reentered(locks, &nine(), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn try_acquire() {
    sweep_runtimes("try_acquire", none, |locks, at| async move {
        tried(locks, &nine(), at).await
    })
    .await;
    sweep_runtimes("try_acquire in vain", none, |locks, at| async move {
        tried_in_vain(locks, &nine(), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_that_waits() {
    sweep_runtimes("waiting", none, |locks, at| async move {
        waited(locks, &nine(), Duration::from_millis(5), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_done_with_a_guard() {
    sweep_runtimes("release", none, |locks, at| async move {
        released(two_paths(&locks), at).await
    })
    .await;
    sweep_runtimes("confirm", none, |locks, at| async move {
        confirmed(locks.lock("g"), at).await
    })
    .await;
    sweep_runtimes("run", none, |locks, at| async move {
        ran(locks.lock("g"), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn adoption() {
    sweep_runtimes("abandoned", one, listed).await;
    sweep_runtimes("adopt", one, adopted).await;
    sweep_runtimes("settle", one_if_ended, settled).await;
    sweep_runtimes("give_up", one, given_up).await;
}

/// The handler's own runtime may end, and with it the handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn recovery_by_a_handler() {
    sweep_runtimes("recovery", one_if_ended, recovered).await;
}

/// That of a session which nobody renews any more, and the time to the next look of whoever waits.
const TTL: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_millis(2_500);

/// As [`sweep_runtimes`], for what opens a session of its own on the runtime that ends: what it holds is free within the
/// TTL.
async fn sweep_sessions<F, Fut>(case: &str, left: Left, run: F)
where
    F: Fn(Locks, At) -> Fut + Sync,
    Fut: Future<Output = bool>,
{
    for how in [How::WithItsRuntime, How::AfterItsRuntime] {
        let mut ended = Vec::new();
        for store in 0..Store::all().await.len() {
            let mut polls = 1;
            loop {
                // One of its own for each, so that all of them can wait at once.
                let store = Store::all().await.swap_remove(store);
                let locks = store.locks(TTL);
                let completed = with_its_runtime(&run, locks.clone(), At::new(polls, how)).await;
                ended.push((store, locks, polls, completed));
                if completed {
                    break;
                }
                polls = how.next(polls);
            }
        }
        join_all(
            ended
                .into_iter()
                .map(async |(store, locks, polls, completed)| {
                    let context = format!("{case}, ended after poll {polls}: {how:?}");
                    let within = (left(completed), WITHIN);
                    store.has_nothing_left(&locks, &context, within).await;
                }),
        )
        .await;
    }
}

/// One that ends before its guard was there may have registered the intent: it could not take it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_with_an_intent() {
    let left = |completed| if completed { 1..=1 } else { 0..=1 };
    sweep_sessions("intent", left, |locks, at| async move {
        acquired(with_intent(&locks), at).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn run_and_release_with_an_intent() {
    sweep_sessions("run with an intent", one_if_ended, |locks, at| async move {
        ran(with_intent(&locks), at).await
    })
    .await;
    sweep_sessions(
        "release with an intent",
        one_if_ended,
        |locks, at| async move { released(with_intent(&locks), at).await },
    )
    .await;
}

/// A guard outlives the runtime of its session: dropping it does nothing bad, and what it held is free when its session is
/// due.
#[test]
fn guards_and_attempts_dropped_with_the_runtime_of_their_session() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let first = runtime();
    let (guard, locks) = first.block_on(async {
        let backend = lockkeeper::backend(&url).await.unwrap();
        let locks = Locks::builder(backend).ttl(TTL).build().unwrap();
        let guard = locks.lock("g").acquire().await.unwrap();
        // Under way when the runtime goes.
        let waiting = locks.lock("g").acquire();
        assert!(waiting.now_or_never().is_none());
        (guard, locks)
    });
    drop(first);
    drop(guard);
    runtime().block_on(async {
        // The same client opens another session, as the keeper of the first is gone.
        let again = locks.lock("g").wait(3 * TTL).acquire().await.unwrap();
        assert!(again.is_valid());
        assert_eq!(again.release().await.unwrap(), Released::Released);
    });
}
