//! Everything that goes wrong from outside: pauses, kills, cuts, clocks and operators.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use lockcore::backend::{End, Filter, Inspect, SessionStore};
use lockcore::{Grant, Label, Life, Note, NoteKind};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use tokio::time::{Instant, sleep};

use super::Failovers;
use super::client::{Client, NEMESIS, kill};
use super::fixture::Fixture;
use crate::history::What;
use crate::programs::up_to;

/// Does its worst for as long as the plan says.
pub(super) async fn rage(fixture: &Arc<Fixture>) {
    let until = Instant::now() + fixture.plan.length;
    let rng = |part| fixture.plan.chance(NEMESIS + part);
    tokio::join!(
        biased;
        pauses(fixture, rng(1), until),
        kills(fixture, rng(2), until),
        cuts(fixture, rng(3), until),
        drift(fixture, rng(4), until),
        steps(fixture, rng(5), until),
        operators(fixture, rng(6), until),
        failovers(fixture, rng(7), until),
    );
    tokio::time::sleep_until(until).await;
}

/// Sleeps up to so long. Whether there is time left.
async fn rest(rng: &mut Xoshiro256PlusPlus, longest: Duration, until: Instant) -> bool {
    sleep(up_to(rng, longest)).await;
    Instant::now() < until
}

fn any(fixture: &Fixture, rng: &mut Xoshiro256PlusPlus) -> Option<(usize, Arc<Client>)> {
    let slots = fixture.slots();
    let slot = rng.random_range(0..slots.len());
    let client = slots[slot].clone()?;
    (!client.gate.is_gone()).then_some((slot, client))
}

async fn pauses(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    let ttl = fixture.plan.ttl;
    while fixture.plan.pauses && rest(&mut rng, ttl * 2, until).await {
        let Some((_, client)) = any(fixture, &mut rng) else {
            continue;
        };
        fixture.record(client.process, What::Paused);
        client.gate.close();
        let longest = if rng.random() { ttl * 3 } else { ttl / 2 };
        sleep(up_to(&mut rng, longest)).await;
        if !client.gate.is_gone() {
            fixture.record(client.process, What::Resumed);
        }
        client.gate.open();
    }
}

/// Kills a client, and starts another in its place after a while.
async fn kills(fixture: &Arc<Fixture>, mut rng: Xoshiro256PlusPlus, until: Instant) {
    while fixture.plan.kills && rest(&mut rng, fixture.plan.ttl * 3, until).await {
        if let Some((_, client)) = any(fixture, &mut rng)
            && rng.random_bool(0.7)
        {
            kill(fixture, client.process, &client.gate);
        }
        sleep(up_to(&mut rng, fixture.plan.ttl)).await;
        let gone = |client: &Option<Arc<Client>>| {
            client.as_ref().is_none_or(|client| client.gate.is_gone())
        };
        let slot = fixture.slots().iter().position(gone);
        if let Some(slot) = slot {
            Client::start(fixture, slot);
        }
    }
}

async fn cuts(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    while fixture.plan.cuts && rest(&mut rng, fixture.plan.ttl * 2, until).await {
        let Some((_, client)) = any(fixture, &mut rng) else {
            continue;
        };
        if rng.random() {
            // Answers become slow before none comes any more.
            client.link.lag(up_to(&mut rng, fixture.plan.timeout));
            sleep(up_to(&mut rng, fixture.plan.ttl * 2)).await;
        }
        client.link.cut(true);
        client.link.lag(Duration::ZERO);
        sleep(up_to(&mut rng, fixture.plan.ttl * 2)).await;
        client.link.cut(false);
    }
}

/// The store's clock runs up to 2.5 % wrong, in one direction at a time.
async fn drift(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    const EACH: Duration = Duration::from_millis(400);
    while fixture.plan.drift && Instant::now() < until {
        let (forward, longest) = (rng.random(), Duration::from_millis(10));
        for _ in 0..rng.random_range(1..20) {
            sleep(EACH).await;
            let by = up_to(&mut rng, longest);
            move_clock(fixture, by, forward, |by| What::Drifted { by });
        }
    }
}

async fn steps(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    while fixture.plan.steps && rest(&mut rng, fixture.plan.ttl * 4, until).await {
        let by = up_to(&mut rng, fixture.plan.ttl * 2);
        move_clock(fixture, by, rng.random(), |by| What::Stepped { by });
    }
}

fn move_clock(fixture: &Fixture, by: Duration, forward: bool, what: impl Fn(i64) -> What) {
    let nanos = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
    fixture.record(0, what(if forward { nanos } else { -nanos }));
    if forward {
        fixture.store.advance(by);
    } else {
        fixture.store.retreat(by);
    }
}

/// A copy of the store takes over, mostly one that was made a moment before.
async fn failovers(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    let Some(failovers) = fixture.plan.failovers else {
        return;
    };
    let named = failovers == Failovers::Told;
    while rest(&mut rng, fixture.plan.ttl / 2, until).await {
        fixture.record(0, What::Copied);
        let copy = fixture.store.copy();
        let longest = match rng.random_range(0..4) {
            0 => Duration::ZERO,
            1 => fixture.plan.ttl,
            2 => fixture.plan.ttl / 20,
            _ => Duration::from_millis(10),
        };
        sleep(up_to(&mut rng, longest)).await;
        fixture.record(0, What::FailedOver { named });
        fixture.store.fails_over(copy);
    }
}

/// Operators see the store as it is.
async fn operators(fixture: &Fixture, mut rng: Xoshiro256PlusPlus, until: Instant) {
    while fixture.plan.operators && rest(&mut rng, fixture.plan.ttl * 2, until).await {
        if rng.random_bool(0.3) {
            evict(fixture, &mut rng).await;
            continue;
        }
        let Ok(sessions) = fixture.observed.sessions(None, 1_000).await else {
            continue;
        };
        let (life, how) = match rng.random_bool(0.7) {
            true => (Life::Living, End::Revoke),
            false => (Life::Abandoned, End::Discard),
        };
        let of_that_life: Vec<_> = sessions
            .items
            .iter()
            .filter(|state| state.life == life)
            .map(|state| state.session)
            .collect();
        let Some(session) = of_that_life.choose(&mut rng).copied() else {
            continue;
        };
        let what = match how {
            End::Revoke => What::Revoking { session },
            _ => What::Discarding { session },
        };
        fixture.record(0, what);
        drop(fixture.observed.end(&[session], how).await);
    }
}

/// Has somebody give up what it holds.
async fn evict(fixture: &Fixture, rng: &mut Xoshiro256PlusPlus) {
    let all = Filter::Prefix(String::new());
    let Ok(records) = fixture.observed.records(&all, None, 1_000).await else {
        return;
    };
    let holders = records.items.iter().flat_map(|record| &record.holders);
    let grants: Vec<Grant> = holders.filter_map(|holder| holder.grant).collect();
    if let Some(grant) = grants.choose(rng) {
        let nobody = Label::parse("").expect("it is short");
        let note = Note::new(NoteKind::Evict, nobody.clone(), nobody, UNIX_EPOCH).about(grant.n);
        let session = grant.session;
        fixture.record(0, What::Evicting { session });
        drop(fixture.observed.note(session, &note).await);
    }
}
