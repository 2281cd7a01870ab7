//! What somebody else does to a session is heard of between renewals.

use std::time::Duration;

use tokio::time::sleep;

use super::spy::{Call, Fate, Spy};
use crate::{
    End, ErrorKind, Guard, Label, Locks, LostReason, MemoryBackend, Note, NoteKind, SessionStore,
};

const MOMENT: Duration = Duration::from_millis(10);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn hold(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap()
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

fn watches(call: &Call) -> bool {
    matches!(call, Call::WatchSession(_))
}

fn note(kind: NoteKind) -> Note {
    let [by, reason] = ["ops", "it hangs"].map(|text| Label::parse(text).unwrap());
    Note::new(kind, by, reason, std::time::UNIX_EPOCH)
}

async fn revoke(spy: &Spy, guard: &Guard) -> Note {
    let why = note(NoteKind::Revoke);
    assert!(spy.note(guard.session(), &why).await.unwrap());
    spy.end(&[guard.session()], End::Revoke).await.unwrap();
    why
}

#[tokio::test(start_paused = true)]
async fn a_revocation_is_heard_of_within_a_second_whatever_the_ttl() {
    for ttl in [30, 3_600] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().ttl(secs(ttl)).build().unwrap();
        let guard = hold(&locks, "g").await;
        sleep(secs(1)).await;
        let why = revoke(&spy, &guard).await;
        let since = spy.elapsed();
        assert_eq!(guard.lost().await, LostReason::Revoked(why.into()));
        let took = spy.elapsed() - since;
        assert!(took <= secs(1), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_note_is_heard_of_within_a_second() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let (guard, other) = (hold(&locks, "g").await, hold(&locks, "h").await);
    sleep(secs(1)).await;
    let asks = note(NoteKind::Ask);
    assert!(spy.note(guard.session(), &asks).await.unwrap());
    sleep(MOMENT).await;
    assert_eq!(spy.times(renews), [secs(1)]);
    assert!(guard.is_valid());
    let (grant, _) = guard.grants().next().unwrap();
    let evicts = note(NoteKind::Evict).about(grant.n);
    sleep(secs(1)).await;
    assert!(spy.note(guard.session(), &evicts).await.unwrap());
    let since = spy.elapsed();
    assert_eq!(guard.lost().await, LostReason::Evicted(evicts.into()));
    assert!(spy.elapsed() - since <= secs(1));
    assert!(other.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_session_to_which_nothing_happens_costs_its_renewals_and_nothing_else() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    sleep(secs(3_600) + MOMENT).await;
    assert!(guard.is_valid());
    assert_eq!(spy.count(renews), 360, "in an hour, with the longest pause");
    assert_eq!(spy.count(watches), 1);
    let tidies = |call: &Call| matches!(call, Call::Sweep(..));
    let others = spy.sent(|call| !renews(call) && !watches(call) && !tidies(call));
    assert_eq!(others.len(), 2, "it was opened and granted: {others:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_always_wakes_costs_a_renewal_a_second() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match watches(call) {
        true => Fate::Wakes,
        false => Fate::Answered,
    });
    let guard = hold(&spy.locks(), "g").await;
    sleep(secs(100)).await;
    assert!(guard.is_valid());
    let renewals = spy.count(renews);
    assert!((90..=105).contains(&renewals), "{renewals} in 100 s");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_set_up_harms_nothing_and_is_tried_again() {
    for fate in [
        Fate::Fails(ErrorKind::Unavailable),
        Fate::FailsAfter(secs(60), ErrorKind::Indeterminate),
        Fate::Hangs,
    ] {
        let spy = Spy::new(MemoryBackend::new());
        spy.decide(move |call| match watches(call) {
            true => fate,
            false => Fate::Answered,
        });
        let guard = hold(&spy.locks(), "g").await;
        sleep(secs(35)).await;
        assert_eq!(spy.times(renews), [10, 20, 30].map(secs), "{fate:?}");
        assert_eq!(spy.count(watches), 4, "{fate:?}");
        spy.answer_all();
        sleep(secs(6)).await;
        let why = revoke(&spy, &guard).await;
        let since = spy.elapsed();
        assert_eq!(guard.lost().await, LostReason::Revoked(why.into()));
        assert!(spy.elapsed() - since <= secs(1), "{fate:?}");
    }
}

/// The watch is set up once more, and what happened meanwhile is found though it wakes nobody.
#[tokio::test(start_paused = true)]
async fn what_happens_while_nobody_watches_is_found_when_the_watch_stands_again() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    sleep(secs(1)).await;
    spy.decide(|call| match watches(call) {
        true => Fate::FailsAfter(Duration::from_millis(300), ErrorKind::Unavailable),
        false => Fate::Answered,
    });
    let asks = note(NoteKind::Ask);
    assert!(spy.note(guard.session(), &asks).await.unwrap());
    sleep(Duration::from_millis(200)).await;
    assert_eq!(spy.count(renews), 0, "first the watch");
    let why = revoke(&spy, &guard).await;
    let since = spy.elapsed();
    assert_eq!(guard.lost().await, LostReason::Revoked(why.into()));
    assert!(spy.elapsed() - since <= secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_session() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let guard = hold(&locks, "g").await;
    sleep(secs(1)).await;
    assert_eq!(spy.standing(), 1);
    spy.end(&[guard.session()], End::Revoke).await.unwrap();
    guard.lost().await;
    sleep(MOMENT).await;
    assert_eq!(spy.standing(), 0, "of a session that is lost");
    drop(guard);
    let guard = hold(&locks, "g").await;
    sleep(secs(1)).await;
    assert_eq!(spy.standing(), 1);
    drop(guard);
    assert!(locks.shutdown(secs(1)).await);
    assert_eq!(spy.standing(), 0);
    let quick = spy.locks();
    drop(hold(&quick, "g").await);
    assert!(quick.shutdown(secs(1)).await);
    sleep(secs(1)).await;
    assert_eq!(spy.count(watches), 3, "one for each that was lost or lived");
}

#[tokio::test(start_paused = true)]
async fn where_the_store_does_not_push_nothing_is_watched() {
    let spy = Spy::with_info(MemoryBackend::new(), |info| {
        info.poll = Some(Duration::from_millis(25));
    });
    let guard = hold(&spy.locks(), "g").await;
    sleep(secs(60)).await;
    assert!(guard.is_valid());
    assert_eq!(spy.count(watches), 0);
}
