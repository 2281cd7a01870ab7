//! The abandoned sessions that this process is recovering.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::SessionId;

/// One task of this process is recovering the session. To the store, all tasks of a process are one
/// adopter.
#[derive(Debug)]
pub(crate) struct Adopting {
    all: Arc<Mutex<HashSet<SessionId>>>,
    pub(crate) session: SessionId,
}

impl Adopting {
    /// `None` if another task is recovering the session.
    pub(crate) fn begin(all: &Arc<Mutex<HashSet<SessionId>>>, session: SessionId) -> Option<Self> {
        let first = locked(all).insert(session);
        let all = Arc::clone(all);
        first.then(|| Self { all, session })
    }

    /// Whether a task is recovering the session.
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
