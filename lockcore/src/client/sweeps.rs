//! Sweeps: the removal of what does not count any more. One that has begun belongs to the client: sessions may be short.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::clock::now;
use crate::client::core::{Alive, Core};
use crate::client::task;
use crate::{SessionId, Sweep, Swept};

/// How often all sessions of a client together sweep the namespace at most: each sweep may read all sessions there.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(60);
/// Where a sweep reads all sessions, so many of them sweep every ten minutes, on the average.
const SESSIONS_THAT_SWEEP: usize = 16;
/// A client whose last sweep is older sweeps in any case: there may be fewer sessions by now.
const LONGEST_BETWEEN_SWEEPS: Duration = Duration::from_secs(60 * 60);
/// The most requests of a sweep at a time, and the pause before it goes on.
const REQUESTS: usize = 4;
const PAUSE: Duration = Duration::from_secs(5);
/// How long one that is under way goes on at most when the client is shut down. It has to do something where all
/// programs are short.
const ENDS: Duration = Duration::from_millis(500);

/// What a client knows of the sweeps of its namespace.
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
    UnderWay,
    Ended(Instant),
}

/// One is under way until this is dropped.
struct UnderWay(Arc<Sweeps>);

impl Sweeps {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody of this client has swept for so long, nor does so now; if so, one begins.
    fn begins_after(self: &Arc<Self>, pause: Duration) -> Option<UnderWay> {
        let mut last = self.last();
        let begins = match *last {
            Last::None => true,
            Last::UnderWay => false,
            Last::Ended(at) => now().saturating_duration_since(at) >= pause,
        };
        begins.then(|| {
            *last = Last::UnderWay;
            UnderWay(Arc::clone(self))
        })
    }

    fn learn(&self, swept: Swept) {
        match swept.more {
            // It may not have looked at all of them.
            true => self.sessions.fetch_max(swept.sessions, Ordering::Relaxed),
            false => self.sessions.swap(swept.sessions, Ordering::Relaxed),
        };
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.last() = Last::Ended(now());
    }
}

/// Sweeps the namespace if that is due: no session of this client has done so for the shorter pause, and this one is one of
/// so many among all sessions that were met; or none has for the longer one.
pub(crate) fn sweep_all(core: &Arc<Core>) {
    let met = core.sweeps.sessions.load(Ordering::Relaxed);
    let one_of = u32::try_from(met / SESSIONS_THAT_SWEEP).unwrap_or(u32::MAX);
    let pause = match core.is_one_of(one_of.max(1)) {
        true => BETWEEN_SWEEPS,
        false => LONGEST_BETWEEN_SWEEPS,
    };
    if let Some(under_way) = core.sweeps.begins_after(pause) {
        begin(core, Sweep::All, Some(under_way));
    }
}

/// Sweeps what a session has left.
pub(crate) fn sweep_own(core: &Arc<Core>, session: SessionId) {
    begin(core, Sweep::Session(session), None);
}

/// Goes on until nothing is left, or the client is shut down or gone. A failure does not matter: there is a next time.
fn begin(core: &Arc<Core>, which: Sweep, under_way: Option<UnderWay>) {
    // From now on, so that a shutdown waits for it.
    let mut alive = Alive::new(core);
    task::spawn_on(core.config.thread.as_ref(), async move {
        let _under_way = under_way;
        loop {
            let more = tokio::select! {
                more = sweep_some(alive.core(), which) => more,
                () = has_to_end(alive.core()) => false,
            };
            let core = alive.downgrade();
            if !more {
                return;
            }
            sleep(PAUSE).await;
            alive = match core.upgrade() {
                Some(core) if core.check_open().is_ok() => Alive::new(&core),
                _ => return,
            };
        }
    });
}

/// Says whether there is more.
async fn sweep_some(core: &Core, which: Sweep) -> bool {
    for _ in 0..REQUESTS {
        let Ok(swept) = core.backend.sweep(which, core.info.sweep_limit).await else {
            return false;
        };
        if which == Sweep::All {
            core.sweeps.learn(swept);
        }
        if !swept.more {
            return false;
        }
    }
    true
}

async fn has_to_end(core: &Core) {
    core.is_shut_down().await;
    sleep(ENDS).await;
}
