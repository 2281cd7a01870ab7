//! A writer beside readers whose holds overlap without a gap.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockcore::{AcquireError, Guard, Locks};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::measured::{Measured, WAIT};
use crate::ours::release;
use crate::turns::{Failure, Hold};

/// How long a reader holds its share; up to as long again until another one has come.
pub const READ_FOR: Duration = Duration::from_millis(30);
/// After so many times as long as a reader holds, the writer gives up.
pub const NEVER_WITHIN: u32 = 50;
const KEY: &str = "read and written";
/// More readers than so many times as are wanted do not wait at a time.
const PILED_UP: usize = 16;

/// The writer asks again and again, until the time is over. Readers come as often as so many hold at a time, however long
/// those before them have waited.
pub(crate) async fn run(locks: &Locks, readers: u32, time: Duration) -> Result<Measured, Failure> {
    let (done, stop) = oneshot::channel();
    let write = async {
        let written = write(locks, time).await;
        // Nobody listens any more if a reader failed.
        let _ = done.send(());
        written
    };
    let (read, written) = tokio::join!(read(locks, readers.max(1), stop), write);
    read.and(written)
}

async fn read(locks: &Locks, readers: u32, mut stop: oneshot::Receiver<()>) -> Result<(), Failure> {
    let mut ticks = interval(READ_FOR / readers);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let most = PILED_UP * readers as usize;
    let held = AtomicU32::new(0);
    let mut under_way = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            Some(done) = under_way.next() => done?,
            _ = ticks.tick(), if under_way.len() < most => under_way.push(share(locks, readers, &held)),
        }
    }
    while let Some(done) = under_way.next().await {
        done?;
    }
    Ok(())
}

/// Holds a share in small steps: if the machine stops for a while, not all shares are given back at once thereafter.
async fn share(locks: &Locks, readers: u32, held: &AtomicU32) -> Result<(), Failure> {
    let guard = locks.rwlock(KEY).read().acquire().await?;
    held.fetch_add(1, Ordering::Relaxed);
    for step in 0..2 * readers {
        if step >= readers && held.load(Ordering::Relaxed) > 1 {
            break;
        }
        sleep(READ_FOR / readers).await;
    }
    held.fetch_sub(1, Ordering::Relaxed);
    release(guard).await
}

async fn write(locks: &Locks, time: Duration) -> Result<Measured, Failure> {
    let (mut measured, mut given_up) = (Measured::default(), 0);
    let start = Instant::now();
    while start.elapsed() < time {
        // Until the readers hold it.
        sleep(READ_FOR).await;
        let asked = Instant::now();
        let guard = within(locks, READ_FOR * NEVER_WITHIN).await?;
        measured.note(WAIT, asked.elapsed());
        match guard {
            Some(guard) => {
                Hold::Yield.over().await;
                release(guard).await?;
            }
            None => given_up += 1,
        }
    }
    measured.given_up = Some(given_up);
    Ok(measured)
}

/// The lock; `None` if it is not free for so long.
async fn within(locks: &Locks, limit: Duration) -> Result<Option<Guard>, Failure> {
    match locks.lock(KEY).wait(limit).acquire().await {
        Ok(guard) => Ok(Some(guard)),
        Err(AcquireError::Busy(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use lockcore::MemoryBackend;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_writer_gives_up_while_a_share_is_held() {
        let locks = Locks::builder(MemoryBackend::new()).build().unwrap();
        let limit = READ_FOR * NEVER_WITHIN;
        let guard = within(&locks, limit).await.unwrap().unwrap();
        release(guard).await.unwrap();
        let share = locks.rwlock(KEY).read().acquire().await.unwrap();
        assert!(within(&locks, limit).await.unwrap().is_none());
        release(share).await.unwrap();
    }

    #[tokio::test]
    async fn a_writer_is_bounded() {
        let locks = Locks::builder(MemoryBackend::new()).build().unwrap();
        let start = Instant::now();
        let measured = run(&locks, 3, Duration::from_millis(100)).await.unwrap();
        let waits = &measured.times[WAIT];
        let given_up = measured.given_up.unwrap();
        assert!(u64::from(given_up) <= waits.len(), "{measured:?}");
        assert!(
            start.elapsed() < READ_FOR * (2 * NEVER_WITHIN),
            "{measured:?}"
        );
        assert!(locks.shutdown(Duration::from_secs(5)).await);
    }
}
