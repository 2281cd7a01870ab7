//! The core of lockkeeper: its vocabulary, the traits of a store and their laws, and the client.

pub mod backend;
pub mod limits;

mod claim;
mod client;
mod error;
mod intent;
mod key;
mod memory;
mod mode;
mod namespace;
mod note;
mod prepare;
mod ranges;
mod session;
mod store;
mod token;
mod waits;

/// For simulations: clients that pause and die.
#[cfg(lockcore_sim)]
#[doc(hidden)]
pub use client::sim;

/// Marks an implementation of one of the traits.
pub use async_trait::async_trait;
pub use claim::{Claim, Want};
pub use client::{
    Abandoned, AcquireError, Acquisition, Attempt, Election, Flat, Guard, HandleError, Held,
    InputError, KeepError, Kept, KeptState, Late, Leader, Leadership, Locks, LocksBuilder,
    LostReason, OwnThread, Owner, Progress, Recover, RecoverError, Recovery, Released, RunError,
    RwLock, Schedule, Tree, Turn,
};
pub use error::{Error, ErrorKind, Operation};
pub use intent::{Intent, IntentError};
pub use key::{KeyError, LockKey, LockPath};
pub use memory::MemoryBackend;
#[cfg(any(test, lockcore_sim))]
pub use memory::MemoryCopy;
pub use mode::Mode;
pub use note::{Note, NoteKind, Notes};
pub use prepare::PrepareError;
pub use session::{Grant, IdError, Label, LabelError, Life, OwnerId, SessionId};
pub use store::{Busy, Durability, Holder, Info, LockBackend, Refused, SessionState, Waiting};
pub use token::{FencingToken, TokenError};
pub use waits::{Cycle, Link};

// What programs do not name: `backend` has it for authors.
use intent::Registered;
use prepare::prepare;
use ranges::Ranges;
use store::{
    Acquire, Acquired, Adopt, Adopted, Adoption, Changed, ClaimStore, End, Filter, Incarnation,
    Inspect, IntentChange, Opened, Page, Record, Renewal, Renewed, SessionStore, Settled, Stood,
    Sweep, Swept, Wakeups, never,
};

/// The answer of a store, or an error.
pub type Result<T> = std::result::Result<T, Error>;
