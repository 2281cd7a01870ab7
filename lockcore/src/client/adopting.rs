//! Which abandoned sessions this process is at.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SessionId;
use crate::client::core::Core;

/// One task of this process is at the session; the store takes all of them for one adopter.
#[derive(Debug)]
pub(crate) struct Adopting {
    all: Arc<Mutex<HashSet<SessionId>>>,
    pub(crate) session: SessionId,
}

impl Adopting {
    /// `None` if another task is at it.
    pub(crate) fn begin(core: &Core, session: SessionId) -> Option<Self> {
        let all = Arc::clone(&core.adopting);
        let first = locked(&all).insert(session);
        first.then(|| Self { all, session })
    }

    /// Whether a task is at it.
    pub(crate) fn is_begun(core: &Core, session: SessionId) -> bool {
        locked(&core.adopting).contains(&session)
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        locked(&self.all).remove(&self.session);
    }
}

fn locked(all: &Mutex<HashSet<SessionId>>) -> MutexGuard<'_, HashSet<SessionId>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
