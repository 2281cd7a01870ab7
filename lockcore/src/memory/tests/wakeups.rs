//! Watches: told of what may be free, and gone when dropped.

use futures_util::FutureExt;

use super::*;
use crate::{Changed, Wakeups};

async fn watch(store: &MemoryBackend, text: &str) -> Changed {
    store.watch(&claims(&[text])).await.unwrap()
}

fn told(changed: &mut Changed) -> bool {
    changed.now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn a_release_tells_those_on_the_key_above_and_below() {
    for store in both() {
        open(&store, [1]).await;
        let held = request(1, 1, &["write /a/b"]);
        granted(&store, &held).await;
        let mut related = Vec::new();
        for text in ["write /a", "read /a/b", "write /a/b/c"] {
            related.push(watch(&store, text).await);
        }
        let mut other = watch(&store, "create a").await;
        assert!(!related.iter_mut().any(told));
        release(&store, &held).await;
        assert!(related.iter_mut().all(told), "{store:?}");
        assert!(!told(&mut other));
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_and_numbers_that_are_over_tell_everybody() {
    for store in both() {
        open(&store, [1, 2, 3, 4]).await;
        let mut waiting = watch(&store, "create k").await;
        store.advance(TTL);
        assert!(!told(&mut waiting), "time alone tells nobody");
        end(&store, 1, End::IfDue).await;
        assert!(told(&mut waiting));

        let mut waiting = watch(&store, "create k").await;
        renew(&store, 2, renewal(1, "", IntentChange::Keep)).await;
        assert!(!told(&mut waiting));
        renew(&store, 2, renewal(2, "1-1", IntentChange::Keep)).await;
        assert!(told(&mut waiting));

        let token = granted(&store, &request(2, 2, &["upsert other"])).await;
        renew(&store, 2, renewal(3, "1-1", intent(token))).await;
        end(&store, 2, End::Close).await;
        let mut waiting = watch(&store, "create k").await;
        let any = Incarnation::UNKNOWN;
        let adopted = store.adopt(id(2), 0, id(2), crate::Adopt::Take, any).await;
        assert!(!told(&mut waiting));
        let number = adopted.unwrap().adoption().unwrap().number;
        let settled = store.settle(id(2), number, id(2), any).await;
        assert!(settled.unwrap().is_settled());
        assert!(told(&mut waiting));
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_met_dead_by_another_tells_too() {
    for store in both() {
        open(&store, [1]).await;
        granted(&store, &request(1, 1, &["create k"])).await;
        store.advance(TTL);
        open(&store, [2]).await;
        let mut waiting = watch(&store, "create elsewhere").await;
        granted(&store, &request(2, 1, &["create k"])).await;
        assert!(told(&mut waiting));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watch_is_gone_and_so_is_one_that_was_told() {
    for store in both() {
        let first = watch(&store, "create k").await;
        let second = watch(&store, "create k").await;
        drop(first);
        assert!(!store.watches.is_empty());
        let waiting = tokio::time::timeout(TTL, second);
        store
            .release(grant(1, 1), &claims(&["create k"]))
            .await
            .unwrap();
        waiting.await.unwrap();
        assert!(store.watches.is_empty());
    }
}
