//! What another thread does just when this one comes to lock the pool.

use std::cell::Cell;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{sleep, timeout};

use crate::client::tests::spy::{Call, Fate, Spy};
use crate::{Inspect, Life, MemoryBackend};

const SECOND: Duration = Duration::from_secs(1);

thread_local! {
    static BEFORE_LOCKING: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// It happens when this thread comes to lock a pool next.
fn before_locking(crossing: impl FnOnce() + 'static) {
    BEFORE_LOCKING.set(Some(Box::new(crossing)));
}

/// This thread comes to lock a pool.
pub(in crate::client) fn happens() {
    if let Some(crossing) = BEFORE_LOCKING.take() {
        crossing();
    }
}

/// The client shuts down when the opening has ended and comes to leave its session to those who come later.
#[tokio::test(start_paused = true)]
async fn a_session_whose_opening_crosses_a_shutdown_is_kept_for_nobody() {
    let spy = Spy::new(MemoryBackend::new());
    spy.decide(|call| match call {
        Call::Open(_) => Fate::AnsweredAfter(SECOND),
        _ => Fate::Answered,
    });
    let locks = spy.locks();
    let leaves = locks.clone();
    let acquisition = locks.documents(["d"]).acquire();
    let crosses = async {
        sleep(SECOND / 2).await;
        before_locking(move || assert!(leaves.shutdown(SECOND).now_or_never().is_none()));
    };
    let (ended, ()) = tokio::join!(timeout(60 * SECOND, acquisition), crosses);
    // It was under way, and keeps the session to itself.
    drop(ended.unwrap().unwrap());
    sleep(SECOND).await;
    let sessions = spy.sessions(None, 10).await.unwrap();
    assert_eq!(sessions.items.len(), 1);
    assert_eq!(sessions.items[0].life, Life::Dead, "the session is left");
}
