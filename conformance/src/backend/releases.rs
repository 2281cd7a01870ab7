//! Release takes the holders of its grant and nothing else.

use futures_util::future::try_join_all;
use lockcore::backend::{Acquire, End, IntentChange, Stood};
use lockcore::{Grant, Want};

use crate::actor::{Actor, SHARE};
use crate::backend::recovery::with_intent;
use crate::case::Case;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "releases";
        OwnClaimsOnly:
            a_released_key_is_free_at_once,
            a_release_sent_again_is_no_error,
            a_late_release_leaves_the_next_holder,
            a_late_release_of_a_batch_leaves_the_next_holders,
            a_late_release_of_a_dead_session_leaves_the_next_holder,
            a_release_of_what_was_never_granted_changes_nothing,
            a_release_by_the_same_number_of_another_session_changes_nothing,
            a_release_by_another_number_of_the_session_changes_nothing,
            one_of_two_shares_is_released,
            one_of_two_grants_of_an_owner_is_released,
            a_share_and_an_upsert_of_one_owner_are_released_apart,
            a_release_for_a_refused_request_frees_nobody,
            a_release_says_that_it_was_held,
            a_release_of_a_session_that_ended_says_that_it_was_not_held,
            a_release_of_a_number_that_is_over_says_that_it_was_not_held,
            a_release_of_a_session_that_is_due_says_that_it_was_held,
            a_release_of_what_is_not_there_says_so,
            a_confirm_of_what_another_holds_is_no;
    }
}

const EXCLUSIVE: [(Want, &str); 3] = [
    (Want::Create, "c"),
    (Want::Upsert, "u"),
    (Want::Write, "/w/x"),
];

async fn a_released_key_is_free_at_once(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in EXCLUSIVE {
        for _ in 0..5 {
            for actor in [&a, &b] {
                let held = actor.hold(&[(want, key)]).await?;
                actor.release(&held).await?;
                actor.holds_no_more(&held).await?;
            }
        }
    }
    Ok(())
}

async fn a_release_sent_again_is_no_error(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in EXCLUSIVE {
        let held = a.hold(&[(want, key)]).await?;
        for _ in 0..3 {
            a.release(&held).await?;
        }
        scene.free(key).await?;
    }
    Ok(())
}

/// The holder is the only one, and stays.
async fn still_held(scene: &Scene, holder: &Actor, request: &Acquire) -> Verdict {
    ensure!(
        holder.confirms(request).await?,
        "{} is still held",
        request.grant
    );
    for claim in &request.claims {
        let holders = scene.held(claim.key().as_str()).await?;
        let grants: Vec<Option<Grant>> = holders.iter().map(|holder| holder.grant).collect();
        ensure_eq!(grants, [Some(request.grant)], "who holds {}", claim.key());
    }
    Ok(())
}

async fn a_late_release_leaves_the_next_holder(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in EXCLUSIVE {
        let first = a.hold(&[(want, key)]).await?;
        a.release(&first).await?;
        let second = b.hold(&[(want, key)]).await?;
        a.release(&first).await?;
        still_held(&scene, &b, &second).await?;
        // The same when the next holder is of the same process.
        b.release(&second).await?;
        let third = a.hold(&[(want, key)]).await?;
        a.release(&first).await?;
        still_held(&scene, &a, &third).await?;
    }
    Ok(())
}

async fn a_late_release_of_a_batch_leaves_the_next_holders(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let batch = a
        .hold(&[
            (Want::Upsert, "d1"),
            (Want::Upsert, "d2"),
            (Want::Upsert, "d3"),
        ])
        .await?;
    a.release(&batch).await?;
    let first = b.hold(&[(Want::Upsert, "d1")]).await?;
    let third = c.hold(&[(Want::Upsert, "d3")]).await?;
    a.release(&batch).await?;
    still_held(&scene, &b, &first).await?;
    still_held(&scene, &c, &third).await?;
    scene.free("d2").await
}

async fn a_late_release_of_a_dead_session_leaves_the_next_holder(scene: Scene) -> Verdict {
    for (want, key) in EXCLUSIVE {
        let [a, b] = scene.actors().await?;
        let first = a.hold(&[(want, key)]).await?;
        scene.end(a.session(), End::Revoke).await?;
        let second = b.hold(&[(want, key)]).await?;
        a.release(&first).await?;
        still_held(&scene, &b, &second).await?;
        b.release(&second).await?;
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_release_of_what_was_never_granted_changes_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in EXCLUSIVE {
        let never = b.ask(&[(want, key)]);
        b.release(&never).await?;
        let held = a.hold(&[(want, key)]).await?;
        b.release(&never).await?;
        still_held(&scene, &a, &held).await?;
    }
    Ok(())
}

async fn a_release_by_the_same_number_of_another_session_changes_nothing(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in EXCLUSIVE {
        let held = a.hold(&[(want, key)]).await?;
        let mut other = held.clone();
        other.grant.session = b.session();
        b.release(&other).await?;
        b.holds_no_more(&other).await?;
        still_held(&scene, &a, &held).await?;
    }
    Ok(())
}

async fn a_release_by_another_number_of_the_session_changes_nothing(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in EXCLUSIVE {
        let held = a.hold(&[(want, key)]).await?;
        // Ten times the number as well: no name is the beginning of another.
        for n in [held.grant.n - 1, held.grant.n + 1, held.grant.n * 10 + 1] {
            let mut other = held.clone();
            other.grant.n = n;
            a.release(&other).await?;
            a.holds_no_more(&other).await?;
        }
        still_held(&scene, &a, &held).await?;
    }
    Ok(())
}

async fn one_of_two_shares_is_released(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in [(SHARE, "s"), (Want::Read, "/r/s")] {
        let (left, right) = (a.hold(&[(want, key)]).await?, b.hold(&[(want, key)]).await?);
        a.release(&left).await?;
        still_held(&scene, &b, &right).await?;
        a.release(&left).await?;
        still_held(&scene, &b, &right).await?;
        b.release(&right).await?;
        scene.free(key).await?;
    }
    Ok(())
}

async fn one_of_two_grants_of_an_owner_is_released(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    for (want, key) in [(Want::Upsert, "u"), (Want::Write, "/w"), (Want::Read, "/r")] {
        for first_goes in [true, false] {
            let owner = a.owner();
            let first = a.hold_as(owner, &[(want, key)]).await?;
            let second = a.hold_as(owner, &[(want, key)]).await?;
            let (goes, stays) = if first_goes {
                (first, second)
            } else {
                (second, first)
            };
            a.release(&goes).await?;
            ensure!(!a.confirms(&goes).await?, "{} was released", goes.grant);
            still_held(&scene, &a, &stays).await?;
            a.release(&stays).await?;
            scene.free(key).await?;
        }
    }
    Ok(())
}

async fn a_share_and_an_upsert_of_one_owner_are_released_apart(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let owner = a.owner();
    let share = a.hold_as(owner, &[(SHARE, "k")]).await?;
    let upsert = a.hold_as(owner, &[(Want::Upsert, "k")]).await?;
    b.refused(&b.ask(&[(SHARE, "k")])).await?;
    a.release(&upsert).await?;
    b.hold(&[(SHARE, "k")]).await?;
    a.holds(&share).await
}

async fn a_release_for_a_refused_request_frees_nobody(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in EXCLUSIVE {
        let held = a.hold(&[(want, key)]).await?;
        let request = b.ask(&[(want, key)]);
        b.refused(&request).await?;
        b.release(&request).await?;
        still_held(&scene, &a, &held).await?;
    }
    Ok(())
}

/// What is held in the ways that there are: one key and several, beside others and alone, more than one transaction takes.
async fn held_in_all_ways(a: &Actor, b: &Actor) -> Verdict<Vec<Acquire>> {
    let mut held = Vec::new();
    b.hold(&[(SHARE, "shared"), (Want::Read, "/r/s")]).await?;
    for wants in [
        &[(Want::Create, "c")][..],
        &[(SHARE, "alone")],
        &[(SHARE, "shared")],
        &[
            (Want::Upsert, "u1"),
            (Want::Upsert, "u2"),
            (SHARE, "shared"),
        ],
        &[(Want::Write, "/w/x/y")],
        &[
            (Want::Read, "/r/s"),
            (Want::Read, "/r/t"),
            (Want::Write, "/v"),
        ],
    ] {
        held.push(a.hold(wants).await?);
    }
    let keys: Vec<String> = (0..a.backend().info().keys_per_batch)
        .map(|n| format!("many{n:05}"))
        .collect();
    let many: Vec<(Want, &str)> = keys
        .iter()
        .map(|key| (Want::Upsert, key.as_str()))
        .collect();
    held.push(a.hold(&many).await?);
    Ok(held)
}

async fn a_release_says_that_it_was_held(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for held in held_in_all_ways(&a, &b).await? {
        let stood = a.gives_back(&held).await?;
        ensure_eq!(stood, Stood::Held, "{:?}", held.claims[0]);
        let again = a.gives_back(&held).await?;
        ensure_eq!(again, Stood::Absent, "{:?}, sent again", held.claims[0]);
    }
    Ok(())
}

async fn a_release_of_a_session_that_ended_says_that_it_was_not_held(scene: Scene) -> Verdict {
    for how in [End::Close, End::Revoke] {
        let [a, b] = scene.actors().await?;
        let held = held_in_all_ways(&a, &b).await?;
        scene.end(a.session(), how).await?;
        // A store may take together what comes at once.
        let stood = match how {
            End::Close => try_join_all(held.iter().map(|held| a.gives_back(held))).await?,
            _ => {
                let mut stood = Vec::new();
                for held in &held {
                    stood.push(a.gives_back(held).await?);
                }
                stood
            }
        };
        for (stood, held) in stood.iter().zip(&held) {
            ensure!(*stood != Stood::Held, "{how:?}, {:?}", held.claims[0]);
        }
        b.end(End::Close).await?;
    }
    // An abandoned one keeps its locks, and is not held any more by who had it.
    let (a, held, _) = with_intent(&scene, &[(Want::Write, "/a/b")], "half done").await?;
    scene.end(a.session(), End::Revoke).await?;
    let stood = a.gives_back(&held).await?;
    ensure!(stood != Stood::Held, "abandoned");
    Ok(())
}

async fn a_release_of_a_number_that_is_over_says_that_it_was_not_held(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = held_in_all_ways(&a, &b).await?;
    let (stays, retired) = held.split_last().expect("some are held");
    let numbers: Vec<String> = retired
        .iter()
        .map(|held| format!("{0}-{0}", held.grant.n))
        .collect();
    a.renew(&numbers.join(","), IntentChange::Keep).await?;
    for held in retired {
        let stood = a.gives_back(held).await?;
        ensure!(stood != Stood::Held, "{:?}", held.claims[0]);
    }
    a.releases(stays, Stood::Held).await
}

/// Nobody has ended it, so nobody else has come.
async fn a_release_of_a_session_that_is_due_says_that_it_was_held(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let info = b.backend().info();
    let ttl = short(&info);
    let a = scene.actor_for(ttl).await?;
    let held = a.hold(&[(Want::Create, "c")]).await?;
    let ended = a.hold(&[(Want::Create, "d")]).await?;
    scene.expire(ttl).await;
    // A store that ends sessions by itself has done so.
    let first = a.gives_back(&held).await?;
    b.hold(&[(Want::Create, "d")]).await?;
    let second = a.gives_back(&ended).await?;
    ensure!(second != Stood::Held, "somebody else has it");
    ensure!(first != Stood::Absent, "it was there: {first:?}");
    Ok(())
}

async fn a_release_of_what_is_not_there_says_so(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let never = a.ask(&[(Want::Create, "c"), (Want::Write, "/w/x")]);
    a.releases(&never, Stood::Absent).await?;
    let held = a
        .hold(&[
            (Want::Upsert, "u1"),
            (Want::Upsert, "u2"),
            (Want::Write, "/w/x"),
        ])
        .await?;
    let mut part = held.clone();
    part.claims.truncate(1);
    a.releases(&part, Stood::Held).await?;
    a.releases(&held, Stood::Absent).await?;
    for key in ["u1", "u2", "/w/x"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_confirm_of_what_another_holds_is_no(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a
        .hold(&[(Want::Upsert, "d1"), (Want::Upsert, "d2")])
        .await?;
    let other = b.ask(&[(Want::Upsert, "d1")]);
    b.holds_no_more(&other).await?;
    let mut more = held.clone();
    more.claims.extend(b.ask(&[(Want::Upsert, "d3")]).claims);
    a.holds_no_more(&more).await?;
    a.holds(&held).await?;
    // The same keys in another way.
    let share = a.hold(&[(SHARE, "s"), (Want::Read, "/r")]).await?;
    for (want, key) in [(Want::Upsert, "s"), (Want::Write, "/r")] {
        let mut other = share.clone();
        other.claims = a.ask(&[(want, key)]).claims;
        a.holds_no_more(&other).await?;
    }
    a.holds(&share).await
}
