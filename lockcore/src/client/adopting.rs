//! Which abandoned sessions this process is at.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SessionId;

/// One task of this process is at the session; the store takes all of them for one adopter.
#[derive(Debug)]
pub(crate) struct Adopting {
    all: Arc<Mutex<HashSet<SessionId>>>,
    pub(crate) session: SessionId,
}

impl Adopting {
    /// `None` if another task is at it.
    pub(crate) fn begin(all: &Arc<Mutex<HashSet<SessionId>>>, session: SessionId) -> Option<Self> {
        let first = locked(all).insert(session);
        let all = Arc::clone(all);
        first.then(|| Self { all, session })
    }

    /// Whether a task is at it.
    pub(crate) fn is_begun(all: &Mutex<HashSet<SessionId>>, session: SessionId) -> bool {
        locked(all).contains(&session)
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
