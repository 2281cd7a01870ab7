//! `SessionStore` on a file.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::time::Duration;

use lockcore::backend::{
    Adopt, ClaimStore, End, Incarnation, Inspect, IntentChange, Opened, Renewed, SessionStore,
    Sweep,
};
use lockcore::{ErrorKind, Label, Life, Locks, LostReason, Released};
use support::*;
use tokio::time::{Instant, sleep};

#[tokio::test]
async fn an_id_is_opened_once() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let label = Label::parse("again").unwrap();
    let ttl = Duration::from_secs(30);
    let again = backend.open(session, &label, ttl).await.unwrap();
    assert_eq!(again, Opened::Used);
    backend.end(&[id(2)], End::IfDue).await.unwrap();
    let tombstone = backend.open(id(2), &label, ttl).await.unwrap();
    assert_eq!(tombstone, Opened::Used, "the dead are not opened again");
    space.sql("INSERT INTO intents VALUES (x'00000000000000000000000000000003', 1, x'00')");
    space.sql(
        "INSERT INTO holders (key, session, n, m, want, since_ms)
         VALUES ('k', x'00000000000000000000000000000004', 1, 1, 'create', 0)",
    );
    for number in [3, 4] {
        let opened = backend.open(id(number), &label, ttl).await.unwrap();
        assert_eq!(opened, Opened::Used, "something was left behind");
    }
    let listed = backend.sessions(None, 10).await.unwrap();
    assert_eq!(listed.items[0].label.as_str(), "session 1");
}

#[tokio::test]
async fn renewals_rise_and_reach_the_living_only() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let keep = || IntentChange::Keep;
    assert_eq!(
        renew(&backend, session, 2, "1-3", keep()).await,
        Renewed::Living
    );
    assert_eq!(
        renew(&backend, session, 2, "1-9", keep()).await,
        Renewed::Overtaken
    );
    assert_eq!(
        renew(&backend, session, 1, "1-9", keep()).await,
        Renewed::Overtaken
    );
    let state = backend.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(state[0].retired.to_string(), "1-3", "nothing changed");
    space.make_due(session);
    assert_eq!(
        renew(&backend, session, 3, "", keep()).await,
        Renewed::Living,
        "due is not dead"
    );
    let state = backend.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Living, "the lease began again");
    backend.end(&[session], End::Close).await.unwrap();
    assert_eq!(renew(&backend, session, 4, "", keep()).await, Renewed::Dead);
    assert_eq!(renew(&backend, id(9), 1, "", keep()).await, Renewed::Dead);
    assert_eq!(space.count("SELECT count(*) FROM sessions"), 1);
}

/// A lock that is kept without a process outlives a restart of the machine.
#[tokio::test]
async fn a_session_outlives_the_boot_for_the_rest_of_its_lease() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let restarts = "UPDATE sessions SET boot = 'another', expires_ms = 1";
    space.sql(restarts);
    let states = backend.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(states[0].life, Life::Living);
    backend.sweep(Sweep::All, 10).await.unwrap();
    let renewed = renew(&backend, session, 1, "", IntentChange::Keep).await;
    assert_eq!(renewed, Renewed::Living);
    space.sql(restarts);
    space.sql("UPDATE sessions SET ended_ms = ended_ms - 1000 * ttl_ms");
    let states = backend.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(states[0].life, Life::Dead);
}

#[tokio::test]
async fn states_come_in_the_order_asked_and_the_absent_become_dead() {
    let space = Space::new();
    let backend = space.connect().await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    renew(&backend, two, 1, "", intent("x")).await;
    for how in [End::Close, End::Revoke, End::IfDue] {
        let states = backend.end(&[two, id(7), one], how).await.unwrap();
        let lives: Vec<Life> = states.iter().map(|state| state.life).collect();
        assert_eq!(lives, [Life::Abandoned, Life::Dead, Life::Dead], "{how:?}");
        assert_eq!(states[1].session, id(7));
        assert_eq!(states[1].label.as_str(), "");
    }
    assert!(backend.end(&[], End::Close).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_intent_is_put_kept_and_dropped() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    let intents = || space.count("SELECT count(*) FROM intents");
    renew(&backend, session, 1, "", intent("first")).await;
    renew(&backend, session, 2, "", intent("second")).await;
    assert_eq!(intents(), 1);
    renew(&backend, session, 3, "", IntentChange::Keep).await;
    assert_eq!(intents(), 1);
    renew(&backend, session, 3, "", IntentChange::Drop).await;
    assert_eq!(intents(), 1, "an overtaken renewal changes nothing");
    renew(&backend, session, 4, "", IntentChange::Drop).await;
    assert_eq!(intents(), 0);
    let states = backend.end(&[session], End::Close).await.unwrap();
    assert_eq!(states[0].life, Life::Dead);
}

/// An abandoned session with the intent "x".
async fn abandoned(backend: &lockcore_sqlite::SqliteBackend) -> lockcore::SessionId {
    let session = open(backend, 1).await;
    renew(backend, session, 1, "", intent("x")).await;
    let states = backend.end(&[session], End::Close).await.unwrap();
    assert_eq!(states[0].life, Life::Abandoned);
    session
}

/// The kit does not see what is left in the file.
#[tokio::test]
async fn a_change_that_was_settled_or_discarded_leaves_no_intent() {
    let any = Incarnation::UNKNOWN;
    for discarded in [false, true] {
        let space = Space::new();
        let backend = space.connect().await;
        let session = abandoned(&backend).await;
        let me = open(&backend, 2).await;
        let adopted = backend.adopt(session, 0, me, Adopt::Take, any).await;
        let number = adopted.unwrap().adoption().unwrap().number;
        if discarded {
            backend.end(&[session], End::Discard).await.unwrap();
        } else {
            let settled = backend.settle(session, number, me, any).await;
            assert!(settled.unwrap().is_settled());
        }
        assert_eq!(space.count("SELECT count(*) FROM intents"), 0);
    }
}

/// An older state of the rows comes back under a program that goes on, as when a file is restored in place.
#[tokio::test]
async fn a_holder_learns_at_its_next_renewal_that_an_older_state_came_back() {
    let space = Space::new();
    let locks = Locks::builder(space.connect().await);
    // A renewal every second.
    let locks = locks.ttl(Duration::from_secs(3)).build().unwrap();
    let guard = locks.lock("g").acquire().await.unwrap();
    let seq = || space.count("SELECT max(seq) FROM sessions");
    space.sql("CREATE TABLE older AS SELECT * FROM sessions");
    let (before, since) = (seq(), Instant::now());
    while seq() == before {
        assert!(since.elapsed() < Duration::from_secs(30), "it is renewed");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(guard.is_valid());
    space.sql(
        "BEGIN IMMEDIATE;
         DELETE FROM sessions;
         INSERT INTO sessions SELECT * FROM older;
         COMMIT",
    );
    assert_eq!(guard.lost().await, LostReason::Forgotten);
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
}

#[tokio::test]
async fn a_session_that_cannot_be_read_lives_and_is_not_changed() {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 1).await;
    granted(&backend, session, 1, &["upsert k"]).await;
    space.sql("UPDATE sessions SET life = 'mystery', expires_ms = 0");
    let other = open(&backend, 2).await;
    let busy = refused(&backend, other, 1, &["upsert k"]).await;
    let holder = &busy.first().holders[0];
    assert_eq!((holder.grant, holder.life), (None, Life::Living));
    assert!(
        holder.label.contains("unreadable session"),
        "{}",
        holder.label
    );
    for how in [End::IfDue, End::Close, End::Revoke, End::Discard] {
        let states = backend.end(&[session], how).await.unwrap();
        assert_eq!(states[0].life, Life::Living, "{how:?}");
    }
    let renewal = renewal(1, "", IntentChange::Keep);
    let error = backend.renew(session, &renewal).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        space.count("SELECT count(*) FROM sessions WHERE life = 'mystery' AND seq = 0"),
        1
    );
}

#[tokio::test]
async fn sessions_are_listed_page_by_page() {
    let space = Space::new();
    let backend = space.connect().await;
    for number in 1..=5 {
        open(&backend, number).await;
    }
    space.sql("UPDATE sessions SET over = 'x' WHERE id = x'00000000000000000000000000000003'");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = backend.sessions(after.as_deref(), 2).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let ids: Vec<u128> = seen.iter().map(|state| state.session.get()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    assert_eq!(seen[2].label.as_str(), "unreadable session record");
    assert!(backend.sessions(Some("no page"), 2).await.is_err());
}
