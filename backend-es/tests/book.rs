//! *Elasticsearch: The Definitive Guide*, "Solving Concurrency Issues", word for word: its three locking schemes among
//! themselves.

mod support;

use std::collections::BTreeMap;

use elasticsearch::http::Method;
use serde_json::{Value, json};
use support::Space;
use support::book::{Book, SAME_PROCESS, locks_in};

/// An index as somebody has it who never heard of this library.
async fn plain() -> Space {
    let space = Space::new();
    let index = json!({
        "settings": {"number_of_shards": 1, "number_of_replicas": 0},
        "mappings": {"properties": {"process_id": {"type": "keyword"}}},
    });
    let (status, answer) = space.raw(Method::Put, "/{ns}", index.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    space
}

#[tokio::test]
async fn the_global_lock() {
    let space = plain().await;
    let (one, other) = (
        Book {
            space: &space,
            process: 1,
        },
        Book {
            space: &space,
            process: 2,
        },
    );
    assert!(one.create("global", json!({})).await);
    assert!(!other.create("global", json!({})).await);
    one.delete("global").await;
    assert!(other.create("global", json!({})).await);
    other.delete("global").await;
    assert!(locks_in(&space).await.is_empty());
}

#[tokio::test]
async fn the_transcript_of_the_document_lock() {
    let space = plain().await;
    let script = |process: u64| {
        json!({
            "upsert": {"process_id": process},
            "script": {"source": SAME_PROCESS, "params": {"process_id": process}},
        })
    };
    let book = |process| Book {
        space: &space,
        process,
    };
    let lock = |process| {
        let book = book(process);
        async move { book.update("1", script(process)).await }
    };
    assert_eq!(lock(123).await.as_deref(), Some("created"));
    assert_eq!(lock(124).await, None, "another process is refused");
    assert_eq!(
        lock(123).await.as_deref(),
        Some("noop"),
        "the same one changes nothing"
    );
    book(123).release_documents().await;
    assert_eq!(lock(124).await.as_deref(), Some("created"));
}

#[tokio::test]
async fn documents_are_locked_by_bulk_and_released_by_query_or_by_scroll() {
    let space = plain().await;
    let (one, other) = (
        Book {
            space: &space,
            process: 123,
        },
        Book {
            space: &space,
            process: 124,
        },
    );
    for by_scroll in [false, true] {
        assert!(one.lock_documents(&["1", "2", "3", "4", "5"]).await);
        assert!(
            one.lock_documents(&["3", "6"]).await,
            "its own are no obstacle"
        );
        assert!(!other.lock_documents(&["7", "3", "8"]).await);
        assert_eq!(locks_in(&space).await.len(), 8);
        // What the refused one has got is its to give back.
        for book in [&other, &one] {
            if by_scroll {
                book.release_documents_by_scroll().await;
            } else {
                book.release_documents().await;
            }
            let left = locks_in(&space).await;
            assert!(
                left.values().all(|lock| lock["process_id"] != book.process),
                "{left:?}"
            );
        }
        assert!(locks_in(&space).await.is_empty());
    }
}

#[tokio::test]
async fn the_tree_lock() {
    let space = plain().await;
    let (one, other) = (
        Book {
            space: &space,
            process: 1,
        },
        Book {
            space: &space,
            process: 2,
        },
    );
    let count = |locks: &BTreeMap<String, Value>, id: &str| locks[id]["lock_count"].as_u64();
    assert!(one.lock_tree("/clinton/projects/elasticsearch").await);
    assert!(other.lock_tree("/clinton/letters").await);
    let locks = locks_in(&space).await;
    assert_eq!(count(&locks, "/clinton"), Some(2));
    assert_eq!(count(&locks, "/clinton/projects"), Some(1));
    assert_eq!(locks["/clinton/letters"], json!({"lock_type": "exclusive"}));
    for refused in [
        "/clinton",
        "/clinton/projects",
        "/clinton/projects/elasticsearch",
        "/clinton/projects/elasticsearch/README.txt",
    ] {
        assert!(!other.lock_tree(refused).await, "{refused}");
        assert_eq!(locks_in(&space).await, locks, "{refused} leaves nothing");
    }
    one.release_tree("/clinton/projects/elasticsearch").await;
    let locks = locks_in(&space).await;
    assert_eq!(locks.len(), 2);
    assert_eq!(count(&locks, "/clinton"), Some(1));
    other.release_tree("/clinton/letters").await;
    assert!(locks_in(&space).await.is_empty());
}
