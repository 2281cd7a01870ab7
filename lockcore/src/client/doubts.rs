//! What may yet take effect although its number is over: requests that ended with a copy unanswered.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Claim;
use crate::client::locks::Core;

/// For how long a release is sent again beside each renewal.
const IN_DOUBT: Duration = Duration::from_secs(60);

/// A request in doubt.
pub(crate) struct Doubt {
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) n: u64,
    pub(crate) range: Range<usize>,
    until: Instant,
}

/// The requests of a session that are in doubt, the oldest first. They count as unsettled of the whole client.
pub(crate) struct Doubts {
    core: Arc<Core>,
    all: VecDeque<Doubt>,
}

impl Doubts {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            all: VecDeque::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        claims: &Arc<[Claim]>,
        grants: &[(u64, Range<usize>)],
        now: Instant,
    ) {
        self.core.unsettled(grants.len(), 0);
        self.all.extend(grants.iter().map(|(n, range)| Doubt {
            claims: Arc::clone(claims),
            n: *n,
            range: range.clone(),
            until: now + IN_DOUBT,
        }));
    }

    /// Those that are still in doubt.
    pub(crate) fn at(&mut self, now: Instant) -> impl Iterator<Item = &Doubt> {
        let over = self
            .all
            .iter()
            .take_while(|doubt| doubt.until <= now)
            .count();
        self.all.drain(..over);
        self.core.unsettled(0, over);
        self.all.iter()
    }

    /// What is in doubt ends with the session.
    pub(crate) fn clear(&mut self) {
        self.core.unsettled(0, self.all.len());
        self.all.clear();
    }
}

impl Drop for Doubts {
    fn drop(&mut self) {
        self.clear();
    }
}
