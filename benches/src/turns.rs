//! Turns at one lock: by one task, or by several of one process.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// One turn: when it was asked for and granted, in µs since 1970. It was given back at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) asked: u64,
    pub(crate) granted: u64,
}

/// One lock, as a library offers it.
#[async_trait]
pub(crate) trait Lock: Send + Sync {
    /// Takes it as soon as nobody else has it, calls `granted`, and gives it back, acknowledged.
    async fn turn(&self, granted: &mut (dyn FnMut() + Send));
}

#[expect(
    clippy::disallowed_methods,
    reason = "two processes have no other clock in common that is as easy to read"
)]
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Takes turns for a while, with a pause after each.
pub(crate) async fn take(lock: &dyn Lock, until: Instant, pause: Duration) -> Vec<Turn> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let asked = now_us();
        let mut granted = asked;
        lock.turn(&mut || granted = now_us()).await;
        turns.push(Turn { asked, granted });
        // Shorter than a timer can wait.
        let again = Instant::now() + pause;
        while Instant::now() < again {
            tokio::task::yield_now().await;
        }
    }
    turns
}

/// So many tasks take turns for a while: the turns of each.
pub(crate) async fn take_by_tasks(
    lock: &Arc<dyn Lock>,
    tasks: usize,
    time: Duration,
) -> Vec<Vec<Turn>> {
    let until = Instant::now() + time;
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let lock = Arc::clone(lock);
            #[expect(clippy::disallowed_methods, reason = "a task of the measurement")]
            tokio::spawn(async move { take(&*lock, until, Duration::ZERO).await })
        })
        .collect();
    let mut each = Vec::new();
    for task in tasks {
        each.push(task.await.expect("it does not panic"));
    }
    each
}
