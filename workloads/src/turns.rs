//! Turns at locks: by one task, or by several of one process.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

/// Why a turn could not be taken.
pub type Failure = Box<dyn Error + Send + Sync>;

/// One turn: when it was asked for, granted, and given back with an acknowledgement, in µs since 1970. It was given back
/// after its [`Hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// When it was asked for.
    pub asked: u64,
    /// When it was granted.
    pub granted: u64,
    /// When the release was acknowledged.
    pub released: u64,
}

/// How long a turn holds its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Not at all: it is given back as soon as it is granted.
    None,
    /// Until the other tasks have run once.
    Yield,
}

impl Hold {
    /// Waits for its end.
    pub async fn over(self) {
        if self == Self::Yield {
            tokio::task::yield_now().await;
        }
    }
}

/// Locks, as a library offers them.
#[async_trait]
pub trait Lock: Send + Sync {
    /// Takes the lock of a key as soon as nobody is in the way, calls `granted`, holds it as that says, and gives it back,
    /// acknowledged.
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure>;
}

/// What a turn calls when it has its lock: it notes the time, and says how long the lock is held.
pub type Granted<'a> = dyn FnMut() -> Hold + Send + 'a;

/// The time in µs since 1970.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "two processes have no other clock in common that is as easy to read"
)]
pub fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Takes turns for a while, with a pause after each.
///
/// # Errors
///
/// What the lock's were.
pub async fn take(
    lock: &dyn Lock,
    key: &str,
    until: Instant,
    hold: Hold,
    pause: Duration,
) -> Result<Vec<Turn>, Failure> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let asked = now_us();
        let mut granted = asked;
        let mut note = || {
            granted = now_us();
            hold
        };
        lock.turn(key, &mut note).await?;
        let released = now_us();
        turns.push(Turn {
            asked,
            granted,
            released,
        });
        // Shorter than a timer can wait.
        let again = Instant::now() + pause;
        while Instant::now() < again {
            tokio::task::yield_now().await;
        }
    }
    Ok(turns)
}

/// A task takes turns at each of the keys, for a while, with a pause after each: the turns of each.
///
/// # Errors
///
/// What the lock's were.
///
/// # Panics
///
/// If the lock does.
pub async fn take_by_tasks(
    lock: &Arc<dyn Lock>,
    keys: &[String],
    hold: Hold,
    pause: Duration,
    time: Duration,
) -> Result<Vec<Vec<Turn>>, Failure> {
    let until = Instant::now() + time;
    let mut tasks = Vec::new();
    for key in keys {
        let (lock, key) = (Arc::clone(lock), key.clone());
        #[expect(clippy::disallowed_methods, reason = "a task of the measurement")]
        let task = tokio::spawn(async move { take(&*lock, &key, until, hold, pause).await });
        tasks.push(task);
    }
    let mut each = Vec::new();
    for task in tasks {
        each.push(task.await.expect("the task does not panic")?);
    }
    Ok(each)
}
