//! Adoptions whose requests fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep, timeout};

use crate::client::tests::attempts::ms;
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    AcquireError, Adopt, Attempt, End, ErrorKind, FencingToken, Incarnation, Life, Locks,
    LostReason, MemoryBackend, Recover, RecoverError, Recovery, SessionId, SessionStore,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn gives_up(call: &Call) -> bool {
    matches!(call, Call::Adopt(_, _, Adopt::GiveUp))
}

fn takes(call: &Call) -> bool {
    matches!(call, Call::Adopt(_, _, Adopt::Take))
}

/// A change that was left behind, and its session.
async fn left(locks: &Locks) -> SessionId {
    let acquisition = locks.documents(["d"]).intent(&"change").unwrap();
    let guard = acquisition.acquire().await.unwrap();
    let session = guard.session();
    drop(guard);
    sleep(secs(1)).await;
    session
}

async fn adopted(locks: &Locks, session: SessionId) -> Recovery {
    let recovery = locks.adopt(session).await.unwrap();
    recovery.expect("it is abandoned, and nobody is at it")
}

#[tokio::test(start_paused = true)]
async fn a_recovery_is_valid_as_long_as_the_session_that_adopted() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    assert_eq!(recovery.remaining(), secs(30) - Duration::from_millis(300));
    assert!(recovery.is_valid());
    recovery.give_up().await.unwrap();
    let sent = spy.sent(gives_up);
    assert_eq!(sent[0].1, Call::Adopt(session, 0, Adopt::GiveUp));
    assert!(adopted(&locks, session).await.settle().await.unwrap());
}

/// Its session may live for long, and then nobody else can adopt.
#[tokio::test(start_paused = true)]
async fn an_adoption_whose_end_the_store_has_forgotten_is_taken_again_by_who_had_it() {
    for settles in [false, true] {
        let store = MemoryBackend::new();
        let spy = Spy::new(Arc::clone(&store));
        let (locks, other) = (spy.locks(), spy.locks());
        let held = locks.lock("held").acquire().await.unwrap();
        let session = left(&other).await;
        let recovery = adopted(&locks, session).await;
        let before = store.copy();
        match settles {
            true => assert!(recovery.settle().await.unwrap()),
            false => recovery.give_up().await.unwrap(),
        }
        store.fails_over(before);
        assert!(other.adopt(session).await.unwrap().is_none(), "{settles}");
        let theirs = other.documents(["d"]).try_acquire().await.unwrap();
        assert!(matches!(theirs, Attempt::Busy(_)), "{theirs:?}");
        let met = locks.documents(["d"]).try_acquire().await;
        assert!(matches!(met, Err(AcquireError::Abandoned(_))), "{met:?}");
        let again = adopted(&locks, session).await;
        assert!(locks.adopt(session).await.unwrap().is_none(), "it is at it");
        assert!(again.settle().await.unwrap() && held.is_valid());
    }
}

/// Whether it is forgotten or not: it is taken again then.
#[tokio::test(start_paused = true)]
async fn an_adoption_does_not_move_to_another_incarnation_of_the_store() {
    for (forgotten, settles) in [(true, true), (false, true), (false, false)] {
        let store = MemoryBackend::new().named();
        let client = || Locks::builder(Arc::clone(&store) as _).build().unwrap();
        let (locks, other) = (client(), client());
        let session = left(&other).await;
        let held = locks.lock("held").acquire().await.unwrap();
        let before = store.copy();
        let recovery = adopted(&locks, session).await;
        let after = store.copy();
        store.fails_over(if forgotten { before } else { after });
        assert!(recovery.is_valid(), "nobody has told it");
        let lost = timeout(secs(60), recovery.lost()).await;
        assert_eq!(lost, Ok(LostReason::Forgotten));
        assert!(!recovery.is_valid() && recovery.remaining().is_zero());
        assert!(held.is_valid(), "it has moved");
        if forgotten {
            let theirs = adopted(&other, session).await;
            assert!(!recovery.settle().await.unwrap());
            assert!(theirs.settle().await.unwrap());
        } else {
            match settles {
                true => assert!(!recovery.settle().await.unwrap()),
                false => recovery.give_up().await.unwrap(),
            }
            assert!(adopted(&other, session).await.settle().await.unwrap());
        }
    }
}

/// The numbers of adoptions go back with the store.
#[tokio::test(start_paused = true)]
async fn what_is_given_up_after_a_failover_is_nobody_elses() {
    let store = MemoryBackend::new().named();
    let client = || Locks::builder(Arc::clone(&store) as _).build().unwrap();
    let (locks, other) = (client(), client());
    let session = left(&other).await;
    let held = locks.lock("held").acquire().await.unwrap();
    // Adopters who have died.
    let dies = async |seen| {
        let adopter = SessionId::new(1 + u128::from(seen));
        let any = Incarnation::UNKNOWN;
        let took = store.adopt(session, seen, adopter, Adopt::Take, any);
        assert!(took.await.unwrap().adoption().is_some());
    };
    dies(0).await;
    let before = store.copy();
    dies(1).await;
    let recovery = adopted(&locks, session).await;
    store.fails_over(before);
    let lost = timeout(secs(60), recovery.lost()).await;
    assert_eq!(lost, Ok(LostReason::Forgotten));
    let theirs = adopted(&other, session).await;
    recovery.give_up().await.unwrap();
    assert!(theirs.settle().await.unwrap());
    assert!(held.is_valid());
}

/// Who had it was revoked, and the store has forgotten that. It was looked at before.
#[tokio::test(start_paused = true)]
async fn what_was_seen_before_a_failover_is_not_taken_from_who_lives_after_it() {
    let store = MemoryBackend::new().named();
    let spy = Spy::new(Arc::clone(&store));
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let (adopter, any) = (SessionId::new(1), Incarnation::UNKNOWN);
    let label = crate::Label::ours("adopter");
    let _ = store.open(adopter, &label, secs(3_600)).await.unwrap();
    let took = store.adopt(session, 0, adopter, Adopt::Take, any).await;
    assert!(took.unwrap().adoption().is_some());
    let before = store.copy();
    let ended = store.end(&[adopter], End::Revoke).await.unwrap();
    assert_eq!(ended[0].life, Life::Dead);
    let (other, mut copy) = (Arc::clone(&store), Some(before));
    spy.decide(move |call| {
        if let Some(copy) = copy.take_if(|_| takes(call)) {
            other.fails_over(copy);
        }
        Fate::Answered
    });
    assert!(locks.adopt(session).await.unwrap().is_none());
    assert_eq!(spy.count(takes), 1);
    assert!(locks.adopt(session).await.unwrap().is_none(), "he lives");
    let settled = store.settle(session, 1, adopter, any).await;
    assert!(settled.unwrap().is_settled());
}

/// Else nobody has it as long as that adopter lives, who does not know of it.
#[tokio::test(start_paused = true)]
async fn an_adoption_of_unknown_outcome_that_has_moved_is_given_up_where_it_is() {
    let store = MemoryBackend::new().named();
    let spy = Spy::new(Arc::clone(&store));
    let (locks, other) = (spy.locks(), spy.locks());
    let held = locks.lock("held").acquire().await.unwrap();
    let session = left(&other).await;
    let (stores, mut sent) = (Arc::clone(&store), 0);
    spy.decide(move |call| {
        sent += u32::from(takes(call));
        match sent {
            1 if takes(call) => Fate::AnswerLost,
            2 if takes(call) => {
                stores.fails_over(stores.copy());
                Fate::Answered
            }
            _ => Fate::Answered,
        }
    });
    assert!(locks.adopt(session).await.unwrap().is_none());
    assert_eq!(spy.count(takes), 2);
    let theirs = adopted(&other, session).await;
    assert!(theirs.settle().await.unwrap() && held.is_valid());
}

/// It is stopped, and begins again in the other one.
#[tokio::test(start_paused = true)]
async fn a_wait_goes_on_when_the_store_fails_over_while_it_recovers() {
    let store = MemoryBackend::new().named();
    let builder = || Locks::builder(Arc::clone(&store) as _);
    let _ = left(&builder().build().unwrap()).await;
    let finished = Arc::default();
    let handler = Slow(Arc::clone(&finished));
    let locks = builder().recovery(handler).build().unwrap();
    let fails_over = async {
        sleep(secs(60)).await;
        store.fails_over(store.copy());
    };
    let since = Instant::now();
    let (guard, ()) = tokio::join!(locks.documents(["d"]).acquire(), fails_over);
    assert!(guard.unwrap().is_valid());
    assert_eq!(finished.load(Ordering::Relaxed), 1);
    assert!(since.elapsed() >= secs(3_660), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_adoption_is_given_up_however_long_the_store_cannot_be_reached() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Indeterminate] {
        let spy = Spy::new(MemoryBackend::new());
        let (locks, other) = (spy.locks(), spy.locks());
        let session = left(&other).await;
        let recovery = adopted(&locks, session).await;
        spy.decide(move |call| match gives_up(call) {
            true => Fate::Fails(kind),
            false => Fate::Answered,
        });
        let mended = async {
            sleep(secs(100)).await;
            spy.answer_all();
        };
        let (given_up, ()) = tokio::join!(recovery.give_up(), mended);
        given_up.unwrap();
        assert!(spy.elapsed() >= secs(100));
        drop(adopted(&other, session).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_cannot_be_given_up_ends_with_an_error() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    spy.decide(|call| match gives_up(call) {
        true => Fate::Fails(ErrorKind::Corrupt),
        false => Fate::Answered,
    });
    let given_up = timeout(secs(1), recovery.give_up()).await.unwrap();
    assert_eq!(given_up.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(spy.count(gives_up), 1);
}

/// The adoption stands, and nobody was told: its answer is lost, and then a right is taken away for a while.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_the_store_does_not_take_back_is_given_up_once_it_does() {
    for kind in [
        ErrorKind::Unauthorized,
        ErrorKind::Config,
        ErrorKind::Corrupt,
    ] {
        let spy = Spy::new(MemoryBackend::new());
        let session = left(&spy.locks()).await;
        let locks = spy.builder().recovery(Quick).build().unwrap();
        let mut taken = false;
        spy.decide(move |call| match call {
            Call::Open(_) => Fate::Answered,
            _ if takes(call) && !std::mem::replace(&mut taken, true) => Fate::AnswerLost,
            // The look before the adoption.
            Call::End(..) if !taken => Fate::Answered,
            _ => Fate::Fails(kind),
        });
        let failed = locks.adopt(session).await;
        assert!(matches!(failed, Err(AcquireError::Store(_))), "{failed:?}");
        sleep(secs(12)).await;
        assert!(spy.count(gives_up) > 0, "{kind:?}");
        spy.answer_all();
        let since = spy.elapsed();
        let waiting = locks.documents(["d"]).wait(secs(100)).acquire();
        let guard = waiting.await.unwrap();
        let waited = spy.elapsed() - since;
        assert!(
            guard.is_valid() && waited < secs(12),
            "{kind:?}: {waited:?}"
        );
    }
}

/// It ends with its session, which nobody keeps for it.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_the_store_never_takes_back_ends_with_its_client() {
    let spy = Spy::new(MemoryBackend::new());
    let (locks, other) = (spy.locks(), spy.locks());
    let session = left(&other).await;
    let recovery = adopted(&locks, session).await;
    spy.decide(|call| match gives_up(call) {
        true => Fate::Fails(ErrorKind::Unauthorized),
        false => Fate::Answered,
    });
    recovery.give_up().await.unwrap_err();
    sleep(secs(60)).await;
    let tried = spy.count(gives_up);
    assert!((2..=10).contains(&tried), "{tried}");
    assert!(other.adopt(session).await.unwrap().is_none());
    assert!(locks.shutdown(secs(1)).await);
    assert!(adopted(&other, session).await.settle().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_adoption_of_a_session_that_is_lost_is_not_given_up_any_more() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    spy.decide(|call| match call {
        Call::Renew(..) | Call::Adopt(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let given_up = timeout(secs(60), recovery.give_up()).await.unwrap();
    assert_eq!(given_up.unwrap_err().kind(), ErrorKind::Unavailable);
    let tried = spy.count(gives_up);
    sleep(secs(60)).await;
    assert_eq!(spy.count(gives_up), tried);
}

/// In the store it lives a little longer than its process believes in it. What it said of itself before is of no use to the
/// session that adopts.
#[tokio::test(start_paused = true)]
async fn a_lost_session_of_the_same_process_is_an_adopter_like_any_other() {
    let spy = Spy::new(MemoryBackend::new());
    let session = left(&spy.locks()).await;
    let locks = spy.builder().recovery(Quick).build().unwrap();
    let recovery = adopted(&locks, session).await;
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let ms = Duration::from_millis;
    sleep(recovery.remaining() - ms(100)).await;
    let mut looked = false;
    spy.decide(move |call| match call {
        Call::Renew(..) => Fate::Fails(ErrorKind::Unavailable),
        Call::Adopt(_, _, Adopt::GiveUp) => Fate::FailsAfter(ms(150), ErrorKind::Unavailable),
        Call::End(_, End::Close) => Fate::Fails(ErrorKind::Unavailable),
        Call::End(of, _) if *of == [session] && !std::mem::replace(&mut looked, true) => {
            Fate::AnsweredAfter(ms(200))
        }
        _ => Fate::Answered,
    });
    drop(recovery);
    let met = locks.documents(["d"]).try_acquire();
    assert!(matches!(met.await, Err(AcquireError::Lost)));
    sleep(ms(150)).await;
    assert_eq!(spy.count(takes), 1, "the one before lives");
    sleep(secs(1)).await;
    let free = locks.documents(["d"]).try_acquire().await.unwrap();
    assert!(matches!(free, Attempt::Acquired(_)), "{free:?}");
}

#[tokio::test(start_paused = true)]
async fn an_adoption_of_unknown_outcome_is_given_up_and_one_without_effect_is_not() {
    for (kind, given_up) in [
        (ErrorKind::Indeterminate, 1),
        (ErrorKind::Corrupt, 1),
        (ErrorKind::Unavailable, 0),
    ] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.locks();
        let session = left(&spy.locks()).await;
        spy.decide(move |call| match takes(call) {
            true => Fate::Fails(kind),
            false => Fate::Answered,
        });
        let failed = locks.adopt(session).await;
        assert!(matches!(failed, Err(AcquireError::Store(_))), "{failed:?}");
        sleep(secs(1)).await;
        assert_eq!(spy.count(gives_up), given_up, "{kind:?}");
        spy.answer_all();
        drop(adopted(&locks, session).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_adoption_whose_token_went_back_or_is_too_large_is_given_up() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let before = locks.documents(["before"]).acquire().await.unwrap();
    let session = left(&spy.locks()).await;
    for (given_up, number) in [before.token().get() / 64, 1 << 57].into_iter().enumerate() {
        let token = FencingToken::new(number).unwrap();
        spy.decide(move |call| match takes(call) {
            true => Fate::Token(token),
            false => Fate::Answered,
        });
        match locks.adopt(session).await {
            Err(AcquireError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            adopted => panic!("{adopted:?}"),
        }
        sleep(secs(1)).await;
        assert_eq!(spy.count(gives_up), given_up + 1);
    }
    let greatest = FencingToken::new((1 << 57) - 1).unwrap();
    spy.decide(move |call| match takes(call) {
        true => Fate::Token(greatest),
        false => Fate::Answered,
    });
    let recovery = adopted(&locks, session).await;
    assert_eq!(recovery.token().get(), 64 * greatest.get());
    assert!(recovery.token() > recovery.old_token());
}

/// Has nothing to do.
struct Quick;

#[async_trait]
impl Recover for Quick {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        Ok(())
    }
}

/// Takes an hour, and counts the changes that it has finished.
struct Slow(Arc<AtomicUsize>);

#[async_trait]
impl Recover for Slow {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        sleep(secs(3_600)).await;
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_holds_nobodys_keys_and_ends_without_its_caller() {
    for store in [MemoryBackend::new, MemoryBackend::records] {
        for waits in [true, false] {
            let spy = Spy::new(store().with_keys_per_batch(1));
            let other = spy.locks();
            let _ = left(&other).await;
            let finished = Arc::default();
            let handler = Slow(Arc::clone(&finished));
            let locks = spy.builder().recovery(handler).build().unwrap();
            let keys = locks.documents(["a", "d"]);
            let attempt = async {
                match waits {
                    true => keys.wait(secs(10)).acquire().await.map(drop),
                    false => match timeout(secs(10), keys.acquire()).await {
                        Ok(ended) => ended.map(drop),
                        Err(_) => Ok(()),
                    },
                }
            };
            let others = async {
                sleep(secs(1)).await;
                let free = other.documents(["a"]).try_acquire().await.unwrap();
                assert!(matches!(free, Attempt::Acquired(_)), "{free:?}");
            };
            let (ended, ()) = tokio::join!(attempt, others);
            let busy = matches!(ended, Err(AcquireError::Busy(_)));
            assert_eq!(busy, waits, "{ended:?}");
            sleep(secs(3_600)).await;
            assert_eq!(finished.load(Ordering::Relaxed), 1);
            let free = other.documents(["d"]).try_acquire().await.unwrap();
            assert!(matches!(free, Attempt::Acquired(_)), "{free:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_only_tries_does_not_wait_for_a_slow_handler() {
    let spy = Spy::new(MemoryBackend::new());
    let _ = left(&spy.locks()).await;
    let finished = Arc::default();
    let handler = Slow(Arc::clone(&finished));
    let locks = spy.builder().recovery(handler).build().unwrap();
    let since = Instant::now();
    let tried = locks.documents(["d"]).try_acquire().await.unwrap();
    assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    assert!(since.elapsed() <= secs(11), "{:?}", since.elapsed());
    sleep(secs(3_600)).await;
    assert_eq!(finished.load(Ordering::Relaxed), 1);
    let tried = locks.documents(["d"]).try_acquire().await.unwrap();
    assert!(matches!(tried, Attempt::Acquired(_)), "{tried:?}");
}

/// The look whether somebody is at what was left is a request like any other.
#[tokio::test(start_paused = true)]
async fn a_wait_behind_a_change_that_was_left_bears_with_a_store_that_is_away() {
    let spy = Spy::new(MemoryBackend::new());
    let _ = left(&spy.locks()).await;
    let handler = Slow(Arc::default());
    let locks = spy.builder().recovery(handler).build().unwrap();
    spy.decide(|call| match call {
        Call::End(_, End::IfDue) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let mended = async {
        sleep(secs(30)).await;
        spy.answer_all();
    };
    let (guard, ()) = tokio::join!(locks.documents(["d"]).acquire(), mended);
    assert!(guard.unwrap().is_valid());
    spy.decide(|call| match call {
        Call::End(_, End::IfDue) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    sleep(secs(1)).await;
    let _ = left(&spy.locks()).await;
    let told = locks.documents(["d"]).try_acquire().await;
    assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
}

/// Who recovers looks once more, and bears with a store that does not answer then.
#[tokio::test(start_paused = true)]
async fn a_wait_that_recovers_bears_with_a_store_that_is_away_at_its_second_look() {
    let spy = Spy::new(MemoryBackend::new());
    let session = left(&spy.locks()).await;
    struct Finishes;
    #[async_trait]
    impl Recover for Finishes {
        async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
            Ok(())
        }
    }
    let locks = spy.builder().recovery(Finishes).build().unwrap();
    let mut looks = 0;
    spy.decide(move |call| match call {
        Call::End(dead, End::IfDue) if dead.contains(&session) => {
            looks += 1;
            match looks {
                2 => Fate::Fails(ErrorKind::Unavailable),
                _ => Fate::Answered,
            }
        }
        _ => Fate::Answered,
    });
    let guard = locks.documents(["d"]).acquire().await;
    assert!(guard.unwrap().is_valid());
}

/// Nobody waits for a handler that never ends when there is nothing left to recover.
#[tokio::test(start_paused = true)]
async fn who_waits_behind_a_handler_that_hangs_goes_on_when_the_change_is_discarded() {
    for store in [MemoryBackend::new, MemoryBackend::records] {
        let spy = Spy::new(store());
        let other = spy.locks();
        let changes = other.documents(["d"]).intent(&"change").unwrap();
        let guard = changes.acquire().await.unwrap();
        let session = guard.session();
        let locks = spy
            .builder()
            .recovery(Slow(Arc::default()))
            .build()
            .unwrap();
        let takes = async |after| {
            sleep(secs(after)).await;
            let guard = locks.documents(["d"]).acquire().await.unwrap();
            drop(guard);
        };
        let discard = async {
            sleep(secs(5)).await;
            drop(guard);
            sleep(secs(60)).await;
            let states = spy.end(&[session], End::Discard).await.unwrap();
            assert_eq!(states[0].life, Life::Dead);
        };
        let both = async { tokio::join!(takes(1), takes(2)) };
        let (freed, ()) = tokio::join!(timeout(secs(80), both), discard);
        freed.expect("both have had it");
    }
}

/// A try does not wait for a store that fails.
#[tokio::test(start_paused = true)]
async fn a_try_that_recovers_fails_at_once_at_its_second_look() {
    let spy = Spy::new(MemoryBackend::new());
    let session = left(&spy.locks()).await;
    let locks = spy
        .builder()
        .recovery(Slow(Arc::default()))
        .build()
        .unwrap();
    let mut looks = 0;
    spy.decide(move |call| match call {
        Call::End(dead, End::IfDue) if dead.contains(&session) => {
            looks += 1;
            match looks {
                1 => Fate::Answered,
                _ => Fate::Fails(ErrorKind::Unavailable),
            }
        }
        _ => Fate::Answered,
    });
    let told = timeout(secs(1), locks.documents(["d"]).try_acquire()).await;
    let told = told.expect("at once");
    assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_that_recovers_fails_at_once_where_nothing_can_be_adopted() {
    let spy = Spy::new(MemoryBackend::new());
    let _ = left(&spy.locks()).await;
    let locks = spy
        .builder()
        .recovery(Slow(Arc::default()))
        .build()
        .unwrap();
    spy.decide(|call| match call {
        Call::Adopt(..) => Fate::Fails(ErrorKind::Unavailable),
        _ => Fate::Answered,
    });
    let told = timeout(secs(1), locks.documents(["d"]).try_acquire()).await;
    let told = told.expect("at once");
    assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
}

/// Whoever waits for it now and then is told all the same.
#[tokio::test(start_paused = true)]
async fn a_recovery_that_is_waited_for_now_and_then_is_lost() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    spy.end(&[session], End::Discard).await.unwrap();
    let since = Instant::now();
    while timeout(ms(300), recovery.lost()).await.is_err() {
        assert!(since.elapsed() < secs(7), "it is never told");
    }
    assert!(!recovery.is_valid());
    // Also where another one who waits is not polled any more.
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    let mut kept = Box::pin(recovery.lost());
    assert!(timeout(ms(300), &mut kept).await.is_err());
    spy.end(&[session], End::Discard).await.unwrap();
    let told = timeout(secs(7), recovery.lost()).await;
    assert_eq!(told.unwrap(), LostReason::Forgotten);
    // At once from then on, and to all.
    spy.decide(|_| Fate::Hangs);
    for _ in 0..2 {
        let told = timeout(ms(1), recovery.lost()).await;
        assert_eq!(told.unwrap(), LostReason::Forgotten);
    }
}

/// Whoever recovers is told, and goes on with the next change.
#[tokio::test(start_paused = true)]
async fn a_recovery_whose_change_is_discarded_is_lost() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    let session = left(&spy.locks()).await;
    let recovery = adopted(&locks, session).await;
    let discard = async {
        sleep(secs(1)).await;
        spy.end(&[session], End::Discard).await.unwrap();
    };
    let (lost, ()) = tokio::join!(timeout(secs(10), recovery.lost()), discard);
    assert_eq!(lost.unwrap(), LostReason::Forgotten);
    assert!(!recovery.is_valid());

    /// Hangs at the first change that it meets.
    struct First(AtomicUsize);
    #[async_trait]
    impl Recover for First {
        async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => std::future::pending().await,
                _ => Ok(()),
            }
        }
    }
    let mut dead = Vec::new();
    for path in ["/x/a", "/x/b"] {
        let other = spy.locks();
        let reads = other.tree().read(path).intent(&"change").unwrap();
        let guard = reads.acquire().await.unwrap();
        dead.push(guard.session());
        drop(guard);
    }
    dead.sort_unstable();
    sleep(secs(1)).await;
    let handler = First(AtomicUsize::new(0));
    let locks = spy.builder().recovery(handler).build().unwrap();
    let discard = async {
        sleep(secs(30)).await;
        spy.end(&dead[..1], End::Discard).await.unwrap();
    };
    let write = timeout(secs(60), locks.tree().write("/x").acquire());
    let (written, ()) = tokio::join!(write, discard);
    assert!(written.expect("both are over").unwrap().is_valid());
}

/// Whoever recovers does so in the session that acquisitions share, which is opened then if there is none.
#[tokio::test(start_paused = true)]
async fn a_wait_that_recovers_bears_with_a_store_that_opens_no_session() {
    for (away, bears) in [(5, true), (20, false)] {
        let spy = Spy::new(MemoryBackend::new());
        let _ = left(&spy.locks()).await;
        let handler = Slow(Arc::default());
        let locks = spy.builder().recovery(handler).build().unwrap();
        // A change has a session of its own, which is opened; the next one is not.
        let opens_one = || {
            let mut opened = 0;
            spy.decide(move |call| {
                opened += usize::from(matches!(call, Call::Open(_)));
                match call {
                    Call::Open(_) if opened > 1 => Fate::Fails(ErrorKind::Unavailable),
                    _ => Fate::Answered,
                }
            });
        };
        let change = || locks.documents(["d"]).intent(&"another").unwrap();
        opens_one();
        let since = Instant::now();
        let told = change().try_acquire().await;
        assert!(matches!(told, Err(AcquireError::Store(_))), "{told:?}");
        assert!(since.elapsed() < secs(1), "a try is told at once");
        opens_one();
        let mended = async {
            sleep(secs(away)).await;
            spy.answer_all();
        };
        let (waited, ()) = tokio::join!(change().acquire(), mended);
        match waited {
            Ok(guard) => assert!(bears && guard.is_valid()),
            Err(AcquireError::Store(_)) => assert!(!bears, "after {:?}", since.elapsed()),
            other => panic!("{other:?}"),
        }
    }
}

/// It was established before that he is dead, and that is for good.
#[tokio::test(start_paused = true)]
async fn a_wait_behind_an_adopter_who_died_does_not_ask_on_and_on_whether_he_lives() {
    let spy = Spy::new(MemoryBackend::new());
    let session = left(&spy.locks()).await;
    let other = spy.locks();
    let adopter = other.documents(["other"]).acquire().await.unwrap();
    let _adoption = adopted(&other, session).await;
    let ended = spy.end(&[adopter.session()], End::Revoke).await.unwrap();
    assert_eq!(ended[0].life, Life::Dead);
    let whether_he_lives = Call::End(vec![adopter.session()], End::IfDue);
    let looks = |call: &Call| *call == whether_he_lives;
    let begun = spy.elapsed();
    let handler = Slow(Arc::default());
    let locks = spy.builder().recovery(handler).build().unwrap();
    assert!(locks.documents(["d"]).acquire().await.unwrap().is_valid());
    // Who waits, and who adopts for it. His own client looks, too, when it renews.
    let at_once = spy
        .times(looks)
        .into_iter()
        .filter(|at| *at < begun + secs(1));
    assert_eq!(at_once.count(), 2);
}
