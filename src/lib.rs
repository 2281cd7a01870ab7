#![doc = include_str!("../README.md")]

mod connect;
mod url;

pub use connect::{ConnectError, backend, connect};
pub use lockcore::*;
