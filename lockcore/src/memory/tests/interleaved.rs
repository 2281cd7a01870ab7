//! The form of records with other requests between two of its writes; and all of them after one another in the other.

use futures_util::future::join;

use super::*;
use crate::{Filter, Inspect, LockBackend};

#[tokio::test(start_paused = true)]
async fn two_batches_over_the_same_keys_are_never_both_granted() {
    for store in both() {
        open(&store, [1, 2]).await;
        let first = request(1, 1, &["upsert a", "upsert b", "upsert c"]);
        let second = request(2, 1, &["upsert a", "upsert c", "upsert d", "upsert e"]);
        let (first, second) = join(ask(&store, &first), ask(&store, &second)).await;
        let granted = [&first, &second]
            .into_iter()
            .filter(|answer| matches!(answer, Acquired::Acquired(_)))
            .count();
        assert!(granted <= 1, "{first:?} {second:?}");
        assert_eq!(granted == 0, !store.info().atomic, "they split the keys");
        if granted == 0 {
            let all = Filter::Prefix(String::new());
            assert_eq!(store.records(&all, None, 9).await.unwrap().items, []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_between_two_writes_is_granted_nothing() {
    let store = MemoryBackend::records();
    open(&store, [1, 2]).await;
    let late = request(1, 1, &["upsert a", "upsert b", "upsert c"]);
    let revoked = async {
        tokio::task::yield_now().await;
        end(&store, 1, End::Revoke).await
    };
    let (answer, life) = join(ask(&store, &late), revoked).await;
    assert_eq!((answer, life), (Acquired::Void, Life::Dead));
    granted(
        &store,
        &request(2, 1, &["upsert a", "upsert b", "upsert c"]),
    )
    .await;
}

/// Its token would be greater than that of whoever took its first record.
#[tokio::test(start_paused = true)]
async fn a_lone_path_whose_session_ends_between_its_records_is_granted_nothing() {
    let store = MemoryBackend::records();
    open(&store, [1, 2]).await;
    let revoked = async {
        tokio::task::yield_now().await;
        end(&store, 1, End::Revoke).await;
        granted(&store, &request(2, 1, &["write /a"])).await;
    };
    let late = request(1, 1, &["write /a/b/c"]);
    let (answer, ()) = join(ask(&store, &late), revoked).await;
    assert_eq!(answer, Acquired::Void);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_own_death_is_met_is_void() {
    for store in both() {
        open(&store, [1, 2]).await;
        granted(&store, &request(1, 1, &["create k"])).await;
        store.advance(TTL);
        let again = request(1, 2, &["create k"]);
        assert_eq!(ask(&store, &again).await, Acquired::Void, "{store:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_request_left_is_given_back_by_its_release() {
    let store = MemoryBackend::records();
    open(&store, [1, 2]).await;
    let dropped = request(1, 1, &["write /a/b/c"]);
    for polls in 1..=3 {
        {
            let mut asking = Box::pin(ask(&store, &dropped));
            for _ in 0..polls {
                assert!(futures_util::poll!(&mut asking).is_pending());
            }
        }
        let all = Filter::Prefix(String::new());
        let left = store.records(&all, None, 9).await.unwrap().items.len();
        assert_eq!(u64::try_from(left).unwrap(), polls - 1, "one write a turn");
        release(&store, &dropped).await;
        let other = request(2, polls, &["write /a"]);
        granted(&store, &other).await;
        release(&store, &other).await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_tasks_never_hold_one_key_together() {
    for store in both() {
        open(&store, 1..=8).await;
        let inside = std::cell::Cell::new(0);
        let granted = std::cell::Cell::new(0);
        let one = async |session: u128| {
            for n in 1..=20 {
                // Ways around each other: two documents, one of them everybody's.
                let own = format!("upsert {}", session % 3);
                let request = request(session, n, &["upsert all", &own]);
                if let Acquired::Acquired(_) = ask(&store, &request).await {
                    assert_eq!(inside.replace(1), 0, "two at once, {store:?}");
                    granted.set(granted.get() + 1);
                    tokio::task::yield_now().await;
                    inside.set(0);
                }
                release(&store, &request).await;
                tokio::task::yield_now().await;
            }
        };
        futures_util::future::join_all((1..=8).map(one)).await;
        assert!(granted.get() > 0);
    }
}

/// Somebody reads the entry of a waiter. Before it asks about the waiter's session, the waiter is granted, registers its
/// intent and dies.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_granted_and_abandoned_meanwhile_holds() {
    let store = MemoryBackend::records();
    open(&store, [1, 2, 3]).await;
    let (holder, waiter, other) = (
        request(1, 1, &["create k"]),
        request(2, 1, &["create k"]).waiting(),
        request(3, 1, &["create k"]),
    );
    granted(&store, &holder).await;
    busy(&store, &waiter).await;
    let mut asks = Box::pin(ask(&store, &other));
    // The write; and then it is about to ask about the sessions.
    for _ in 0..2 {
        assert!(futures_util::poll!(&mut asks).is_pending());
    }
    release(&store, &holder).await;
    let token = granted(&store, &waiter).await;
    let renewed = renew(&store, 2, renewal(1, "", intent(token))).await;
    assert_eq!(renewed, Renewed::Living);
    assert_eq!(end(&store, 2, End::Close).await, Life::Abandoned);
    let answer = asks.await;
    assert!(matches!(answer, Acquired::Busy(_)), "{answer:?}");
}
