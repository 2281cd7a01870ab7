//! The traits of a store, one file each. They are small and object-safe. Only [`Wakeups::watch_turn`] has a default.
//!
//! All methods share one rule: one call is **one attempt with the backend's own timeout**. If the outcome is not known
//! for certain (a timeout, a broken connection, an answer that cannot be parsed), the call fails with an error of kind
//! [`Indeterminate`](crate::ErrorKind::Indeterminate); only a well-formed answer to the operation itself is an answer.
//! The client does the retrying, ordering, waiting and renewing.

mod backend;
mod claim_store;
mod inspect;
mod session_store;
mod wakeups;

pub use backend::{Durability, Info, LockBackend};
pub use claim_store::{
    Acquire, Acquired, Busy, ClaimStore, Holder, Past, Refused, Stood, Sweep, Swept, Waiting,
};
pub use inspect::{Filter, Inspect, Page, Record};
pub use session_store::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Renewal, Renewed,
    SessionState, SessionStore, Settled,
};
pub use wakeups::{Changed, Wakeups, never};
