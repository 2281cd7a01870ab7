//! Listings, and what cannot be read.

use super::*;
use crate::{ErrorKind, Filter, Inspect, Record};

async fn list(store: &MemoryBackend, filter: Filter) -> Vec<Record> {
    let page = store.records(&filter, None, 99).await.unwrap();
    assert_eq!(page.next, None);
    page.items
}

async fn at(store: &MemoryBackend, path: &str) -> Vec<String> {
    match list(store, Filter::Key(key(path))).await.as_slice() {
        [] => Vec::new(),
        [record] => shown(&record.holders),
        many => panic!("one key, one record: {many:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_lists_whoever_holds_something_below() {
    for store in both() {
        open(&store, [1, 2]).await;
        granted(&store, &request(1, 1, &["read /a/b", "write /a/c"])).await;
        granted(&store, &request(2, 1, &["read /a/b/x"])).await;
        assert_eq!(
            at(&store, "/a").await,
            ["/a IX 1/1 living", "/a IS 2/1 living"]
        );
        assert_eq!(
            at(&store, "/a/b").await,
            ["/a/b S 1/1 living", "/a/b IS 2/1 living"]
        );
        assert_eq!(at(&store, "/a/d").await, [""; 0]);
        end(&store, 1, End::Revoke).await;
        assert_eq!(at(&store, "/a").await, ["/a IS 2/1 living"]);
        assert_eq!(at(&store, "/a/c").await, [""; 0], "nobody there counts");
    }
}

/// They stay until they are swept, or the path is granted.
#[tokio::test(start_paused = true)]
async fn a_path_lists_who_holds_something_below_it_behind_thousands_who_have_gone() {
    for store in both() {
        open(&store, [1, 2]).await;
        let gone: Vec<String> = (0..3_000).map(|n| format!("write /a/{n:04}")).collect();
        let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
        granted(&store, &request(1, 1, &gone)).await;
        granted(&store, &request(2, 1, &["write /a/z"])).await;
        end(&store, 1, End::Close).await;
        assert_eq!(at(&store, "/a").await, ["/a IX 2/1 living"]);
    }
}

#[tokio::test(start_paused = true)]
async fn records_by_prefix_and_session_come_in_pages() {
    for store in both() {
        open(&store, [1, 2]).await;
        granted(
            &store,
            &request(1, 1, &["upsert a1", "upsert a2", "upsert b"]),
        )
        .await;
        granted(&store, &request(2, 1, &["upsert a3", "upsert a4"])).await;
        for (filter, keys) in [
            (Filter::Prefix("a".into()), vec!["a1", "a2", "a3", "a4"]),
            (
                Filter::Prefix(String::new()),
                vec!["a1", "a2", "a3", "a4", "b"],
            ),
            (Filter::Session(id(1)), vec!["a1", "a2", "b"]),
            (Filter::Prefix("c".into()), vec![]),
        ] {
            let mut found = Vec::new();
            let mut after = None;
            loop {
                let page = store.records(&filter, after.as_deref(), 2).await.unwrap();
                assert!(page.items.len() <= 2);
                found.extend(page.items.iter().map(|record| record.key.to_string()));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, keys, "{filter:?}");
        }
        let error = store.records(&Filter::Session(id(1)), Some("/"), 2).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Config);
        end(&store, 1, End::Revoke).await;
        assert_eq!(list(&store, Filter::Session(id(1))).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn holders_are_shown_with_label_and_time() {
    for store in both() {
        open(&store, [1]).await;
        store.advance(Duration::from_secs(5));
        granted(&store, &request(1, 1, &["create k"])).await;
        let records = list(&store, Filter::Key(key("k"))).await;
        let holder = &records[0].holders[0];
        assert_eq!(holder.label, "process 1");
        assert_eq!(holder.owner.unwrap().m, 1);
        let since = holder.since.unwrap();
        let epoch = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_704_067_200);
        assert_eq!(since.duration_since(epoch).unwrap(), Duration::from_secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_held_until_it_is_evicted() {
    for store in both() {
        open(&store, [1]).await;
        store.plant(&key("k"));
        store.plant(&key("/a/b"));
        let before = list(&store, Filter::Key(key("k"))).await;
        for asked in ["create k", "share k", "write /a/b", "read /a/b/c"] {
            let refusal = busy(&store, &request(1, 1, &[asked])).await;
            let holder = &refusal.first().holders[0];
            assert_eq!(
                (holder.grant, holder.mode),
                (None, crate::Mode::X),
                "{asked}"
            );
            assert!(holder.label.contains("cannot be read"));
            store.release(grant(1, 1), &claims(&[asked])).await.unwrap();
        }
        assert_eq!(list(&store, Filter::Key(key("k"))).await, before);

        store.plant(&key("k"));
        assert!(!store.evict(&before[0]).await.unwrap(), "no longer as seen");
        let seen = &list(&store, Filter::Key(key("k"))).await[0];
        assert!(store.evict(seen).await.unwrap());
        assert!(!store.evict(seen).await.unwrap());
        granted(&store, &request(1, 2, &["create k"])).await;
        let ours = &list(&store, Filter::Key(key("k"))).await[0];
        assert!(
            !store.evict(ours).await.unwrap(),
            "nothing foreign is there"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_leaves_holders_of_ours_and_tells_who_waits() {
    use crate::Wakeups;
    for store in both() {
        open(&store, [1]).await;
        granted(&store, &request(1, 1, &["share k"])).await;
        granted(&store, &request(1, 2, &["share k"])).await;
        store.plant(&key("k"));
        let seen = &list(&store, Filter::Key(key("k"))).await[0];
        release(&store, &request(1, 2, &["share k"])).await;
        assert!(!store.evict(seen).await.unwrap(), "no longer as seen");
        let changed = store.watch(&claims(&["share k"])).await.unwrap();
        let seen = &list(&store, Filter::Key(key("k"))).await[0];
        assert_eq!(
            shown(&seen.holders),
            ["k X foreign living", "k IS 1/1 living"]
        );
        assert!(store.evict(seen).await.unwrap());
        tokio::time::timeout(TTL, changed).await.unwrap();
        assert_eq!(at(&store, "k").await, ["k IS 1/1 living"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_atomic_form_sees_what_cannot_be_read_from_above() {
    let store = MemoryBackend::new();
    open(&store, [1]).await;
    store.plant(&key("/a/b"));
    let refusal = busy(&store, &request(1, 1, &["read /a"])).await;
    assert_eq!(shown(&refusal.first().holders), ["/a IX foreign living"]);
}
