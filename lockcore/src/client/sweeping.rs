//! Sweeps: the removal of what does not count any more. One that has begun belongs to the client: sessions may be short.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::core::{Alive, Core};
use crate::client::sweeps::UnderWay;
use crate::client::task;
use crate::{SessionId, Sweep};

/// The most requests of a sweep at a time, and the pause before it goes on.
const REQUESTS: usize = 4;
const PAUSE: Duration = Duration::from_secs(5);
/// How long one that is under way goes on at most when the client is shut down. It has to do something where all
/// programs are short.
const ENDS: Duration = Duration::from_millis(500);

/// Sweeps the namespace if that is due: no session of this client has done so for the shorter pause, and this one is one of
/// so many among all sessions that were met; or none has for the longer one.
pub(crate) fn sweep_all(core: &Arc<Core>) {
    let is_chosen = core.is_one_of(core.sweeps.one_of());
    if let Some(under_way) = core.sweeps.begin(is_chosen) {
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
        loop {
            under_way.iter().for_each(UnderWay::goes_on);
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
