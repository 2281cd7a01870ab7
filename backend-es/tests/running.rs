//! What a running program sees when the store fails under it: its index is removed, its disk is full. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::cell::Cell;
use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::backend::{Filter, Inspect};
use lockcore::{AcquireError, Attempt, ErrorKind, Locks, LostReason, Released};
use serde_json::{Value, json};
use support::{Space, connect, raw};
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a busy machine.
const TTL: Duration = Duration::from_secs(10);

async fn locks(space: &Space, ttl: Duration) -> Locks {
    let builder = Locks::builder(connect(space).await).ttl(ttl);
    builder.build().unwrap()
}

async fn remove_index(space: &Space) {
    let (_, about) = space.raw(Method::Get, "/{ns}", String::new()).await;
    let index = about.as_object().unwrap().keys().next().unwrap().clone();
    let (status, _) = raw(Method::Delete, &format!("/{index}"), String::new()).await;
    assert_eq!(status, 200);
}

async fn full(space: &Space, full: bool) {
    let body = json!({"index.blocks.read_only_allow_delete": if full { json!(true) } else { Value::Null }});
    let (status, answer) = space
        .raw(Method::Put, "/{ns}/_settings", body.to_string())
        .await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn guards_of_an_index_that_is_gone_are_lost_at_their_deadline() {
    let space = Space::new();
    let locks = locks(&space, TTL).await;
    let guard = locks.lock("k").acquire().await.unwrap();
    let tree = locks.tree().write("/a/b").acquire().await.unwrap();
    remove_index(&space).await;
    let error = guard.confirm().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let lost = timeout(TTL, guard.lost()).await.unwrap();
    assert_eq!(lost, LostReason::Deadline);
    assert!(!guard.is_valid() && !tree.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    // It does not go on as if nothing had happened, and makes nothing by writing.
    let failed = locks.lock("k").try_acquire().await.unwrap_err();
    let AcquireError::Store(error) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn guards_of_an_index_that_was_made_anew_are_lost_at_their_next_renewal() {
    let space = Space::new();
    let old = locks(&space, TTL).await;
    let guard = old.lock("k").acquire().await.unwrap();
    let many: Vec<String> = (0..100).map(|number| format!("d{number}")).collect();
    let documents = old.documents(&many).acquire().await.unwrap();
    let greatest = guard.token().max(documents.token());
    remove_index(&space).await;
    let new = locks(&space, TTL).await;
    let since = Instant::now();
    let lost = tokio::join!(guard.lost(), documents.lost());
    assert_eq!(lost, (LostReason::Dead, LostReason::Dead));
    assert!(since.elapsed() < TTL, "{:?}", since.elapsed());
    // Both go on in the new one, beside each other.
    let again = old.lock("k").acquire().await.unwrap();
    assert!(again.token() > greatest);
    let busy = new.lock("k").try_acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)), "{busy:?}");
    assert_eq!(again.release().await.unwrap(), Released::Released);
    let other = new.lock("k").acquire().await.unwrap();
    assert!(other.token() > greatest);
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_while_loses_no_guard() {
    let space = Space::new();
    let locks = locks(&space, TTL * 2).await;
    let guard = locks.lock("k").acquire().await.unwrap();
    full(&space, true).await;
    let mut waiting = std::pin::pin!(locks.lock("other").acquire());
    assert!(
        timeout(Duration::from_secs(1), &mut waiting).await.is_err(),
        "nothing can be locked, and it may pass"
    );
    assert!(guard.is_valid());
    full(&space, false).await;
    let other = waiting.await.unwrap();
    assert!(guard.confirm().await.unwrap() && other.confirm().await.unwrap());
}

#[tokio::test]
async fn a_disk_that_is_full_for_long_loses_all() {
    let space = Space::new();
    let locks = locks(&space, TTL).await;
    let guard = locks.lock("k").acquire().await.unwrap();
    full(&space, true).await;
    assert_eq!(guard.lost().await, LostReason::Deadline);
    full(&space, false).await;
    let again = locks.lock("k").acquire().await.unwrap();
    assert!(again.token() > guard.token());
}

#[tokio::test]
async fn a_disk_that_is_full_in_the_middle_leaves_nothing_held() {
    let space = Space::new();
    let (all, others) = (locks(&space, TTL * 2).await, locks(&space, TTL * 2).await);
    let ids: Vec<String> = (0..300).map(|number| format!("d{number}")).collect();
    let over = Cell::new(false);
    // Each gets something some times, however slow it is, since it waits longer and longer; what fails meanwhile leaves
    // nothing.
    let work = async |locks: &Locks, from: usize| {
        let (mut got, mut failed, mut longest) = (0, 0, 300);
        while got < 3 || failed < 3 {
            let some = &ids[from..from + 200];
            let limit = Duration::from_millis(rand::random_range(0..longest));
            longest += 20;
            let documents = locks.documents(some).wait(limit).acquire();
            let tree = locks.tree().write("/a/b/c").wait(limit).acquire();
            let (documents, tree) = tokio::join!(documents, tree);
            for acquired in [documents, tree] {
                match acquired {
                    Ok(guard) => {
                        got += 1;
                        drop(guard.release().await);
                    }
                    Err(AcquireError::Busy(_) | AcquireError::Lost | AcquireError::Store(_)) => {
                        failed += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    };
    let disk = async {
        while !over.get() {
            sleep(Duration::from_millis(rand::random_range(0..200))).await;
            full(&space, true).await;
            sleep(Duration::from_millis(rand::random_range(0..200))).await;
            full(&space, false).await;
        }
    };
    let both = async {
        tokio::join!(work(&all, 0), work(&others, 100));
        over.set(true);
    };
    tokio::join!(both, disk);
    let everything = all.documents(&ids).wait(TTL * 4).acquire().await.unwrap();
    let tree = all
        .tree()
        .write("/a")
        .wait(TTL * 4)
        .acquire()
        .await
        .unwrap();
    assert_eq!(tree.release().await.unwrap(), Released::Released);
    assert_eq!(everything.release().await.unwrap(), Released::Released);
    for locks in [&all, &others] {
        assert!(locks.shutdown(TTL * 4).await);
    }
    let left = connect(&space).await;
    let left = left.records(&Filter::Prefix(String::new()), None, 10).await;
    assert_eq!(left.unwrap().items, []);
}
