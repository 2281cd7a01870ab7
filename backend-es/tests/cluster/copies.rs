//! What the copies of the index that are there decide: what a program is told of failover, and what is written.

use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{Opened, SessionStore};
use lockcore::{ErrorKind, Label, LockBackend, LostReason, SessionId};
use lockcore_conformance::BoxError;
use lockcore_es::{EsBackend, EsConfig};
use lockcore_trial::processes::cluster::Members;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::PATIENCE;
use crate::nodes::{Cluster, NODES, Nodes};
use crate::stale::{client, hold, set};

/// The loss of a node does not take as long.
const TTL: Duration = Duration::from_secs(10);

/// With two copies beside the primary, one node less leaves two of three; without the second, the primary is alone.
pub(crate) async fn decide(
    cluster: &mut Cluster,
    namespace: &str,
    url: &str,
) -> Result<(), BoxError> {
    let with = |active: &str| format!("{url}&wait_for_active_shards={active}");
    drop(reach(url).await?);
    cluster.whole().await?;
    assert!(
        survives_failover(url).await?,
        "of three copies, one is enough"
    );
    let (wants_all, wants_two) = (
        client(&with("all"), TTL).await?,
        client(&with("2"), TTL).await?,
    );
    let (lost, kept) = (
        hold(&wants_all, "lost").await?,
        hold(&wants_two, "kept").await?,
    );

    let primary = cluster.some_primary(namespace).await?;
    let gone = (primary + 1) % NODES;
    cluster.signal(gone, Signal::KILL)?;
    copies(cluster, primary, namespace, 2).await?;
    is_refused(&with("all")).await?;
    assert_eq!(timeout(PATIENCE, lost.lost()).await?, LostReason::Deadline);
    opens(&with("2")).await?;
    assert!(kept.is_valid() && kept.confirm().await?);
    drop(hold(&wants_two, "more").await?);
    assert!(survives_failover(url).await?, "two copies are there");
    drop(kept);

    for settings in [
        json!({"number_of_replicas": 0, "routing.allocation.enable": "none"}),
        json!({"number_of_replicas": 1}),
    ] {
        set(cluster, namespace, settings).await?;
    }
    copies(cluster, primary, namespace, 1).await?;
    assert!(!survives_failover(url).await?, "the other copy is nowhere");
    for active in ["2", "all"] {
        is_refused(&with(active)).await?;
    }
    opens(&with("1")).await?;
    opens(url).await?;

    set(
        cluster,
        namespace,
        json!({"routing.allocation.enable": "all"}),
    )
    .await?;
    copies(cluster, primary, namespace, 2).await?;
    assert!(survives_failover(url).await?, "the other copy is back");
    for active in ["2", "all"] {
        opens(&with(active)).await?;
    }
    let mut nodes = Nodes { cluster, namespace };
    nodes.restart(gone)?;
    nodes.cluster.whole().await
}

/// Connects. Nodes that have just started may take longer to make an index than a request may.
pub(crate) async fn reach(url: &str) -> Result<Arc<EsBackend>, BoxError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match EsBackend::connect(EsConfig::parse(url)?).await {
            Err(error) if error.kind() != ErrorKind::Config && Instant::now() < until => {
                sleep(Duration::from_millis(200)).await;
            }
            done => return Ok(done?),
        }
    }
}

/// What a program is told that connects now.
async fn survives_failover(url: &str) -> Result<bool, BoxError> {
    Ok(reach(url).await?.info().durability.failover)
}

async fn open(url: &str) -> Result<Opened, BoxError> {
    let session = SessionId::new(rand::random::<u64>().into());
    let (backend, label) = (reach(url).await?, Label::parse("")?);
    Ok(backend.open(session, &label, TTL).await?)
}

/// A session is opened where this is asked for.
async fn opens(url: &str) -> Result<(), BoxError> {
    let opened = open(url).await?;
    assert!(matches!(opened, Opened::Opened(_)), "{url}: {opened:?}");
    Ok(())
}

/// Nothing is written where this is asked for, and whoever asks is told what to do.
async fn is_refused(url: &str) -> Result<(), BoxError> {
    let error = open(url).await.expect_err("copies are missing");
    let error = error.downcast::<lockcore::Error>()?;
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{url}: {error}");
    let says = "fewer copies of the index are active than `wait_for_active_shards` asks for";
    assert!(error.to_string().contains(says), "{url}: {error}");
    Ok(())
}

/// Waits until so many copies are there.
async fn copies(
    cluster: &Cluster,
    node: usize,
    namespace: &str,
    count: usize,
) -> Result<(), BoxError> {
    let path = format!("/_cluster/health/{namespace}");
    let until = Instant::now() + PATIENCE;
    loop {
        let health = cluster.ask(node, Method::GET, &path, None).await;
        match health {
            Ok(health) if health["active_shards"] == json!(count) => return Ok(()),
            health if Instant::now() > until => return Err(format!("{health:?}").into()),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}
