//! What is asked for, and who leads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::spy::{Call, Fate, Spy};
use crate::{ErrorKind, Label, LockKey, Locks, MemoryBackend, Released};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

async fn ask(locks: &Locks, key: &str, reason: &str) -> usize {
    let key = LockKey::parse(key).unwrap();
    locks
        .ask(&key, Label::parse(reason).unwrap())
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn whoever_is_asked_hears_the_last_reason_and_holds_on() {
    // Where nothing is pushed, the next renewal tells.
    for (pushes, within) in [(true, SECOND), (false, 10 * SECOND)] {
        let spy = Spy::with_info(MemoryBackend::new(), |info| {
            if !pushes {
                info.poll = Some(Duration::from_millis(50));
            }
        });
        let (one, other) = (spy.builder().ttl(120 * TTL).build().unwrap(), spy.locks());
        let guard = one.lock("a").acquire().await.unwrap();
        sleep(SECOND).await;
        assert_eq!(ask(&other, "a", "first").await, 1);
        assert_eq!(ask(&other, "a", "second").await, 1);
        let note = timeout(within, guard.asked()).await.unwrap();
        assert!(
            ["first", "second"].contains(&note.reason.as_str()),
            "{note:?}"
        );
        sleep(10 * SECOND).await;
        let second = guard.asked().await;
        assert_eq!(second.reason.as_str(), "second");
        let again = guard.asked_again(&second);
        assert!(timeout(10 * SECOND, again).await.is_err());
        assert_eq!(ask(&other, "a", "third").await, 1);
        let third = timeout(within, guard.asked_again(&second)).await.unwrap();
        assert_eq!(third.reason.as_str(), "third");
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        // The same session; another grant.
        let _ = guard.release().await.unwrap();
        let next = one.lock("a").acquire().await.unwrap();
        assert!(timeout(60 * SECOND, next.asked()).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_goes_back_to_the_store() {
    let spy = Spy::new(MemoryBackend::new());
    let (one, other) = (spy.locks(), spy.locks());
    // The session is watched by then; the grant is new.
    let _other = one.lock("b").acquire().await.unwrap();
    sleep(SECOND).await;
    for asks in [false, true] {
        let guard = one.lock("a").acquire().await.unwrap();
        let next = async {
            timeout(SECOND, one.lock("a").acquire())
                .await
                .unwrap()
                .unwrap()
        };
        let gives_back = async {
            sleep(Duration::from_millis(1)).await;
            if asks {
                assert_eq!(ask(&other, "a", "maintenance").await, 1);
                let asked = guard.asked();
                timeout(Duration::from_millis(10), asked).await.unwrap();
            }
            guard.release().await.unwrap()
        };
        let (next, released) = tokio::join!(next, gives_back);
        let expected = match asks {
            true => Released::Released,
            false => Released::HandedOn,
        };
        assert_eq!(released, expected);
        let _ = next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_leader_in_the_order_of_tokens() {
    let spy = Spy::new(MemoryBackend::new());
    let observer = spy.locks().election("e").unwrap();
    let mut seen = Vec::new();
    let observes = async {
        let mut leaders = Box::pin(observer.observe());
        while seen.len() < 5 {
            match leaders.next().await.unwrap() {
                Ok(leader) => seen.push(leader.token),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
            }
        }
    };
    let led = async {
        let mut led = Vec::new();
        for n in 0..5 {
            let locks = spy.locks();
            let leadership = locks.election("e").unwrap().campaign().await.unwrap();
            led.push(leadership.token());
            if n == 2 {
                // What fails meanwhile is reported, and goes on.
                spy.decide(|call| match call {
                    Call::End(..) => Fate::Fails(ErrorKind::Unavailable),
                    _ => Fate::Answered,
                });
                sleep(SECOND / 2).await;
                spy.answer_all();
            }
            sleep(SECOND + SECOND / 10).await;
            match n % 2 {
                0 => assert_eq!(leadership.resign().await.unwrap(), Released::Released),
                _ => drop(leadership),
            }
        }
        led
    };
    let (led, ()) = tokio::join!(led, observes);
    assert_eq!(seen, led);
    assert!(led.is_sorted());
}

/// No observer would hear of it.
#[tokio::test(start_paused = true)]
async fn nobody_leads_whose_session_the_store_has_forgotten() {
    let spy = Spy::new(MemoryBackend::new());
    let election = spy.locks().election("e").unwrap();
    spy.forgets.store(true, Ordering::Relaxed);
    assert!(election.try_campaign().await.unwrap().is_none());
    spy.forgets.store(false, Ordering::Relaxed);
    assert!(election.campaign().await.unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_is_followed_within_its_ttl() {
    let spy = Spy::new(MemoryBackend::new());
    let (one, other) = (spy.locks(), spy.locks());
    let first = one.election("e").unwrap().campaign().await.unwrap();
    assert!(
        other
            .election("e")
            .unwrap()
            .try_campaign()
            .await
            .unwrap()
            .is_none()
    );
    let session = first.session();
    // It is not heard of any more.
    spy.decide(move |call| match call {
        Call::Renew(of, _) if *of == session => Fate::Hangs,
        _ => Fate::Answered,
    });
    let election = other.election("e").unwrap();
    let next = timeout(TTL + SECOND, election.campaign())
        .await
        .unwrap()
        .unwrap();
    assert!(next.token() > first.token() && !first.is_valid());
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.session),
        (next.token(), next.session())
    );
    assert!(one.election("/path").is_err());
}
