//! The backend itself: connecting, the namespace's index, and what the store is like.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use elasticsearch::http::Method;
use lockcore::{Error, Info, LockBackend, Operation, Survives};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::config::EsConfig;
use crate::error::{Failure, NAME, Outcome};
use crate::http::{Nodes, Request};
use crate::record::VERSION;
use crate::sweep;
use crate::wakeups::LOOK_EVERY;

/// So many records are written in some 50 ms.
const KEYS_PER_STEP: usize = 2_000;
/// A renewal takes its time, and so does a failover.
const MIN_TTL: Duration = Duration::from_secs(2);
/// The base of the tokens is the time of the namespace's creation in milliseconds, shifted by so many bits.
const BASE_SHIFT: u32 = 10;
/// So often the namespace is looked for again, where others make or remove it meanwhile.
const ATTEMPTS: u32 = 5;

/// Locks in an index of Elasticsearch or OpenSearch.
///
/// Its operations are those of lockcore's traits. Dropping the future of one ends the connection that it uses; what was
/// sent may still be done, and its answer is lost. A clone uses the same connections.
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
    /// How much longer than its lease a session of ours lives.
    pub(crate) allowance: Duration,
    place: Arc<RwLock<Arc<Place>>>,
    /// The index was made anew while we were connected.
    moved: Arc<AtomicBool>,
    info: Info,
}

/// The index behind the alias.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    index: String,
    /// What is added to a sequence number to make a token.
    base: u64,
    replicas: u64,
    durable: bool,
}

impl EsBackend {
    /// Connects to the server, and makes the namespace's index if there is none. Several processes may do so at once.
    ///
    /// # Errors
    ///
    /// Of kind [`Config`](lockcore::ErrorKind::Config) for an alias that is none of ours (it names an index, several indices, or
    /// one that another program or a newer version made), and for a CA certificate that cannot be read; of another kind
    /// if the server fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing but perhaps the index.
    pub async fn connect(config: EsConfig) -> Result<Arc<Self>, Error> {
        Self::connected(config)
            .await
            .map_err(|failure| failure.into_error(Operation::Connect))
    }

    /// Removes the namespace, the index with its alias: who holds a lock there loses it at the next renewal, or at the
    /// deadline, and is not asked. End all who use it first: who connects afterwards makes it anew. One that is not there
    /// is no error.
    ///
    /// Neither of the roles that are shipped suffices: it takes `delete_index` (of OpenSearch `indices:admin/delete`) for
    /// `NAMESPACE-*` besides, also where there is nothing to remove.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect). An index that is none of ours is not removed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves all of the namespace or nothing.
    pub async fn remove(config: EsConfig) -> Result<(), Error> {
        Self::removed(config)
            .await
            .map_err(|failure| failure.into_error(Operation::Remove))
    }

    async fn removed(config: EsConfig) -> Outcome<()> {
        let nodes = Nodes::new(&config)?;
        let place = look(&nodes, config.namespace.as_str()).await?;
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
        let nodes = Nodes::new(&config)?;
        let place = find_or_make(&nodes, &config).await?;
        let mut info = Info::new(NAME, "the node with the primary shard");
        info.keys_per_step = KEYS_PER_STEP;
        info.sweep_limit = sweep::LIMIT;
        info.atomic = false;
        // The node that is asked sends it again where the primary shard moves meanwhile.
        info.repeats = true;
        info.poll = Some(LOOK_EVERY);
        info.min_ttl = MIN_TTL;
        info.survives = Survives {
            crash: true,
            power_loss: place.durable,
            failover: place.replicas > 0 && place.durable,
        };
        Ok(Arc::new(Self {
            nodes: Arc::new(nodes),
            alias: config.namespace.to_string(),
            allowance: config.clock_skew,
            place: Arc::new(RwLock::new(Arc::new(place))),
            moved: Arc::default(),
            info,
        }))
    }

    fn place(&self) -> Arc<Place> {
        let place = self.place.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&place)
    }

    /// The index was made anew while we were connected: what this process knows of its sessions is of the old one.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    /// Checks that the answers come from the index that we know. Else the namespace was made anew, and the answer
    /// belongs to a store that this request was not meant for. Says what is added to a sequence number to make a token.
    pub(crate) async fn answered_by(&self, indices: &[&str]) -> Outcome<u64> {
        let place = self.place();
        if indices.iter().all(|index| *index == place.index) {
            return Ok(place.base);
        }
        let found = look(&self.nodes, &self.alias).await?;
        let found = found.ok_or_else(|| Failure::Answer("the index is gone again".into()))?;
        self.moved.store(true, Ordering::Release);
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        Err(Failure::Answer("the namespace was made anew".into()))
    }
}

/// The index behind the alias, after it was made if need be.
async fn find_or_make(nodes: &Nodes, config: &EsConfig) -> Outcome<Place> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        if let Some(place) = look(nodes, config.namespace.as_str()).await? {
            return Ok(place);
        }
        match make(nodes, config).await {
            Ok(()) => {}
            // Whoever else has just made it is found by the next look; if nobody has, it is told.
            Err(Failure::Server(refusal)) => {
                if refused.is_some() {
                    return Err(Failure::Unmade(refusal));
                }
                refused = Some(Failure::Unmade(refusal));
            }
            Err(failure) => return Err(failure),
        }
    }
    let what = "the namespace's alias is made and removed again and again";
    Err(refused.unwrap_or_else(|| Failure::config(what)))
}

/// Makes the index with its alias, in one step; fails if the alias is there.
async fn make(nodes: &Nodes, config: &EsConfig) -> Outcome<()> {
    let created_ms = unix_ms();
    let mut index = index_as_made();
    index["settings"]["index"]["number_of_replicas"] = config.replicas.into();
    // Only one index can have it as its write index: of two who make it at once, one is refused.
    index["aliases"][config.namespace.as_str()]["is_write_index"] = true.into();
    index["mappings"]["_meta"]["lockkeeper"] = VERSION.into();
    index["mappings"]["_meta"]["base"] = (created_ms << BASE_SHIFT).into();
    // A name of its own: who is connected sees by it that the namespace was made anew.
    let path = format!("/{}-{created_ms}", config.namespace);
    let _: Map<String, Value> = nodes
        .send(Request {
            method: Method::Put,
            path: &path,
            query: &[],
            body: Bytes::from(index.to_string()),
        })
        .await?;
    Ok(())
}

/// The time of this machine, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "a new namespace's tokens begin above an older one's, and people read since when a lock is held; no lease \
                  depends on it"
    )]
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// The index, without what is different in each namespace.
fn index_as_made() -> Value {
    serde_json::from_str(include_str!("../server/index.json"))
        .expect("the file is part of this package")
}

/// What the alias stands for; `None` if there is no such alias.
async fn look(nodes: &Nodes, alias: &str) -> Outcome<Option<Place>> {
    let path = format!("/{alias}");
    let request = Request {
        method: Method::Get,
        path: &path,
        query: &[("flat_settings", "true")],
        body: Bytes::new(),
    };
    match nodes.send::<Map<String, Value>>(request).await {
        Ok(indices) => place(alias, &indices).map(Some),
        Err(failure) if failure.comes_of("index_not_found_exception") => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn place(alias: &str, indices: &Map<String, Value>) -> Outcome<Place> {
    let mut all = indices.iter();
    let (Some((index, about)), None) = (all.next(), all.next()) else {
        let what = format!("the alias {alias} stands for several indices: let it stand for one");
        return Err(Failure::config(what));
    };
    if index == alias {
        let what = format!(
            "{alias} is an index and not an alias: choose another namespace, or put it behind an alias"
        );
        return Err(Failure::config(what));
    }
    let meta = &about["mappings"]["_meta"];
    let (version, base) = (meta["lockkeeper"].as_u64(), meta["base"].as_u64());
    let (Some(version), Some(base)) = (version, base) else {
        let what = format!(
            "the index {index} behind {alias} was not made for locks: choose another namespace"
        );
        return Err(Failure::config(what));
    };
    if version != VERSION {
        let what = format!(
            "the index {index} has version {version} of the stored shape, and this program knows {VERSION}: use a \
             version of it that knows that one"
        );
        return Err(Failure::config(what));
    }
    // A copy has its writes numbered anew, and a snapshot those of before.
    let made = format!("{alias}-{}", base >> BASE_SHIFT);
    if *index != made {
        let what = format!(
            "the index {index} behind {alias} is a copy of {made} (a reindex, a clone, or a restore under another name), whose \
             tokens would begin anew: take the alias off it, and the next who connects makes the namespace anew"
        );
        return Err(Failure::config(what));
    }
    let ours = index_as_made();
    let properties = ours["mappings"]["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        if about["mappings"]["properties"][name]["type"] != property["type"] {
            let what = format!("the index {index} has another mapping of {name}: make it anew");
            return Err(Failure::config(what));
        }
    }
    let options = ["filter", "index_routing", "search_routing"];
    let given = |option: &&str| !about["aliases"][alias][*option].is_null();
    if let Some(option) = options.into_iter().find(given) {
        let what = format!("the alias {alias} has a {option}: remove that");
        return Err(Failure::config(what));
    }
    let setting = |name: &str| about["settings"][format!("index.{name}")].as_str();
    if setting("number_of_shards") != Some("1") {
        let what =
            format!("the index {index} has several shards: tokens come from the numbers of one");
        return Err(Failure::config(what));
    }
    if setting("history.uuid").is_some() {
        let what = format!(
            "the index {index} was restored to an older state, from which its tokens would begin anew: remove it, and the \
             next who connects makes the namespace anew"
        );
        return Err(Failure::config(what));
    }
    // The clock of whoever made the index may have been behind, so that its tokens would not be above those of an older one.
    let created_ms = setting("creation_date").and_then(|text| text.parse::<u64>().ok());
    let base = base.max(created_ms.map_or(0, |created_ms| created_ms << BASE_SHIFT));
    Ok(Place {
        index: index.clone(),
        base,
        replicas: setting("number_of_replicas")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        durable: setting("translog.durability")
            .is_none_or(|text| text.eq_ignore_ascii_case("request")),
    })
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
