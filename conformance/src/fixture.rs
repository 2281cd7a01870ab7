//! [`Fixture`] and [`Space`]: the fixture that the author of a backend writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{LockBackend, LockKey, SessionId};

use crate::case::Layer;

/// An error in the fixture.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What some stores have and others lack, or what a fixture can do to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Other processes reach the spaces by their [`Space::url`].
    Processes,
    /// [`Space::age`] moves the end of a session.
    Aging,
    /// [`Space::restart`] restarts the store.
    Restart,
    /// [`Space::recreate`] removes the namespace.
    Recreation,
    /// [`lease_left`](lockcore::backend::Inspect::lease_left) tells what is left of a living session's lease.
    LeaseLeft,
    /// [`watch_turn`](lockcore::backend::Wakeups::watch_turn) gives a watch for a waiter's turn.
    TurnWatch,
    /// Sessions are told the store's [incarnation](lockcore::backend::Incarnation).
    Incarnation,
}

/// The cases that need something, beside those of several processes. A row without a name is the whole group.
const NEEDS: &[(&str, &str, Feature)] = &[
    (
        "adoption",
        "an_adoption_meant_for_another_incarnation_changes_nothing",
        Feature::Incarnation,
    ),
    ("line", "a_waiter_learns_that_it_may_go", Feature::TurnWatch),
    (
        "listing",
        "what_is_left_of_leases_is_told",
        Feature::LeaseLeft,
    ),
    (
        "sessions",
        "what_is_meant_for_another_incarnation_changes_nothing",
        Feature::Incarnation,
    ),
    (
        "tokens",
        "over_a_new_namespace_of_the_same_name",
        Feature::Recreation,
    ),
    ("tokens", "over_a_restart_of_the_store", Feature::Restart),
    (
        "tombstones",
        "a_tombstone_stays_while_late_requests_may_come",
        Feature::Aging,
    ),
    ("tombstones", "an_old_tombstone_goes", Feature::Aging),
];

impl Feature {
    pub(crate) fn needed(layer: Layer, group: &str, name: &str) -> Option<Self> {
        if layer == Layer::Processes {
            return Some(Self::Processes);
        }
        let mut rows = NEEDS.iter();
        let row = rows.find(|(of, case, _)| (*of, *case) == (group, name));
        row.map(|(.., need)| *need)
    }
}

/// A kind of store, and how to create empty namespaces in it.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The first part of every trial's name: `sqlite`, or `redis-wait`.
    fn name(&self) -> String;

    /// Whether the store's time follows tokio's clock in this process. If so, every case runs with that clock paused,
    /// and takes no real time.
    fn paused(&self) -> bool;

    /// What the store or the fixture lacks. The cases that [need](crate::Case::needs) it are ignored. A case that misses
    /// what is not named here fails; so does an ignored case, run with `--include-ignored`, if nothing is missing.
    fn lacks(&self) -> Vec<Feature> {
        Vec::new()
    }

    /// Creates a new, empty namespace. Cases run concurrently, each in a namespace of its own.
    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError>;

    /// The backend on a space of another process, by its [`Space::url`]. Called in a child process of the suite.
    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError>;
}

/// A fresh namespace. It may remove what it created when it is dropped.
#[async_trait]
pub trait Space: Send + Sync {
    /// The backend on this namespace, as another process would have it: with connections and caches of its own. With
    /// only one process, the same object.
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError>;

    /// Lets at least this much of the store's time pass, and not much more. Sleeps, unless it can move the store's
    /// clock.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// How much later than its TTL the store may still say that a session is not due: the resolution of its clock, the
    /// difference between the clocks of its nodes, its polling interval.
    fn allowance(&self) -> Duration;

    /// Writes a record on this key, which nobody holds, that the backend cannot understand, such as that of another
    /// writer or of a newer version.
    async fn plant(&self, key: &LockKey) -> Result<(), BoxError>;

    /// Moves the end of this session into the past by this time. The session is dead or abandoned, and was swept. The
    /// fixture writes to the store, or moves its clock; then other sessions may be due. Returns whether it did. If it
    /// cannot, which is the default, the fixture lacks [`Feature::Aging`], and nobody knows when the store forgets a session.
    async fn age(&self, _session: SessionId, _by: Duration) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Ends the store and starts it again, as after a crash or an upgrade. Every backend that
    /// [`connect`](Self::connect) gave out was dropped before; new ones are created afterwards. `false` if the store
    /// cannot be restarted, or if others use it too: the fixture lacks [`Feature::Restart`].
    async fn restart(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// Removes the namespace with everything in it; the next [`connect`](Self::connect) creates one of the same name.
    /// Every backend was dropped before. `false` if the namespace cannot be removed: the fixture lacks
    /// [`Feature::Recreation`].
    async fn recreate(&self) -> Result<bool, BoxError> {
        Ok(false)
    }

    /// The URL by which another process reaches the namespace, if it can.
    fn url(&self) -> Option<String>;
}
