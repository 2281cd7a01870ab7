//! After the last fault: whoever waits gets what becomes free, and nothing is left behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockcore::{Claim, Filter, Inspect, LockKey, Want};
use tokio::time::sleep;

use super::client::Client;
use super::program::{Request, ask};
use super::recovery;
use super::world::{FLAT, PATHS, World};
use crate::faults::Weather;
use crate::history::What;

/// For how long whoever waits may wait once nothing goes wrong any more.
const BOUND: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn end(world: &Arc<World>) {
    world.record(0, What::Calm);
    world.stop();
    for client in world.clients() {
        if !client.gate.is_gone() {
            world.record(client.process, What::Resumed);
        }
        client.gate.open();
        client.link.cut(false);
        client.link.lag(Duration::ZERO);
        client.link.set(Weather::FAIR);
    }
    if !everybody_is_done(world).await {
        return stuck(world);
    }
    // Late copies arrive, and are void at the next renewal; dead sessions are due.
    while world
        .clients()
        .iter()
        .any(|client| client.link.under_way() > 0)
    {
        sleep(LOOK).await;
    }
    let slack = Duration::from_secs(1);
    sleep(world.plan.ttl * if world.plan.steps { 6 } else { 2 } + slack).await;
    let prober = Client::new(world, Weather::FAIR, false);
    recover_all(world, &prober).await;
    left(world).await;
    probe(world, &prober).await;
    for client in world.clients() {
        if !client.gate.is_gone() {
            client.forget_owner(None);
            let done = client.locks.shutdown(BOUND).await;
            world.record(client.process, What::ShutDown { done });
        }
    }
}

async fn everybody_is_done(world: &World) -> bool {
    let mut waited = Duration::ZERO;
    while !world.clients().iter().all(|client| client.is_idle()) {
        if waited >= BOUND {
            return false;
        }
        sleep(LOOK).await;
        waited += LOOK;
    }
    true
}

/// Writes down who has no answer.
fn stuck(world: &World) {
    let mut open: BTreeMap<u64, u32> = BTreeMap::new();
    world.recorder.look(|history| {
        for event in &history.events {
            match &event.what {
                What::Asked { attempt, .. } => drop(open.insert(*attempt, event.process)),
                What::Granted { attempt, .. } | What::Refused { attempt, .. } => {
                    open.remove(attempt);
                }
                What::Killed => open.retain(|_, process| *process != event.process),
                _ => {}
            }
        }
    });
    if open.is_empty() {
        // Nobody waits for a lock, and still somebody is not done.
        open.insert(0, 0);
    }
    for (attempt, process) in open {
        world.record(process, What::Stuck { attempt });
    }
}

/// Settles whatever is abandoned.
async fn recover_all(world: &World, prober: &Client) {
    let mut rng = world.plan.chance(u64::from(prober.process) * 100 + 2);
    for _ in 0..200 {
        drop(
            prober
                .locks
                .backend()
                .sweep(lockcore::Sweep::All, 10_000)
                .await,
        );
        if !recovery::by_hand(world, prober, &mut rng, true).await {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Nobody has a guard any more, so nobody holds anything.
async fn left(world: &World) {
    let all = Filter::Prefix(String::new());
    let Ok(page) = world.observed.records(&all, None, 1_000).await else {
        return;
    };
    for record in page.items {
        for grant in record.holders.iter().filter_map(|holder| holder.grant) {
            let key = record.key.clone();
            world.record(0, What::Left { key, grant });
        }
    }
}

/// Every key can be had.
async fn probe(world: &World, prober: &Client) {
    for text in FLAT.into_iter().chain(PATHS) {
        let key = LockKey::parse(text).expect("a key");
        let want = if key.is_path() {
            Want::Write
        } else {
            Want::Create
        };
        let claim = Claim::new(key.clone(), want).expect("the want fits the key");
        let request = Request::probe(claim, world.plan.ttl * 2);
        let had = ask(world, prober, request).await;
        let Some(got) = had else {
            world.record(prober.process, What::NotToBeHad { key });
            continue;
        };
        let attempt = got.attempt;
        let how = crate::history::How::Released;
        world.record(prober.process, What::GivingBack { attempt, how });
        drop(got.guard.release().await);
    }
}
