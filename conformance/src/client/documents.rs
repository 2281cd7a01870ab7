//! Document locks: all or none, of any number, from any iterator or stream.

use std::time::Duration;

use futures_util::stream;
use lockcore::{AcquireError, ErrorKind, Locks};

use crate::case::Case;
use crate::client::{acquired, granted, locks, refused, release};
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "documents";
        AtMostOneHolder:
            sets_that_share_an_id_exclude_each_other;
        AllowedIsGranted:
            sets_that_share_no_id_are_held_side_by_side,
            ids_from_an_iterator_and_from_a_stream_are_alike,
            duplicates_are_one_id,
            a_set_larger_than_a_batch,
            a_set_larger_than_ten_batches_has_a_session_of_its_own;
        NothingKept:
            refused_at_the_first_id_holds_nothing,
            refused_at_the_last_id_holds_nothing,
            a_large_set_refused_at_the_last_id_holds_nothing,
            a_very_large_set_refused_at_the_last_id_holds_nothing,
            a_wait_for_the_last_id_that_is_over_holds_nothing;
        OwnClaimsOnly:
            a_dropped_set_is_given_back_whole,
            a_dropped_very_large_set_is_given_back_whole;
    }
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("document {n:07}")).collect()
}

/// As many ids as make more than `batches` batches.
fn more_than(locks: &Locks, batches: usize) -> Vec<String> {
    ids(locks.info().keys_per_batch * batches + 1)
}

/// Some of the ids, the first and the last among them.
fn some(ids: &[String]) -> [&str; 3] {
    [&ids[0], &ids[ids.len() / 2], &ids[ids.len() - 1]]
}

async fn sets_that_share_an_id_exclude_each_other(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.documents(["d1", "d2", "d3"])).await?;
    for set in [vec!["d3", "d4"], vec!["d0", "d1"], vec!["d2"]] {
        refused(b.documents(&set)).await?;
        refused(a.documents(&set)).await?;
    }
    release(guard).await?;
    release(granted(b.documents(["d3", "d4"])).await?).await
}

async fn sets_that_share_no_id_are_held_side_by_side(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let one = granted(a.documents(["d1", "d3", "d5"])).await?;
    let other = granted(b.documents(["d2", "d4", "d6"])).await?;
    ensure!(
        one.confirm().await? && other.confirm().await?,
        "both are held"
    );
    release(one).await?;
    release(other).await
}

async fn ids_from_an_iterator_and_from_a_stream_are_alike(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let ids = ids(25);
    let by_iterator = granted(a.documents(ids.iter().rev())).await?;
    let claims = by_iterator.claims().to_vec();
    release(by_iterator).await?;
    let by_stream = granted(a.documents_stream(stream::iter(ids.clone())).await).await?;
    ensure_eq!(by_stream.claims(), claims, "the claims of a stream");
    refused(a.documents([&ids[24]])).await?;
    release(by_stream).await
}

async fn duplicates_are_one_id(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.documents(["d2", "d1", "d2", "d2", "d1"])).await?;
    let keys: Vec<&str> = guard
        .claims()
        .iter()
        .map(|claim| claim.key().as_str())
        .collect();
    ensure_eq!(keys, ["d1", "d2"], "the ids");
    release(guard).await?;
    scene.free("d1").await?;
    scene.free("d2").await
}

async fn held_and_released(scene: &Scene, ids: &[String]) -> Verdict {
    let (a, b) = (locks(scene).await?, locks(scene).await?);
    let guard = acquired(a.documents(ids)).await?;
    ensure_eq!(guard.claims().len(), ids.len(), "ids that are held");
    ensure!(guard.confirm().await?, "the set is held");
    for id in some(ids) {
        refused(b.documents([id])).await?;
    }
    release(guard).await?;
    for id in some(ids) {
        scene.free(id).await?;
    }
    release(acquired(b.documents(ids)).await?).await
}

async fn a_set_larger_than_a_batch(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    held_and_released(&scene, &more_than(&a, 1)).await
}

async fn a_set_larger_than_ten_batches_has_a_session_of_its_own(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let small = granted(a.lock("small")).await?;
    let ids = more_than(&a, 10);
    let large = acquired(a.documents(&ids)).await?;
    ensure!(
        large.session() != small.session(),
        "a large set has a session of its own"
    );
    let owned = granted(a.documents(["owned"]).owner(&a.owner())).await?;
    ensure_eq!(
        owned.session(),
        small.session(),
        "the session of other guards"
    );
    ensure!(large.confirm().await?, "the set is held");
    for id in some(&ids) {
        refused(b.documents([id])).await?;
    }
    release(large).await?;
    for id in some(&ids) {
        scene.free(id).await?;
    }
    ensure!(
        small.is_valid() && small.confirm().await?,
        "the other lock is held"
    );
    Ok(())
}

async fn refused_at(scene: &Scene, ids: &[String], at: usize) -> Verdict {
    let (a, b) = (locks(scene).await?, locks(scene).await?);
    let taken = granted(b.documents([&ids[at]])).await?;
    let busy = refused(a.documents(ids)).await?;
    ensure_eq!(busy.first().claim.key().as_str(), ids[at], "the refused id");
    ensure!(
        taken.confirm().await?,
        "the holder in the way keeps its lock"
    );
    release(taken).await?;
    for id in some(ids) {
        scene.free(id).await?;
    }
    Ok(())
}

async fn refused_at_the_first_id_holds_nothing(scene: Scene) -> Verdict {
    refused_at(&scene, &ids(5), 0).await
}

async fn refused_at_the_last_id_holds_nothing(scene: Scene) -> Verdict {
    refused_at(&scene, &ids(5), 4).await
}

async fn a_large_set_refused_at_the_last_id_holds_nothing(scene: Scene) -> Verdict {
    let ids = more_than(&locks(&scene).await?, 2);
    refused_at(&scene, &ids, ids.len() - 1).await
}

async fn a_very_large_set_refused_at_the_last_id_holds_nothing(scene: Scene) -> Verdict {
    let ids = more_than(&locks(&scene).await?, 10);
    refused_at(&scene, &ids, ids.len() - 1).await
}

async fn a_wait_for_the_last_id_that_is_over_holds_nothing(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let ids = ids(7);
    let taken = granted(b.documents([&ids[6]])).await?;
    let limit = Duration::from_secs(2);
    let late = a.documents(&ids).wait(limit).acquire().await;
    // A store that is slow has perhaps not answered by then.
    let is_over = match &late {
        Err(AcquireError::Busy(_)) => true,
        Err(AcquireError::Store(error)) => error.kind() == ErrorKind::Indeterminate,
        _ => false,
    };
    ensure!(is_over, "the wait is over: {late:?}");
    // What was granted while it waited is given back behind it.
    release(acquired(b.documents(&ids[..6])).await?).await?;
    release(taken).await?;
    scene.free(&ids[6]).await
}

async fn dropped(scene: &Scene, ids: &[String]) -> Verdict {
    let (a, b) = (locks(scene).await?, locks(scene).await?);
    let guard = acquired(a.documents(ids)).await?;
    refused(b.documents(some(ids))).await?;
    drop(guard);
    release(acquired(b.documents(ids)).await?).await
}

async fn a_dropped_set_is_given_back_whole(scene: Scene) -> Verdict {
    dropped(&scene, &ids(10)).await
}

async fn a_dropped_very_large_set_is_given_back_whole(scene: Scene) -> Verdict {
    let ids = more_than(&locks(&scene).await?, 10);
    dropped(&scene, &ids).await
}
