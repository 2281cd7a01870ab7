//! What may yet take effect although its number is over: requests that ended with a copy unanswered.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Claim;
use crate::client::core::Core;

/// For how long it is tried at most: until then whatever was under way has arrived.
const IN_DOUBT: Duration = Duration::from_secs(60);

/// A request in doubt.
struct Doubt {
    claims: Arc<[Claim]>,
    n: u64,
    range: Range<usize>,
    since: Instant,
    /// The last renewal that was sent before.
    seq: u64,
    /// A release is under way.
    is_sent: bool,
}

/// A release to be sent: of which claims, and of which number.
pub(crate) type Again = (Arc<[Claim]>, u64, Range<usize>);

/// The requests of a session that are in doubt, the oldest first. They count as unsettled of the whole client.
///
/// One is settled when a renewal has carried its number as over and after that its release is acknowledged: a copy that
/// comes later holds nothing.
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
        seq: u64,
    ) {
        self.core.unsettled(grants.len(), 0);
        self.all.extend(grants.iter().map(|(n, range)| Doubt {
            claims: Arc::clone(claims),
            n: *n,
            range: range.clone(),
            since: now,
            seq,
            is_sent: false,
        }));
    }

    /// This renewal is acknowledged, and with it that what was in doubt before is over. Says what has to be released now, so
    /// many at most.
    pub(crate) fn are_over(&mut self, seq: u64, now: Instant, most: usize) -> Vec<Again> {
        let late = |doubt: &&Doubt| doubt.since + IN_DOUBT <= now;
        let late = self.all.iter().take_while(late).count();
        self.all.drain(..late);
        self.core.unsettled(0, late);
        let over = self.all.iter_mut();
        let over = over.take_while(|doubt| doubt.seq < seq);
        let some = over.filter(|doubt| !doubt.is_sent).take(most);
        some.map(|doubt| {
            doubt.is_sent = true;
            (Arc::clone(&doubt.claims), doubt.n, doubt.range.clone())
        })
        .collect()
    }

    /// What came of the release of that number.
    pub(crate) fn was_sent(&mut self, n: u64, acknowledged: bool) {
        let Some(at) = self.all.iter().position(|doubt| doubt.n == n) else {
            return;
        };
        if acknowledged {
            self.all.remove(at);
            self.core.unsettled(0, 1);
        } else {
            self.all[at].is_sent = false;
        }
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
