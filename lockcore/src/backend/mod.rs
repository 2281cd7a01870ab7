//! For authors of backends and of operators' tools: the traits with their requests and answers, the [rules](rows) for
//! stores of rows, the [judgement](judge) for all other stores, and what every store needs around them.
//!
//! Implement the traits, or [`Rows`](rows::Rows), and pass the backend to [`Locks::builder`](crate::Locks::builder).

pub mod judge;
pub mod rows;

mod batch;
mod small;
mod task;
mod together;
mod url;
mod watches;
mod within;

pub use crate::intent::Registered;
pub use crate::namespace::{Namespace, NamespaceError};
pub use crate::prepare::prepare;
pub use crate::ranges::{Ranges, RangesError};
pub use crate::store::{
    Acquire, Acquired, Adopt, Adopted, Adoption, Changed, ClaimStore, End, Filter, Incarnation,
    Inspect, IntentChange, LockBackend, Opened, Page, Past, Record, Renewal, Renewed, SessionStore,
    Settled, Stood, Sweep, Swept, Wakeups, never,
};
pub use crate::waits::{Wait, cycle_of, cycles, waits};
pub use batch::Batch;
pub use small::{SendMany, SmallBatches, SmallLimits};
pub use task::{Standing, Task};
pub use together::Together;
pub use url::{Grammar, Host, Options, StoreUrl, UrlError, split};
pub use watches::{Watch, Watches};
pub use within::within;
