//! What is ended: each completes if it is not ended before, and says so.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use lockkeeper::{Acquisition, Attempt, Guard, Locks, Released, SessionId, Tree};

use crate::support::{At, SOON, dropped, forty};

/// Drops whatever an acquisition won.
pub(crate) async fn acquired<S>(acquisition: Acquisition<S>, at: At) -> bool {
    gone(acquisition.acquire(), at).await
}

async fn gone<E: std::fmt::Debug>(acquire: impl Future<Output = Result<Guard, E>>, at: At) -> bool {
    dropped(acquire, at).await.is_some_and(|guard| {
        drop(guard.unwrap());
        true
    })
}

pub(crate) fn two_paths(locks: &Locks) -> Acquisition<Tree> {
    locks.tree().write("/t/a/b").read("/t/c")
}

pub(crate) fn with_intent(locks: &Locks) -> Acquisition<Tree> {
    locks.tree().write("/t/a").intent(&"change").unwrap()
}

/// Beside what its owner holds already.
pub(crate) async fn reentered(locks: Locks, ids: &[String], at: At) -> bool {
    let owner = locks.owner();
    let outer = locks.documents(["d00"]).owner(&owner).acquire().await;
    let completed = acquired(locks.documents(ids).owner(&owner), at).await;
    drop(outer.unwrap());
    completed
}

/// An owner is bound to its session by the first acquisition that is given it.
pub(crate) async fn bound(locks: Locks, at: At) -> bool {
    let owner = locks.owner();
    let completed = acquired(locks.documents(["d00"]).owner(&owner), at).await;
    let again = locks.documents(["d00"]).owner(&owner).wait(SOON).acquire();
    drop(again.await.unwrap());
    completed
}

pub(crate) async fn tried(locks: Locks, ids: &[String], at: At) -> bool {
    let answer = dropped(locks.documents(ids).try_acquire(), at).await;
    answer.is_some_and(|answer| matches!(answer.unwrap(), Attempt::Acquired(_)))
}

/// Refused at its last key.
pub(crate) async fn tried_in_vain(locks: Locks, ids: &[String], at: At) -> bool {
    let in_the_way = locks.documents(ids.last()).acquire().await.unwrap();
    let answer = dropped(locks.documents(ids).try_acquire(), at).await;
    assert_eq!(in_the_way.release().await.unwrap(), Released::Released);
    answer.is_some_and(|answer| matches!(answer.unwrap(), Attempt::Busy(_)))
}

/// Waits so long for one of the ids, and then on each of the polls until all are granted.
pub(crate) async fn waited(locks: Locks, ids: &[String], held_for: Duration, at: At) -> bool {
    let held = &ids[ids.len() / 2];
    let in_the_way = locks.documents([held]).acquire().await.unwrap();
    let acquire = locks.documents(ids).wait(SOON).acquire();
    let mut waiting = pin!(gone(acquire, at));
    let early = tokio::time::timeout(held_for, &mut waiting).await;
    assert_eq!(in_the_way.release().await.unwrap(), Released::Released);
    match early {
        Ok(completed) => completed,
        Err(_) => waiting.await,
    }
}

pub(crate) async fn streamed(locks: Locks, at: At) -> bool {
    let ids = futures_util::stream::iter(forty());
    let acquire = async { locks.documents_stream(ids).await.acquire().await };
    gone(acquire, at).await
}

/// Acquires, works and releases.
pub(crate) async fn ran<S>(acquisition: Acquisition<S>, at: At) -> bool {
    let work = |_| async {
        tokio::task::yield_now().await;
        Ok::<_, std::io::Error>(())
    };
    let ran = dropped(acquisition.run(work), at).await;
    ran.is_some_and(|done| done.is_ok_and(|(_, released)| released.is_ok()))
}

/// Whoever asks for a release and goes away has released all the same.
pub(crate) async fn released<S>(acquisition: Acquisition<S>, at: At) -> bool {
    let guard = acquisition.acquire().await.unwrap();
    let released = dropped(guard.release(), at).await;
    released.is_some_and(|released| released.is_ok())
}

pub(crate) async fn confirmed<S>(acquisition: Acquisition<S>, at: At) -> bool {
    let guard = acquisition.acquire().await.unwrap();
    let confirmed = dropped(guard.confirm(), at).await;
    assert!(guard.is_valid());
    confirmed.is_some_and(|held| held.unwrap())
}

/// Leaves an intent behind, and says whose.
async fn leave(locks: &Locks) -> SessionId {
    let guard = with_intent(locks).acquire().await.unwrap();
    let session = guard.session();
    drop(guard);
    // It is abandoned when its session is closed, which dropping the guard asks for.
    loop {
        let abandoned = locks.abandoned().await.unwrap();
        if abandoned.iter().any(|state| state.session == session) {
            return session;
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn listed(locks: Locks, at: At) -> bool {
    leave(&locks).await;
    let abandoned = dropped(locks.abandoned(), at).await;
    abandoned.is_some_and(|left| left.unwrap().len() == 1)
}

pub(crate) async fn adopted(locks: Locks, at: At) -> bool {
    let session = leave(&locks).await;
    let recovery = dropped(locks.adopt(session), at).await;
    recovery.is_some_and(|recovery| recovery.unwrap().is_some())
}

pub(crate) async fn settled(locks: Locks, at: At) -> bool {
    let session = leave(&locks).await;
    let recovery = locks.adopt(session).await.unwrap().unwrap();
    let settled = dropped(recovery.settle(), at).await;
    settled.is_some_and(|settled| settled.unwrap())
}

pub(crate) async fn given_up(locks: Locks, at: At) -> bool {
    let session = leave(&locks).await;
    let recovery = locks.adopt(session).await.unwrap().unwrap();
    let given_up = dropped(recovery.give_up(), at).await;
    given_up.is_some_and(|given_up| given_up.is_ok())
}

/// Recovers what is in its way, by the client's handler.
pub(crate) async fn recovered(locks: Locks, at: At) -> bool {
    leave(&locks).await;
    acquired(locks.tree().write("/t").wait(SOON), at).await
}
