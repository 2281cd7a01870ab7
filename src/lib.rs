#![doc = include_str!("../README.md")]

pub mod blocking;
mod connect;
mod scratch;
mod store;
mod url;

/// Marks an implementation of [`Recover`] or of a backend trait.
pub use async_trait::async_trait;
pub use connect::{ConnectError, backend, connect, connect_on_own_thread, remove};
pub use lockcore::{
    Abandoned, AcquireError, Acquisition, Attempt, Busy, Claim, Cycle, Durability, Election, Error,
    ErrorKind, FencingToken, Flat, Grant, Guard, HandleError, Held, Holder, IdError, Info,
    InputError, Intent, IntentError, KeepError, Kept, KeptState, KeyError, Label, LabelError, Late,
    Leader, Leadership, Life, Link, LockBackend, LockKey, LockPath, Locks, LocksBuilder,
    LostReason, MemoryBackend, Mode, Note, NoteKind, Notes, Operation, OwnThread, Owner, OwnerId,
    PrepareError, Progress, Recover, RecoverError, Recovery, Refused, Released, Result, RunError,
    RwLock, Schedule, SessionId, SessionState, TokenError, Tree, Turn, Waiting, Want, backend,
    limits,
};
pub use scratch::Scratch;

/// Locks in a SQLite file.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use lockcore_sqlite::{SqliteBackend, SqliteConfig, Synchronous};
}

/// Locks in Elasticsearch and OpenSearch.
#[cfg(feature = "elasticsearch")]
pub mod elasticsearch {
    #[cfg(feature = "aws")]
    pub use lockcore_es::aws_config;
    pub use lockcore_es::{
        ActiveShards, BearerToken, EsBackend, EsConfig, OPENSEARCH_ROLE_INIT, OPENSEARCH_ROLE_USE,
        ROLE_INIT, ROLE_USE, elasticsearch,
    };
}

/// Locks in PostgreSQL.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use lockcore_postgres::{PostgresBackend, PostgresConfig};
}

/// Locks in Redis and Valkey.
#[cfg(feature = "redis")]
pub mod redis {
    pub use lockcore_redis::{FENCED_SET, LEAST_ACL, RedisBackend, RedisConfig, redis};
}

/// Locks in etcd.
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use lockcore_etcd::{EtcdBackend, EtcdConfig, LEAST_ROLE, etcd_client, fenced};
}
