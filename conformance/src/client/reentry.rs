//! Re-entrancy by an explicit owner.

use lockcore::AcquireError;

use crate::case::Case;
use crate::client::{acquired, granted, locks, refused, release};
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "reentry";
        AllowedIsGranted:
            an_owner_enters_its_documents_again,
            an_owner_enters_its_tree_again,
            an_owner_makes_a_read_tree_written,
            a_guards_own_owner_enters_again;
        AtMostOneHolder:
            without_an_owner_nobody_enters_again,
            another_owner_of_the_process_does_not_enter,
            an_upgrade_is_refused_by_another_reader;
        OwnClaimsOnly:
            every_guard_of_an_owner_is_released_by_itself;
        Waiting:
            an_owner_never_waits_for_itself,
            an_owner_waits_for_others;
        Guard:
            an_owner_stays_in_its_session,
            an_owner_whose_session_is_lost_is_lost;
    }
}

async fn an_owner_enters_its_documents_again(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let owner = a.owner();
    let first = granted(a.documents(["d1", "d2"]).owner(&owner)).await?;
    let second = granted(a.documents(["d2", "d3"]).owner(&owner)).await?;
    let third = granted(a.documents(["d1", "d2", "d3"]).owner(&owner)).await?;
    for id in ["d1", "d2", "d3"] {
        refused(b.documents([id])).await?;
    }
    for guard in [second, first, third] {
        refused(b.documents(["d2"])).await?;
        release(guard).await?;
    }
    release(granted(b.documents(["d1", "d2", "d3"])).await?).await
}

async fn an_owner_enters_its_tree_again(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let owner = a.owner();
    let above = granted(a.tree().write("/t").owner(&owner)).await?;
    let below = granted(a.tree().write("/t/m/x").read("/t/n").owner(&owner)).await?;
    let again = granted(a.tree().read("/t").owner(&owner)).await?;
    release(above).await?;
    release(again).await?;
    ensure!(below.confirm().await?, "what is below is still held");
    refused(b.tree().write("/t/n")).await?;
    refused(b.tree().read("/t/m")).await?;
    release(granted(b.tree().write("/t/o")).await?).await?;
    release(below).await?;
    release(granted(b.tree().write("/t")).await?).await
}

async fn an_owner_makes_a_read_tree_written(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let owner = a.owner();
    let read = granted(a.tree().read("/t").owner(&owner)).await?;
    let written = granted(a.tree().write("/t").owner(&owner)).await?;
    refused(b.tree().read("/t/m")).await?;
    release(written).await?;
    release(granted(b.tree().read("/t/m")).await?).await?;
    release(read).await
}

async fn a_guards_own_owner_enters_again(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let outer = granted(a.tree().write("/t")).await?;
    let inner = granted(a.tree().write("/t/m").owner(&outer.owner())).await?;
    ensure_eq!(
        inner.session(),
        outer.session(),
        "the session of the inner guard"
    );
    ensure!(
        inner.token() > outer.token(),
        "the inner guard has a token of its own"
    );
    release(inner).await?;
    ensure!(outer.confirm().await?, "the outer guard is still held");
    release(outer).await
}

async fn without_an_owner_nobody_enters_again(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let documents = granted(a.documents(["d"])).await?;
    let tree = granted(a.tree().write("/t")).await?;
    refused(a.documents(["d"])).await?;
    refused(a.tree().read("/t/m")).await?;
    release(documents).await?;
    release(tree).await
}

async fn another_owner_of_the_process_does_not_enter(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let (one, other) = (a.owner(), a.owner());
    let guard = granted(a.documents(["d"]).owner(&one)).await?;
    refused(a.documents(["d"]).owner(&other)).await?;
    release(granted(a.documents(["d"]).owner(&one.clone())).await?).await?;
    release(guard).await
}

async fn an_upgrade_is_refused_by_another_reader(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let owner = a.owner();
    let own = granted(a.tree().read("/t").owner(&owner)).await?;
    let other = granted(b.tree().read("/t/m")).await?;
    let busy = refused(a.tree().write("/t").owner(&owner)).await?;
    let sessions: Vec<_> = busy
        .first()
        .holders
        .iter()
        .filter_map(|h| h.grant)
        .map(|g| g.session)
        .collect();
    ensure_eq!(sessions, [other.session()], "who is in the way");
    release(other).await?;
    release(granted(a.tree().write("/t").owner(&owner)).await?).await?;
    release(own).await
}

async fn every_guard_of_an_owner_is_released_by_itself(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let owner = a.owner();
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(granted(a.documents(["d", "e"]).owner(&owner)).await?);
    }
    while let Some(guard) = guards.pop() {
        scene.held("d").await?;
        release(guard).await?;
        for guard in &guards {
            ensure!(guard.confirm().await?, "the other guards are held");
        }
    }
    scene.free("d").await?;
    scene.free("e").await
}

async fn an_owner_never_waits_for_itself(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let owner = a.owner();
    let global = granted(a.lock("k").owner(&owner)).await?;
    let documents = granted(a.documents(["d"]).owner(&owner)).await?;
    for (key, acquisition) in [("k", a.lock("k")), ("d", a.lock("d"))] {
        match acquisition.owner(&owner).acquire().await {
            Err(AcquireError::WouldDeadlock(busy)) => {
                ensure_eq!(
                    busy.first().claim.key().as_str(),
                    key,
                    "what it would wait for"
                );
            }
            other => return Err(Wrong(format!("an owner that waits for itself: {other:?}"))),
        }
    }
    let share = a.rwlock("d").read().owner(&owner).acquire().await;
    ensure!(
        matches!(share, Err(AcquireError::WouldDeadlock(_))),
        "a share never re-enters: {share:?}"
    );
    release(documents).await?;
    release(global).await
}

async fn an_owner_waits_for_others(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let owner = a.owner();
    let own = granted(a.tree().read("/t").owner(&owner)).await?;
    let other = granted(b.tree().read("/t")).await?;
    let upgrade = acquired(a.tree().write("/t").owner(&owner));
    let (upgraded, released) = futures_util::future::join(upgrade, async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        release(other).await
    })
    .await;
    released?;
    release(upgraded?).await?;
    release(own).await
}

async fn an_owner_stays_in_its_session(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let owner = a.owner();
    let first = granted(a.documents(["d"]).owner(&owner)).await?;
    let session = first.session();
    release(first).await?;
    // More than ten batches, which would have a session of their own without the owner.
    let count = a.info().keys_per_batch * 10 + 1;
    let ids: Vec<String> = (0..count).map(|n| format!("d{n}")).collect();
    let large = acquired(a.documents(&ids).owner(&owner)).await?;
    ensure_eq!(
        large.session(),
        session,
        "the session of the owner's next guard"
    );
    release(large).await?;
    scene.free("d0").await?;
    scene.free(&format!("d{}", count - 1)).await
}

async fn an_owner_whose_session_is_lost_is_lost(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let owner = a.owner();
    let guard = granted(a.documents(["d"]).owner(&owner)).await?;
    scene
        .end(guard.session(), lockcore::backend::End::Revoke)
        .await?;
    crate::client::soon("the guard is lost", guard.lost()).await?;
    let again = a.documents(["e"]).owner(&owner).acquire().await;
    ensure!(
        matches!(again, Err(AcquireError::Lost)),
        "the owner's session is dead: {again:?}"
    );
    scene.free("d").await?;
    scene.free("e").await
}
