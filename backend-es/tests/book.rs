//! *Elasticsearch: The Definitive Guide*, "Solving Concurrency Issues", word for word: its three locking schemes as
//! plain requests, first among themselves, then in one index with this library.
//!
//! The requests are the book's, as today's engines take them: no types in the paths, scripts in Painless, which fails by
//! throwing where Groovy asserted.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::{Attempt, Guard, LockBackend, Locks, Released};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use support::Space;

/// Does nothing for the process that has the lock, and fails for any other.
const SAME_PROCESS: &str = "if (ctx._source.process_id != params.process_id) { \
     throw new IllegalStateException('locked') } ctx.op = 'none'";
/// One more below, unless the directory itself is locked.
const INCREMENT: &str = "if (ctx._source.lock_type == 'exclusive') { \
     throw new IllegalStateException('locked') } ctx._source.lock_count++";
/// One less below; the last one takes the document away.
const DECREMENT: &str = "if (--ctx._source.lock_count == 0) { ctx.op = 'delete' }";

/// Who follows the book by hand.
struct Book<'a> {
    space: &'a Space,
    process: u64,
}

fn encoded(id: &str) -> String {
    utf8_percent_encode(id, NON_ALPHANUMERIC).to_string()
}

/// The directories above a path, the shortest first.
fn above(path: &str) -> Vec<&str> {
    let cuts = path.match_indices('/').skip(1);
    cuts.map(|(at, _)| &path[..at]).collect()
}

impl Book<'_> {
    async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        self.space.raw(method, path, body.to_string()).await
    }

    /// `PUT /fs/lock/<id>/_create`
    async fn create(&self, id: &str, document: Value) -> bool {
        let path = format!("/{{ns}}/_create/{}", encoded(id));
        match self.send(Method::Put, &path, document).await {
            (201, _) => true,
            (409, _) => false,
            other => panic!("creating {id}: {other:?}"),
        }
    }

    /// `DELETE /fs/lock/<id>`
    async fn delete(&self, id: &str) {
        let path = format!("/{{ns}}/_doc/{}", encoded(id));
        let (status, answer) = self.send(Method::Delete, &path, Value::Null).await;
        assert_eq!(status, 200, "deleting {id}: {answer}");
    }

    /// `POST /fs/lock/<id>/_update`; the result, or `None` where the script has failed.
    async fn update(&self, id: &str, body: Value) -> Option<String> {
        // One that lost a race against another update is sent again.
        let path = format!("/{{ns}}/_update/{}?retry_on_conflict=100", encoded(id));
        match self.send(Method::Post, &path, body).await {
            (200 | 201, answer) => Some(answer["result"].as_str()?.to_owned()),
            (400, answer) if answer.to_string().contains("script_exception") => None,
            other => panic!("updating {id}: {other:?}"),
        }
    }

    async fn bulk(&self, lines: &[Value]) -> Vec<Value> {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let (status, answer) = self.space.raw(Method::Post, "/{ns}/_bulk", lines).await;
        assert_eq!(status, 200, "{answer}");
        let items = answer["items"].as_array().unwrap().iter();
        // Each is an object of one entry, named by its action.
        let items = items.map(|item| item.as_object().unwrap().values().next().unwrap().clone());
        items.collect()
    }

    /// Creates a lock for each document; those that exist already are asked whether they are this process's own.
    async fn lock_documents(&self, ids: &[&str]) -> bool {
        let process_id = self.process;
        let create = |id: &&str| {
            [
                json!({"create": {"_id": id}}),
                json!({"process_id": process_id}),
            ]
        };
        let items = self
            .bulk(&ids.iter().flat_map(create).collect::<Vec<_>>())
            .await;
        let refused = ids
            .iter()
            .zip(&items)
            .filter(|(_, item)| item["status"] == 409);
        let update = |(id, _): (&&str, _)| {
            let script = json!({"source": SAME_PROCESS, "params": {"process_id": process_id}});
            [
                json!({"update": {"_id": id}}),
                json!({"upsert": {"process_id": process_id}, "script": script}),
            ]
        };
        let again: Vec<Value> = refused.flat_map(update).collect();
        if again.is_empty() {
            return true;
        }
        let items = self.bulk(&again).await;
        items.iter().all(|item| item["status"].as_u64() < Some(300))
    }

    /// Refreshes, and deletes what bears the process's id.
    async fn release_documents(&self) {
        self.refresh().await;
        let query = json!({"query": {"term": {"process_id": self.process}}});
        let path = "/{ns}/_delete_by_query";
        let (status, answer) = self.send(Method::Post, path, query).await;
        assert_eq!((status, &answer["failures"]), (200, &json!([])), "{answer}");
    }

    /// As before there was a delete by query: scrolls through them, and deletes each page by a bulk.
    async fn release_documents_by_scroll(&self) {
        self.refresh().await;
        let query =
            json!({"size": 2, "_source": false, "query": {"term": {"process_id": self.process}}});
        let mut page = self
            .send(Method::Post, "/{ns}/_search?scroll=1m", query)
            .await
            .1;
        loop {
            let hits = page["hits"]["hits"].as_array().unwrap().clone();
            let scroll = json!({"scroll": "1m", "scroll_id": page["_scroll_id"]});
            if hits.is_empty() {
                let scroll = json!({"scroll_id": page["_scroll_id"]});
                self.send(Method::Delete, "/_search/scroll", scroll).await;
                return;
            }
            let delete = |hit: &Value| json!({"delete": {"_id": hit["_id"]}});
            self.bulk(&hits.iter().map(delete).collect::<Vec<_>>())
                .await;
            page = self.send(Method::Post, "/_search/scroll", scroll).await.1;
        }
    }

    async fn refresh(&self) {
        let (status, answer) = self.send(Method::Post, "/{ns}/_refresh", Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn lock_shared(&self, path: &str) -> bool {
        let upsert = json!({"lock_type": "shared", "lock_count": 1});
        let update = json!({"upsert": upsert, "script": {"source": INCREMENT}});
        self.update(path, update).await.is_some()
    }

    async fn release_shared(&self, paths: &[&str]) {
        for path in paths.iter().rev() {
            let released = self
                .update(path, json!({"script": {"source": DECREMENT}}))
                .await;
            assert!(released.is_some(), "{path}");
        }
    }

    /// Shared on every directory above, the shortest first, then exclusive on the path itself.
    async fn lock_tree(&self, path: &str) -> bool {
        let above = above(path);
        for (n, directory) in above.iter().enumerate() {
            if !self.lock_shared(directory).await {
                self.release_shared(&above[..n]).await;
                return false;
            }
        }
        let locked = self.create(path, json!({"lock_type": "exclusive"})).await;
        if !locked {
            self.release_shared(&above).await;
        }
        locked
    }

    /// In the reverse order.
    async fn release_tree(&self, path: &str) {
        self.delete(path).await;
        self.release_shared(&above(path)).await;
    }
}

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

/// Every lock that is there, by its id.
async fn locks_in(space: &Space) -> BTreeMap<String, Value> {
    let (status, answer) = space
        .raw(Method::Post, "/{ns}/_refresh", String::new())
        .await;
    assert_eq!(status, 200, "{answer}");
    let query = json!({"size": 1000, "query": {"match_all": {}}}).to_string();
    let (status, answer) = space.raw(Method::Post, "/{ns}/_search", query).await;
    assert_eq!(status, 200, "{answer}");
    let hits = answer["hits"]["hits"].as_array().unwrap().iter();
    let documents = hits.map(|hit| {
        (
            hit["_id"].as_str().unwrap().to_owned(),
            hit["_source"].clone(),
        )
    });
    documents
        .filter(|(id, _)| !id.starts_with("~session/"))
        .collect()
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

/// An index of this library's, and a client of it.
async fn shared() -> (Space, Locks) {
    let space = Space::new();
    let locks = client(&space).await;
    (space, locks)
}

async fn client(space: &Space) -> Locks {
    let backend: Arc<dyn LockBackend> = support::connect(space).await;
    Locks::builder(backend).build().unwrap()
}

/// A lock of either party.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lock {
    Global(&'static str),
    Document(&'static str),
    Tree(&'static str),
    /// Only this library has these.
    Read(&'static str),
    Share(&'static str),
}

impl Lock {
    async fn by_book(self, book: &Book<'_>) -> bool {
        match self {
            Lock::Global(id) => book.create(id, json!({})).await,
            Lock::Document(id) => book.lock_documents(&[id]).await,
            Lock::Tree(path) => book.lock_tree(path).await,
            Lock::Read(_) | Lock::Share(_) => unreachable!("the book has none"),
        }
    }

    async fn released_by_book(self, book: &Book<'_>) {
        match self {
            Lock::Global(id) => book.delete(id).await,
            Lock::Document(_) => book.release_documents().await,
            Lock::Tree(path) => book.release_tree(path).await,
            Lock::Read(_) | Lock::Share(_) => unreachable!("the book has none"),
        }
    }

    async fn by_library(self, locks: &Locks) -> Option<Guard> {
        let attempt = match self {
            Lock::Global(id) => locks.global(id).try_acquire().await,
            Lock::Document(id) => locks.documents([id]).try_acquire().await,
            Lock::Tree(path) => locks.tree().write(path).try_acquire().await,
            Lock::Read(path) => locks.tree().read(path).try_acquire().await,
            Lock::Share(id) => locks.share(id).try_acquire().await,
        };
        match attempt.unwrap() {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Busy(busy) => {
                assert!(
                    !busy.first().holders.is_empty(),
                    "{self:?}: somebody is in the way"
                );
                None
            }
        }
    }
}

/// What excludes what: the book's lock, then this library's.
const EXCLUDING: &[(Lock, Lock)] = &[
    (Lock::Global("k"), Lock::Global("k")),
    (Lock::Global("k"), Lock::Document("k")),
    (Lock::Global("k"), Lock::Share("k")),
    (Lock::Document("k"), Lock::Global("k")),
    (Lock::Document("k"), Lock::Document("k")),
    (Lock::Document("k"), Lock::Share("k")),
    (Lock::Tree("/a/b"), Lock::Tree("/a/b")),
    (Lock::Tree("/a/b"), Lock::Tree("/a")),
    (Lock::Tree("/a/b"), Lock::Tree("/a/b/c")),
    (Lock::Tree("/a/b"), Lock::Read("/a/b")),
    (Lock::Tree("/a/b"), Lock::Read("/a")),
    (Lock::Tree("/a/b"), Lock::Read("/a/b/c/d")),
    // A path is an id as any other.
    (Lock::Global("/a/b"), Lock::Tree("/a/b")),
    (Lock::Global("/a/b"), Lock::Tree("/a/b/c")),
    (Lock::Global("/a/b"), Lock::Read("/a/b/c")),
    (Lock::Document("/a/b"), Lock::Tree("/a/b")),
    (Lock::Document("/a/b"), Lock::Tree("/a/b/c")),
    (Lock::Document("/a/b"), Lock::Read("/a/b")),
];

/// What stands beside each other.
const BESIDE: &[(Lock, Lock)] = &[
    (Lock::Global("k"), Lock::Global("l")),
    (Lock::Document("k"), Lock::Document("K")),
    (Lock::Tree("/a/b"), Lock::Tree("/a/c")),
    (Lock::Tree("/a/b/c"), Lock::Tree("/a/x/y")),
    (Lock::Tree("/a/b"), Lock::Tree("/a!b")),
    (Lock::Tree("/a/b/c"), Lock::Read("/a/b/d")),
    (Lock::Tree("/a/b"), Lock::Document("a/b")),
    (Lock::Document("/a/b"), Lock::Read("/a/c")),
];

async fn gives_back(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

async fn nothing_left(space: &Space, locks: &Locks, what: &str) {
    // What a release has begun in the background is done then.
    assert!(locks.shutdown(Duration::from_secs(20)).await, "{what}");
    let left = locks_in(space).await;
    assert!(left.is_empty(), "{what} leaves {left:?}");
}

#[tokio::test]
async fn the_book_and_this_library_exclude_each_other() {
    let space = Space::new();
    let book = Book {
        space: &space,
        process: 123,
    };
    for &(by_book, by_library) in EXCLUDING {
        let what = format!("{by_book:?} and {by_library:?}");
        let locks = client(&space).await;
        assert!(by_book.by_book(&book).await, "{what}");
        assert!(
            by_library.by_library(&locks).await.is_none(),
            "{what}: the book's was first"
        );
        by_book.released_by_book(&book).await;
        let guard = by_library.by_library(&locks).await;
        let guard = guard.unwrap_or_else(|| panic!("{what}: the book's was released"));
        assert!(
            !by_book.by_book(&book).await,
            "{what}: this library's was first"
        );
        assert!(guard.confirm().await.unwrap(), "{what}");
        gives_back(guard).await;
        assert!(
            by_book.by_book(&book).await,
            "{what}: this library's was released"
        );
        by_book.released_by_book(&book).await;
        nothing_left(&space, &locks, &what).await;
    }
}

#[tokio::test]
async fn the_book_and_this_library_stand_beside_each_other() {
    let space = Space::new();
    let book = Book {
        space: &space,
        process: 123,
    };
    for &(by_book, by_library) in BESIDE {
        for book_first in [true, false] {
            for book_leaves_first in [true, false] {
                let what =
                    format!("{by_book:?} and {by_library:?}, {book_first} {book_leaves_first}");
                let locks = client(&space).await;
                let guard = if book_first {
                    assert!(by_book.by_book(&book).await, "{what}");
                    by_library.by_library(&locks).await
                } else {
                    let guard = by_library.by_library(&locks).await;
                    assert!(by_book.by_book(&book).await, "{what}");
                    guard
                };
                let guard = guard.unwrap_or_else(|| panic!("{what}"));
                if book_leaves_first {
                    by_book.released_by_book(&book).await;
                    assert!(guard.confirm().await.unwrap(), "{what}");
                    gives_back(guard).await;
                } else {
                    gives_back(guard).await;
                    by_book.released_by_book(&book).await;
                }
                nothing_left(&space, &locks, &what).await;
            }
        }
    }
}

#[tokio::test]
async fn counts_of_both_add_up() {
    let (space, locks) = shared().await;
    let book = Book {
        space: &space,
        process: 123,
    };
    let count = |locks: &BTreeMap<String, Value>| locks["/a"]["lock_count"].as_u64();
    let mut guards = Vec::new();
    for n in 0..3_u64 {
        assert!(book.lock_tree(&format!("/a/book{n}")).await);
        guards.push(
            locks
                .tree()
                .write(format!("/a/ours{n}"))
                .acquire()
                .await
                .unwrap(),
        );
        assert_eq!(count(&locks_in(&space).await), Some(2 * (n + 1)));
    }
    assert!(Lock::Tree("/a").by_library(&locks).await.is_none());
    assert!(!book.lock_tree("/a").await);
    for (n, guard) in guards.into_iter().enumerate() {
        gives_back(guard).await;
        assert_eq!(count(&locks_in(&space).await), u64::try_from(5 - n).ok());
    }
    let book_only = json!({"lock_type": "shared", "lock_count": 3});
    assert_eq!(
        locks_in(&space).await["/a"],
        book_only,
        "as the book has it"
    );
    for n in 0..3 {
        book.release_tree(&format!("/a/book{n}")).await;
    }
    nothing_left(&space, &locks, "counting").await;
}

/// Each path has somebody in it or nobody; a path and one below it never both.
#[derive(Default)]
struct Occupied(std::sync::Mutex<Vec<&'static str>>);

impl Occupied {
    fn enter(&self, path: &'static str) {
        let mut inside = self.0.lock().unwrap();
        let related = |other: &str| {
            let (short, long) = if other.len() < path.len() {
                (other, path)
            } else {
                (path, other)
            };
            long == short
                || long
                    .strip_prefix(short)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        let other = inside.iter().find(|other| related(other));
        assert_eq!(
            other, None,
            "somebody is in {path}'s way, who holds {inside:?}"
        );
        inside.push(path);
    }

    fn leave(&self, path: &str) {
        self.0.lock().unwrap().retain(|inside| *inside != path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_both_excludes_each_other_and_leaves_nothing() {
    const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/a/d", "/a/d/e/f", "/x/y"];
    const TURNS: usize = 25;
    let (space, locks) = shared().await;
    let space = Arc::new(space);
    let occupied = Arc::new(Occupied::default());
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4_usize {
        let ours = (locks.clone(), Arc::clone(&occupied), Arc::clone(&done));
        let (space, occupied, done) =
            (Arc::clone(&space), Arc::clone(&occupied), Arc::clone(&done));
        tasks.spawn(async move {
            let book = Book {
                space: &space,
                process: u64::try_from(worker).unwrap(),
            };
            for turn in 0..TURNS {
                let path = PATHS[(worker + 5 * turn) % PATHS.len()];
                while !book.lock_tree(path).await {
                    // The book has nothing that tells who waits: it asks again.
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..30))).await;
                }
                occupied.enter(path);
                // Long enough for somebody else to come in, if a lock let them.
                tokio::time::sleep(Duration::from_millis(1)).await;
                occupied.leave(path);
                book.release_tree(path).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (locks, occupied, done) = ours;
        tasks.spawn(async move {
            for turn in 0..TURNS {
                let path = PATHS[(worker + 7 * turn) % PATHS.len()];
                let guard = locks.tree().write(path).acquire().await.unwrap();
                occupied.enter(path);
                // Long enough for somebody else to come in, if a lock let them.
                tokio::time::sleep(Duration::from_millis(1)).await;
                occupied.leave(path);
                gives_back(guard).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(done.load(Ordering::Relaxed), 8 * TURNS);
    nothing_left(&space, &locks, "the crowd").await;
}
