//! Requests that may yet take effect although their number is retired: they ended with a copy unanswered.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Claim;
use crate::client::core::Core;

/// The longest time for which this is tried. By then everything under way has arrived.
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

/// The requests of a session that are in doubt, oldest first. They count as unsettled requests of the whole client.
///
/// A request is settled when a renewal has carried its number as retired and its release after that is acknowledged: a
/// copy that arrives later holds nothing.
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

    /// This renewal is acknowledged, so the numbers that were in doubt before it are retired. Returns what must be
    /// released now, limited in number.
    pub(crate) fn are_over(&mut self, seq: u64, now: Instant, most: usize) -> Vec<Again> {
        let late = |doubt: &&Doubt| doubt.since + IN_DOUBT <= now;
        let late = self.all.iter().take_while(late).count();
        self.all.drain(..late);
        self.core.unsettled(0, late);
        let retired = self.all.iter_mut();
        let retired = retired.take_while(|doubt| doubt.seq < seq);
        let some = retired.filter(|doubt| !doubt.is_sent).take(most);
        some.map(|doubt| {
            doubt.is_sent = true;
            (Arc::clone(&doubt.claims), doubt.n, doubt.range.clone())
        })
        .collect()
    }

    /// The result of the release of that number.
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

    /// The doubts end with the session.
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
