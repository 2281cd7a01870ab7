//! Clients that follow the book by hand and this library in one index: they exclude each other, in every combination of
//! scheme and order, and no count is lost.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockcore::{Attempt, Guard, LockBackend, Locks, Released};
use serde_json::{Value, json};
use support::Space;
use support::book::{Book, locks_in};

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
            Lock::Global(id) => locks.lock(id).try_acquire().await,
            Lock::Document(id) => locks.documents([id]).try_acquire().await,
            Lock::Tree(path) => locks.tree().write(path).try_acquire().await,
            Lock::Read(path) => locks.tree().read(path).try_acquire().await,
            Lock::Share(id) => locks.rwlock(id).read().try_acquire().await,
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
    // Where another task waits for the same it goes there.
    let released = guard.release().await.unwrap();
    assert!(
        matches!(released, Released::Released | Released::HandedOn),
        "{released:?}"
    );
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
