//! Waiters: the store notifies nobody, so the writer thread polls while somebody waits.

use std::time::{Duration, Instant};

use lockcore::backend::rows::{Moved, Moving, Seen};
use tokio::sync::oneshot;

use crate::error::Outcome;
use crate::file::File;

/// Time from one poll to the next, and what is added at random so that processes do not poll at the same time.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(2);
const POLL_JITTER_US: u64 = 1_000;

/// So many obstacles of one watch are followed.
pub(crate) const FOLLOWED: usize = 64;

struct Watcher {
    seen: Seen,
    wake: oneshot::Sender<()>,
}

/// Those who wait in this process.
#[derive(Default)]
pub(crate) struct Watchers {
    waiting: Vec<Watcher>,
    next_poll: Option<Instant>,
    /// The state of the file at the last poll.
    version: i64,
    /// When the first session in the way is due.
    due: Option<Duration>,
}

impl Watchers {
    /// When the next poll is due; `None` if nobody waits.
    pub(crate) fn next_poll(&self) -> Option<Instant> {
        self.next_poll
    }

    pub(crate) fn add(&mut self, seen: Seen) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        if seen.is_free() {
            let _ = wake.send(());
        } else {
            self.waiting.push(Watcher { seen, wake });
            // The first poll is a full one: when the next session is due is not known yet.
            self.due = Some(Duration::ZERO);
            self.next_poll.get_or_insert_with(soon);
        }
        woken
    }

    /// Wakes those in whose way something was that was given back here, and polls whether something else has changed,
    /// if it is time for it.
    pub(crate) fn poll(&mut self, file: &mut File) {
        let freed = file.take_freed();
        self.wake(|seen| seen.is_on(&freed.keys));
        self.waiting.retain(|watcher| !watcher.wake.is_closed());
        let Some(at) = self.next_poll else { return };
        if self.waiting.is_empty() {
            self.next_poll = None;
            return;
        }
        if !freed.any && Instant::now() < at {
            return;
        }
        self.next_poll = Some(soon());
        // A file that cannot be read is news as well: whoever waits will see the error.
        if self.look_now(file, freed.any).is_err() {
            self.wake(|_| true);
        }
    }

    fn look_now(&mut self, file: &mut File, freed: bool) -> Outcome<()> {
        let due = self.due.is_some_and(|due| due <= file.now());
        let changed = file.changed(&mut self.version)? || freed;
        if !(changed || due) {
            return Ok(());
        }
        let seen = self.waiting.iter().map(|watcher| watcher.seen.clone());
        let Moved { moved, due } = file.act(&Moving(seen.collect()))?;
        self.due = due;
        let mut moved = moved.into_iter();
        self.wake(|seen| moved.next() == Some(true) || (changed && seen.is_part()));
        Ok(())
    }

    fn wake(&mut self, mut which: impl FnMut(&Seen) -> bool) {
        let woken = self.waiting.extract_if(.., |watcher| which(&watcher.seen));
        for watcher in woken {
            let _ = watcher.wake.send(());
        }
    }
}

fn soon() -> Instant {
    Instant::now() + POLL_EVERY + Duration::from_micros(rand::random_range(0..POLL_JITTER_US))
}
