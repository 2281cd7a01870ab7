//! Locks in an index of Elasticsearch or OpenSearch: the backend of lockkeeper for programs whose documents are there.
mod backend;
mod bulk;
mod claims;
mod config;
mod error;
mod http;
mod inspect;
mod read;
mod record;
mod scripts;
mod sessions;
mod sweep;
mod wakeups;

pub use backend::EsBackend;
pub use config::{ConfigError, EsConfig};
