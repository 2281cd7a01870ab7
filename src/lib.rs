//! Locks for changes that touch many documents: global, document and tree locks on one abstraction, with fencing
//! tokens, and with recovery of what a dead holder left unfinished.
//!
//! This crate is [`lockcore`](https://docs.rs/lockcore) with the stores that are switched on, and [`connect`]:
//!
//! | URL | store | feature |
//! |---|---|---|
//! | `memory:` | one process, for tests; every connection is a store of its own | |
//! | `sqlite:PATH` | one machine, many processes, no server | `sqlite` (default) |
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = lockkeeper::connect("memory:").await?;
//! let guard = locks.tree().read("/clinton").write("/bush").acquire().await?;
//! assert!(guard.is_valid());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```

mod connect;
mod url;

pub use connect::{ConnectError, backend, connect};
pub use lockcore::*;
