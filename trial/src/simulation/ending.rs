//! After the last fault: whoever waits gets what becomes free, and nothing is left behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::client::Client;
use super::fixture::Fixture;
use crate::faults::Weather;
use crate::history::What;
use crate::programs::ending::{left, probe, recover_all, unanswered};

/// For how long whoever waits may wait once nothing goes wrong any more.
const BOUND: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn end(fixture: &Arc<Fixture>) {
    fixture.record(0, What::Calm);
    fixture.stop();
    for client in fixture.clients() {
        if !client.gate.is_gone() {
            fixture.record(client.process, What::Resumed);
        }
        client.gate.open();
        client.link.cut(false);
        client.link.lag(Duration::ZERO);
        client.link.set(Weather::FAIR);
    }
    if !everybody_is_done(fixture).await {
        return stuck(fixture);
    }
    // Late copies arrive, and are void at the next renewal; dead sessions are due.
    while fixture
        .clients()
        .iter()
        .any(|client| client.link.under_way() > 0)
    {
        sleep(LOOK).await;
    }
    let slack = Duration::from_secs(1);
    sleep(fixture.plan.ttl * if fixture.plan.steps { 6 } else { 2 } + slack).await;
    let prober = Client::new(fixture, Weather::FAIR, false);
    let site = prober.site(fixture);
    let mut rng = fixture.plan.chance(u64::from(prober.process) * 100 + 2);
    recover_all(&site, &prober.user, &mut rng).await;
    let listed = left(&site, &*fixture.observed).await;
    listed.expect("it answers in the end");
    probe(&site, &prober.user, fixture.plan.ttl * 2).await;
    for client in fixture.clients() {
        if !client.gate.is_gone() {
            client.user.forget_owner(None);
            let done = client.user.locks.shutdown(BOUND).await;
            fixture.record(client.process, What::ShutDown { done });
        }
    }
}

async fn everybody_is_done(fixture: &Fixture) -> bool {
    let mut waited = Duration::ZERO;
    while !fixture.clients().iter().all(|client| client.is_idle()) {
        if waited >= BOUND {
            return false;
        }
        sleep(LOOK).await;
        waited += LOOK;
    }
    true
}

/// Writes down who has no answer.
fn stuck(fixture: &Fixture) {
    let mut open = fixture.recorder.look(unanswered);
    if open.is_empty() {
        // Nobody waits for a lock, and still somebody is not done.
        open.insert(0, 0);
    }
    for (attempt, process) in open {
        fixture.record(process, What::Stuck { attempt });
    }
}
