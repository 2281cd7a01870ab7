//! [`Breaker`]: repeated requests while a store fails. The tasks of a client take turns, so that many are no storm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::clock::{now, sleep_until, timer};
use crate::{Error, ErrorKind, Result};

/// The first and the longest pause before any request is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// For so long a turn may be left unused.
const UNUSED: Duration = Duration::from_secs(1);
/// When the store answers again, the waiting tasks are spread over a fifth of the time they have waited, but at most
/// over this.
const SPREAD: Duration = Duration::from_secs(2);

/// Whether the same request may succeed later.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Indeterminate
    )
}

/// The client's randomness.
pub(crate) trait Chance {
    /// A random part of a duration.
    fn chance(&self, of: Duration) -> Duration;

    /// The pause after so many failures: exponential, with full jitter.
    fn backoff(&self, failures: u32, first: Duration, longest: Duration) -> Duration {
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.chance(doubled.min(longest))
    }
}

/// What a client knows of a failing store. A request that was not sent yet is sent at once. Repeated requests are sent
/// one after the other while nothing is answered, with growing pauses, and all at once when something is.
///
/// Requests for locks and requests that give them back have a breaker each, so that neither waits for the other.
#[derive(Debug)]
pub(crate) struct Breaker {
    fails: AtomicBool,
    turns: Mutex<Turns>,
    /// Its owner has the next turn; the others queue behind it.
    first: tokio::sync::Mutex<()>,
    answered: Notify,
}

#[derive(Debug)]
struct Turns {
    next: Instant,
    /// How many there were since the last answer.
    taken: u32,
}

impl Turns {
    fn take(&mut self, chance: &impl Chance) {
        self.taken += 1;
        self.next = now() + chance.backoff(self.taken + 1, PAUSE.0, PAUSE.1);
    }
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self {
            fails: AtomicBool::new(false),
            turns: Mutex::new(Turns {
                next: now(),
                taken: 0,
            }),
            first: tokio::sync::Mutex::default(),
            answered: Notify::new(),
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request.
    pub(crate) fn heard<T>(&self, chance: &impl Chance, answer: &Result<T>) {
        let fails = answer.as_ref().is_err_and(may_pass);
        if fails == self.fails.load(Ordering::Acquire) {
            return;
        }
        let mut turns = self.turns();
        turns.taken = 0;
        turns.next = now() + chance.backoff(1, PAUSE.0, PAUSE.1);
        self.fails.store(fails, Ordering::Release);
        if !fails {
            self.answered.notify_waiters();
        }
    }

    /// Waits until a request that failed so often should be sent again. `false` if that is not before `until`.
    ///
    /// # Cancel safety
    ///
    /// The place in the queue is lost.
    pub(crate) async fn again(&self, chance: &impl Chance, failures: u32, until: Instant) -> bool {
        let since = now();
        let worth_asking = async {
            loop {
                let answered = self.answered.notified();
                if !self.fails.load(Ordering::Acquire) {
                    break;
                }
                tokio::select! {
                    biased;
                    () = answered => {}
                    () = self.turn(chance) => return,
                }
            }
            let waited = now().saturating_duration_since(since);
            let own = chance.backoff(failures, PAUSE.0, PAUSE.1);
            sleep(own.max(chance.chance((waited / 5).min(SPREAD)))).await;
        };
        timeout_at(timer(until), worth_asking).await.is_ok()
    }

    /// The next turn. A task that leaves before its turn comes leaves it to the one behind. One that does not use its turn
    /// may be a future that nobody polls: it is passed.
    async fn turn(&self, chance: &impl Chance) {
        let in_order = async {
            let _first = self.first.lock().await;
            let next = self.turns().next;
            sleep_until(next).await;
            self.turns().take(chance);
        };
        tokio::select! {
            biased;
            () = in_order => {}
            () = self.unused(chance) => {}
        }
    }

    /// Takes a turn that nobody has used for a second.
    async fn unused(&self, chance: &impl Chance) {
        loop {
            let next = self.turns().next;
            sleep_until(next + UNUSED).await;
            let mut turns = self.turns();
            if turns.next == next {
                return turns.take(chance);
            }
        }
    }
}
