//! Locks in PostgreSQL, 14 and later: the backend of lockkeeper for those who have one already.

mod backend;
mod claims;
mod config;
mod connections;
mod error;
mod inspect;
mod namespace;
mod record;
mod sessions;
mod sql;
mod wakeups;

pub use backend::PostgresBackend;
pub use config::{ConfigError, PostgresConfig};
