//! A node that is cut off goes on to answer what it has, and nobody is shown that for what is.

use std::time::Duration;

use lockcore::backend::{End, Inspect, SessionStore};
use lockcore::{Label, Life, SessionId, SessionState};
use lockcore_conformance::BoxError;
use lockcore_trial::faults::NetworkFault;
use lockcore_trial::processes::cluster::{Members, apart};
use tokio::time::{Instant, sleep};

use crate::PATIENCE;
use crate::copies::reach;
use crate::nodes::{Cluster, NODES, Nodes};

/// It outlives the test.
const TTL: Duration = Duration::from_secs(180);

/// What has ended on one side of a cut is not listed as living on the other, by the node that has been the primary's, nor
/// by one with another copy.
pub(crate) async fn lists_nothing(
    cluster: &mut Cluster,
    namespace: &str,
    options: &str,
) -> Result<(), BoxError> {
    drop(reach(&cluster.url_of(0..NODES, options)).await?);
    for is_primary in [true, false] {
        cluster.whole().await?;
        let primary = cluster.some_primary(namespace).await?;
        let alone = match is_primary {
            true => primary,
            false => (primary + 1) % NODES,
        };
        let others = (0..NODES).filter(|node| *node != alone);
        let others = reach(&cluster.url_of(others, options)).await?;
        let cut_off = reach(&cluster.url_of([alone], options)).await?;
        let session = SessionId::new(rand::random());
        others.open(session, &Label::parse("")?, TTL).await?;
        assert_eq!(life(&*cut_off, session).await?, Some(Life::Living));

        let mut nodes = Nodes { cluster, namespace };
        nodes.cut_off(alone, NetworkFault::Cut)?;
        println!("{}", apart(&nodes, alone).await?);
        let until = Instant::now() + PATIENCE;
        while let Err(error) = others.end(&[session], End::Close).await {
            if Instant::now() > until {
                return Err(error.into());
            }
            // From one attempt to the next, until the others have a primary.
            sleep(Duration::from_millis(100)).await;
        }
        let told = cut_off.session_states(&[session]).await;
        assert!(told.is_err(), "n{alone} tells of {told:?} after its end");
        let shown = life(&*cut_off, session).await;
        assert!(shown.is_err(), "n{alone} shows {shown:?} after its end");
        assert_ne!(life(&*others, session).await?, Some(Life::Living));
        nodes.rejoin()?;
        cluster.whole().await?;
        assert_ne!(life(&*cut_off, session).await?, Some(Life::Living));
    }
    Ok(())
}

/// What is listed of a session.
async fn life(by: &impl Inspect, session: SessionId) -> Result<Option<Life>, BoxError> {
    let mut after = None;
    loop {
        let page = by.sessions(after.as_deref(), 1_000).await?;
        let is_it = |state: &&SessionState| state.session == session;
        if let Some(found) = page.items.iter().find(is_it) {
            return Ok(Some(found.life));
        }
        match page.next {
            None => return Ok(None),
            next => after = next,
        }
    }
}
