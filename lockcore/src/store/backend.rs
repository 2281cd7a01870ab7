//! [`LockBackend`]: a whole store.

use std::time::Duration;

use crate::store::{ClaimStore, Inspect, SessionStore, Wakeups};

/// A store of locks: [`SessionStore`], [`ClaimStore`], [`Wakeups`] and [`Inspect`] for one namespace.
///
/// Its laws are those of its parts; the public suite `lockcore-conformance` checks them all. Two are about all of them:
///
/// - What a request holds while nobody polls it, no other needs: a program may begin one and look at something else first, as
///   the body of a `select!` does. [`Together`](crate::backend::Together) makes what they share.
/// - A renewal waits for no other request of its client: neither for a place, nor for a connection, nor for a login.
///
/// Creating the namespace is the constructor's business.
pub trait LockBackend: SessionStore + ClaimStore + Wakeups + Inspect {
    /// What the client and the operator have to know about the store.
    fn info(&self) -> Info;
}

/// What a store is like. A backend takes [`Info::new`] and changes what differs:
///
/// ```
/// use lockcore::Info;
///
/// let mut info = Info::new("mine", "the server's clock");
/// info.keys_per_step = 200;
/// info.survives.crash = true;
/// assert!(info.atomic && info.poll.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The backend's name, one lower-case word.
    pub name: &'static str,
    /// Whose clock decides that a session is due, in a few words.
    pub clock: &'static str,
    /// Most keys of a step; a claim counts one and its distinct ancestors. A single claim may count more.
    pub keys_per_step: usize,
    /// Most bytes of the keys of a step, counted alike.
    pub bytes_per_step: usize,
    /// So many records the client asks to [sweep](ClaimStore::sweep) in one call: more where each call is dear.
    pub sweep_limit: usize,
    /// A step is taken in one atomic action.
    pub atomic: bool,
    /// The store, or the way to it, may execute a request again by itself: of what is not there when it is released nobody
    /// knows then whether the same request has just removed it.
    pub repeats: bool,
    /// How often somebody who waits looks at the store, where the store does not push wake-ups. A
    /// [watch](crate::Wakeups::watch) resolves within that time, and what one look takes, after what it watches was freed;
    /// where the store pushes, `None`, within what a few requests take.
    pub poll: Option<Duration>,
    /// Shortest TTL of a session.
    pub min_ttl: Duration,
    /// Longest TTL of a session.
    pub max_ttl: Duration,
    /// What acknowledged grants survive, as the store is configured.
    pub survives: Survives,
}

impl Info {
    /// What is true of most stores: 1,000 keys of any length per step and 1,000 records per sweep, atomic, pushed, a TTL
    /// from 1 s to 24 h, and grants that survive nothing.
    #[must_use]
    pub fn new(name: &'static str, clock: &'static str) -> Self {
        Self {
            name,
            clock,
            keys_per_step: 1_000,
            bytes_per_step: usize::MAX,
            sweep_limit: 1_000,
            atomic: true,
            repeats: false,
            poll: None,
            min_ttl: crate::limits::MIN_TTL,
            max_ttl: crate::limits::MAX_TTL,
            survives: Survives {
                crash: false,
                power_loss: false,
                failover: false,
            },
        }
    }
}

/// What a grant survives once it was acknowledged. Where it says no, the lock may be lost; its token still never
/// comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survives {
    /// The end of the store's process.
    pub crash: bool,
    /// A loss of power of the store's machine.
    pub power_loss: bool,
    /// The promotion of another copy of the store; `true` where there is no other copy.
    pub failover: bool,
}
