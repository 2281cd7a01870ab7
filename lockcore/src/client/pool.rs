//! The session in which an acquisition runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::oneshot;

use crate::client::clock::now;
use crate::client::core::{Alive, Core};
use crate::client::keeper::keep;
use crate::client::session::Handle;
use crate::client::task;
use crate::limits::MAX_OVER_RANGES;
use crate::{Error, ErrorKind, Opened, Operation, Result, SessionId};

/// How many sessions in a row may be opened too late for anything.
const LATE: u32 = 3;

/// The session that acquisitions share. The first acquisition that needs it opens it. It is replaced when it is lost,
/// or its numbers form too many ranges; the old one then closes with its last guard.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Shared>);

#[derive(Debug, Default)]
struct Shared {
    session: Option<Handle>,
    /// Those who wait for the session that is being opened, in order. They belong to the task that opens it, and end
    /// with it.
    opening: Weak<Waiters>,
}

type Waiters = Mutex<Vec<oneshot::Sender<Result<Handle>>>>;

fn locked<T>(all: &Mutex<T>) -> MutexGuard<'_, T> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    fn locked(&self) -> MutexGuard<'_, Shared> {
        #[cfg(test)]
        super::tests::crossing::happens();
        locked(&self.0)
    }

    /// The shared session. A task of its own opens it, so a caller that leaves keeps nobody waiting.
    pub(crate) async fn shared(self: &Arc<Self>, core: &Arc<Core>) -> Result<Handle> {
        // The runtime of an opening may end, and with it the opening; this one's lives.
        for _ in 0..2 {
            let opened = {
                let mut shared = self.locked();
                if let Some(handle) = shared.usable() {
                    return Ok(handle);
                }
                let (done, opened) = oneshot::channel();
                let opening = shared.opening.upgrade().unwrap_or_else(|| {
                    let waiters = Arc::default();
                    shared.opening = Arc::downgrade(&waiters);
                    self.begin(core, &waiters);
                    waiters
                });
                locked(&opening).push(done);
                opened
            };
            if let Ok(outcome) = opened.await {
                return outcome;
            }
        }
        Err(gone(core))
    }

    fn begin(self: &Arc<Self>, core: &Arc<Core>, waiters: &Arc<Waiters>) {
        let (pool, waiters) = (Arc::clone(self), Arc::clone(waiters));
        let (core, alive) = (Arc::clone(core), Alive::new(core));
        let thread = core.config.thread.clone();
        task::spawn_on(thread.as_ref(), async move {
            let _counted = alive;
            let is_wanted = || !locked(&waiters).iter().all(oneshot::Sender::is_closed);
            let outcome = open(&core, is_wanted).await;
            let waiters = {
                let mut shared = pool.locked();
                shared.opening = Weak::new();
                // An acquisition that is still under way while the client shuts down keeps its session to itself. A client
                // that shuts down after this look takes it away, for which it waits for the lock.
                if core.check_open().is_ok()
                    && let Ok(handle) = &outcome
                {
                    shared.session = Some(handle.clone());
                }
                std::mem::take(&mut *locked(&waiters))
            };
            for waiter in waiters {
                // Whoever waited may have gone.
                drop(waiter.send(outcome.clone()));
            }
        });
    }

    /// The shared session, if there is one.
    pub(crate) fn usable(&self) -> Option<Handle> {
        self.locked().usable()
    }

    /// Its id.
    pub(crate) fn current(&self) -> Option<SessionId> {
        self.usable().map(|handle| handle.session.id)
    }

    /// Drops the pool's own handle. The session closes with its last guard.
    pub(crate) fn let_go(&self) {
        self.locked().session = None;
    }
}

impl Shared {
    fn usable(&self) -> Option<Handle> {
        let handle = self.session.as_ref().filter(|handle| handle.is_usable())?;
        (handle.session.numbers().ranges() <= MAX_OVER_RANGES).then(|| handle.clone())
    }
}

/// Opens a session for one acquisition, on a task of its own. If nobody waits for it any more, it is closed.
pub(crate) async fn alone(core: &Arc<Core>) -> Result<Handle> {
    let (done, opened) = oneshot::channel();
    let (opens, alive) = (Arc::clone(core), Alive::new(core));
    task::spawn_on(core.config.thread.as_ref(), async move {
        let _counted = alive;
        let outcome = open(&opens, || !done.is_closed()).await;
        drop(done.send(outcome));
    });
    opened.await.unwrap_or_else(|_| Err(gone(core)))
}

/// The opening ended without an outcome.
fn gone(core: &Core) -> Error {
    let what = "the runtime in which the session was being opened is gone: acquire again";
    Error::new(
        ErrorKind::Indeterminate,
        core.info.name,
        Operation::Open,
        what,
    )
}

/// Opens a session. `go_on` says whether an open of unknown outcome should be followed by another one.
pub(crate) async fn open(core: &Arc<Core>, go_on: impl Fn() -> bool) -> Result<Handle> {
    let patience = core.patience();
    let (mut failures, mut late) = (0, 0);
    loop {
        // An open of unknown outcome is never sent again: its session, if there is one, is nobody's, and dies when it
        // is due.
        let id = SessionId::new(core.random());
        let sent = now();
        let (label, ttl) = (&core.config.label, core.config.ttl);
        let answer = core.backend.open(id, label, ttl).await;
        core.asking.heard(&**core, &answer);
        let error = match answer {
            Ok(Opened::Opened(incarnation)) if now() < sent + core.config.validity() => {
                return Ok(keep(core, id, sent, incarnation));
            }
            Ok(Opened::Used) => continue,
            Ok(Opened::Opened(_)) => {
                late += 1;
                if late <= LATE && go_on() {
                    continue;
                }
                return Err(too_late(core));
            }
            Err(error) => error,
        };
        failures += 1;
        let in_doubt = error.kind() == ErrorKind::Indeterminate && now() < patience;
        if !in_doubt
            || !go_on()
            || !core.asking.again(&**core, failures, patience).await
            || !go_on()
        {
            return Err(error);
        }
    }
}

/// The answer came when nothing could be held any more.
fn too_late(core: &Core) -> Error {
    let what = "the session was over when the store answered: choose a longer TTL, or find out why the store is so slow";
    Error::new(
        ErrorKind::Indeterminate,
        core.info.name,
        Operation::Open,
        what,
    )
}
