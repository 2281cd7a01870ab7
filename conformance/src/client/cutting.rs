//! An acquisition of more keys than the store takes in a batch is cut, on both sides of the bound.

use lockcore::limits::DEFAULT_TTL;
use lockcore::{Acquisition, LockBackend, Locks};

use crate::case::Case;
use crate::client::{granted, locks_on, release};
use crate::decorator::Decorated;
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};
use crate::wire::Wire;

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "cutting";
        Limits:
            documents_are_cut_at_the_bound,
            paths_are_cut_with_what_is_above_them;
    }
}

/// How many batches are sent for the acquisition, which is granted whole; these keys are its ends.
async fn batches<S>(
    scene: &Scene,
    wire: &Decorated<Wire>,
    acquisition: Acquisition<S>,
    ends: [&str; 2],
) -> Verdict<usize> {
    let before = wire.acquisitions();
    let guard = granted(acquisition).await?;
    let batches = wire.acquisitions() - before;
    ensure!(guard.confirm().await?, "all of it is held");
    for key in ends {
        scene.held(key).await?;
    }
    release(guard).await?;
    for key in ends {
        scene.free(key).await?;
    }
    Ok(batches)
}

async fn documents_are_cut_at_the_bound(scene: Scene) -> Verdict {
    let wire = Wire::new(scene.connect().await?);
    let locks: Locks = locks_on(wire.clone(), DEFAULT_TTL)?;
    let most = wire.info().keys_per_batch;
    for (documents, wanted) in [(most, 1), (most + 1, 2)] {
        let ids: Vec<String> = (0..documents).map(|n| format!("d{n:05}")).collect();
        let ends = [ids[0].as_str(), ids[documents - 1].as_str()];
        let batches = batches(&scene, &wire, locks.documents(&ids), ends).await?;
        ensure_eq!(
            batches,
            wanted,
            "batches for {documents} documents by {most}"
        );
    }
    Ok(())
}

async fn paths_are_cut_with_what_is_above_them(scene: Scene) -> Verdict {
    let wire = Wire::new(scene.connect().await?);
    let locks: Locks = locks_on(wire.clone(), DEFAULT_TTL)?;
    let most = wire.info().keys_per_batch;
    // The one above all of them is a key of each batch. Alone, a path may have more keys than a batch.
    for (paths, wanted) in [(most.saturating_sub(1).max(1), 1), (most.max(2), 2)] {
        let all: Vec<String> = (0..paths).map(|n| format!("/t/{n:05}")).collect();
        let tree = all.iter().fold(locks.tree(), |tree, path| tree.write(path));
        let ends = [all[0].as_str(), all[paths - 1].as_str()];
        let batches = batches(&scene, &wire, tree, ends).await?;
        ensure_eq!(batches, wanted, "batches for {paths} paths by {most}");
    }
    Ok(())
}
