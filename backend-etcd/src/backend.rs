//! The backend itself: connecting, and its properties.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{DeleteOptions, TxnOp};
use lockcore::backend::SmallBatches;
use lockcore::limits::MAX_TTL;
use lockcore::{Durability, Error, Info, LockBackend, Operation};

use crate::claims::Refused;
use crate::config::EtcdConfig;
use crate::error::NAME;
use crate::link::{Link, SharedLink};
use crate::pages::after;
use crate::together::small;
use crate::txn::{Found, Way, keys};
use crate::wakeups::Watches;

/// The server makes no shorter leases with its default configuration.
const MIN_TTL: Duration = Duration::from_secs(2);
/// How many keys are removed in one request. A million would take the server longer than a request may.
const REMOVED_AT_ONCE: usize = 5_000;

/// Locks in an etcd.
///
/// Its operations are those of lockcore's traits. Dropping the future of an operation does not take back a request that
/// was sent: it may be executed, and its answer is lost. Dropping the backend closes its connection.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the conformance suite does the same with one.
///
/// ```no_run
/// use lockcore::LockBackend;
/// use lockcore_etcd::{EtcdBackend, EtcdConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = EtcdConfig::parse("etcd://a,b,c/?namespace=fs")?;
/// let backend = EtcdBackend::connect(config).await?;
/// assert_eq!(backend.info().name, "etcd");
/// # Ok(())
/// # }
/// ```
pub struct EtcdBackend {
    pub(crate) link: SharedLink,
    pub(crate) watches: Watches,
    pub(crate) small: SmallBatches,
    pub(crate) refused: Refused,
}

impl EtcdBackend {
    /// Connects. Creates the namespace if it does not exist yet. Several processes may do so at once.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config): a namespace of another version, certificates that cannot be
    /// read, or a user where the server has none. Of kind [`Unauthorized`](lockcore::ErrorKind::Unauthorized): the
    /// server rejects the credentials or does not permit the request. Of other kinds as in every operation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty namespace.
    pub async fn connect(config: EtcdConfig) -> Result<Arc<Self>, Error> {
        let link = Arc::new(Link::new(config)?);
        link.connected().await?;
        Ok(Arc::new(Self {
            small: small(&link),
            link,
            watches: Watches::default(),
            refused: Refused::default(),
        }))
    }

    /// Removes the namespace with everything in it. A holder of a lock in it loses the lock at its next renewal and is
    /// not asked. End all users first, because their later requests would recreate the namespace. A namespace that does
    /// not exist is no error. The call needs no other rights than to use the namespace.
    ///
    /// Its leases, which hold nothing then, end by themselves: those of sessions within their TTL, and those of
    /// tombstones, which a sweep of everything makes, within a day.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). A namespace of another version is not removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves what was not removed by then, or no more than the key `NAMESPACE/meta`. Call it
    /// again.
    pub async fn remove(config: EtcdConfig) -> Result<(), Error> {
        let link = Arc::new(Link::new(config)?);
        let (mut range, operation) = (link.names.all(), Operation::Remove);
        let way = Way {
            link: &link,
            operation,
        };
        loop {
            let mut found = way.all(vec![keys(&range, REMOVED_AT_ONCE)]).await?;
            let Found { pairs, more, .. } = found.found()?;
            let next = after(&pairs, more);
            let to = next.clone().unwrap_or_else(|| range.to.clone());
            let removal = DeleteOptions::new().with_range(to);
            way.all(vec![TxnOp::delete(range.from, Some(removal))])
                .await?;
            match next {
                Some(from) => range.from = from,
                None => return Ok(()),
            }
        }
    }

    pub(crate) fn way(&self, operation: Operation) -> Way<'_> {
        Way {
            link: &self.link,
            operation,
        }
    }

    /// How many claims and ancestors fit into a transaction.
    pub(crate) fn keys_per_batch(&self) -> usize {
        self.link.config.batch().0
    }
}

impl LockBackend for EtcdBackend {
    fn info(&self) -> Info {
        let mut info = Info::new(NAME, "the monotonic clock of the cluster's leader");
        (info.keys_per_batch, info.bytes_per_batch) = self.link.config.batch();
        (info.min_ttl, info.max_ttl) = (MIN_TTL, MAX_TTL);
        info.durability = Durability {
            crash: true,
            power_loss: true,
            failover: true,
        };
        info
    }
}

impl std::fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdBackend")
            .field("config", &self.link.config)
            .finish_non_exhaustive()
    }
}
