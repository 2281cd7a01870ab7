//! [`Site`]: where the programs of a simulated process run.

use std::sync::Arc;
use std::time::Duration;

use lockcore::sim::Gate;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::client::kill;
use super::fixture::{Fixture, detached};
use crate::history::What;
use crate::programs::{Access, Place};

/// One process of a simulated world.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) fixture: Arc<Fixture>,
    pub(super) process: u32,
    pub(super) gate: Gate,
}

impl Place for Site {
    fn now(&self) -> u64 {
        self.fixture.recorder.now()
    }

    /// No virtual time passes between an instant and what is written down of it.
    fn record_at(&self, _at: u64, what: What) {
        self.fixture.record(self.process, what);
    }

    fn number(&self) -> u64 {
        self.fixture.number()
    }

    fn is_stopped(&self) -> bool {
        self.fixture.is_stopped()
    }

    fn ttl(&self) -> Duration {
        self.fixture.plan.ttl
    }

    /// Nobody is told that a kept lock was forgotten.
    fn may_keep(&self) -> bool {
        self.fixture.plan.failovers.is_none()
    }

    fn may_die(&self) -> bool {
        self.fixture.plan.kills
    }

    async fn die(&self) {
        kill(&self.fixture, self.process, &self.gate);
    }

    async fn read(&self, access: &Access) -> Option<u64> {
        let Access {
            resource,
            fenced,
            attempt,
            token,
        } = access.clone();
        let value = self.fixture.resources().read(&resource, fenced, token);
        self.record(What::Read {
            resource,
            fenced,
            attempt,
            value,
        });
        value
    }

    /// The write is under way by itself: it arrives although the program is paused or killed meanwhile.
    async fn write(&self, access: Access, read: u64, delay: Duration) {
        let (answer, answered) = oneshot::channel();
        let site = self.clone();
        detached(async move {
            sleep(delay).await;
            let Access {
                resource,
                fenced,
                attempt,
                token,
            } = access;
            let mut resources = site.fixture.resources();
            let taken = resources.write(&resource, fenced, token, read + 1);
            drop(resources);
            site.record(What::Wrote {
                resource,
                fenced,
                attempt,
                read,
                taken,
            });
            // The program may be gone.
            let _ = answer.send(());
        });
        drop(answered.await);
    }
}
