//! Words, laws, traits and the client of lockkeeper.

pub mod backend;
pub mod judge;
pub mod limits;

mod claim;
mod client;
mod error;
mod intent;
mod key;
mod memory;
mod mode;
mod namespace;
mod prepare;
mod ranges;
mod session;
mod store;
mod token;

/// For simulations: clients that pause, die, and break their rules.
#[cfg(lockcore_sim)]
#[doc(hidden)]
pub use client::sim;

/// What an implementation of one of the traits is marked with.
pub use async_trait::async_trait;
pub use claim::{Claim, Want};
pub use client::{
    Abandoned, AcquireError, Acquisition, Attempt, Documents, Global, Guard, Held, InputError,
    Locks, LocksBuilder, LostReason, Owner, Progress, Recover, RecoverError, Recovery, Released,
    RunError, Shared, Tree,
};
pub use error::{Error, ErrorKind, Operation};
pub use intent::{Intent, IntentError, Registered};
pub use key::{KeyError, LockKey, LockPath};
pub use memory::MemoryBackend;
pub use mode::Mode;
pub use namespace::{Namespace, NamespaceError};
pub use prepare::{PrepareError, prepare};
pub use ranges::{Ranges, RangesError};
pub use session::{Grant, IdError, Label, LabelError, Life, OwnerId, SessionId};
pub use store::{
    Acquire, Acquired, Adopt, Adoption, Busy, Changed, ClaimStore, End, Filter, Holder, Info,
    Inspect, IntentChange, LockBackend, Opened, Page, Record, Refused, Renewal, Renewed,
    SessionState, SessionStore, Survives, Sweep, Swept, Wakeups,
};
pub use token::{FencingToken, TokenError};

/// What a store answers, or why it did not.
pub type Result<T> = std::result::Result<T, Error>;
