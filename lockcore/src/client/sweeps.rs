//! What a client knows of the sweeps of its namespace: which is due, and how many sessions there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Swept;
use crate::client::clock::now;

/// How often all sessions of a client together sweep the namespace at most: each sweep may read all sessions there.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60);
/// Where a sweep reads all sessions, so many of them sweep every ten minutes, on the average.
const SESSIONS_THAT_SWEEP: usize = 16;
/// A client whose last sweep is older sweeps in any case: there may be fewer sessions by now.
const LONGEST_BETWEEN_SWEEPS: Duration = Duration::from_secs(60 * 60);

#[derive(Default)]
pub(crate) struct Sweeps {
    last: Mutex<Last>,
    /// How many sessions the last one has looked at.
    sessions: AtomicUsize,
}

/// The last sweep.
#[derive(Clone, Copy, Default)]
enum Last {
    #[default]
    None,
    /// And went on then.
    UnderWay(Instant),
    Ended(Instant),
}

/// One is under way until this is dropped.
pub(crate) struct UnderWay(Arc<Sweeps>);

impl Sweeps {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of so many sessions sweeps.
    pub(crate) fn one_of(&self) -> u32 {
        let met = self.sessions.load(Ordering::Relaxed);
        u32::try_from(met / SESSIONS_THAT_SWEEP)
            .unwrap_or(u32::MAX)
            .max(1)
    }

    /// Begins one, unless another is under way or the last has ended too short a time ago: the shorter pause is for one
    /// who is chosen among many.
    pub(crate) fn begin(self: &Arc<Self>, is_chosen: bool) -> Option<UnderWay> {
        let pause = match is_chosen {
            true => BETWEEN_SWEEPS,
            false => LONGEST_BETWEEN_SWEEPS,
        };
        let mut last = self.last();
        let begins = match *last {
            Last::None => true,
            // Nobody may drive its runtime any more.
            Last::UnderWay(at) => now().saturating_duration_since(at) >= LONGEST_BETWEEN_SWEEPS,
            Last::Ended(at) => now().saturating_duration_since(at) >= pause,
        };
        begins.then(|| {
            *last = Last::UnderWay(now());
            UnderWay(Arc::clone(self))
        })
    }

    pub(crate) fn learn(&self, swept: Swept) {
        match swept.more {
            // It may not have looked at all of them.
            true => self.sessions.fetch_max(swept.sessions, Ordering::Relaxed),
            false => self.sessions.swap(swept.sessions, Ordering::Relaxed),
        };
    }
}

impl UnderWay {
    pub(crate) fn goes_on(&self) {
        *self.0.last() = Last::UnderWay(now());
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.last() = Last::Ended(now());
    }
}
