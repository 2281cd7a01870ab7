//! What comes too late for a session that is dead, by every way to die.

use std::fmt;

use futures_util::future::{join, try_join_all};
use lockcore::backend::{Acquire, Acquired, End, IntentChange, Opened, Renewed, Sweep};
use lockcore::{FencingToken, Life, Want};
use tokio::time::{Instant, sleep};

use crate::actor::{Actor, registered};

use crate::case::Case;
use crate::each::each;
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq, in_time};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "sessions";
        DeadStaysDead:
            nothing_has_an_effect_after_close,
            nothing_has_an_effect_after_revoke,
            nothing_has_an_effect_after_expiry,
            nothing_has_an_effect_after_close_and_sweep,
            nothing_has_an_effect_after_another_took_the_key;
        Listing:
            a_late_sweep_of_the_dead_leaves_the_next_holder,
            a_sweep_of_the_dead_leaves_who_comes_meanwhile;
    }
}

async fn nothing_has_an_effect_after_close(scene: Scene) -> Verdict {
    after_death(scene, Death::Close).await
}

async fn nothing_has_an_effect_after_revoke(scene: Scene) -> Verdict {
    after_death(scene, Death::Revoke).await
}

async fn nothing_has_an_effect_after_expiry(scene: Scene) -> Verdict {
    after_death(scene, Death::Due).await
}

async fn nothing_has_an_effect_after_close_and_sweep(scene: Scene) -> Verdict {
    after_death(scene, Death::Swept).await
}

async fn nothing_has_an_effect_after_another_took_the_key(scene: Scene) -> Verdict {
    after_death(scene, Death::Judged).await
}

/// The ways to die.
#[derive(Clone, Copy, PartialEq)]
enum Death {
    Close,
    Revoke,
    Due,
    /// Found to be due by who asks for what it holds: nobody else has looked.
    Judged,
    /// By its own renewals only: nobody has looked since it is due.
    Swept,
}

/// What comes too late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Renewal,
    Registration,
    Open,
    LoneClaim,
    Batch,
    Joined,
    Copy,
    Confirm,
    Adoption,
}

const ALL: [Late; 9] = [
    Late::Renewal,
    Late::Registration,
    Late::Open,
    Late::LoneClaim,
    Late::Batch,
    Late::Joined,
    Late::Copy,
    Late::Confirm,
    Late::Adoption,
];

/// A session that held something, and what comes too late for it.
struct Dead {
    late: Late,
    a: Actor,
    held: Acquire,
    token: FencingToken,
}

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} by {}", self.late, self.a.session())
    }
}

impl Dead {
    /// Keys of its own: the one that it held, and two more.
    fn keys(&self) -> [String; 3] {
        ["held before", "k", "l"].map(|key| format!("{key} {:?}", self.late))
    }
}

/// One session for each thing that comes too late; they die together.
async fn after_death(scene: Scene, death: Death) -> Verdict {
    let other = scene.actor().await?;
    // Long enough for all of them to ask for something before it is over.
    let ttl = short(&other.backend().info()) * 3;
    let began = Instant::now();
    let process = scene.actor().await?;
    let by_time = matches!(death, Death::Due | Death::Judged);
    let living = ALL.map(async |late| -> Verdict<Dead> {
        let a = match death {
            Death::Due | Death::Judged => scene.beside_for(&process, ttl).await?,
            Death::Close | Death::Revoke | Death::Swept => scene.beside(&process).await?,
        };
        let held = a.ask(&[(Want::Create, &format!("held before {late:?}"))]);
        let token = a.take(&held).await?;
        // Whoever remembers the answer has it from before the death.
        if late == Late::Confirm {
            for asked in [&a, &other] {
                let confirmed = asked.backend().confirm(held.grant, &held.claims).await?;
                if by_time {
                    in_time(began, ttl)?;
                }
                ensure!(confirmed, "what is held is confirmed");
            }
        }
        Ok(Dead {
            late,
            a,
            held,
            token,
        })
    });
    let dead = try_join_all(living).await?;
    if by_time {
        scene.expire(ttl).await;
    }
    try_join_all(dead.iter().map(async |dead| -> Verdict {
        let state = match death {
            Death::Close | Death::Swept => dead.a.end(End::Close).await?,
            Death::Revoke => scene.end(dead.a.session(), End::Revoke).await?,
            Death::Due => scene.state(dead.a.session()).await?,
            Death::Judged => {
                let [held, ..] = dead.keys();
                return scene.free(&held).await.map(drop);
            }
        };
        ensure_eq!(state.life, Life::Dead, "the state of {dead}");
        Ok(())
    }))
    .await?;
    if death == Death::Swept {
        scene.sweep_all().await?;
    }
    each(dead, async |dead| too_late(&scene, &other, dead).await).await
}

async fn too_late(scene: &Scene, other: &Actor, dead: &Dead) -> Verdict {
    let (a, held) = (&dead.a, &dead.held);
    let keys = dead.keys();
    let [_, k, l] = keys.each_ref().map(String::as_str);
    match dead.late {
        Late::Renewal => {
            a.renews(&a.renewal("", IntentChange::Keep), Renewed::Dead)
                .await?;
        }
        Late::Registration => {
            let put = IntentChange::Put(registered(dead.token, "too late")?);
            a.renews(&a.renewal("", put), Renewed::Dead).await?;
        }
        Late::Open => {
            let ttl = short(&a.backend().info());
            let opened = a.backend().open(a.session(), a.label(), ttl).await?;
            ensure_eq!(opened, Opened::Used, "a late open");
        }
        Late::LoneClaim => uncounted(a, &a.ask(&[(Want::Create, k)])).await?,
        Late::Batch => void(a, &a.ask(&[(Want::Upsert, k), (Want::Upsert, l)])).await?,
        Late::Joined => {
            let mut request = a.ask(&[(Want::Upsert, k)]);
            request.joined = true;
            void(a, &request).await?;
        }
        Late::Copy => uncounted(a, held).await?,
        Late::Confirm => {
            for asked in [a, other] {
                let confirmed = asked.backend().confirm(held.grant, &held.claims).await?;
                ensure!(!confirmed, "a dead session holds nothing");
            }
        }
        Late::Adoption => {
            other.adopts_nothing(a.session(), 0).await?;
            other.settles_nothing(a.session(), 0).await?;
        }
    }
    scene.is(a.session(), Life::Dead).await?;
    for key in &keys {
        scene.free(key).await?;
    }
    Ok(())
}

/// What each of two sessions asks for in turn: the same keys, under the same numbers.
const BATCH: [(Want, &str); 4] = [
    (Want::Upsert, "d1"),
    (Want::Upsert, "d2"),
    (Want::Write, "/a/b"),
    (Want::Read, "/c/d"),
];

/// The next holder has all of its batch, before and after these sweeps.
async fn left_alone(scene: &Scene, dead: &Actor, next: &Actor, batch: &Acquire) -> Verdict {
    for sweep in [Sweep::Session(dead.session()), Sweep::All] {
        scene.sweep(sweep).await?;
        next.holds(batch).await?;
    }
    for (_, key) in BATCH {
        let holders = scene.held(key).await?;
        let grants: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
        ensure_eq!(grants, [Some(batch.grant)], "who holds {key}");
    }
    Ok(())
}

async fn a_late_sweep_of_the_dead_leaves_the_next_holder(scene: Scene) -> Verdict {
    for how in [End::Close, End::Revoke] {
        let [a, b] = scene.actors().await?;
        let mut last = a.hold(&BATCH).await?;
        scene.end(a.session(), how).await?;
        let next = b.hold(&BATCH).await?;
        ensure_eq!(next.grant.n, last.grant.n, "numbers (the case's own)");
        left_alone(&scene, &a, &b, &next).await?;
        // Nor does it matter whether the next holder died as well, and another came.
        scene.end(b.session(), how).await?;
        let c = scene.actor().await?;
        last = c.hold(&BATCH).await?;
        left_alone(&scene, &a, &c, &last).await?;
        left_alone(&scene, &b, &c, &last).await?;
        c.release(&last).await?;
    }
    Ok(())
}

async fn a_sweep_of_the_dead_leaves_who_comes_meanwhile(scene: Scene) -> Verdict {
    let round_trip = scene.round_trip().await?;
    let b = scene.actor().await?;
    for quarter in 0..8 {
        let a = scene.beside(&b).await?;
        a.hold(&BATCH).await?;
        a.end(End::Close).await?;
        let sweep = scene.sweep(Sweep::Session(a.session()));
        let take = async {
            sleep(round_trip * quarter / 4).await;
            b.hold(&BATCH).await
        };
        let (swept, next) = join(sweep, take).await;
        swept?;
        let next = next?;
        b.holds(&next).await?;
        left_alone(&scene, &a, &b, &next).await?;
        b.release(&next).await?;
    }
    Ok(())
}

/// Void, or where the store learns that too late, granted and not counted.
pub(super) async fn uncounted(a: &Actor, request: &Acquire) -> Verdict {
    match a.send(request).await? {
        Acquired::Void => Ok(()),
        Acquired::Acquired(_) if !a.backend().info().atomic => Ok(()),
        answer => Err(Wrong(format!("the session is dead: {answer:?}"))),
    }
}

async fn void(a: &Actor, request: &Acquire) -> Verdict {
    ensure_eq!(
        a.send(request).await?,
        Acquired::Void,
        "a request of a dead session"
    );
    Ok(())
}
