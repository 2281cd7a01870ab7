//! What operators note: guards that are evicted one by one, sessions that are revoked with a reason.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Attempt, End, Filter, Guard, Inspect, IntentChange, Label, Life, LockKey, Locks,
    LostReason, MemoryBackend, Note, NoteKind, Released, RunError, SessionId, SessionStore,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn hold(locks: &Locks, key: &str) -> Guard {
    locks.lock(key).acquire().await.unwrap()
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

fn note(kind: NoteKind) -> Note {
    let [by, reason] = ["ops", "it hangs"].map(|text| Label::parse(text).unwrap());
    Note::new(kind, by, reason, std::time::UNIX_EPOCH)
}

/// The note that evicts the first grant of a guard.
fn evicts(guard: &Guard) -> Note {
    let (grant, _) = guard.grants().next().unwrap();
    note(NoteKind::Evict).about(grant.n)
}

async fn write(spy: &Spy, session: SessionId, note: &Note) {
    assert!(spy.note(session, note).await.unwrap());
}

/// Has the holder of a key give it up: its session, and the note.
pub(super) async fn evict_from(spy: &Spy, key: &str) -> (SessionId, Note) {
    let filter = Filter::Key(LockKey::parse(key).unwrap());
    let held = spy.records(&filter, None, 10).await.unwrap().items;
    let grant = held[0].holders[0].grant.unwrap();
    let evicts = note(NoteKind::Evict).about(grant.n);
    write(spy, grant.session, &evicts).await;
    (grant.session, evicts)
}

async fn is_free(spy: &Arc<Spy>, key: &str) -> bool {
    match spy.builder().build().unwrap().lock(key).try_acquire().await {
        Ok(Attempt::Acquired(guard)) => guard.release().await.unwrap() == Released::Released,
        Ok(Attempt::Busy(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_evicted_guard_is_lost_and_free_and_the_others_of_its_session_stay() {
    for ttl in [30, 3_600] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().ttl(secs(ttl)).build().unwrap();
        let (guard, other) = (hold(&locks, "g").await, hold(&locks, "h").await);
        assert_eq!(guard.session(), other.session());
        let evicts = evicts(&guard);
        write(&spy, guard.session(), &evicts).await;
        assert!(guard.is_valid(), "it is not heard of yet");
        assert!(!is_free(&spy, "g").await, "what is believed in is held");
        let before = spy.elapsed();
        assert_eq!(guard.lost().await, LostReason::Evicted(evicts.into()));
        assert!(spy.elapsed() - before <= secs(10), "{:?}", spy.elapsed());
        assert!(!guard.is_valid() && guard.remaining().is_zero());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(is_free(&spy, "g").await, "though the guard is still there");
        assert!(!guard.confirm().await.unwrap());
        assert!(other.is_valid() && other.confirm().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
        assert_eq!(other.release().await.unwrap(), Released::Released);
        // The number is not given out again, though each renewal tells the note.
        let next = hold(&locks, "g").await;
        tokio::time::sleep(secs(25)).await;
        assert!(next.is_valid() && next.confirm().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_not_valid_before_anybody_else_is_granted_what_it_held() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    write(&spy, guard.session(), &evicts(&guard)).await;
    // The renewal that frees it is slow, and its guard believes nothing meanwhile.
    spy.decide(|call| match renews(call) {
        true => Fate::AnsweredAfter(secs(2)),
        false => Fate::Answered,
    });
    while !is_free(&spy, "g").await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!guard.is_valid());
    assert!(spy.elapsed() >= secs(12), "{:?}", spy.elapsed());
}

#[tokio::test(start_paused = true)]
async fn evicting_what_has_an_intent_leaves_that_to_the_next() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let other = hold(&locks, "h").await;
    let acquisition = locks.lock("g").intent(&"change").unwrap();
    let guard = acquisition.acquire().await.unwrap();
    let evicts = evicts(&guard);
    write(&spy, guard.session(), &evicts).await;
    assert_eq!(guard.lost().await, LostReason::Evicted(evicts.into()));
    tokio::time::sleep(Duration::from_millis(10)).await;
    let state = spy.end(&[guard.session()], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Abandoned);
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    assert!(other.is_valid());
    let refused = spy.builder().build().unwrap().lock("g").try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Abandoned(_))));
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_under_way_that_is_evicted_holds_nothing() {
    // One batch for each key.
    let spy = Spy::with_info(MemoryBackend::new(), |info| info.keys_per_batch = 1);
    let theirs = hold(&spy.locks(), "b").await;
    let locks = spy.locks();
    let acquisition = locks.documents(["a", "b"]).wait(secs(60)).acquire();
    let evicts = async {
        tokio::time::sleep(secs(1)).await;
        evict_from(&spy, "a").await;
    };
    let (outcome, ()) = tokio::join!(acquisition, evicts);
    assert!(matches!(outcome, Err(AcquireError::Lost)), "{outcome:?}");
    assert!(spy.elapsed() <= secs(12), "{:?}", spy.elapsed());
    assert!(is_free(&spy, "a").await);
    drop(theirs);
}

/// The note is heard of at the moment in which the last claim is granted, when its intent is about to be registered.
#[tokio::test(start_paused = true)]
async fn what_is_evicted_as_its_intent_is_registered_leaves_none() {
    let spy = Spy::with_info(MemoryBackend::new(), |info| info.keys_per_batch = 1);
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(secs(3)),
        Call::WatchSession(_) => Fate::Hangs,
        Call::Acquire(request) if request.claims[0].key().as_str() == "b" => {
            Fate::AnsweredAfter(secs(13))
        }
        _ => Fate::Answered,
    });
    let locks = spy.locks();
    let acquisition = locks.documents(["a", "b"]).intent(&"change").unwrap();
    let evicts = async {
        tokio::time::sleep(secs(1)).await;
        evict_from(&spy, "a").await.0
    };
    let (outcome, session) = tokio::join!(acquisition.acquire(), evicts);
    assert!(matches!(outcome, Err(AcquireError::Lost)), "{outcome:?}");
    tokio::time::sleep(secs(20)).await;
    let state = spy.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Dead, "its change never began");
    let puts = |call: &Call| call.changes_intent(|how| matches!(how, IntentChange::Put(_)));
    assert_eq!(spy.count(puts), 0, "an intent has its locks");
    assert!(is_free(&spy, "a").await && is_free(&spy, "b").await);
}

/// The note is heard of with the answer to the registration itself.
#[tokio::test(start_paused = true)]
async fn what_is_evicted_by_the_answer_to_its_registration_leaves_no_intent() {
    let spy = Spy::with_info(MemoryBackend::new(), |info| info.keys_per_batch = 1);
    spy.decide(|call| match call {
        Call::WatchSession(_) => Fate::Hangs,
        Call::Acquire(request) if request.claims[0].key().as_str() == "b" => {
            Fate::AnsweredAfter(secs(3))
        }
        _ => Fate::Answered,
    });
    let locks = spy.locks();
    let acquisition = locks.documents(["a", "b"]).intent(&"change").unwrap();
    let evicts = async {
        tokio::time::sleep(secs(1)).await;
        evict_from(&spy, "a").await.0
    };
    let (outcome, session) = tokio::join!(acquisition.acquire(), evicts);
    assert!(matches!(outcome, Err(AcquireError::Lost)), "{outcome:?}");
    let puts = |call: &Call| call.changes_intent(|how| matches!(how, IntentChange::Put(_)));
    assert_eq!(spy.count(puts), 1);
    tokio::time::sleep(secs(20)).await;
    let state = spy.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Dead, "its change never began");
    assert!(is_free(&spy, "a").await && is_free(&spy, "b").await);
}

/// The operator comes too late: the change is finished.
#[tokio::test(start_paused = true)]
async fn what_is_evicted_while_it_is_given_back_with_its_intent_is_released() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match call {
        Call::WatchSession(_) => Fate::Hangs,
        _ => Fate::Answered,
    });
    let locks = spy.locks();
    let guard = locks.lock("g").intent(&"change").unwrap().acquire();
    let guard = guard.await.unwrap();
    let session = guard.session();
    write(&spy, session, &evicts(&guard)).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    tokio::time::sleep(secs(20)).await;
    let state = spy.end(&[session], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Dead, "it is finished");
    assert!(is_free(&spy, "g").await);
}

#[tokio::test(start_paused = true)]
async fn why_a_session_was_revoked_is_told_to_all_of_its_guards() {
    let why = note(NoteKind::Revoke);
    for met_by_acquiring in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().ttl(secs(3_600)).build().unwrap();
        let (one, two) = (hold(&locks, "g").await, hold(&locks, "h").await);
        write(&spy, one.session(), &why).await;
        spy.end(&[one.session()], End::Revoke).await.unwrap();
        if met_by_acquiring {
            // In another session: this one is dead.
            assert_ne!(hold(&locks, "i").await.session(), one.session());
        }
        let reasons = tokio::join!(one.lost(), two.lost());
        let revoked = LostReason::Revoked(why.clone().into());
        assert_eq!(reasons, (revoked.clone(), revoked));
        assert!(spy.elapsed() <= secs(10), "{:?}", spy.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_is_stopped_says_who_broke_its_lock() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let work = locks
        .lock("g")
        .run(|_| std::future::pending::<Result<(), Infallible>>());
    let evicts = async {
        tokio::time::sleep(secs(1)).await;
        evict_from(&spy, "g").await.1
    };
    let (outcome, evicts) = tokio::join!(work, evicts);
    let Err(error @ RunError::Lost(_)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(
        error
            .to_string()
            .ends_with("it was broken by ops: it hangs"),
        "{error}"
    );
    assert!(matches!(error, RunError::Lost(LostReason::Evicted(why)) if *why == evicts));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_say_why_keeps_nobody_waiting() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    write(&spy, guard.session(), &note(NoteKind::Revoke)).await;
    spy.end(&[guard.session()], End::Revoke).await.unwrap();
    spy.decide(|call| match call {
        Call::End(..) => Fate::Hangs,
        _ => Fate::Answered,
    });
    let before = spy.elapsed();
    assert_eq!(guard.lost().await, LostReason::Dead);
    let took = spy.elapsed() - before;
    assert!(took <= secs(11) + Duration::from_millis(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_to_yield_takes_nothing_away() {
    let spy = Spy::new(MemoryBackend::new());
    let guard = hold(&spy.locks(), "g").await;
    let (grant, _) = guard.grants().next().unwrap();
    write(&spy, grant.session, &note(NoteKind::Ask).about(grant.n)).await;
    // So does one about a number that the session has not given out yet, or that is over.
    for n in [0, 2, 3, u64::MAX] {
        write(&spy, grant.session, &note(NoteKind::Evict).about(n)).await;
    }
    tokio::time::sleep(secs(40)).await;
    assert!(guard.is_valid() && guard.confirm().await.unwrap());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}
