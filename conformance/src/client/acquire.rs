//! The four schemes, acquired and released, by one process beside another.

use std::sync::{Arc, Mutex, PoisonError};

use lockcore::{Mode, Progress, Want};

use crate::case::Case;
use crate::client::{acquired, granted, locks, refusal, refused, release};
use crate::scene::Scene;
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "acquire";
        AtMostOneHolder:
            a_global_lock_has_one_holder,
            a_global_lock_is_not_entered_twice_by_one_process,
            shares_keep_to_their_limit,
            a_written_tree_is_nobody_elses,
            a_read_tree_is_nobodys_to_write,
            both_ends_of_a_move_are_held,
            a_read_path_above_a_written_one_is_written;
        AllowedIsGranted:
            shares_are_held_side_by_side,
            siblings_are_written_side_by_side,
            names_of_other_schemes_are_other_names;
        NothingKept:
            a_move_that_is_refused_holds_neither_end;
        RefusalIsAValue:
            a_refusal_names_the_holder,
            a_wait_that_is_over_names_the_holder;
        TokensOnlyRise:
            every_guard_has_a_greater_token;
        OwnClaimsOnly:
            releasing_a_guard_leaves_the_others;
        Guard:
            claims_are_told_as_they_are_held,
            progress_is_told;
    }
}

async fn a_global_lock_has_one_holder(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for _ in 0..5 {
        for (holder, other) in [(&a, &b), (&b, &a)] {
            let guard = granted(holder.lock("g")).await?;
            refused(other.lock("g")).await?;
            release(guard).await?;
        }
    }
    Ok(())
}

async fn a_global_lock_is_not_entered_twice_by_one_process(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(a.lock("g")).await?;
    refused(a.lock("g")).await?;
    refused(a.clone().lock("g")).await?;
    release(guard).await?;
    release(granted(a.lock("g")).await?).await
}

async fn shares_keep_to_their_limit(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let first = granted(a.semaphore("s", 2)).await?;
    let second = granted(b.semaphore("s", 2)).await?;
    refused(a.semaphore("s", 2)).await?;
    refused(b.semaphore("s", 2)).await?;
    refused(b.lock("s")).await?;
    release(first).await?;
    let third = granted(b.semaphore("s", 2)).await?;
    release(second).await?;
    release(third).await?;
    release(granted(b.lock("s")).await?).await
}

async fn a_written_tree_is_nobody_elses(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.tree().write("/t/m")).await?;
    for path in ["/t", "/t/m", "/t/m/x/y"] {
        refused(b.tree().write(path)).await?;
        refused(b.tree().read(path)).await?;
        refused(a.tree().read(path)).await?;
    }
    release(guard).await?;
    release(granted(b.tree().write("/t")).await?).await
}

async fn a_read_tree_is_nobodys_to_write(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.tree().read("/t/m")).await?;
    for path in ["/t", "/t/m", "/t/m/x/y"] {
        refused(b.tree().write(path)).await?;
        release(granted(b.tree().read(path)).await?).await?;
    }
    release(guard).await?;
    release(granted(b.tree().write("/t")).await?).await
}

async fn both_ends_of_a_move_are_held(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.tree().write("/to/x").write("/from/x")).await?;
    for path in ["/to/x", "/from/x/y", "/to", "/from"] {
        refused(b.tree().write(path)).await?;
    }
    release(granted(b.tree().write("/to/y").write("/from/y")).await?).await?;
    release(guard).await?;
    release(granted(b.tree().write("/to").write("/from")).await?).await
}

async fn a_read_path_above_a_written_one_is_written(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.tree().write("/a/b").read("/a").read("/c")).await?;
    let told: Vec<(&str, Want)> = guard
        .claims()
        .iter()
        .map(|claim| (claim.key().as_str(), claim.want()))
        .collect();
    ensure_eq!(
        told,
        [
            ("/a", Want::Write),
            ("/a/b", Want::Write),
            ("/c", Want::Read)
        ],
        "the claims"
    );
    refused(b.tree().read("/a/x")).await?;
    release(granted(b.tree().read("/c/x")).await?).await?;
    release(guard).await
}

async fn shares_are_held_side_by_side(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(granted(a.rwlock("s").read()).await?);
        guards.push(granted(b.rwlock("s").read()).await?);
    }
    for guard in guards {
        refused(b.lock("s")).await?;
        refused(b.rwlock("s").write()).await?;
        release(guard).await?;
    }
    let writer = granted(b.rwlock("s").write()).await?;
    refused(a.rwlock("s").read()).await?;
    refused(a.rwlock("s").write()).await?;
    refused(a.semaphore("s", 9)).await?;
    release(writer).await
}

async fn siblings_are_written_side_by_side(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let one = granted(a.tree().write("/t/a")).await?;
    let two = granted(b.tree().write("/t/a!").read("/t/b")).await?;
    refused(b.tree().read("/t")).await?;
    release(one).await?;
    refused(a.tree().read("/t")).await?;
    release(two).await?;
    release(granted(a.tree().read("/t")).await?).await
}

async fn names_of_other_schemes_are_other_names(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let tree = granted(a.tree().write("/n")).await?;
    let global = granted(b.lock("n")).await?;
    // Flat schemes share their names.
    refused(a.documents(["n"])).await?;
    refused(a.rwlock("n").read()).await?;
    release(tree).await?;
    release(global).await
}

async fn a_move_that_is_refused_holds_neither_end(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    for taken in ["/from/x/y", "/to"] {
        let guard = granted(b.tree().read(taken)).await?;
        let busy = refused(a.tree().write("/to/x").write("/from/x")).await?;
        let end = if taken == "/to" { "/to/x" } else { "/from/x" };
        ensure_eq!(busy.first().claim.key().as_str(), end, "the refused end");
        release(guard).await?;
        scene.free("/to").await?;
        scene.free("/from").await?;
    }
    Ok(())
}

async fn a_refusal_names_the_holder(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.tree().write("/t/m")).await?;
    let busy = refused(b.tree().read("/s").read("/t")).await?;
    ensure_eq!(busy.first().claim.key().as_str(), "/t", "the refused claim");
    let holder = &busy.first().holders[0];
    ensure_eq!(
        (
            holder.grant.map(|grant| grant.session),
            holder.mode,
            holder.label.as_str()
        ),
        (Some(guard.session()), Mode::IX, "a process of the suite"),
        "who is in the way"
    );
    release(guard).await
}

async fn a_wait_that_is_over_names_the_holder(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let guard = granted(a.lock("g")).await?;
    let limit = std::time::Duration::from_secs(1);
    let busy = refusal(b.lock("g").wait(limit).acquire().await)?;
    let session = busy.first().holders[0].grant.map(|grant| grant.session);
    ensure_eq!(session, Some(guard.session()), "who is in the way");
    release(guard).await
}

async fn every_guard_has_a_greater_token(scene: Scene) -> Verdict {
    let (a, b) = (locks(&scene).await?, locks(&scene).await?);
    let mut last = None;
    for _ in 0..5 {
        for locks in [&a, &b] {
            for guard in [
                granted(locks.lock("k")).await?,
                granted(locks.documents(["d1", "d2", "d3"])).await?,
                granted(locks.rwlock("s").read()).await?,
                granted(locks.tree().write("/t/m").read("/u")).await?,
            ] {
                ensure!(
                    Some(guard.token()) > last,
                    "token {} after {last:?}",
                    guard.token()
                );
                last = Some(guard.token());
                release(guard).await?;
            }
        }
    }
    Ok(())
}

async fn releasing_a_guard_leaves_the_others(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let mut guards = Vec::new();
    for n in 0..10 {
        guards.push((n, granted(a.lock(format!("k{n}"))).await?));
    }
    let (even, odd): (Vec<_>, Vec<_>) = guards.into_iter().partition(|(n, _)| n % 2 == 0);
    for (n, guard) in odd {
        release(guard).await?;
        scene.free(&format!("k{n}")).await?;
    }
    for (n, guard) in &even {
        ensure!(guard.is_valid() && guard.confirm().await?, "k{n} is held");
        scene.held(&format!("k{n}")).await?;
    }
    Ok(())
}

async fn claims_are_told_as_they_are_held(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let guard = granted(
        a.tree()
            .write("/b")
            .read("/a/z")
            .read("/a!")
            .read("/b")
            .read("/a/z"),
    )
    .await?;
    let told: Vec<&str> = guard
        .claims()
        .iter()
        .map(|claim| claim.key().as_str())
        .collect();
    ensure_eq!(told, ["/a/z", "/a!", "/b"], "the keys, in path order");
    ensure_eq!(
        guard.claims()[2].want(),
        Want::Write,
        "the stronger claim of /b"
    );
    release(guard).await
}

async fn progress_is_told(scene: Scene) -> Verdict {
    let a = locks(&scene).await?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let told = told.clone();
        move |progress: Progress<'_>| {
            if let Progress::Granted { claims, of } = progress {
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((claims, of));
            }
        }
    };
    let ids: Vec<String> = (0..7).map(|n| format!("d{n}")).collect();
    let guard = acquired(a.documents(&ids).observe(observer)).await?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure!(told.is_sorted(), "what is granted grows: {told:?}");
    ensure_eq!(told.last(), Some(&(7, 7)), "what is told at the end");
    release(guard).await
}
