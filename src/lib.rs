#![doc = include_str!("../README.md")]

mod connect;
mod scratch;
mod store;
mod url;

/// For [`Recover`] and for backends.
pub use async_trait::async_trait;
pub use connect::{ConnectError, backend, connect};
pub use lockcore::*;
pub use scratch::Scratch;
