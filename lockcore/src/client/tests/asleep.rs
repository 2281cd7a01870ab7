//! The machine sleeps: the lease goes on, and timers stand still.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::client::clock::tests::suspend;
use crate::client::tests::spy::{Call, Spy};
use crate::{Guard, Locks, LostReason, MemoryBackend};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

async fn hold(locks: &Locks) -> Guard {
    locks.lock("g").acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_ended_asleep_is_told_within_a_second_of_waking() {
    for ttl in [Duration::from_secs(30), HOUR] {
        let spy = Spy::new(MemoryBackend::new());
        let locks = spy.builder().ttl(ttl).build().unwrap();
        let (guard, held) = (hold(&locks).await, hold_other(&locks).await);
        let waits = tokio::join!(timeout(SECOND + SECOND, guard.lost()), async {
            sleep(SECOND).await;
            suspend(ttl);
        });
        assert_eq!(waits.0, Ok(LostReason::Deadline), "{ttl:?}");
        assert_eq!(timeout(SECOND, held.lost()).await, Ok(LostReason::Deadline));
    }
}

async fn hold_other(locks: &Locks) -> Guard {
    let acquisition = locks.lock("i").intent(&"change").unwrap();
    acquisition.acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn work_that_runs_is_stopped_within_a_second_of_waking() {
    let spy = Spy::new(MemoryBackend::new());
    let locks = spy.builder().ttl(HOUR).build().unwrap();
    let run = locks.lock("g").run(|_| async {
        suspend(HOUR);
        sleep(HOUR).await;
        Ok::<_, std::io::Error>(())
    });
    let ended = timeout(SECOND, run).await.expect("in time");
    assert!(
        matches!(ended, Err(crate::RunError::Lost(LostReason::Deadline))),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_came_due_asleep_goes_out_within_a_second_of_waking() {
    let spy = Spy::new(MemoryBackend::new());
    let told = |late| panic!("it is nobody's fault: {late:?}");
    let locks = spy.builder().ttl(HOUR).when_late(told);
    let locks = locks.build().unwrap();
    let guard = hold(&locks).await;
    let renewals = || spy.count(|call| matches!(call, Call::Renew(..)));
    suspend(HOUR / 2);
    sleep(SECOND).await;
    assert_eq!(renewals(), 1);
    assert!(guard.is_valid() && guard.remaining() > HOUR - HOUR / 50);
}

fn paused() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

#[test]
fn a_guard_whose_keeper_is_gone_is_told_as_soon() {
    let (keeps, waits) = (paused(), paused());
    let spy = keeps.block_on(async { Spy::new(MemoryBackend::new()) });
    let locks = spy.builder().ttl(HOUR).build().unwrap();
    let guard = keeps.block_on(hold(&locks));
    waits.block_on(async {
        let lost = timeout(SECOND + SECOND, guard.lost());
        let ends = async {
            sleep(SECOND / 2).await;
            keeps.shutdown_background();
            sleep(SECOND / 2).await;
            suspend(HOUR);
        };
        assert_eq!(tokio::join!(lost, ends).0, Ok(LostReason::Deadline));
    });
}
