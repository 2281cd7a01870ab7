//! Acquisitions that are ended hold nothing.

use std::time::Duration;

use crate::cases::{
    acquired, bound, ran, reentered, streamed, tried, tried_in_vain, two_paths, waited, with_intent,
};
use crate::support::{forty, none, one_if_ended, sweep};

#[tokio::test]
async fn acquire_of_every_scheme() {
    sweep("global", none, |locks, at| async move {
        acquired(locks.lock("g"), at).await
    })
    .await;
    sweep("documents", none, |locks, at| async move {
        acquired(locks.documents(forty()), at).await
    })
    .await;
    sweep("share", none, |locks, at| async move {
        acquired(locks.semaphore("s", 1), at).await
    })
    .await;
    sweep("tree", none, |locks, at| async move {
        acquired(two_paths(&locks), at).await
    })
    .await;
}

#[tokio::test]
async fn acquire_of_an_owner() {
    sweep("owner", none, bound).await;
    sweep("owner that re-enters", none, |locks, at| async move {
        reentered(locks, &forty(), at).await
    })
    .await;
}

#[tokio::test]
async fn try_acquire() {
    sweep("try_acquire", none, |locks, at| async move {
        tried(locks, &forty(), at).await
    })
    .await;
    sweep("try_acquire in vain", none, |locks, at| async move {
        tried_in_vain(locks, &forty(), at).await
    })
    .await;
}

#[tokio::test]
async fn documents_from_a_stream() {
    sweep("documents_stream", none, streamed).await;
}

#[tokio::test]
async fn acquire_that_waits() {
    sweep("waiting", none, |locks, at| async move {
        waited(locks, &forty(), Duration::from_millis(20), at).await
    })
    .await;
}

/// An acquisition that is ended before its guard was there leaves no intent: its change never began.
#[tokio::test]
async fn acquire_with_an_intent() {
    let left = |completed| if completed { 1..=1 } else { 0..=0 };
    sweep("intent", left, |locks, at| async move {
        acquired(with_intent(&locks), at).await
    })
    .await;
}

#[tokio::test]
async fn run() {
    sweep("run", none, |locks, at| async move {
        ran(locks.lock("g"), at).await
    })
    .await;
    // Ended before the work began it leaves no intent; afterwards one, unless its release was on the way.
    sweep("run with an intent", one_if_ended, |locks, at| async move {
        ran(with_intent(&locks), at).await
    })
    .await;
}
