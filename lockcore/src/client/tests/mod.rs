//! What is seen only from inside: the order of what the keeper does. The public suite has the rest.

mod asleep;
mod attempts;
pub(super) mod crossing;
mod ended;
mod guards;
mod hand_over;
mod in_doubt;
mod in_line;
mod keeping;
mod kept;
mod line;
mod load;
mod max_hold;
mod moving;
mod news;
mod notes;
mod opening;
mod passing;
mod recoveries;
mod releases;
mod shares;
mod spy;
#[cfg(all(feature = "tracing", feature = "metrics"))]
mod telemetry;
mod thread;
mod tombstones;
mod waiting;
mod yielding;

use std::sync::Arc;
use std::time::Duration;

use crate::{LockBackend, Locks, MemoryBackend, Released};

fn locks(backend: &Arc<MemoryBackend>) -> Locks {
    Locks::builder(Arc::clone(backend) as Arc<dyn LockBackend>)
        .build()
        .unwrap()
}

/// The intent is the outer guard's; what is re-entered under it comes and goes without it.
#[tokio::test(start_paused = true)]
async fn a_nested_guard_neither_finishes_nor_leaves_the_change() {
    for backend in [MemoryBackend::new(), MemoryBackend::records()] {
        let (locks, other) = (locks(&backend), locks(&backend));
        let outer = locks
            .tree()
            .write("/a")
            .intent(&"change")
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let nested = |path: &str| locks.tree().write(path).owner(&outer.owner()).acquire();
        drop(nested("/a/b").await.unwrap());
        assert_eq!(
            nested("/a/c").await.unwrap().release().await.unwrap(),
            Released::Released
        );
        // Long enough for every order to have been carried out.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(outer.is_valid());
        drop(outer);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            other.abandoned().await.unwrap().len(),
            1,
            "the intent was there until its guard was dropped"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_released_leaves_nothing() {
    for backend in [MemoryBackend::new(), MemoryBackend::records()] {
        let (locks, other) = (locks(&backend), locks(&backend));
        let guard = locks
            .tree()
            .write("/a")
            .intent(&"change")
            .unwrap()
            .acquire()
            .await
            .unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        let again = other
            .tree()
            .write("/a")
            .wait(Duration::from_secs(1))
            .acquire()
            .await
            .unwrap();
        assert!(again.is_valid());
        assert!(locks.shutdown(Duration::from_secs(1)).await);
        assert_eq!(other.abandoned().await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_no_time_is_a_try() {
    let backend = MemoryBackend::new();
    let locks = locks(&backend);
    let now = || locks.lock("g").wait(Duration::ZERO).acquire();
    let guard = now().await.unwrap();
    assert!(matches!(now().await, Err(crate::AcquireError::Busy(_))));
    drop(guard);
}
