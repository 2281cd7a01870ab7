//! [`Store`]: the store that a URL names, and how to reach it.

use std::sync::Arc;

use lockcore::{Error, LockBackend, MemoryBackend};
#[cfg(feature = "elasticsearch")]
use lockcore_es::{EsBackend, EsConfig};
#[cfg(feature = "etcd")]
use lockcore_etcd::{EtcdBackend, EtcdConfig};
#[cfg(feature = "postgres")]
use lockcore_postgres::{PostgresBackend, PostgresConfig};
#[cfg(feature = "redis")]
use lockcore_redis::{RedisBackend, RedisConfig};
#[cfg(feature = "sqlite")]
use lockcore_sqlite::{SqliteBackend, SqliteConfig};

use crate::{ConnectError, url};

/// A store of this build, as a URL names it.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConfig),
    #[cfg(feature = "elasticsearch")]
    Elasticsearch(Box<EsConfig>),
    #[cfg(feature = "etcd")]
    Etcd(EtcdConfig),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
    #[cfg(feature = "redis")]
    Redis(Box<RedisConfig>),
}

impl Store {
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let (scheme, rest) = url::split(url).ok_or(ConnectError::MissingScheme)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(ConnectError::MemoryTakesNothing),
            #[cfg(feature = "sqlite")]
            "sqlite" => Ok(Self::Sqlite(SqliteConfig::parse(url)?)),
            #[cfg(not(feature = "sqlite"))]
            "sqlite" => Err(not_compiled_in("sqlite")),
            #[cfg(feature = "elasticsearch")]
            "elasticsearch" | "elasticsearchs" | "opensearch" | "opensearchs" => {
                Ok(Self::Elasticsearch(Box::new(EsConfig::parse(url)?)))
            }
            #[cfg(not(feature = "elasticsearch"))]
            "elasticsearch" | "elasticsearchs" | "opensearch" | "opensearchs" => {
                Err(not_compiled_in("elasticsearch"))
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self::Postgres(Box::new(PostgresConfig::parse(url)?))),
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => Err(not_compiled_in("postgres")),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "valkey" | "valkeys"
            | "valkey+sentinel" | "valkeys+sentinel" => {
                Ok(Self::Redis(Box::new(RedisConfig::parse(url)?)))
            }
            #[cfg(not(feature = "redis"))]
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "valkey" | "valkeys"
            | "valkey+sentinel" | "valkeys+sentinel" => Err(not_compiled_in("redis")),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => Ok(Self::Etcd(EtcdConfig::parse(url)?)),
            #[cfg(not(feature = "etcd"))]
            "etcd" | "etcds" => Err(not_compiled_in("etcd")),
            _ => Err(ConnectError::UnknownScheme {
                scheme: scheme.to_owned(),
            }),
        }
    }

    /// Connects. Creates the namespace if it does not exist yet.
    pub(crate) async fn connect(self) -> Result<Arc<dyn LockBackend>, Error> {
        match self {
            Self::Memory => Ok(MemoryBackend::new()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Ok(SqliteBackend::connect(config).await?),
            #[cfg(feature = "elasticsearch")]
            Self::Elasticsearch(config) => Ok(EsBackend::connect(*config).await?),
            #[cfg(feature = "etcd")]
            Self::Etcd(config) => Ok(EtcdBackend::connect(config).await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => Ok(PostgresBackend::connect(*config).await?),
            #[cfg(feature = "redis")]
            Self::Redis(config) => Ok(RedisBackend::connect(*config).await?),
        }
    }

    /// Removes the namespace with everything in it.
    pub(crate) async fn remove(self) -> Result<(), Error> {
        match self {
            Self::Memory => Ok(()),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => SqliteBackend::remove(config).await,
            #[cfg(feature = "elasticsearch")]
            Self::Elasticsearch(config) => EsBackend::remove(*config).await,
            #[cfg(feature = "etcd")]
            Self::Etcd(config) => EtcdBackend::remove(config).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => PostgresBackend::remove(*config).await,
            #[cfg(feature = "redis")]
            Self::Redis(config) => RedisBackend::remove(*config).await,
        }
    }
}

#[cfg(not(all(
    feature = "sqlite",
    feature = "elasticsearch",
    feature = "etcd",
    feature = "postgres",
    feature = "redis"
)))]
fn not_compiled_in(store: &'static str) -> ConnectError {
    ConnectError::NotCompiledIn {
        scheme: store,
        feature: store,
    }
}
