//! The backend itself: connecting, and its properties.

use std::path::PathBuf;
use std::sync::Arc;

use lockcore::backend::{SmallBatches, Standing};
use lockcore::limits::{MAX_TTL, MIN_TTL};
use lockcore::{Error, ErrorKind, Info, LockBackend, Operation};
use redis::{ClientTlsConfig, TlsCertificates};

use crate::claims;
use crate::config::RedisConfig;
use crate::error::{NAME, found};
use crate::link::Link;
use crate::primary::asking;
use crate::scripts;
use crate::wakeups::{Subscription, Watches};

/// As many keys as are taken or released in about two milliseconds, during which all other clients of the server wait.
const KEYS_PER_BATCH: usize = 1_000;

/// Locks in a Redis, or in one slot of a Redis Cluster.
///
/// Its operations are those of lockcore's traits. Dropping the future of an operation does not take back a request that
/// was sent: it is executed, and its answer is lost. Dropping the backend closes its connections.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the conformance suite does the same with one.
///
/// ```no_run
/// use lockcore::LockBackend;
/// use lockcore_redis::{RedisBackend, RedisConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = RedisConfig::parse("redis://127.0.0.1/?namespace=fs")?;
/// let backend = RedisBackend::connect(config).await?;
/// assert_eq!(backend.info().name, "redis");
/// # Ok(())
/// # }
/// ```
pub struct RedisBackend {
    pub(crate) link: Arc<Link>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) subscription: Subscription,
    pub(crate) small: SmallBatches,
    /// Checks whether another server is the primary by now.
    pub(crate) asking: Option<Standing>,
}

impl RedisBackend {
    /// Connects. Creates the namespace if it does not exist yet. Several processes may do so at once.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config): the server cannot keep locks (a lone replica, a server that
    /// evicts data when its memory is full, one that is too old, a namespace of another version), or a certificate
    /// cannot be read. Of kind [`Unauthorized`](lockcore::ErrorKind::Unauthorized): the user lacks a right that is
    /// needed. Of other kinds as in every operation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty namespace.
    pub async fn connect(config: RedisConfig) -> Result<Arc<Self>, Error> {
        let link = link(config)?;
        let made = link.call(Operation::Connect, &scripts::INIT, &[]);
        made.await?;
        Ok(Arc::new(Self {
            asking: asking(&link),
            small: claims::small(&link),
            link,
            watches: Arc::default(),
            subscription: Subscription::default(),
        }))
    }

    /// Removes the namespace with everything in it. A holder of a lock in it loses the lock at its next renewal and is
    /// not asked. End all users first, because their later requests would recreate the namespace. A namespace that does
    /// not exist is no error.
    ///
    /// Besides the rights in `server/least.acl` the user needs the right to `UNLINK`, even if there is nothing to
    /// remove.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A namespace of another version is not removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves all of the namespace or nothing.
    pub async fn remove(config: RedisConfig) -> Result<(), Error> {
        let link = link(config)?;
        let removed = link.call(Operation::Remove, &scripts::REMOVE, &[]);
        removed.await.map(drop)
    }
}

fn link(config: RedisConfig) -> Result<Arc<Link>, Error> {
    let certificates = certificates(&config)?;
    if config.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Whoever was quicker has chosen; either will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(Arc::new(Link::new(config, certificates)))
}

/// The certificates of the files that the configuration names, if it names any.
fn certificates(config: &RedisConfig) -> Result<Option<TlsCertificates>, Error> {
    let read = |path: &Option<PathBuf>, what: &str| match path {
        None => Ok(None),
        Some(path) => std::fs::read(path).map(Some).map_err(|error| {
            let what = format!("the file of {what} cannot be read");
            found(ErrorKind::Config, Operation::Connect, what).with_source(error)
        }),
    };
    let root_cert = read(&config.ca, "the authority's certificate")?;
    let cert = read(&config.cert, "our certificate")?;
    let key = read(&config.key, "the key of our certificate")?;
    let client_tls = cert.zip(key);
    let client_tls = client_tls.map(|(client_cert, client_key)| ClientTlsConfig {
        client_cert,
        client_key,
    });
    let any = root_cert.is_some() || client_tls.is_some();
    Ok(any.then_some(TlsCertificates {
        client_tls,
        root_cert,
    }))
}

impl LockBackend for RedisBackend {
    fn info(&self) -> Info {
        let mut info = Info::new(NAME, "the wall clock of the Redis server");
        info.keys_per_batch = KEYS_PER_BATCH;
        (info.min_ttl, info.max_ttl) = (MIN_TTL, MAX_TTL);
        info.durability = self.link.durability();
        info
    }
}

impl std::fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisBackend")
            .field("config", &self.link.config)
            .finish_non_exhaustive()
    }
}
