//! The sessions by id, the living, and the dead by when they ended: no sweep reads a million of these.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use crate::backend::rows::{Now, SessionRow};
use crate::{End, Life, SessionId};

#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    rows: BTreeMap<SessionId, SessionRow>,
    living: BTreeSet<SessionId>,
    /// By when they ended.
    dead: BTreeSet<(Duration, SessionId)>,
}

impl Table {
    pub(super) fn get(&self, id: SessionId) -> Option<&SessionRow> {
        self.rows.get(&id)
    }

    pub(super) fn put(&mut self, id: SessionId, row: SessionRow) {
        if let Some(before) = self.rows.get(&id).and_then(|row| row.ended) {
            self.dead.remove(&(before, id));
        }
        match row.life {
            Life::Living => self.living.insert(id),
            Life::Abandoned | Life::Dead => self.living.remove(&id),
        };
        if row.life == Life::Dead {
            self.dead.extend(row.ended.map(|ended| (ended, id)));
        }
        self.rows.insert(id, row);
    }

    /// Those behind one, in order.
    pub(super) fn behind(
        &self,
        after: Option<SessionId>,
    ) -> impl Iterator<Item = (&SessionId, &SessionRow)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range((from, Bound::Unbounded))
    }

    /// Those that end if they are looked at.
    pub(super) fn due(&self, now: Now) -> Vec<SessionId> {
        let is_due = |id: &&SessionId| self.rows[id].ends(End::IfDue, now);
        self.living.iter().filter(is_due).copied().collect()
    }

    /// Forgets some of those that died before, the first ones first, and says how many.
    pub(super) fn forget(&mut self, before: Duration, most: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < most
            && let Some((ended, id)) = self.dead.first().copied()
            && ended <= before
        {
            self.dead.pop_first();
            self.rows.remove(&id);
            forgotten += 1;
        }
        forgotten
    }
}
