//! The traits that a store implements, one file each. Small, object-safe, without default methods.
//!
//! What every method shares: one call is **one attempt with the backend's own timeout**. An outcome that is not known
//! for certain (a timeout, a broken connection, an answer that cannot be parsed) is an error of kind
//! [`Indeterminate`](crate::ErrorKind::Indeterminate); only a well-formed answer of the operation itself is an answer.
//! Retrying, ordering, waiting and renewing are the client's.

mod backend;
mod claim_store;
mod inspect;
mod session_store;
mod wakeups;

pub use backend::{Info, LockBackend, Survives};
pub use claim_store::{Acquire, Acquired, Busy, ClaimStore, Holder, Refused, Stood, Sweep, Swept};
pub use inspect::{Filter, Inspect, Page, Record};
pub use session_store::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Renewal, Renewed,
    SessionState, SessionStore, Settled,
};
pub use wakeups::{Changed, Wakeups, never};
