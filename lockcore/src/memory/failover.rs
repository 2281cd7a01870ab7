//! A store that forgets: an earlier copy of it takes over.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::record::Record;
use super::table::Table;
use super::{MemoryBackend, State};
use crate::{Incarnation, LockKey, Registered, SessionId};

/// All that a [`MemoryBackend`] had at one moment.
#[derive(Debug, Clone)]
pub struct MemoryCopy {
    sessions: Table,
    intents: BTreeMap<SessionId, Registered>,
    records: BTreeMap<LockKey, Record>,
}

impl MemoryCopy {
    /// Whether somebody holds the key.
    #[cfg(test)]
    pub(super) fn has(&self, key: &LockKey) -> bool {
        self.records.contains_key(key)
    }
}

impl MemoryBackend {
    /// The same store with a name, which another one replaces whenever a copy takes over. For where it is made.
    #[must_use]
    pub fn named(self: Arc<Self>) -> Arc<Self> {
        self.update(State::rename);
        self
    }

    /// A copy of what is stored now.
    #[must_use]
    pub fn copy(&self) -> MemoryCopy {
        self.update(|state| MemoryCopy {
            sessions: state.sessions.clone(),
            intents: state.intents.clone(),
            records: state.records.clone(),
        })
    }

    /// The copy takes over: what was written since is forgotten, and a store with a name has another one. Time and tokens
    /// go on. Everybody is woken, as after any connection that broke.
    pub fn fails_over(&self, to: MemoryCopy) {
        self.update(|state| {
            (state.sessions, state.intents, state.records) = (to.sessions, to.intents, to.records);
            if state.incarnation.is_known() {
                state.rename();
            }
        });
        self.watches.wake_everybody();
    }
}

impl State {
    fn rename(&mut self) {
        self.incarnation = Incarnation::new(self.incarnation.get() + 1);
    }
}
