//! The backend itself: connecting, the namespace's index, and the properties of the store.

use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::http::Method;
use lockcore::{Durability, Error, Info, LockBackend, Operation};
use serde::de::IgnoredAny;

use crate::bulk::{Together, together};
use crate::config::{ActiveShards, EsConfig};
use crate::error::{Failure, NAME, Outcome};
use crate::http::{Lane, Nodes, Request};
use crate::namespace::{copies, find, find_or_make};
use crate::polls::{POLL_EVERY, Polls};
use crate::primary::Known;
use crate::read::Refreshed;
use crate::sweep;

/// As many records as are written in about 50 ms.
const KEYS_PER_BATCH: usize = 2_000;
/// A renewal takes its time, and so does a failover.
const MIN_TTL: Duration = Duration::from_secs(2);

/// Locks in an index of Elasticsearch or OpenSearch.
///
/// Its operations are those of lockcore's traits. Dropping the future of an operation ends the connection that it uses.
/// A request that was sent may still be executed; its answer is lost. A clone uses the same connections.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the conformance suite does the same with one.
///
/// ```no_run
/// use lockcore::LockBackend;
/// use lockcore_es::{EsBackend, EsConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = EsConfig::parse("elasticsearch://localhost:9200/?namespace=fs")?;
/// let backend = EsBackend::connect(config).await?;
/// assert_eq!(backend.info().name, "elasticsearch");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EsBackend {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) alias: String,
    /// How much longer than its lease a session of this client lives.
    pub(crate) allowance: Duration,
    pub(crate) known: Arc<RwLock<Known>>,
    pub(crate) polls: Arc<Polls>,
    /// That of what it is used for.
    pub(crate) lane: Lane,
    /// Small requests go together, but for those that are.
    pub(crate) together: Option<Arc<Together>>,
    /// What was refreshed, for what is read then.
    pub(crate) refreshed: Option<Refreshed>,
    pub(crate) active: Option<ActiveShards>,
    /// So many single records are not tried as new documents first.
    pub(crate) scripts: Arc<AtomicU32>,
    info: Info,
}

impl EsBackend {
    /// Connects to the server. Creates the index of the namespace if there is none. Several processes may do so at
    /// once.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config): the name is not an alias of this library's (it is an index,
    /// stands for several indices, or for one that another program or another version made), or a CA certificate cannot
    /// be read. Of another kind if the server fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves at most the index.
    pub async fn connect(config: EsConfig) -> Result<Arc<Self>, Error> {
        Self::connected(config)
            .await
            .map_err(|failure| failure.into_error(Operation::Connect))
    }

    /// Removes the namespace, that is, the index with its alias. A holder of a lock in it loses the lock at its next
    /// renewal, or at the deadline, and is not asked. End all users first: the next program that connects recreates the
    /// index. A namespace that does not exist is no error.
    ///
    /// Neither of the shipped roles suffices: the call also needs `delete_index` (in OpenSearch `indices:admin/delete`)
    /// for `NAMESPACE-*`, even if there is nothing to remove.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). An index that is not of this library is not removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves all of the namespace or nothing.
    pub async fn remove(config: EsConfig) -> Result<(), Error> {
        Self::removed(config)
            .await
            .map_err(|failure| failure.into_error(Operation::Remove))
    }

    /// For requests of this lane.
    pub(crate) fn in_lane(&self, lane: Lane) -> Self {
        Self {
            lane,
            ..self.clone()
        }
    }

    /// For reading what is refreshed.
    pub(crate) fn refreshed_by(&self, refreshed: Refreshed) -> Self {
        Self {
            refreshed: Some(refreshed),
            ..self.clone()
        }
    }

    async fn removed(config: EsConfig) -> Outcome<()> {
        let nodes = Nodes::new(&config).await?;
        let place = find(&nodes, config.namespace.as_str()).await?;
        // Where there is none, this asks whether we might remove it.
        let index = place.map_or_else(|| format!("{}-0", config.namespace), |place| place.index);
        let path = format!("/{index}");
        let request = Request {
            method: Method::Delete,
            path: &path,
            query: &[],
            body: Bytes::new(),
        };
        match nodes.send::<IgnoredAny>(request).await {
            Err(failure) if !failure.comes_of("index_not_found_exception") => Err(failure),
            _ => Ok(()),
        }
    }

    async fn connected(config: EsConfig) -> Outcome<Arc<Self>> {
        let nodes = Nodes::new(&config).await?;
        let place = find_or_make(&nodes, &config).await?;
        if let Some(ActiveShards::Count(count)) = config.active
            && u64::from(count) > place.replicas + 1
        {
            let what = format!(
                "the index {} has {} replicas, so that `wait_for_active_shards` can be {} at most: ask for fewer, or give the \
                 index more",
                place.index,
                place.replicas,
                place.replicas + 1
            );
            return Err(Failure::config(what));
        }
        let replicated = place.replicas > 0 && copies(&nodes, config.namespace.as_str()).await > 1;
        let mut info = Info::new(NAME, "the node with the primary shard");
        info.keys_per_batch = KEYS_PER_BATCH;
        info.sweep_limit = sweep::LIMIT;
        info.atomic = false;
        // The node that is asked sends it again where the primary shard moves meanwhile.
        info.repeats = true;
        info.poll = Some(POLL_EVERY);
        info.min_ttl = MIN_TTL;
        info.durability = Durability {
            crash: true,
            power_loss: place.durable,
            failover: replicated && place.durable,
        };
        let alone = Self {
            nodes: Arc::new(nodes),
            alias: config.namespace.to_string(),
            allowance: config.clock_skew,
            known: Arc::new(RwLock::new(Known::new(place))),
            polls: Arc::new(Polls::new(config.timeout)),
            lane: Lane::Others,
            together: None,
            refreshed: None,
            active: config.active,
            scripts: Arc::default(),
            info,
        };
        Ok(Arc::new(Self {
            together: Some(Arc::new(together(alone.clone()))),
            ..alone
        }))
    }
}

impl LockBackend for EsBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }
}

impl fmt::Debug for EsBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EsBackend")
            .field("alias", &self.alias)
            .field("place", &self.place())
            .finish_non_exhaustive()
    }
}
