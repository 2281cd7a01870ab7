//! [`LockBackend`]: a whole store.

use std::time::Duration;

use crate::store::{ClaimStore, Inspect, SessionStore, Wakeups};

/// A store of locks: [`SessionStore`], [`ClaimStore`], [`Wakeups`] and [`Inspect`] for one namespace.
///
/// The laws of its parts are its laws; the public suite `lockcore-conformance` checks them all. Two more laws concern
/// all parts:
///
/// - A request that is not polled holds nothing that another request needs. A program may begin a request and then poll
///   something else first, as the body of a `select!` does. [`Together`](crate::backend::Together) creates what
///   requests share.
/// - A renewal waits for no other request of its client: not for a slot, not for a connection, not for a login.
///
/// The constructor creates the namespace.
pub trait LockBackend: SessionStore + ClaimStore + Wakeups + Inspect {
    /// The properties of the store that the client and the operator have to know.
    fn info(&self) -> Info;
}

/// The properties of a store. A backend takes [`Info::new`] and changes what differs:
///
/// ```
/// use lockcore::Info;
///
/// let mut info = Info::new("mine", "the server's clock");
/// info.keys_per_batch = 200;
/// info.durability.crash = true;
/// assert!(info.atomic && info.poll.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The backend's name, one lower-case word.
    pub name: &'static str,
    /// The clock that decides when a session is due, in a few words.
    pub clock: &'static str,
    /// The most keys of a batch. A claim counts as its key and its distinct ancestors; a single claim may count as more
    /// than this.
    pub keys_per_batch: usize,
    /// The most bytes of the keys of a batch, counted in the same way.
    pub bytes_per_batch: usize,
    /// How many records the client asks to [sweep](ClaimStore::sweep) in one call; more if each call is expensive.
    pub sweep_limit: usize,
    /// The store takes a batch in one atomic action.
    pub atomic: bool,
    /// The store, or the way to it, may execute a request again by itself. Then, if a release finds nothing, nobody
    /// knows whether the same request has just removed it.
    pub repeats: bool,
    /// How often a waiter polls the store; `None` if the store pushes wake-ups. A [watch](crate::Wakeups::watch)
    /// resolves within this time, plus the time of one poll, after what it watches was freed; with push, within the
    /// time of a few requests.
    pub poll: Option<Duration>,
    /// The shortest TTL of a session.
    pub min_ttl: Duration,
    /// The longest TTL of a session.
    pub max_ttl: Duration,
    /// The durability of acknowledged grants, as the store is configured.
    pub durability: Durability,
}

impl Info {
    /// The properties of most stores: 1,000 keys of any length per batch and 1,000 records per sweep, atomic,
    /// pushed, a TTL from 1 s to 24 h; and grants that survive nothing.
    #[must_use]
    pub fn new(name: &'static str, clock: &'static str) -> Self {
        Self {
            name,
            clock,
            keys_per_batch: 1_000,
            bytes_per_batch: usize::MAX,
            sweep_limit: 1_000,
            atomic: true,
            repeats: false,
            poll: None,
            min_ttl: crate::limits::MIN_TTL,
            max_ttl: crate::limits::MAX_TTL,
            durability: Durability {
                crash: false,
                power_loss: false,
                failover: false,
            },
        }
    }
}

/// The durability of an acknowledged grant. Where a field is `false` the lock may be lost; its token still never comes
/// back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability {
    /// The grant survives the end of the store's process.
    pub crash: bool,
    /// The grant survives a loss of power of the store's machine.
    pub power_loss: bool,
    /// The grant survives the promotion of another copy of the store; `true` if there is no other copy.
    pub failover: bool,
}
