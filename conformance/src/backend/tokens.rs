//! Fencing tokens only rise.

use futures_util::future::try_join_all;
use lockcore::backend::End;
use lockcore::limits::MAX_STORE_TOKEN;
use lockcore::{FencingToken, Want};

use crate::actor::{SHARE, of_guard};
use crate::case::Case;
use crate::fixture::BoxError;
use crate::scene::{Scene, exclusive, short};
use crate::verdict::{Unpassed, Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "tokens";
        TokensOnlyRise:
            over_release_and_acquisition,
            over_a_close,
            over_a_revocation,
            over_an_expiry,
            over_a_sweep_that_leaves_no_record,
            over_an_adoption_and_its_settlement,
            over_a_discard,
            over_an_eviction,
            over_new_connections,
            over_a_restart_of_the_store,
            over_a_new_namespace_of_the_same_name,
            over_keys,
            over_batches_of_several_keys,
            over_refusals,
            among_shares,
            among_an_owners_grants,
            from_ancestor_to_descendant_and_back,
            of_requests_at_the_same_time;
    }
}

fn rises(last: &mut Option<FencingToken>, next: FencingToken, what: &str) -> Verdict {
    if let Some(last) = last {
        ensure!(next > *last, "{what}: token {next} after {last}");
    }
    ensure!(
        next.get() <= MAX_STORE_TOKEN,
        "{what}: token {next} is one that a store may give out"
    );
    *last = Some(next);
    Ok(())
}

const KEYS: [&str; 2] = ["k", "/a/b"];

async fn over_release_and_acquisition(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (SHARE, "s"),
        (Want::Write, "/w"),
        (Want::Read, "/r"),
    ] {
        let mut last = None;
        for _ in 0..10 {
            for actor in [&a, &b] {
                let request = actor.ask(&[(want, key)]);
                rises(&mut last, actor.take(&request).await?, key)?;
                actor.release(&request).await?;
            }
        }
    }
    Ok(())
}

async fn over_end(scene: Scene, how: End) -> Verdict {
    for key in KEYS {
        let mut last = None;
        for _ in 0..5 {
            let a = scene.actor().await?;
            rises(&mut last, a.take(&a.ask(&[exclusive(key)])).await?, key)?;
            scene.end(a.session(), how).await?;
            rises(&mut last, scene.token_of(key).await?, key)?;
        }
    }
    Ok(())
}

/// Grants before and after something that every process and connection has to begin anew for.
async fn over_anew(scene: Scene, anew: impl AsyncFn() -> Result<bool, BoxError>) -> Verdict {
    let mut last = [None, None];
    for round in 0..3 {
        let a = scene.actor().await?;
        // Some rounds have more grants than others: what counts them is not what began anew.
        for _ in round..4 {
            for (key, last) in KEYS.iter().zip(&mut last) {
                let request = a.ask(&[exclusive(key)]);
                rises(last, a.take(&request).await?, key)?;
                a.release(&request).await?;
            }
        }
        drop(a);
        if !anew().await? {
            return Err(Unpassed::Lacking);
        }
    }
    let a = scene.actor().await?;
    for (key, last) in KEYS.iter().zip(&mut last) {
        rises(last, a.take(&a.ask(&[exclusive(key)])).await?, key)?;
    }
    Ok(())
}

async fn over_a_restart_of_the_store(scene: Scene) -> Verdict {
    let space = scene.space().clone();
    over_anew(scene, async || space.restart().await).await
}

async fn over_a_new_namespace_of_the_same_name(scene: Scene) -> Verdict {
    let space = scene.space().clone();
    over_anew(scene, async || space.recreate().await).await
}

async fn over_a_close(scene: Scene) -> Verdict {
    over_end(scene, End::Close).await
}

async fn over_a_revocation(scene: Scene) -> Verdict {
    over_end(scene, End::Revoke).await
}

async fn over_an_expiry(scene: Scene) -> Verdict {
    let ttl = short(&scene.stranger().await?.backend().info());
    let a = scene.actor_for(ttl).await?;
    let mut last = [None, None];
    for (key, last) in KEYS.iter().zip(&mut last) {
        rises(last, a.take(&a.ask(&[exclusive(key)])).await?, key)?;
    }
    scene.expire(ttl).await;
    for (key, last) in KEYS.iter().zip(&mut last) {
        rises(last, scene.token_of(key).await?, key)?;
    }
    Ok(())
}

async fn over_a_sweep_that_leaves_no_record(scene: Scene) -> Verdict {
    for key in KEYS {
        let mut last = None;
        for _ in 0..3 {
            let a = scene.actor().await?;
            rises(&mut last, a.take(&a.ask(&[exclusive(key)])).await?, key)?;
            a.end(End::Close).await?;
            scene.sweep_all().await?;
            rises(&mut last, scene.token_of(key).await?, key)?;
            scene.sweep_all().await?;
        }
    }
    Ok(())
}

async fn over_an_adoption_and_its_settlement(scene: Scene) -> Verdict {
    for key in KEYS {
        let mut last = None;
        let [a, b] = scene.actors().await?;
        let token = a.take(&a.ask(&[exclusive(key)])).await?;
        rises(&mut last, token, key)?;
        // As its guard has it.
        a.intend(of_guard(token), "half done").await?;
        // Somebody else's grants come in between.
        b.hold(&[(Want::Create, &format!("beside {key}"))]).await?;
        a.end(End::Close).await?;
        let first = b.adopted(a.session(), 0).await?;
        rises(&mut last, first.token, "the adopter")?;
        ensure_eq!(first.left.token, of_guard(token), "the intent's own token");
        b.give_up(a.session(), 0).await?;
        let seen = scene.state(a.session()).await?.adoption;
        let adoption = b.adopted(a.session(), seen).await?;
        rises(&mut last, adoption.token, "the next adopter")?;
        b.settles(a.session(), adoption.number).await?;
        rises(&mut last, scene.token_of(key).await?, key)?;
    }
    Ok(())
}

async fn over_a_discard(scene: Scene) -> Verdict {
    for key in KEYS {
        let mut last = None;
        let a = scene.actor().await?;
        let token = a.take(&a.ask(&[exclusive(key)])).await?;
        rises(&mut last, token, key)?;
        a.intend(token, "half done").await?;
        a.end(End::Close).await?;
        scene.end(a.session(), End::Discard).await?;
        rises(&mut last, scene.token_of(key).await?, key)?;
    }
    Ok(())
}

async fn over_an_eviction(scene: Scene) -> Verdict {
    for key in KEYS {
        let mut last = None;
        rises(&mut last, scene.token_of(key).await?, key)?;
        scene.plant(key).await?;
        scene.held(key).await?;
        scene.evict(key).await?;
        rises(&mut last, scene.token_of(key).await?, key)?;
    }
    Ok(())
}

async fn over_new_connections(scene: Scene) -> Verdict {
    let mut last = None;
    for _ in 0..5 {
        let a = scene.actor().await?;
        let request = a.ask(&[(Want::Create, "k")]);
        rises(&mut last, a.take(&request).await?, "k")?;
        a.release(&request).await?;
        a.end(End::Close).await?;
    }
    Ok(())
}

async fn over_keys(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut last = None;
    for n in 0..10 {
        for (actor, key) in [(&a, format!("k{n}")), (&b, format!("/p/{n}"))] {
            let token = actor.take(&actor.ask(&[exclusive(&key)])).await?;
            rises(&mut last, token, &key)?;
        }
    }
    Ok(())
}

async fn over_batches_of_several_keys(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut last = None;
    for n in 0..10 {
        let (left, right) = (format!("d{n}"), format!("d{}", n + 1));
        let batch = a.ask(&[(Want::Upsert, &left), (Want::Upsert, &right)]);
        rises(&mut last, a.take(&batch).await?, &right)?;
        a.release(&batch).await?;
        rises(&mut last, scene.token_of(&right).await?, &right)?;
    }
    Ok(())
}

async fn over_refusals(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut last = None;
    for _ in 0..5 {
        let request = a.ask(&[(Want::Upsert, "d1"), (Want::Upsert, "d2")]);
        rises(&mut last, a.take(&request).await?, "d1")?;
        for _ in 0..3 {
            b.refused(&b.ask(&[(Want::Upsert, "d0"), (Want::Upsert, "d1")]))
                .await?;
        }
        a.release(&request).await?;
        rises(&mut last, scene.token_of("d0").await?, "d0")?;
    }
    Ok(())
}

async fn among_shares(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut last = None;
    for _ in 0..5 {
        for actor in [&a, &b] {
            rises(
                &mut last,
                actor.take(&actor.ask(&[(SHARE, "s")])).await?,
                "s",
            )?;
            rises(
                &mut last,
                actor.take(&actor.ask(&[(Want::Read, "/r/s")])).await?,
                "/r/s",
            )?;
        }
    }
    Ok(())
}

async fn among_an_owners_grants(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let owner = a.owner();
    let mut last = None;
    for _ in 0..5 {
        let request = a.ask_as(owner, &[(Want::Upsert, "d")]);
        rises(&mut last, a.take(&request).await?, "d")?;
    }
    Ok(())
}

async fn from_ancestor_to_descendant_and_back(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut last = None;
    for _ in 0..5 {
        for (actor, path) in [(&a, "/a"), (&b, "/a/b/c"), (&a, "/a/b"), (&b, "/a/b/c/d")] {
            let request = actor.ask(&[(Want::Write, path)]);
            rises(&mut last, actor.take(&request).await?, path)?;
            actor.release(&request).await?;
        }
    }
    Ok(())
}

async fn of_requests_at_the_same_time(scene: Scene) -> Verdict {
    let mut actors = Vec::new();
    for _ in 0..4 {
        actors.push(scene.actor().await?);
    }
    let mut greatest = None;
    for round in 0..10 {
        let names: Vec<String> = (0..4).map(|n| format!("{round}-{n}")).collect();
        let requests: Vec<_> = actors
            .iter()
            .zip(&names)
            .map(|(actor, name)| (actor, actor.ask(&[(Want::Create, name.as_str())])))
            .collect();
        let takes = requests.iter().map(|(actor, request)| actor.take(request));
        let tokens = try_join_all(takes).await?;
        for token in &tokens {
            if let Some(greatest) = greatest {
                ensure!(*token > greatest, "token {token} after {greatest}");
            }
        }
        greatest = tokens.into_iter().max();
    }
    Ok(())
}
