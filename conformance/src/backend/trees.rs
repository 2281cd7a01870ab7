//! Tree claims: what stands above, below and beside a path.

use lockcore::{Mode, OwnerId, Want};

use crate::actor::Actor;
use crate::case::Case;
use crate::scene::{Scene, claim};
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "trees";
        AtMostOneHolder:
            a_written_leaf_of_64_components_holds_everything_above_it,
            a_written_root_holds_a_leaf_of_64_components,
            a_read_root_holds_off_writers_at_every_depth,
            a_writer_among_readers_is_met_by_a_reader_of_the_root,
            one_of_another_kind_among_many_is_met,
            an_upgrade_waits_for_other_readers,
            a_move_holds_both_ends;
        AllowedIsGranted:
            keys_with_a_common_beginning_are_no_relatives,
            writers_of_siblings_share_the_ancestors,
            readers_of_nested_paths_share_them,
            claims_of_one_batch_never_meet_each_other,
            an_owner_goes_down_and_up_its_own_tree;
        NothingKept:
            a_move_with_one_end_taken_holds_nothing,
            a_refused_batch_leaves_no_ancestor_held;
        OwnClaimsOnly:
            released_siblings_leave_the_ancestor_to_the_last,
            releasing_above_leaves_what_is_held_below,
            releasing_below_leaves_what_is_held_above;
        RefusalIsAValue:
            a_refusal_names_the_ancestor_that_is_held;
        Listing:
            an_ancestor_lists_who_is_below;
    }
}

/// `/d/d/…` of that many components.
fn deep(components: usize) -> String {
    "/d".repeat(components)
}

async fn a_written_leaf_of_64_components_holds_everything_above_it(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let leaf = a.hold(&[(Want::Write, &deep(64))]).await?;
    for components in [1, 2, 31, 32, 62, 63, 64] {
        let path = deep(components);
        let mode = if components == 64 { Mode::X } else { Mode::IX };
        for want in [Want::Write, Want::Read] {
            let busy = b.refused(&b.ask(&[(want, &path)])).await?;
            let holder = &busy.first().holders[0];
            ensure_eq!(
                (holder.key.as_str(), holder.mode, holder.grant),
                (path.as_str(), mode, Some(leaf.grant)),
                "who is in the way of {want:?} {components} deep"
            );
        }
    }
    let sibling = format!("{}/e", deep(63));
    let beside = b.hold(&[(Want::Write, &sibling)]).await?;
    a.release(&leaf).await?;
    b.release(&beside).await?;
    scene.free("/d").await
}

async fn a_written_root_holds_a_leaf_of_64_components(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let root = a.hold(&[(Want::Write, "/d")]).await?;
    for components in [1, 2, 33, 63, 64] {
        for want in [Want::Write, Want::Read] {
            let busy = b.refused(&b.ask(&[(want, &deep(components))])).await?;
            ensure_eq!(busy.first().holders[0].key.as_str(), "/d", "what is held");
        }
    }
    a.release(&root).await?;
    scene.free(&deep(64)).await
}

async fn a_read_root_holds_off_writers_at_every_depth(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let root = a.hold(&[(Want::Read, "/d")]).await?;
    for components in [1, 2, 64] {
        b.refused(&b.ask(&[(Want::Write, &deep(components))]))
            .await?;
        let reader = b.hold(&[(Want::Read, &deep(components))]).await?;
        b.release(&reader).await?;
    }
    a.release(&root).await?;
    scene.free(&deep(64)).await
}

async fn a_writer_among_readers_is_met_by_a_reader_of_the_root(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    for leaf in ["/a/0", "/a/1", "/a/2"] {
        a.hold(&[(Want::Read, leaf)]).await?;
    }
    let writer = b.hold(&[(Want::Write, "/a/1x/y")]).await?;
    let busy = c.refused(&c.ask(&[(Want::Read, "/a")])).await?;
    let holders = &busy.first().holders;
    ensure_eq!(holders.len(), 1, "holders in the way, {holders:?}");
    ensure_eq!(holders[0].grant, Some(writer.grant), "who is in the way");
    b.release(&writer).await?;
    c.hold(&[(Want::Read, "/a")]).await?;
    Ok(())
}

/// So many that no store lists them, in batches that every store takes.
async fn many_below(actor: &Actor, root: &str, owner: Option<OwnerId>, want: Want) -> Verdict {
    for batch in 0..6 {
        let paths: Vec<String> = (0..20).map(|n| format!("{root}/m{batch}{n:02}")).collect();
        let wants: Vec<(Want, &str)> = paths.iter().map(|path| (want, &**path)).collect();
        match owner {
            Some(owner) => actor.hold_as(owner, &wants).await?,
            None => actor.hold(&wants).await?,
        };
    }
    Ok(())
}

/// It stands before all of them, or behind.
async fn one_of_another_kind_among_many_is_met(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    for (root, other) in [("/r", "/r/a"), ("/s", "/s/z")] {
        many_below(&a, root, None, Want::Read).await?;
        let writer = b.hold(&[(Want::Write, other)]).await?;
        let busy = c.refused(&c.ask(&[(Want::Read, root)])).await?;
        let holders = &busy.first().holders;
        ensure_eq!(holders.len(), 1, "holders in the way, {holders:?}");
        ensure_eq!(holders[0].grant, Some(writer.grant), "who is in the way");
        b.release(&writer).await?;
        c.hold(&[(Want::Read, root)]).await?;
    }
    for (root, other) in [("/o", "/o/a"), ("/p", "/p/z")] {
        let owner = a.owner();
        many_below(&a, root, Some(owner), Want::Write).await?;
        let held = b.hold(&[(Want::Read, other)]).await?;
        let busy = a.refused(&a.ask_as(owner, &[(Want::Write, root)])).await?;
        ensure_eq!(
            busy.first().holders[0].grant,
            Some(held.grant),
            "who is in the way of the owner"
        );
        b.release(&held).await?;
        a.hold_as(owner, &[(Want::Write, root)]).await?;
    }
    Ok(())
}

async fn an_upgrade_waits_for_other_readers(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let owner = a.owner();
    let own = a.hold_as(owner, &[(Want::Read, "/a/b")]).await?;
    let other = b.hold(&[(Want::Read, "/a/b/c")]).await?;
    let busy = a
        .refused(&a.ask_as(owner, &[(Want::Write, "/a/b")]))
        .await?;
    let holders = &busy.first().holders;
    ensure_eq!(holders.len(), 1, "holders in the way, {holders:?}");
    ensure_eq!(holders[0].grant, Some(other.grant), "who is in the way");
    b.release(&other).await?;
    let upgraded = a.hold_as(owner, &[(Want::Write, "/a/b")]).await?;
    a.release(&own).await?;
    b.refused(&b.ask(&[(Want::Read, "/a/b/c")])).await?;
    a.release(&upgraded).await?;
    scene.free("/a").await
}

async fn a_move_holds_both_ends(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let moved = a
        .hold(&[(Want::Write, "/to/y"), (Want::Write, "/from/x")])
        .await?;
    for path in ["/from/x", "/from", "/from/x/z", "/to/y", "/to", "/to/y/z"] {
        scene.held(path).await?;
    }
    for path in ["/from/y", "/to/x", "/from!", "/t"] {
        scene.free(path).await?;
    }
    a.release(&moved).await?;
    scene.free("/from").await?;
    scene.free("/to").await
}

async fn keys_with_a_common_beginning_are_no_relatives(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Write, "/a")]).await?;
    for path in [
        "/a!",
        "/a-b",
        "/a.",
        "/a0",
        "/aa",
        "/ab/c",
        "/a b",
        "/A",
        "/a\u{301}",
        "/á",
    ] {
        b.hold(&[(Want::Write, path)]).await?;
    }
    b.refused(&b.ask(&[(Want::Write, "/a/z")])).await?;
    a.release(&held).await?;
    a.hold(&[(Want::Write, "/a/z")]).await?;
    let holders = scene.held("/a").await?;
    ensure_eq!(holders.len(), 1, "holders below /a, {holders:?}");
    Ok(())
}

async fn writers_of_siblings_share_the_ancestors(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let first = a.hold(&[(Want::Write, "/x/y/1")]).await?;
    let second = b
        .hold(&[(Want::Write, "/x/y/2"), (Want::Read, "/x/z")])
        .await?;
    a.holds(&first).await?;
    b.holds(&second).await?;
    for path in ["/x", "/x/y"] {
        let holders = scene.held(path).await?;
        let grants: Vec<_> = holders.iter().filter_map(|holder| holder.grant).collect();
        for grant in [first.grant, second.grant] {
            ensure!(
                grants.contains(&grant),
                "{grant} is in the way of {path}: {holders:?}"
            );
        }
    }
    Ok(())
}

async fn readers_of_nested_paths_share_them(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (actor, path) in [
        (&a, "/a/b"),
        (&b, "/a"),
        (&b, "/a/b/c"),
        (&a, "/a/b/c"),
        (&b, "/a/b"),
    ] {
        actor.hold(&[(Want::Read, path)]).await?;
    }
    for path in ["/a", "/a/b", "/a/b/c", "/a/b/c/d"] {
        scene.held(path).await?;
    }
    Ok(())
}

async fn claims_of_one_batch_never_meet_each_other(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let batch = a
        .hold(&[
            (Want::Write, "/a"),
            (Want::Write, "/a/b"),
            (Want::Read, "/c"),
            (Want::Read, "/c/d"),
            (Want::Write, "/e/f"),
            (Want::Read, "/e/g"),
        ])
        .await?;
    a.holds(&batch).await?;
    a.release(&batch).await?;
    for path in ["/a", "/c", "/e"] {
        scene.free(path).await?;
    }
    Ok(())
}

async fn an_owner_goes_down_and_up_its_own_tree(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let mut held = Vec::new();
    for (want, path) in [
        (Want::Write, "/a/b"),
        (Want::Write, "/a/b/c"),
        (Want::Read, "/a/b/c/d"),
        (Want::Write, "/a"),
        (Want::Read, "/a/b"),
    ] {
        held.push(a.hold_as(owner, &[(want, path)]).await?);
    }
    a.refused(&a.ask(&[(Want::Read, "/a/b/c")])).await?;
    for request in held.iter().rev() {
        scene.held("/a").await?;
        a.release(request).await?;
    }
    scene.free("/a").await
}

async fn a_move_with_one_end_taken_holds_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (taken, want) in [
        ("/to", Want::Read),
        ("/to/y/deep", Want::Write),
        ("/from/x", Want::Read),
    ] {
        let other = b.hold(&[(want, taken)]).await?;
        let moved = a.ask(&[(Want::Write, "/from/x"), (Want::Write, "/to/y")]);
        let busy = a.refused(&moved).await?;
        let refused = if taken.starts_with("/to") {
            "/to/y"
        } else {
            "/from/x"
        };
        ensure_eq!(
            busy.first().claim,
            claim(Want::Write, refused)?,
            "the refused end"
        );
        b.release(&other).await?;
        scene.free("/from").await?;
        scene.free("/to").await?;
    }
    Ok(())
}

async fn a_refused_batch_leaves_no_ancestor_held(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let other = b.hold(&[(Want::Write, "/m/n/o")]).await?;
    let batch = [
        (Want::Write, "/a/b/c"),
        (Want::Read, "/a/d"),
        (Want::Write, "/m/n/o/p"),
        (Want::Write, "/z/y"),
    ];
    a.refused(&a.ask(&batch)).await?;
    for path in ["/a", "/z"] {
        scene.free(path).await?;
    }
    let holders = scene.held("/m").await?;
    ensure_eq!(holders.len(), 1, "holders below /m, {holders:?}");
    b.holds(&other).await
}

async fn released_siblings_leave_the_ancestor_to_the_last(scene: Scene) -> Verdict {
    let actors = [
        scene.actor().await?,
        scene.actor().await?,
        scene.actor().await?,
    ];
    let mut held = Vec::new();
    for (actor, path) in actors.iter().zip(["/a/b/1", "/a/b/2", "/a/c"]) {
        held.push(actor.hold(&[(Want::Write, path)]).await?);
    }
    for (at, actor) in actors.iter().enumerate() {
        let grants: Vec<_> = scene
            .held("/a")
            .await?
            .iter()
            .filter_map(|holder| holder.grant)
            .collect();
        let mut left: Vec<_> = held[at..].iter().map(|request| request.grant).collect();
        let mut seen = grants.clone();
        left.sort();
        seen.sort();
        ensure_eq!(seen, left, "holders below /a after {at} releases");
        actor.release(&held[at]).await?;
        // A copy of it that comes later takes nobody else's away.
        actor.release(&held[at]).await?;
    }
    scene.free("/a").await
}

async fn releasing_above_leaves_what_is_held_below(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let above = a.hold_as(owner, &[(Want::Write, "/a")]).await?;
    let below = a.hold_as(owner, &[(Want::Write, "/a/b/c")]).await?;
    a.release(&above).await?;
    a.holds(&below).await?;
    scene.held("/a/b/c").await?;
    scene.held("/a").await?;
    scene.free("/a/c").await?;
    a.release(&below).await?;
    scene.free("/a").await
}

async fn releasing_below_leaves_what_is_held_above(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let below = a.hold_as(owner, &[(Want::Write, "/a/b")]).await?;
    let above = a.hold_as(owner, &[(Want::Write, "/a")]).await?;
    a.release(&below).await?;
    a.holds(&above).await?;
    for path in ["/a", "/a/b", "/a/c"] {
        scene.held(path).await?;
    }
    a.release(&above).await?;
    scene.free("/a").await
}

async fn a_refusal_names_the_ancestor_that_is_held(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let read = a.hold(&[(Want::Read, "/x/y")]).await?;
    let batch = [
        (Want::Write, "/a/b"),
        (Want::Write, "/x/y/z/1"),
        (Want::Write, "/x/y/z/2"),
        (Want::Write, "/z"),
    ];
    let busy = b.refused(&b.ask(&batch)).await?;
    ensure_eq!(
        busy.first().claim,
        claim(Want::Write, "/x/y/z/1")?,
        "the first refused claim"
    );
    let holder = &busy.first().holders[0];
    ensure_eq!(
        (
            holder.key.as_str(),
            holder.mode,
            holder.grant,
            holder.label.as_str()
        ),
        ("/x/y", Mode::S, Some(read.grant), a.label().as_str()),
        "who is in the way"
    );
    for refused in busy.refused() {
        ensure!(
            refused.claim.key().as_str().starts_with("/x/y/z/"),
            "only what is below /x/y is refused: {refused:?}"
        );
    }
    Ok(())
}

async fn an_ancestor_lists_who_is_below(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let writer = a.hold(&[(Want::Write, "/a/b/c")]).await?;
    let reader = b.hold(&[(Want::Read, "/a/b/d")]).await?;
    for path in ["/a", "/a/b"] {
        let Some(record) = scene.record(path).await? else {
            return Err(crate::verdict::Wrong(format!(
                "{path} is held from below and not listed"
            )));
        };
        for (request, mode) in [(&writer, Mode::IX), (&reader, Mode::IS)] {
            let listed = record
                .holders
                .iter()
                .filter(|holder| holder.grant == Some(request.grant))
                .map(|holder| (holder.key.as_str(), holder.mode));
            ensure_eq!(
                listed.collect::<Vec<_>>(),
                [(path, mode)],
                "{} on {path}",
                request.grant
            );
        }
    }
    a.release(&writer).await?;
    b.release(&reader).await?;
    ensure_eq!(
        scene.record("/a").await?,
        None,
        "the record of /a after the releases"
    );
    Ok(())
}
