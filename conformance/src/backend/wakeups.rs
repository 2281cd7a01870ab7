//! Watches: what frees a claim wakes who watches it.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use lockcore::Want;
use lockcore::backend::{Changed, End};
use tokio::time::{Instant, sleep, timeout};

use crate::actor::{Actor, SHARE, share};
use crate::backend::recovery::with_intent;
use crate::backend::watches::asleep;
use crate::case::Case;
use crate::scene::{Scene, claim, exclusive, short};
use crate::verdict::{Unpassed, Verdict, cases, ensure, within};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "wakeups";
        Waiting:
            a_release_wakes,
            a_release_in_the_same_process_wakes,
            a_release_above_wakes,
            a_release_below_wakes,
            a_released_share_wakes_who_waits_for_room,
            the_last_released_reader_wakes_a_writer,
            a_release_of_one_of_many_wakes,
            whatever_frees_several_keys_wakes_for_each,
            a_close_wakes,
            a_revocation_wakes,
            an_expiry_that_was_established_wakes,
            a_settlement_wakes,
            a_discard_wakes,
            an_eviction_wakes,
            every_watcher_is_woken,
            a_watch_that_nobody_polls_is_in_nobodys_way;
    }
}

/// Longest that a case waits for a wake-up.
const PATIENCE: Duration = Duration::from_secs(15);
/// What a wake-up may take beside the store's own time: for what this process does with it.
const MOMENT: Duration = Duration::from_millis(250);
/// So many requests to the store, one after the other, may be answered between what frees a claim and its wake-up.
const ROUND_TRIPS: u32 = 10;
/// Between two requests that measure.
const PAUSE: Duration = Duration::from_millis(20);
/// Watches that are not always polled, more than a process has connections, and how often they are.
const MANY: usize = 40;
const ROUNDS: u64 = 12;
/// How long a request takes at most that nobody is in the way of.
const SOON: Duration = Duration::from_secs(3);

async fn watch(a: &Actor, want: Want, key: &str) -> Verdict<Changed> {
    asleep(a, &[claim(want, key)?]).await
}

/// After this, which frees what is watched and is acknowledged, the watch resolves in the time that
/// [`Info::poll`](lockcore::Info::poll) promises.
///
/// That is one period where the store is looked at, and the time of a few requests, as long as they take meanwhile.
pub(super) async fn wakes_in_time<T>(
    scene: &Scene,
    changed: Changed,
    event: impl Future<Output = Verdict<T>>,
) -> Verdict<T> {
    let other = scene.stranger().await?;
    let answer = event.await?;
    woken_in_time(other, changed, Instant::now()).await?;
    Ok(answer)
}

/// The watch resolves in time, while somebody else's requests tell how long the store takes.
async fn woken_in_time(other: &Actor, changed: Changed, since: Instant) -> Verdict {
    let (_, trip) = within(PATIENCE, "the watcher's wake-up", beside(other, changed)).await??;
    let took = since.elapsed();
    let poll = other.backend().info().poll.unwrap_or_default();
    let most = MOMENT + poll + trip * ROUND_TRIPS;
    let Some(spare) = took.checked_sub(most) else {
        return Ok(());
    };
    let what = format!(
        "the watcher was woken after {took:?}, and has to be within {most:?}: {MOMENT:?}, {poll:?} from look to look, and \
         {ROUND_TRIPS} round trips of {trip:?}"
    );
    Err(Unpassed::came_late(what, since, spare))
}

/// What the future resolves to, and the longest that the store took to answer this one's requests until then.
async fn beside<T>(other: &Actor, future: impl Future<Output = T>) -> Verdict<(T, Duration)> {
    let mut future = pin!(future);
    let mut longest = Duration::ZERO;
    loop {
        let asked = Instant::now();
        let answer = pin!(other.end_of(other.session(), End::IfDue));
        let done = select(&mut future, answer).await;
        longest = longest.max(asked.elapsed());
        match done {
            Either::Left((done, _)) => return Ok((done, longest)),
            Either::Right((answer, _)) => answer?,
        };
        if let Either::Left((done, _)) = select(&mut future, pin!(sleep(PAUSE))).await {
            return Ok((done, longest));
        }
    }
}

async fn a_release_wakes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (want, key) in [
        (Want::Create, "c"),
        (Want::Upsert, "u"),
        (Want::Write, "/w/x"),
    ] {
        let held = a.hold(&[(want, key)]).await?;
        let changed = watch(&b, want, key).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        wakes_in_time(&scene, changed, a.release(&held)).await?;
        b.hold(&[(want, key)]).await?;
    }
    Ok(())
}

async fn a_release_in_the_same_process_wakes(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let b = scene.beside(&a).await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let changed = watch(&b, Want::Create, "k").await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

async fn a_release_above_wakes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Write, "/a")]).await?;
    let changed = watch(&b, Want::Read, "/a/b/c").await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

async fn a_release_below_wakes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Read, "/a/b/c")]).await?;
    let changed = watch(&b, Want::Write, "/a").await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

async fn a_released_share_wakes_who_waits_for_room(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(share(2), "s")]).await?;
    a.hold(&[(share(2), "s")]).await?;
    let changed = watch(&b, share(2), "s").await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

async fn the_last_released_reader_wakes_a_writer(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let (first, last) = (
        a.hold(&[(Want::Read, "/a")]).await?,
        a.hold(&[(Want::Read, "/a")]).await?,
    );
    a.release(&first).await?;
    let changed = watch(&b, Want::Write, "/a").await?;
    wakes_in_time(&scene, changed, a.release(&last)).await
}

async fn a_release_of_one_of_many_wakes(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let mut held = Vec::new();
    for key in ["k1", "k2", "k3"] {
        held.push(a.hold(&[(Want::Upsert, key)]).await?);
    }
    for request in held {
        let claims: Verdict<Vec<_>> = ["k1", "k2", "k3"]
            .iter()
            .map(|key| claim(Want::Upsert, key))
            .collect();
        // Only those still held: a watch over something free may wake at once.
        let claims: Vec<_> = claims?
            .into_iter()
            .filter(|claim| claim.key() >= request.claims[0].key())
            .collect();
        let changed = asleep(&b, &claims).await?;
        wakes_in_time(&scene, changed, a.release(&request)).await?;
    }
    Ok(())
}

/// Of one grant, and of one session with several.
async fn whatever_frees_several_keys_wakes_for_each(scene: Scene) -> Verdict {
    let keys = ["k1", "k2", "/k/3"];
    let wants = keys.map(exclusive);
    for round in 0..2 {
        let [a, b] = scene.actors().await?;
        let mut held = Vec::new();
        match round {
            0 => held.push(a.hold(&wants).await?),
            _ => {
                for want in wants {
                    held.push(a.hold(&[want]).await?);
                }
            }
        }
        let mut all = Vec::new();
        for (want, key) in wants {
            all.push(watch(&b, want, key).await?);
        }
        let frees = async {
            match round {
                0 => a.release(&held[0]).await,
                _ => scene.end(a.session(), End::Revoke).await.map(drop),
            }
        };
        let woken: Changed = Box::pin(join_all(all).map(drop));
        wakes_in_time(&scene, woken, frees).await?;
    }
    Ok(())
}

async fn a_death_wakes(scene: Scene, how: End) -> Verdict {
    for (want, key) in [(Want::Create, "c"), (Want::Write, "/w/x")] {
        let [a, b] = scene.actors().await?;
        a.hold(&[(want, key)]).await?;
        let changed = watch(&b, want, key).await?;
        b.refused(&b.ask(&[(want, key)])).await?;
        wakes_in_time(&scene, changed, scene.end(a.session(), how)).await?;
        b.hold(&[(want, key)]).await?;
    }
    Ok(())
}

async fn a_close_wakes(scene: Scene) -> Verdict {
    a_death_wakes(scene, End::Close).await
}

async fn a_revocation_wakes(scene: Scene) -> Verdict {
    a_death_wakes(scene, End::Revoke).await
}

async fn an_expiry_that_was_established_wakes(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    let ttl = short(&b.backend().info()) * 3;
    let a = scene.actor_for(ttl).await?;
    a.hold(&[(SHARE, "s")]).await?;
    let changed = watch(&b, Want::Create, "s").await;
    // A watch over what is due wakes at once.
    a.lives()?;
    let changed = changed?;
    scene.expire(ttl).await;
    wakes_in_time(&scene, changed, scene.state(a.session())).await?;
    Ok(())
}

async fn a_settlement_wakes(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Write, "/a/b")], "half done").await?;
    a.end(End::Close).await?;
    let [b, c] = scene.actors().await?;
    b.adopted(a.session(), 0).await?;
    let changed = watch(&c, Want::Write, "/a").await?;
    let settled = wakes_in_time(&scene, changed, b.settle(a.session(), 1)).await?;
    ensure!(settled, "it is settled");
    Ok(())
}

async fn a_discard_wakes(scene: Scene) -> Verdict {
    let (a, ..) = with_intent(&scene, &[(Want::Create, "k")], "half done").await?;
    a.end(End::Close).await?;
    let b = scene.actor().await?;
    let changed = watch(&b, Want::Create, "k").await?;
    wakes_in_time(&scene, changed, scene.end(a.session(), End::Discard)).await?;
    Ok(())
}

async fn an_eviction_wakes(scene: Scene) -> Verdict {
    let b = scene.actor().await?;
    for key in ["k", "/a/b"] {
        scene.plant(key).await?;
        let changed = watch(&b, exclusive(key).0, key).await?;
        wakes_in_time(&scene, changed, scene.evict(key)).await?;
        b.hold(&[exclusive(key)]).await?;
    }
    Ok(())
}

async fn every_watcher_is_woken(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let mut watches = Vec::new();
    for actor in [&a, &b, &b, &c] {
        watches.push(watch(actor, Want::Create, "k").await?);
    }
    let other = scene.stranger().await?;
    a.release(&held).await?;
    let since = Instant::now();
    for changed in watches {
        woken_in_time(other, changed, since).await?;
    }
    Ok(())
}

/// Whoever waits does other things, too: a watch that was just looking at the store, say, holds nothing meanwhile that
/// others need for their requests.
async fn a_watch_that_nobody_polls_is_in_nobodys_way(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    a.hold(&[(Want::Create, "k")]).await?;
    let mut watches = FuturesUnordered::new();
    for _ in 0..MANY {
        watches.push(watch(&b, Want::Create, "k").await?);
    }
    for round in 0..ROUNDS {
        // Stopped wherever they are.
        let polled = async { while watches.next().await.is_some() {} };
        let _ = timeout(PAUSE + Duration::from_millis(round % 4), polled).await;
        let ask = b.ask(&[(Want::Create, "k")]);
        let refused = b.refused(&ask);
        within(SOON, "a request beside watches that nobody polls", refused).await??;
    }
    Ok(())
}
