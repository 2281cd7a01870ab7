//! Locks in etcd.

mod backend;
mod claims;
mod config;
mod error;
mod inspect;
mod link;
mod pages;
mod record;
mod sessions;
mod sweep;
mod wakeups;

pub use backend::EtcdBackend;
pub use config::{ConfigError, EtcdConfig};
