//! [`Together`]: makes something once for all who need it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use tokio::time::Instant;

/// Makes something once for all who need it at the same time, such as a connection.
///
/// Any waiter that is polled drives the work. A lock would do the same for a program that polls all its futures; but a
/// program that polls another future first, as the body of a `select!` does, would keep everybody else waiting.
///
/// # Examples
///
/// ```
/// use lockcore::backend::Together;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let within = std::time::Duration::from_secs(5);
/// async fn connect() -> &'static str {
///     tokio::task::yield_now().await;
///     "a connection"
/// }
/// let together = Together::default();
/// let make = || together.make(within, connect);
/// let (one, other) = tokio::join!(make(), make());
/// assert!(one.xor(other).is_some(), "one of them has it");
/// # }
/// ```
pub struct Together<T>(Mutex<Option<Making<T>>>);

struct Making<T> {
    begun: Instant,
    made: Shared<BoxFuture<'static, Outcome<T>>>,
}

/// The first to come takes it.
type Outcome<T> = Arc<Mutex<Option<T>>>;

impl<T: Send + 'static> Together<T> {
    /// Waits for the work under way. Begins it if there is none, or if it has taken longer than `within`: perhaps
    /// nobody was polling it. One of the waiters gets the outcome. The others get `None`: they check whether the
    /// outcome has helped them too, and ask again if not.
    ///
    /// The tasks may be of several runtimes, one of which may end before the work: limit what it does by
    /// [`within`](super::within).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the work to the other waiters, and to the next caller.
    pub async fn make<F>(&self, within: Duration, begin: impl FnOnce() -> F + Send) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let made = {
            let mut making = lock(&self.0);
            making.take_if(|it| it.begun.elapsed() > within);
            let making = making.get_or_insert_with(|| Making::begin(begin()));
            making.made.clone()
        };
        let outcome = made.clone().await;
        lock(&self.0).take_if(|it| it.made.ptr_eq(&made));
        lock(&outcome).take()
    }

    /// Makes the next caller begin anew: the work under way may be of no use.
    pub fn forget(&self) {
        *lock(&self.0) = None;
    }
}

impl<T: Send + 'static> Making<T> {
    fn begin(make: impl Future<Output = T> + Send + 'static) -> Self {
        let made = make.map(|outcome| Arc::new(Mutex::new(Some(outcome))));
        Self {
            begun: Instant::now(),
            made: made.boxed().shared(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Default for Together<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> fmt::Debug for Together<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::poll;
    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn slow(begun: &Arc<AtomicUsize>) -> impl Future<Output = usize> + Send + 'static {
        let number = begun.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(SECOND).await;
            number
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_polled_keeps_nobody_waiting() {
        let (together, begun) = (Together::default(), Arc::default());
        let mut left = pin!(together.make(5 * SECOND, || slow(&begun)));
        assert!(poll!(&mut left).is_pending());
        let other = timeout(2 * SECOND, together.make(5 * SECOND, || slow(&begun)));
        assert_eq!(other.await, Ok(Some(0)));
        assert_eq!(left.await, None);
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waited_for_in_its_time_is_begun_anew() {
        let (together, begun) = (Together::default(), Arc::default());
        let cut = timeout(SECOND / 2, together.make(5 * SECOND, || slow(&begun)));
        assert!(cut.await.is_err());
        sleep(6 * SECOND).await;
        let next = together.make(5 * SECOND, || slow(&begun)).await;
        assert_eq!(next, Some(1));
        together.forget();
        assert_eq!(together.make(5 * SECOND, || slow(&begun)).await, Some(2));
    }
}
