//! [`within`]: a time-out for work that several runtimes poll.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, Sleep, sleep_until};

/// The work's outcome, or `None` if it has none by then. As [`tokio::time::timeout_at`], also for work that tasks of several
/// runtimes poll, as that of a [`Together`](super::Together): a timer belongs to a runtime, and to poll it when that has
/// ended is a panic, so it is set again in the runtime of whoever polls.
///
/// # Panics
///
/// Panics outside a Tokio runtime.
///
/// # Cancel safety
///
/// Dropping the future drops the work.
pub async fn within<W: Future + Unpin>(until: Instant, mut work: W) -> Option<W::Output> {
    let mut timer: Option<(Id, Pin<Box<Sleep>>)> = None;
    poll_fn(|cx| {
        if let Poll::Ready(done) = Pin::new(&mut work).poll(cx) {
            return Poll::Ready(Some(done));
        }
        let here = Handle::current().id();
        let there = timer.take().filter(|(id, _)| *id == here);
        let (_, sleep) =
            timer.insert(there.unwrap_or_else(|| (here, Box::pin(sleep_until(until)))));
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::poll;
    use tokio::runtime::Builder;

    use super::super::Together;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_ends_at_that_time_or_with_the_work() {
        let begun = Instant::now();
        let late = within(begun + SECOND, std::future::pending::<()>()).await;
        assert_eq!((late, begun.elapsed()), (None, SECOND));
        assert_eq!(within(begun, std::future::ready(7)).await, Some(7));
    }

    #[test]
    fn the_runtime_that_began_it_may_end() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let together = Together::<Option<()>>::default();
        let begin = || within(Instant::now() + SECOND / 10, std::future::pending());
        runtime().block_on(async {
            let mut made = pin!(together.make(5 * SECOND, begin));
            assert!(poll!(&mut made).is_pending());
        });
        let made = runtime().block_on(together.make(5 * SECOND, begin));
        assert_eq!(made, Some(None), "it is late, by the clock of the other");
    }
}
