//! Records that cannot be understood: held, never free, never changed.

use lockcore::backend::{Acquire, Acquired, Filter, Record};
use lockcore::{Life, Mode, Want};

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "garbage";
        GarbageIsHeld:
            a_flat_key_with_garbage_is_held,
            a_path_with_garbage_is_held,
            what_is_below_garbage_is_held,
            what_is_above_garbage_is_never_read_past_by_an_atomic_store,
            what_is_beside_garbage_is_free,
            a_batch_that_meets_garbage_holds_nothing,
            a_refusal_says_that_the_holder_is_foreign,
            nothing_that_is_asked_changes_garbage,
            a_release_does_not_remove_garbage,
            a_sweep_does_not_remove_garbage;
        Listing:
            garbage_is_listed,
            garbage_is_evicted_as_it_was_seen,
            garbage_is_evicted_once,
            what_changed_since_it_was_seen_is_not_evicted,
            nothing_of_ours_is_evicted;
    }
}

async fn seen(scene: &Scene, key: &str) -> Verdict<Record> {
    let record = scene.record(key).await?;
    record.ok_or_else(|| Wrong(format!("garbage on {key} is not listed")))
}

/// The request is refused, by garbage on that key.
async fn refused_by_garbage(a: &Actor, request: &Acquire, key: &str) -> Verdict {
    let busy = a.refused(request).await?;
    let holder = &busy.first().holders[0];
    ensure_eq!(
        (
            holder.key.as_str(),
            holder.grant,
            holder.owner,
            holder.mode,
            holder.life
        ),
        (key, None, None, Mode::X, Life::Living),
        "who is in the way"
    );
    Ok(())
}

async fn a_flat_key_with_garbage_is_held(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("k").await?;
    for want in [Want::Create, Want::Upsert, SHARE, share(1), share(1_000)] {
        refused_by_garbage(&a, &a.ask(&[(want, "k")]), "k").await?;
    }
    Ok(())
}

async fn a_path_with_garbage_is_held(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("/a/b").await?;
    for want in [Want::Write, Want::Read] {
        refused_by_garbage(&a, &a.ask(&[(want, "/a/b")]), "/a/b").await?;
    }
    Ok(())
}

async fn what_is_below_garbage_is_held(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("/a/b").await?;
    for want in [Want::Write, Want::Read] {
        for path in ["/a/b/c", "/a/b/c/d/e", "/a/b/!"] {
            refused_by_garbage(&a, &a.ask(&[(want, path)]), "/a/b").await?;
        }
    }
    Ok(())
}

/// A store that keeps each ancestor as a record has none above the garbage, and cannot know.
async fn what_is_above_garbage_is_never_read_past_by_an_atomic_store(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("/a/b").await?;
    for want in [Want::Write, Want::Read] {
        let request = a.ask(&[(want, "/a")]);
        match a.send(&request).await? {
            Acquired::Busy(busy) => {
                ensure_eq!(busy.first().holders[0].grant, None, "who is in the way")
            }
            Acquired::Acquired(_) if !a.backend().info().atomic => a.release(&request).await?,
            answer => return Err(Wrong(format!("garbage below /a: {answer:?}"))),
        }
    }
    Ok(())
}

async fn what_is_beside_garbage_is_free(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("/a/b").await?;
    scene.plant("k").await?;
    for path in ["/a/c", "/a/b!", "/a/bb", "/b", "/k"] {
        a.hold(&[(Want::Write, path)]).await?;
    }
    for key in ["K", "k ", "kk", "a"] {
        a.hold(&[(Want::Create, key)]).await?;
    }
    Ok(())
}

async fn a_batch_that_meets_garbage_holds_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("d2").await?;
    let busy = a
        .refused(&a.ask(&[
            (Want::Upsert, "d1"),
            (Want::Upsert, "d2"),
            (Want::Upsert, "d3"),
        ]))
        .await?;
    ensure_eq!(
        busy.first().claim.key().as_str(),
        "d2",
        "the first refused claim"
    );
    for key in ["d1", "d3"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_refusal_says_that_the_holder_is_foreign(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    scene.plant("k").await?;
    let busy = a.refused(&a.ask(&[(Want::Create, "k")])).await?;
    let holders = &busy.first().holders;
    ensure_eq!(holders.len(), 1, "holders in the way, {holders:?}");
    ensure!(
        !holders[0].label.is_empty(),
        "something is said about a foreign holder"
    );
    Ok(())
}

async fn nothing_that_is_asked_changes_garbage(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for key in ["k", "/a/b"] {
        scene.plant(key).await?;
        let before = seen(&scene, key).await?;
        let wants: &[Want] = if key == "k" {
            &[Want::Create, Want::Upsert, SHARE]
        } else {
            &[Want::Write, Want::Read]
        };
        for want in wants {
            let request = a.ask(&[(*want, key)]);
            a.refused(&request).await?;
            a.holds_no_more(&request).await?;
            a.release(&request).await?;
        }
        scene.sweep_all().await?;
        ensure_eq!(seen(&scene, key).await?, before, "the record of {key}");
        let evicted = a.backend().evict(&before).await?;
        ensure!(evicted, "the record is still as it was seen at first");
    }
    Ok(())
}

async fn a_release_does_not_remove_garbage(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "k"), (Want::Write, "/a/b")] {
        let request = a.hold(&[(want, key)]).await?;
        a.release(&request).await?;
        scene.plant(key).await?;
        a.release(&request).await?;
        refused_by_garbage(&a, &a.ask(&[(want, key)]), key).await?;
        // Nor does a copy of what was once granted.
        refused_by_garbage(&a, &request, key).await?;
    }
    Ok(())
}

async fn a_sweep_does_not_remove_garbage(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for key in ["k", "/a/b"] {
        scene.plant(key).await?;
    }
    a.hold(&[(Want::Create, "swept")]).await?;
    a.end(lockcore::backend::End::Close).await?;
    scene
        .sweep(lockcore::backend::Sweep::Session(a.session()))
        .await?;
    scene.sweep_all().await?;
    for key in ["k", "/a/b", "/a/b/c"] {
        scene.held(key).await?;
    }
    Ok(())
}

async fn garbage_is_listed(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    a.hold(&[(Want::Create, "beside")]).await?;
    for key in ["k", "/a/b"] {
        scene.plant(key).await?;
        let record = seen(&scene, key).await?;
        let holders: Vec<_> = record
            .holders
            .iter()
            .map(|holder| {
                (
                    holder.key.as_str(),
                    holder.grant,
                    holder.owner,
                    holder.mode,
                    holder.life,
                )
            })
            .collect();
        ensure_eq!(
            holders,
            [(key, None, None, Mode::X, Life::Living)],
            "holders of {key}"
        );
        let all = a.listed(&Filter::Prefix(String::new()), 100).await?;
        ensure!(
            all.iter()
                .any(|listed| (&listed.key, &listed.holders) == (&record.key, &record.holders)),
            "garbage on {key} is listed among all: {all:?}"
        );
    }
    Ok(())
}

async fn garbage_is_evicted_as_it_was_seen(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "k"), (Want::Write, "/a/b")] {
        scene.plant(key).await?;
        a.refused(&a.ask(&[(want, key)])).await?;
        scene.evict(key).await?;
        ensure_eq!(
            scene.record(key).await?,
            None,
            "the record of {key} after its eviction"
        );
        a.hold(&[(want, key)]).await?;
    }
    Ok(())
}

async fn garbage_is_evicted_once(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "k"), (Want::Write, "/a/b")] {
        scene.plant(key).await?;
        let record = seen(&scene, key).await?;
        ensure!(a.backend().evict(&record).await?, "it is as it was seen");
        ensure!(!a.backend().evict(&record).await?, "it is gone");
        let held = a.hold(&[(want, key)]).await?;
        ensure!(
            !a.backend().evict(&record).await?,
            "another holds the key now"
        );
        a.holds(&held).await?;
    }
    Ok(())
}

async fn what_changed_since_it_was_seen_is_not_evicted(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "k"), (Want::Write, "/a/b")] {
        let held = a.hold(&[(want, key)]).await?;
        let before = seen(&scene, key).await?;
        a.release(&held).await?;
        scene.plant(key).await?;
        let garbage = seen(&scene, key).await?;
        // The key is the same, and so are the holders who are said to be seen: not the state of the record.
        let otherwise = Record {
            version: before.version.clone(),
            ..garbage.clone()
        };
        for stale in [&before, &otherwise] {
            ensure!(
                !a.backend().evict(stale).await?,
                "{key} had no garbage when it was seen: {stale:?}"
            );
        }
        ensure_eq!(seen(&scene, key).await?, garbage, "the record of {key}");
        refused_by_garbage(&a, &a.ask(&[(want, key)]), key).await?;
        ensure!(a.backend().evict(&garbage).await?, "it is as it was seen");
    }
    Ok(())
}

async fn nothing_of_ours_is_evicted(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Create, "k"), (SHARE, "s"), (Want::Write, "/a/b")] {
        let held = a.hold(&[(want, key)]).await?;
        let record = seen(&scene, key).await?;
        ensure!(
            !a.backend().evict(&record).await?,
            "{key} has nothing foreign"
        );
        a.holds(&held).await?;
    }
    Ok(())
}
