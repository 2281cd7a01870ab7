//! What a release says.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::client::order::{Order, Release};
use crate::client::pool;
use crate::client::tests::notes::evict_from;
use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{
    Claim, ClaimStore, End, ErrorKind, FencingToken, Filter, Grant, Guard, Inspect, Intent,
    MemoryBackend, Registered, Released, SessionStore,
};

/// The forms of the store; one key at a time, so that eleven documents have a session of their own.
fn stores() -> [Arc<MemoryBackend>; 2] {
    [MemoryBackend::new(), MemoryBackend::records()].map(|store| store.with_keys_per_batch(1))
}

/// The ways in which a guard holds.
const WAYS: [&str; 4] = ["plain", "tree", "many", "intent"];

async fn hold(spy: &Arc<Spy>, way: &str) -> Guard {
    let locks = spy.locks();
    let many = || (0..11).map(|n| format!("d{n:02}"));
    let guard = match way {
        "plain" => locks.lock("g").acquire().await,
        "tree" => locks.tree().write("/a/b").read("/c").acquire().await,
        "many" => locks.documents(many()).acquire().await,
        _ => {
            let documents = locks.documents(["d0", "d1"]).intent(&"change").unwrap();
            documents.acquire().await
        }
    };
    guard.unwrap()
}

fn releases(call: &Call) -> bool {
    matches!(call, Call::Release(_))
}

fn renews(call: &Call) -> bool {
    matches!(call, Call::Renew(..))
}

async fn revoke(store: &MemoryBackend, guard: &Guard) {
    store.end(&[guard.session()], End::Revoke).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_was_held_if_the_store_says_so() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::new(Arc::clone(&store));
            let guard = hold(&spy, way).await;
            assert_eq!(guard.release().await.unwrap(), Released::Released, "{way}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revoked_holder_is_told_at_its_release() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::new(Arc::clone(&store));
            let guard = hold(&spy, way).await;
            revoke(&store, &guard).await;
            assert!(guard.is_valid(), "{way}: nobody has told it yet");
            assert_eq!(guard.release().await.unwrap(), Released::NotHeld, "{way}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revoked_holder_whose_keys_were_swept_is_told_too() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::new(Arc::clone(&store));
            let guard = hold(&spy, way).await;
            revoke(&store, &guard).await;
            store.sweep(crate::Sweep::All, 1_000).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Released::NotHeld, "{way}");
        }
    }
}

/// The first release is executed, and its answer lost.
fn loses_the_first_answer(spy: &Spy) {
    let mut lost = 0;
    spy.decide(move |call| match call {
        Call::Release(_) if lost == 0 => {
            lost += 1;
            Fate::AnswerLost
        }
        _ => Fate::Answered,
    });
}

#[tokio::test(start_paused = true)]
async fn of_a_release_whose_answer_was_lost_nobody_knows() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::new(Arc::clone(&store));
            let guard = hold(&spy, way).await;
            loses_the_first_answer(&spy);
            assert_eq!(guard.release().await.unwrap(), Released::Unknown, "{way}");
        }
    }
}

/// Nor where the lease has ended before the next copy is answered: the first one may have found it held.
#[tokio::test(start_paused = true)]
async fn of_a_release_whose_answer_was_lost_nobody_knows_also_of_a_session_that_is_over() {
    for store in stores() {
        let spy = Spy::new(Arc::clone(&store));
        let guard = hold(&spy, "plain").await;
        let session = guard.session();
        loses_the_first_answer(&spy);
        let over = async {
            while spy.count(releases) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            // As if its lease had ended.
            store.end(&[session], End::Close).await.unwrap();
        };
        let (released, ()) = tokio::join!(guard.release(), over);
        assert_eq!(released.unwrap(), Released::Unknown);
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_release_that_failed_before_it_was_executed_the_next_copy_knows() {
    for store in stores() {
        for way in ["plain", "tree", "intent"] {
            for (revoked, told) in [(false, Released::Released), (true, Released::NotHeld)] {
                let spy = Spy::new(Arc::clone(&store));
                let guard = hold(&spy, way).await;
                let (session, mut failed) = (guard.session(), 0);
                spy.decide(move |call| match call {
                    Call::Release(_) if failed < 2 => {
                        failed += 1;
                        Fate::Fails(ErrorKind::Unavailable)
                    }
                    _ => Fate::Answered,
                });
                let late = async {
                    // Behind the removal of the intent.
                    while spy.count(releases) == 0 {
                        sleep(Duration::from_millis(1)).await;
                    }
                    if revoked {
                        store.end(&[session], End::Revoke).await.unwrap();
                    }
                };
                let (released, ()) = tokio::join!(guard.release(), late);
                assert_eq!(released.unwrap(), told, "{way}, {revoked}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_of_a_session_that_is_dead_was_not_held() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::with_info(Arc::clone(&store), |info| info.repeats = true);
            let guard = hold(&spy, way).await;
            revoke(&store, &guard).await;
            store.sweep(crate::Sweep::All, 1_000).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Released::NotHeld, "{way}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_store_repeats_requests_what_is_not_there_says_nothing() {
    for repeats in [false, true] {
        let store = MemoryBackend::new();
        let spy = Spy::with_info(Arc::clone(&store), |info| info.repeats = repeats);
        let guard = hold(&spy, "plain").await;
        let (grant, claims) = first(&guard);
        store.release(grant, &claims).await.unwrap();
        let told = match repeats {
            true => Released::Unknown,
            false => Released::NotHeld,
        };
        assert_eq!(guard.release().await.unwrap(), told);
    }
}

fn first(guard: &Guard) -> (Grant, Vec<Claim>) {
    let (grant, claims) = guard.grants().next().unwrap();
    (grant, claims.to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_lost_one_of_its_batches_was_not_held() {
    let store = MemoryBackend::new().with_keys_per_batch(1);
    let spy = Spy::new(Arc::clone(&store));
    let guard = hold(&spy, "tree").await;
    let (grant, claims) = first(&guard);
    store.release(grant, &claims).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
}

/// As where a store is put back to a moment within the acquisition.
#[tokio::test(start_paused = true)]
async fn a_large_guard_that_lost_its_last_batch_was_not_held() {
    for confirms in [true, false] {
        let store = MemoryBackend::new().with_keys_per_batch(1);
        let spy = Spy::new(Arc::clone(&store));
        let guard = hold(&spy, "many").await;
        let (grant, claims) = guard.grants().last().unwrap();
        store.release(grant, claims).await.unwrap();
        match confirms {
            true => assert!(!guard.confirm().await.unwrap()),
            false => assert_eq!(guard.release().await.unwrap(), Released::NotHeld),
        }
    }
}

/// Its session is closed with it only if nothing else is held there, whatever it has lost meanwhile.
#[tokio::test(start_paused = true)]
async fn a_guard_that_lost_some_of_its_batches_takes_nothing_else_of_its_owner_with_it() {
    for store in stores() {
        for dropped in [true, false] {
            let spy = Spy::new(Arc::clone(&store));
            let locks = spy.locks();
            let many = locks.documents((0..11).map(|n| format!("d{n:02}")));
            let many = many.acquire().await.unwrap();
            let other = locks.documents(["x"]).owner(&many.owner());
            let other = other.acquire().await.unwrap();
            assert_eq!(other.session(), many.session());
            evict_from(&spy, "d03").await;
            let _ = many.lost().await;
            match dropped {
                true => drop(many),
                false => assert_eq!(many.release().await.unwrap(), Released::NotHeld),
            }
            sleep(Duration::from_secs(1)).await;
            assert!(other.is_valid() && other.confirm().await.unwrap());
            assert_eq!(other.release().await.unwrap(), Released::Released);
        }
    }
}

/// A renewal that went out meanwhile and said that the number is over would make it so before the release is executed.
#[tokio::test(start_paused = true)]
async fn a_number_is_over_when_its_release_is_answered_and_not_before() {
    for in_doubt in [false, true] {
        let spy = Spy::new(MemoryBackend::new());
        let builder = spy.builder().ttl(Duration::from_secs(3));
        let locks = builder.build().unwrap();
        if in_doubt {
            let mut lost = 0;
            spy.decide(move |call| match call {
                Call::Acquire(_) if lost == 0 => {
                    lost += 1;
                    Fate::AnswerLost
                }
                _ => Fate::Answered,
            });
        }
        let guard = locks.lock("g").acquire().await.unwrap();
        let grant = first(&guard).0;
        let carried = |spy: &Spy| {
            spy.count(|call| match call {
                Call::Renew(_, renewal) => renewal.retired.contains(grant.n),
                _ => false,
            })
        };
        spy.decide(|call| match call {
            Call::Release(_) => Fate::Fails(ErrorKind::Unavailable),
            _ => Fate::Answered,
        });
        let renewals = spy.count(renews);
        let ends = async {
            sleep(Duration::from_secs(5)).await;
            assert!(spy.count(renews) > renewals + 2);
            assert_eq!(carried(&spy), 0, "it is not answered yet");
            spy.answer_all();
        };
        let (released, ()) = tokio::join!(guard.release(), ends);
        assert_eq!(released.unwrap(), Released::Released);
        sleep(Duration::from_secs(2)).await;
        assert!(carried(&spy) > 0, "it is over now");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_told_to_be_lost_stays_so() {
    for (late, told) in [
        (Duration::from_secs(1), Released::NotHeld),
        (Duration::ZERO, Released::Released),
    ] {
        let spy = Spy::new(MemoryBackend::new());
        let guard = hold(&spy, "plain").await;
        spy.decide(|call| match call {
            Call::Renew(..) => Fate::Hangs,
            // The deadline passes meanwhile, and the store says that nobody has ended the session.
            Call::Release(_) => Fate::AnsweredAfter(Duration::from_secs(2)),
            _ => Fate::Answered,
        });
        sleep(guard.remaining() - Duration::from_millis(1) + late).await;
        assert_eq!(guard.is_valid(), late.is_zero());
        assert_eq!(guard.release().await.unwrap(), told);
    }
}

/// A right is taken away for a while, and nobody has the session any more.
#[tokio::test(start_paused = true)]
async fn what_the_store_does_not_take_back_is_free_once_it_does() {
    for store in stores() {
        for way in WAYS {
            let spy = Spy::new(Arc::clone(&store));
            let guard = hold(&spy, way).await;
            spy.decide(|call| match call {
                Call::Open(_) => Fate::Answered,
                _ => Fate::Fails(ErrorKind::Unauthorized),
            });
            let released = timeout(Duration::from_secs(5), guard.release());
            let (released, ()) = tokio::join!(released, sleep(Duration::from_secs(10)));
            // What is to be done before the release, with an intent, is asked for again.
            let told =
                matches!(&released, Ok(Err(error)) if error.kind() == ErrorKind::Unauthorized);
            assert_eq!(told, way != "intent", "{way}: {released:?}");
            spy.answer_all();
            sleep(Duration::from_secs(5)).await;
            let all = Filter::Prefix(String::new());
            let held = store.records(&all, None, 10);
            assert_eq!(held.await.unwrap().items, [], "{way}");
        }
    }
}

/// Whoever has an intent registered may go before that is answered, and give it back.
#[tokio::test(start_paused = true)]
async fn an_intent_that_is_given_back_while_it_is_registered_leaves_no_keeper() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.locks();
    spy.decide(|call| match call {
        Call::Renew(..) => Fate::AnsweredAfter(Duration::from_millis(5)),
        _ => Fate::Answered,
    });
    let handle = pool::alone(&locks.core).await.unwrap();
    let registered = Registered {
        token: FencingToken::new(64).unwrap(),
        intent: Intent::json(&"change").unwrap(),
    };
    let (done, put) = oneshot::channel();
    handle.order(Order::Put(registered, done));
    sleep(Duration::from_millis(1)).await;
    drop(put);
    handle.order(Order::Release(Release {
        claims: Arc::from([]),
        grants: Vec::new(),
        with_intent: true,
        in_doubt: false,
        by_close: false,
        done: None,
    }));
    drop(handle);
    assert!(
        locks.shutdown(Duration::from_secs(1)).await,
        "a keeper is left"
    );
    assert_eq!(spy.locks().abandoned().await.unwrap(), []);
}
