//! A copy that was away while others went on, and that an operator makes the primary: what it has missed is told, and tokens
//! rise all the same.

use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{Renewal, Renewed, SessionStore};
use lockcore::{Guard, LockBackend, Locks, LostReason, SessionId, async_trait};
use lockcore_conformance::{BoxError, Decorated, Decorator};
use lockcore_es::EsBackend;
use lockcore_trial::faults::NetworkFault;
use lockcore_trial::processes::cluster::{Members, apart};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep, timeout};

use crate::PATIENCE;
use crate::copies::reach;
use crate::nodes::{Cluster, NODES, Nodes};

/// A primary is missed meanwhile.
const TTL: Duration = Duration::from_secs(180);

pub(crate) async fn is_told_from_the_one_before(
    cluster: &mut Cluster,
    namespace: &str,
    url: &str,
) -> Result<(), BoxError> {
    let loses = client(url, TTL).await?;
    let renewals = Arc::new(RwLock::new(()));
    let keeps = Decorated(Renewing {
        inner: reach(url).await?,
        renewals: Arc::clone(&renewals),
    });
    let keeps = Locks::builder(Arc::new(keeps)).ttl(TTL).build()?;
    set(cluster, namespace, json!({"number_of_replicas": 1})).await?;
    cluster.whole().await?;
    let primary = cluster.some_primary(namespace).await?;
    let copy = copy_of(cluster, namespace, primary).await?;
    let third = NODES - primary - copy;
    // Nothing is copied to the third.
    set(
        cluster,
        namespace,
        json!({"routing.allocation.enable": "none"}),
    )
    .await?;
    let early = hold(&loses, "early").await?;
    let kept = hold(&keeps, "kept").await?;
    let path = keeps
        .tree()
        .write("/kept/b")
        .wait(PATIENCE)
        .acquire()
        .await?;
    // One that is acknowledged from here on is lost with the rest, and its session with it.
    let none_renewed = renewals.write().await;
    let mut nodes = Nodes { cluster, namespace };
    nodes.cut_off(copy, NetworkFault::Cut)?;
    println!("{}", apart(&nodes, copy).await?);
    let late = hold(&loses, "late").await?;
    nodes.rejoin()?;
    let cluster = nodes.cluster;
    joined(cluster, third).await?;
    cluster.signal(primary, Signal::KILL)?;
    let index = index(cluster, third, namespace).await?;
    let command = json!({"commands": [{"allocate_stale_primary": {
        "index": index, "shard": 0, "node": format!("n{copy}"), "accept_data_loss": true,
    }}]});
    // Until the others have noticed, there is nothing to be forced.
    let until = Instant::now() + PATIENCE;
    while let Err(refused) = cluster
        .ask(
            third,
            Method::POST,
            "/_cluster/reroute",
            Some(command.clone()),
        )
        .await
    {
        if Instant::now() > until {
            return Err(refused);
        }
        sleep(Duration::from_millis(200)).await;
    }
    let theirs = hold(&client(url, TTL).await?, "late").await?;
    drop(none_renewed);
    assert!(
        theirs.token() > late.token(),
        "{} after {}",
        theirs.token(),
        late.token()
    );
    for guard in [&early, &late] {
        assert_eq!(
            timeout(PATIENCE, guard.lost()).await?,
            LostReason::Forgotten
        );
    }
    let more = hold(&keeps, "more").await?;
    assert!(more.token() > theirs.token());
    assert_eq!(more.session(), kept.session());
    for guard in [&theirs, &kept, &path, &more] {
        assert!(guard.is_valid() && guard.confirm().await?);
    }
    // The next one finds a whole cluster.
    set(
        cluster,
        namespace,
        json!({"routing.allocation.enable": "all"}),
    )
    .await?;
    let mut nodes = Nodes { cluster, namespace };
    nodes.restart(primary)?;
    nodes.cluster.whole().await
}

/// A backend whose renewals wait while somebody holds them back.
struct Renewing {
    inner: Arc<EsBackend>,
    renewals: Arc<RwLock<()>>,
}

#[async_trait]
impl Decorator for Renewing {
    fn inner(&self) -> &dyn LockBackend {
        &*self.inner
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> lockcore::Result<Renewed> {
        let _released = self.renewals.read().await;
        self.inner.renew(session, renewal).await
    }
}

pub(crate) async fn client(url: &str, ttl: Duration) -> Result<Locks, BoxError> {
    Ok(Locks::builder(reach(url).await?).ttl(ttl).build()?)
}

/// Acquires a key. Where a node that goes is the master, writes fail until there is another one.
pub(crate) async fn hold(locks: &Locks, key: &str) -> Result<Guard, BoxError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match locks.lock(key).wait(PATIENCE).acquire().await {
            Ok(guard) => return Ok(guard),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

pub(crate) async fn set(
    cluster: &Cluster,
    namespace: &str,
    settings: Value,
) -> Result<(), BoxError> {
    let path = format!("/{namespace}/_settings");
    let settings = Some(json!({"index": settings}));
    let mut last = Ok(());
    for node in 0..NODES {
        last = cluster
            .ask(node, Method::PUT, &path, settings.clone())
            .await
            .map(drop);
        if last.is_ok() {
            break;
        }
    }
    last
}

/// The node that has the other copy.
async fn copy_of(cluster: &Cluster, namespace: &str, primary: usize) -> Result<usize, BoxError> {
    let path = format!("/_cat/shards/{namespace}?format=json&h=prirep,node");
    let shards = cluster.ask(primary, Method::GET, &path, None).await?;
    let mut shards = shards.as_array().into_iter().flatten();
    let copy = shards.find(|shard| shard["prirep"] == "r");
    let name = copy.and_then(|shard| shard["node"].as_str()?.strip_prefix('n'));
    Ok(name.ok_or("there is no copy")?.parse()?)
}

async fn index(cluster: &Cluster, node: usize, namespace: &str) -> Result<String, BoxError> {
    let about = cluster
        .ask(node, Method::GET, &format!("/{namespace}"), None)
        .await?;
    let index = about.as_object().and_then(|all| all.keys().next());
    Ok(index.ok_or("there is no index")?.clone())
}

/// Waits until all nodes are there.
async fn joined(cluster: &Cluster, node: usize) -> Result<(), BoxError> {
    let path = format!("/_cluster/health?wait_for_nodes={NODES}&timeout=4s");
    let until = Instant::now() + PATIENCE;
    loop {
        let health = cluster.ask(node, Method::GET, &path, None).await;
        match health {
            Ok(health) if health["number_of_nodes"] == json!(NODES) => return Ok(()),
            health if Instant::now() > until => return Err(format!("{health:?}").into()),
            _ => sleep(Duration::from_millis(200)).await,
        }
    }
}
