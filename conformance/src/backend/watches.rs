//! Watches that nothing happens to: they sleep, and end when they are dropped.

use std::time::Duration;

use futures_util::FutureExt;
use lockcore::backend::Changed;
use lockcore::{Claim, Want};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::actor::{Actor, share};
use crate::backend::wakeups::wakes_in_time;
use crate::case::Case;
use crate::scene::{Scene, claim};
use crate::verdict::{Unpassed, Verdict, Wrong, cases, ensure};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "watches";
        Waiting:
            a_watch_sleeps_while_nothing_happens,
            a_watch_sleeps_beside_one_over_a_session,
            a_dropped_watch_ends;
    }
}

/// How long nothing happens.
const QUIET: Duration = Duration::from_millis(400);
/// Looks that a store without push has time for then, at least.
const LOOKS: u32 = 4;
/// How often a watch may wake for nothing at all: a connection that it hears on may be made anew, once.
const FOR_NOTHING: usize = 1;
/// How many others do something while it watches, and what each does of which somebody might have to be told.
const OTHERS: usize = 5;
const TOLD: usize = 2;

/// Watches until then, again after each wake-up, and says how many there were: at most so many and one.
async fn wake_ups(a: &Actor, claims: &[Claim], until: Instant, most: usize) -> Verdict<usize> {
    for woken in 0..=most {
        let changed = a.backend().watch(claims).await?;
        if timeout_at(until, changed).await.is_err() {
            return Ok(woken);
        }
    }
    Ok(most + 1)
}

/// While nothing happens a watch sleeps. Says for how long that was.
async fn sleeps(a: &Actor, claims: &[Claim]) -> Verdict<Duration> {
    let looks = a.backend().info().poll.unwrap_or_default() * LOOKS;
    let quiet = QUIET.max(looks);
    let woken = wake_ups(a, claims, Instant::now() + quiet, FOR_NOTHING).await?;
    ensure!(
        woken <= FOR_NOTHING,
        "nothing happened for {quiet:?}, and a watch over what is held woke more than {FOR_NOTHING} time"
    );
    Ok(quiet)
}

/// A watch over what is held sleeps. It may wake for what happens to others, once for each time that something is given back or
/// said to be over.
async fn a_watch_sleeps_while_nothing_happens(scene: Scene) -> Verdict {
    let [a, b, c] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    a.hold(&[(Want::Write, "/w/x")]).await?;
    a.hold(&[(share(1), "s")]).await?;
    let claims = [
        claim(Want::Write, "/w")?,
        claim(Want::Create, "k")?,
        claim(share(1), "s")?,
    ];
    let quiet = sleeps(&b, &claims).await?;

    let most = FOR_NOTHING + OTHERS * TOLD;
    let others = async {
        for _ in 0..OTHERS {
            let other = c.hold(&[(Want::Create, "other")]).await?;
            c.refused(&c.ask(&[(Want::Create, "k")])).await?;
            c.release(&other).await?;
            c.retired(&[&other]).await?;
        }
        Ok(())
    };
    let until = Instant::now() + quiet;
    let (done, woken): (Verdict, _) =
        futures_util::join!(others, wake_ups(&b, &claims, until, most));
    done?;
    let woken = woken?;
    ensure!(
        woken <= most,
        "{OTHERS} others did {TOLD} things each, and a watch over what is held woke more than {most} times"
    );

    let changed = asleep(&b, &claims[1..2]).await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

/// Who hears of its session waits for something later, on the same way.
async fn a_watch_sleeps_beside_one_over_a_session(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let claims = [claim(Want::Create, "k")?];
    let of_session = async || Ok::<_, Unpassed>(b.backend().watch_session(b.session()).await?);
    let first = of_session().await?;
    let quiet = sleeps(&b, &claims).await?;
    drop(first);
    let again = timeout(quiet, of_session().await?).await;
    ensure!(
        again.is_err(),
        "nothing happened to the session since it was woken"
    );
    let changed = asleep(&b, &claims).await?;
    wakes_in_time(&scene, changed, a.release(&held)).await
}

/// A watch over what is held, that was looked at once.
pub(super) async fn asleep(a: &Actor, claims: &[Claim]) -> Verdict<Changed> {
    // What happened before may be told late, once for each thing.
    for _ in 0..FOR_NOTHING + TOLD {
        let mut changed = a.backend().watch(claims).await?;
        if (&mut changed).now_or_never().is_none() {
            return Ok(changed);
        }
    }
    Err(Wrong(format!(
        "a watch over what is held wakes at once, every time: {claims:?}"
    )))
}

/// So many watches are dropped.
const DROPPED: usize = 60;
/// How long whoever ends them may take.
const ENDS: Duration = Duration::from_secs(5);

/// Of a watch that was dropped no task is left in this process.
///
/// That is what can be seen from here. A store's own thread, a row in the store, or an entry in a list of the backend's
/// that stays is not: a backend's own tests have to look for that.
async fn a_dropped_watch_ends(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let held = a.hold(&[(Want::Create, "k")]).await?;
    let claims = [claim(Want::Create, "k")?];
    ends_when_dropped(async || Ok(b.backend().watch(&claims).await?)).await?;
    let changed = asleep(&b, &claims).await?;
    wakes_in_time(&scene, changed, a.release(&held)).await?;
    b.hold(&[(Want::Create, "k")]).await?;
    Ok(())
}

/// No task is left of watches like this one.
pub(super) async fn ends_when_dropped(watch: impl AsyncFn() -> Verdict<Changed>) -> Verdict {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    // The first one may set up what all share.
    drop(watch().await?);
    let before = tasks();
    for at in 0..DROPPED {
        let changed = watch().await?;
        if at % 2 == 0 {
            drop(changed);
        } else {
            let _ = changed.now_or_never();
        }
    }
    // A connection or two may have been made meanwhile, and tasks of those.
    let most = before + DROPPED / 4;
    let until = Instant::now() + ENDS;
    while tasks() > most {
        ensure!(
            Instant::now() < until,
            "{DROPPED} watches were dropped {ENDS:?} ago: tasks that were {before} before are {} now",
            tasks()
        );
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
