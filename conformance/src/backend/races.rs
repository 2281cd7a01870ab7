//! Requests at the same time: whoever is told that it holds a key is the only one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use lockcore::backend::{Acquire, Acquired, End, Stood};
use lockcore::{FencingToken, Want};
use tokio::time::sleep;

use crate::actor::{Actor, SHARE, share};
use crate::case::Case;
use crate::model::{Held, conflict};
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Backend "races";
        AtMostOneHolder:
            flat_keys,
            paths,
            batches,
            a_counter_that_only_the_lock_keeps_right,
            shares_and_their_limit,
            asked_at_once_by_one_session,
            beside_sessions_that_are_revoked;
        UnknownIsSettled:
            beside_copies_releases_and_renewals;
        NothingKept:
            when_all_is_over_nothing_is_held;
    }
}

/// How often each of those who contend asks: few, as each grant is held for a while.
const ROUNDS: usize = 12;

/// What is certainly held: from the answer that granted it until its release is sent.
#[derive(Default)]
struct Monitor(Mutex<State>);

#[derive(Default)]
struct State {
    held: Vec<Held>,
    greatest: Option<FencingToken>,
}

impl Monitor {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn greatest(&self) -> Option<FencingToken> {
        self.state().greatest
    }

    /// The request was granted just now; `before` is the greatest token that was known when it was sent.
    fn granted(
        &self,
        request: &Acquire,
        token: FencingToken,
        before: Option<FencingToken>,
    ) -> Verdict {
        let mut state = self.state();
        ensure!(Some(token) > before, "token {token} after {before:?}");
        state.greatest = state.greatest.max(Some(token));
        for claim in &request.claims {
            let mut shares = 0;
            for held in &state.held {
                if conflict(claim, request.owner, held) {
                    return Err(Wrong(format!(
                        "{} was granted {claim:?} while {} holds {:?}",
                        request.grant, held.grant, held.claim
                    )));
                }
                shares += u32::from(held.claim.key() == claim.key());
            }
            if let Some(limit) = claim.want().limit() {
                ensure!(
                    shares < limit.get(),
                    "{claim:?} was granted beside {shares} shares"
                );
            }
        }
        state.held.extend(request.claims.iter().map(|claim| Held {
            claim: claim.clone(),
            grant: request.grant,
            owner: request.owner,
        }));
        Ok(())
    }

    fn released(&self, request: &Acquire) {
        self.state().held.retain(|held| held.grant != request.grant);
    }

    fn ended(&self, actor: &Actor) {
        self.state()
            .held
            .retain(|held| held.grant.session != actor.session());
    }
}

/// The time between two requests, or that a key is held: none, or up to two round trips. So two grants that overlap for
/// less than a round trip are seen, however far away the store is.
#[derive(Clone, Copy)]
struct Pace(Duration);

impl Pace {
    async fn of(scene: &Scene) -> Verdict<Self> {
        Ok(Self(scene.round_trip().await?))
    }

    /// Now and then nothing, so that requests follow each other closely too.
    async fn pause(self, scene: &Scene) {
        for _ in 0..scene.below(4) {
            tokio::task::yield_now().await;
        }
        let quarters = u32::try_from(scene.below(9)).unwrap_or(0);
        if quarters > 4 {
            sleep(self.0 * quarters / 4).await;
        }
    }

    /// One or two round trips.
    async fn hold(self, scene: &Scene) {
        let quarters = u32::try_from(scene.below(5)).unwrap_or(0);
        sleep(self.0 + self.0 * quarters / 4).await;
    }
}

/// Asks, holds and releases, again and again.
async fn contend(
    scene: &Scene,
    actor: &Actor,
    monitor: &Monitor,
    wants: &[Vec<(Want, &str)>],
    pace: Pace,
) -> Verdict<usize> {
    let mut granted = 0;
    for _ in 0..ROUNDS {
        pace.pause(scene).await;
        let request = actor.ask(scene.pick(wants).as_slice());
        let before = monitor.greatest();
        match actor.send(&request).await? {
            Acquired::Acquired(token) => {
                monitor.granted(&request, token, before)?;
                granted += 1;
                pace.hold(scene).await;
                monitor.released(&request);
                actor.release(&request).await?;
            }
            Acquired::Busy(_) => {}
            answer => {
                let what = format!("a living session's request is granted or refused: {answer:?}");
                return Err(Wrong(what));
            }
        }
    }
    Ok(granted)
}

async fn contended(scene: &Scene, wants: &[Vec<(Want, &str)>]) -> Verdict {
    let (monitor, pace) = (Monitor::default(), Pace::of(scene).await?);
    let mut actors = Vec::new();
    for _ in 0..5 {
        actors.push(scene.actor().await?);
    }
    let runs = actors
        .iter()
        .map(|actor| contend(scene, actor, &monitor, wants, pace));
    let granted: usize = try_join_all(runs).await?.into_iter().sum();
    ensure!(granted > 0, "somebody is granted something");
    for (_, key) in wants.iter().flatten() {
        scene.free(key).await?;
    }
    Ok(())
}

async fn flat_keys(scene: Scene) -> Verdict {
    let wants = [
        (Want::Create, "k"),
        (Want::Upsert, "k"),
        (SHARE, "k"),
        (Want::Upsert, "l"),
    ]
    .map(|want| vec![want]);
    contended(&scene, &wants).await
}

async fn paths(scene: Scene) -> Verdict {
    let wants = [
        (Want::Write, "/a"),
        (Want::Read, "/a"),
        (Want::Write, "/a/b"),
        (Want::Read, "/a/b"),
        (Want::Write, "/a/b/c"),
        (Want::Read, "/a/b/c"),
        (Want::Write, "/a/d"),
        (Want::Write, "/a!"),
    ]
    .map(|want| vec![want]);
    contended(&scene, &wants).await
}

async fn batches(scene: Scene) -> Verdict {
    let wants = [
        vec![
            (Want::Upsert, "d1"),
            (Want::Upsert, "d2"),
            (Want::Upsert, "d3"),
        ],
        vec![(Want::Upsert, "d2"), (Want::Upsert, "d3")],
        vec![(Want::Upsert, "d1"), (Want::Upsert, "d3")],
        vec![(Want::Write, "/a/b"), (Want::Write, "/c/d")],
        vec![(Want::Read, "/a"), (Want::Write, "/c")],
    ];
    contended(&scene, &wants).await
}

async fn shares_and_their_limit(scene: Scene) -> Verdict {
    let wants = [
        vec![(share(2), "s")],
        vec![(share(2), "s"), (share(2), "t")],
        vec![(Want::Create, "s")],
    ];
    contended(&scene, &wants).await
}

/// A store may answer many of them by one request of its own.
async fn asked_at_once_by_one_session(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let taken = b.hold(&[(Want::Upsert, "taken")]).await?;
    for round in 0..3 {
        let alone: Vec<Acquire> = (0..20)
            .map(|i| a.ask(&[(Want::Upsert, &format!("k{i}"))]))
            .collect();
        let same =
            [Want::Create, Want::Upsert, Want::Upsert, SHARE].map(|want| a.ask(&[(want, "same")]));
        let shared = [SHARE, SHARE, share(3)].map(|want| a.ask(&[(want, "shared")]));
        let refused = [Want::Create, SHARE].map(|want| a.ask(&[(want, "taken")]));
        let all: Vec<&Acquire> = (same.iter().chain(&alone).chain(&shared))
            .chain(&refused)
            .collect();
        let answers = try_join_all(all.iter().map(|request| a.send(request))).await?;
        let mut held = Vec::new();
        for (request, answer) in all.iter().zip(answers) {
            let granted = match answer {
                Acquired::Acquired(_) => true,
                Acquired::Busy(_) => false,
                answer => return Err(Wrong(format!("{} was answered {answer:?}", request.grant))),
            };
            let confirmed = a.confirms(request).await?;
            ensure_eq!(
                confirmed,
                granted,
                "{} is held, round {round}",
                request.grant
            );
            held.push(granted);
        }
        let of = |some: &[Acquire]| {
            let is_held = all.iter().zip(&held).filter(|(_, held)| **held);
            is_held
                .filter(|(request, _)| some.contains(request))
                .count()
        };
        ensure_eq!(
            of(&alone),
            alone.len(),
            "those who want a key of their own, and have it"
        );
        // They may be in each other's way, as any who come at once.
        ensure!(of(&same) <= 1, "{} have one key", of(&same));
        ensure_eq!(of(&shared), shared.len(), "those who share, and have it");
        ensure_eq!(
            of(&refused),
            0,
            "those who want what another one has, and have it"
        );
        let stood = try_join_all(all.iter().map(|request| a.gives_back(request))).await?;
        for ((request, held), stood) in all.iter().zip(held).zip(stood) {
            let expected = if held { Stood::Held } else { Stood::Absent };
            ensure_eq!(stood, expected, "what {} was, round {round}", request.grant);
        }
    }
    for key in ["same", "shared", "k0", "k19"] {
        scene.free(key).await?;
    }
    b.holds(&taken).await
}

async fn a_counter_that_only_the_lock_keeps_right(scene: Scene) -> Verdict {
    // What the lock protects, and how often it was held.
    let (counter, holders) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let pace = Pace::of(&scene).await?;
    let count = async |actor: &Actor| -> Verdict {
        for _ in 0..ROUNDS {
            let request = actor.ask(&[(Want::Create, "counter")]);
            if let Acquired::Acquired(_) = actor.send(&request).await? {
                let read = counter.load(Ordering::Relaxed);
                pace.hold(&scene).await;
                counter.store(read + 1, Ordering::Relaxed);
                holders.fetch_add(1, Ordering::Relaxed);
                actor.release(&request).await?;
            }
            pace.pause(&scene).await;
        }
        Ok(())
    };
    let mut actors = Vec::new();
    for _ in 0..6 {
        actors.push(scene.actor().await?);
    }
    try_join_all(actors.iter().map(count)).await?;
    let (counted, holders) = (counter.into_inner(), holders.into_inner());
    ensure!(
        counted == holders && holders > 0,
        "{holders} holders counted to {counted}"
    );
    Ok(())
}

async fn beside_sessions_that_are_revoked(scene: Scene) -> Verdict {
    let (monitor, pace) = (Monitor::default(), Pace::of(&scene).await?);
    let wants = [
        vec![(Want::Upsert, "k"), (Want::Upsert, "l")],
        vec![(Want::Create, "k")],
        vec![(Want::Upsert, "l")],
    ];
    // Whoever asks here loses its session every now and then, and comes back with a new one.
    let lossy = async || -> Verdict {
        for _ in 0..6 {
            let actor = scene.actor().await?;
            let request = actor.ask(scene.pick(&wants).as_slice());
            let before = monitor.greatest();
            if let Acquired::Acquired(token) = actor.send(&request).await? {
                monitor.granted(&request, token, before)?;
                pace.hold(&scene).await;
            }
            monitor.ended(&actor);
            scene.end(actor.session(), End::Revoke).await?;
            // Its late requests are still on the way.
            actor.send(&request).await?;
            pace.pause(&scene).await;
            actor.release(&request).await?;
        }
        Ok(())
    };
    let mut actors = Vec::new();
    for _ in 0..3 {
        actors.push(scene.actor().await?);
    }
    let steady = actors
        .iter()
        .map(|actor| contend(&scene, actor, &monitor, &wants, pace));
    let (lost, kept) = join(try_join_all([lossy(), lossy()]), try_join_all(steady)).await;
    lost?;
    kept?;
    scene.free("k").await?;
    scene.free("l").await
}

async fn beside_copies_releases_and_renewals(scene: Scene) -> Verdict {
    let pace = Pace::of(&scene).await?;
    let mut actors = Vec::new();
    for _ in 0..4 {
        actors.push(scene.actor().await?);
    }
    let keys = ["k", "/a/b", "l"];
    let abandon = async |actor: &Actor| -> Verdict {
        for _ in 0..10 {
            let request = actor.ask(&[crate::scene::exclusive(scene.pick::<&str>(&keys))]);
            // Given up before any of these was answered: copies, the release and the renewal cross each other.
            let copies = try_join_all((0..3).map(async |_| {
                pace.pause(&scene).await;
                actor.send(&request).await
            }));
            let release = async {
                pace.pause(&scene).await;
                actor.release(&request).await
            };
            let (copies, release) = join(copies, release).await;
            copies?;
            release?;
            let retired = format!("1-{}", request.grant.n);
            actor
                .renew(&retired, lockcore::backend::IntentChange::Keep)
                .await?;
        }
        Ok(())
    };
    try_join_all(actors.iter().map(abandon)).await?;
    for key in keys {
        scene.free(key).await?;
    }
    Ok(())
}

async fn when_all_is_over_nothing_is_held(scene: Scene) -> Verdict {
    let (monitor, pace) = (Monitor::default(), Pace::of(&scene).await?);
    let names: Vec<String> = (0..12).map(|n| format!("d{n:02}")).collect();
    let wants: Vec<Vec<(Want, &str)>> = (0..8)
        .map(|from| {
            names[from..from + 5]
                .iter()
                .map(|name| (Want::Upsert, name.as_str()))
                .collect()
        })
        .collect();
    let mut actors = Vec::new();
    for _ in 0..4 {
        actors.push(scene.actor().await?);
    }
    try_join_all(
        actors
            .iter()
            .map(|actor| contend(&scene, actor, &monitor, &wants, pace)),
    )
    .await?;
    let stranger = scene.stranger().await?;
    for actor in &actors {
        let filter = lockcore::backend::Filter::Session(actor.session());
        crate::verdict::ensure_eq!(
            stranger.listed(&filter, 100).await?,
            [],
            "what a finished session holds"
        );
    }
    let all: Vec<(Want, &str)> = names
        .iter()
        .map(|name| (Want::Upsert, name.as_str()))
        .collect();
    stranger.hold(&all).await?;
    Ok(())
}
