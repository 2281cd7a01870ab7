//! [`Batch`]: many requests of one kind, sent as one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::{Error, ErrorKind, Operation, Result};

/// For this long a request that was sent alone counts as under way.
const ALONE: Duration = Duration::from_millis(2);
/// If the sending task has been silent for this long, its runtime may hang, and another task takes over.
const SILENT: Duration = Duration::from_secs(1);

/// Sends requests of one kind together under load. A request that comes while none is under way is sent alone and at
/// once. Requests that come meanwhile are collected and sent together: at the next turn of the runtime while few are
/// under way, else as soon as one of these is answered. So nothing waits without load, and under load many callers
/// share a request.
///
/// # Examples
///
/// ```
/// use lockcore::backend::Batch;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let squares = Batch::new(100, 1, |_, _| true, |numbers: Vec<u64>| {
///     Box::pin(async move { numbers.iter().map(|number| number * number).collect() })
/// });
/// let square = |number| squares.ask(number, |number| async move {
///     tokio::task::yield_now().await;
///     number * number
/// });
/// assert_eq!(tokio::join!(square(2), square(3)), (Some(4), Some(9)));
/// # }
/// ```
pub struct Batch<I, O>(Arc<Shared<I, O>>);

struct Shared<I, O> {
    most: usize,
    at_once: usize,
    alike: fn(&I, &I) -> bool,
    send: Box<Sends<I, O>>,
    state: Mutex<State<I, O>>,
    /// A request came, or the one sent alone was answered.
    changed: Notify,
}

/// Sends many items. Returns their answers in order.
type Sends<I, O> = dyn Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync;

struct State<I, O> {
    /// One request is under way alone.
    alone: bool,
    /// The task that sends the waiting requests: its number, and when it was last heard of.
    runs: Option<(u64, Instant)>,
    tasks: u64,
    waiting: VecDeque<(I, oneshot::Sender<O>)>,
}

impl<I, O> Batch<I, O>
where
    I: Send + 'static,
    O: Send + 'static,
{
    /// At most `most` requests that are `alike` go together, and at most `at_once` such sends are under way at once.
    /// `send` returns the answers in the order of its items.
    pub fn new(
        most: usize,
        at_once: usize,
        alike: fn(&I, &I) -> bool,
        send: impl Fn(Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            most,
            at_once,
            alike,
            send: Box::new(send),
            state: Mutex::new(State {
                alone: false,
                runs: None,
                tasks: 0,
                waiting: VecDeque::new(),
            }),
            changed: Notify::new(),
        }))
    }

    /// The answer to the request, sent `alone` or with others. `None` if the runtime that sent it with others has
    /// ended.
    ///
    /// # Cancel safety
    ///
    /// A request that is not sent yet is not sent any more. A request that was sent with others goes on.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime if another request is under way.
    pub async fn ask<F: Future<Output = O>>(
        &self,
        item: I,
        alone: impl FnOnce(I) -> F,
    ) -> Option<O> {
        let answer = {
            let mut state = self.0.state();
            if state.alone || state.runs.is_some() {
                let (done, answer) = oneshot::channel();
                state.waiting.push_back((item, done));
                if state
                    .runs
                    .is_some_and(|(_, heard)| heard.elapsed() < SILENT)
                {
                    self.0.changed.notify_one();
                } else {
                    state.tasks += 1;
                    state.runs = Some((state.tasks, Instant::now()));
                    begin(run(Runs {
                        shared: Arc::clone(&self.0),
                        number: state.tasks,
                    }));
                }
                Err(answer)
            } else {
                state.alone = true;
                Ok((item, Alone(&self.0)))
            }
        };
        match answer {
            Ok((item, _alone)) => Some(alone(item).await),
            Err(answer) => answer.await.ok(),
        }
    }
}

impl<I, T> Batch<I, Result<Option<T>>>
where
    I: Clone + Send + 'static,
    T: Send + 'static,
{
    /// For requests of which some cannot be sent with others: `send` answers those with `None`. A failure of `send` is
    /// the answer to all of them.
    pub(crate) fn of_some(
        most: usize,
        at_once: usize,
        alike: fn(&I, &I) -> bool,
        send: impl Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<Option<T>>>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(most, at_once, alike, move |items| {
            let (many, sent) = (items.len(), send(items));
            Box::pin(async move {
                match sent.await {
                    Ok(answers) => answers.into_iter().map(Ok).collect(),
                    Err(error) => vec![error; many].into_iter().map(Err).collect(),
                }
            })
        })
    }

    /// The answer to the request, sent with others if possible, else `alone`. A request must end by itself within
    /// `timeout`, and may wait for an earlier one first. If there is no answer within twice `timeout`, the sending
    /// runtime hangs.
    ///
    /// # Errors
    ///
    /// The error of `send` or of `alone`. Or [`Indeterminate`](ErrorKind::Indeterminate), in the name of the backend,
    /// if the runtime that sent it with others hangs or has ended.
    ///
    /// # Cancel safety
    ///
    /// As [`ask`](Self::ask).
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub(crate) async fn answer<F: Future<Output = Result<T>>>(
        &self,
        item: &I,
        alone: impl Fn(I) -> F,
        timeout: Duration,
        backend: &'static str,
        operation: Operation,
    ) -> Result<T> {
        let asked = self.ask(item.clone(), |item| {
            let asked = alone(item);
            async move { asked.await.map(Some) }
        });
        let what = match tokio::time::timeout(2 * timeout, asked).await {
            Ok(Some(Ok(Some(answer)))) => return Ok(answer),
            Ok(Some(Ok(None))) => return alone(item.clone()).await,
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) => "the runtime that sent it is gone",
            Err(_) => "no answer in time, with others that were sent before",
        };
        Err(Error::new(
            ErrorKind::Indeterminate,
            backend,
            operation,
            what,
        ))
    }
}

impl<I, O> Shared<I, O> {
    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exists while one request is under way alone.
struct Alone<'a, I, O>(&'a Shared<I, O>);

impl<I, O> Drop for Alone<'_, I, O> {
    fn drop(&mut self) {
        self.0.state().alone = false;
        self.0.changed.notify_one();
    }
}

/// Exists while a task sends the waiting requests. If the task ends with its runtime, they are notified.
struct Runs<I, O> {
    shared: Arc<Shared<I, O>>,
    number: u64,
}

impl<I, O> Drop for Runs<I, O> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        // Else it has ended, or another one goes on.
        if state
            .runs
            .take_if(|(number, _)| *number == self.number)
            .is_some()
        {
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            drop(waiting);
        }
    }
}

fn begin(work: impl Future<Output = ()> + Send + 'static) {
    #[expect(
        clippy::disallowed_methods,
        reason = "it ends by itself, when nobody waits any more"
    )]
    drop(tokio::spawn(work));
}

async fn run<I, O>(runs: Runs<I, O>) {
    let shared = &*runs.shared;
    let begun = Instant::now();
    let mut sent = FuturesUnordered::new();
    loop {
        // Whoever sent it may not be polled.
        let alone = begun.elapsed() < ALONE && shared.state().alone;
        while sent.len() + usize::from(alone) < shared.at_once
            && let Some((items, told)) = shared.next(runs.number)
        {
            let answers = (shared.send)(items);
            sent.push(async move {
                for (done, answer) in told.into_iter().zip(answers.await) {
                    // Who asked may have gone.
                    let _ = done.send(answer);
                }
            });
        }
        if sent.is_empty() && !alone && shared.ends(runs.number) {
            return;
        }
        tokio::select! {
            Some(()) = sent.next() => {}
            () = shared.changed.notified() => {}
            () = sleep(ALONE), if alone => {}
        }
    }
}

impl<I, O> Shared<I, O> {
    /// The next requests to go together, if that task is the one that sends them.
    fn next(&self, number: u64) -> Option<(Vec<I>, Vec<oneshot::Sender<O>>)> {
        let mut state = self.state();
        let runs = state.runs.as_mut().filter(|(own, _)| *own == number)?;
        runs.1 = Instant::now();
        state.waiting.retain(|(_, done)| !done.is_closed());
        let mut some = vec![state.waiting.pop_front()?];
        let mut others = std::mem::take(&mut state.waiting).into_iter();
        while some.len() < self.most
            && let Some(next) = others.next()
        {
            match (self.alike)(&some[0].0, &next.0) {
                true => some.push(next),
                false => state.waiting.push_back(next),
            }
        }
        state.waiting.extend(others);
        Some(some.into_iter().unzip())
    }

    /// Whether that task ends: because nobody waits, so that the next request is sent alone, or because another task
    /// sends.
    fn ends(&self, number: u64) -> bool {
        let mut state = self.state();
        let is_it = state.runs.is_some_and(|(own, _)| own == number);
        if is_it && state.waiting.is_empty() {
            state.runs = None;
        }
        !is_it || state.runs.is_none()
    }
}

impl<I, O> fmt::Debug for Batch<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use futures_util::future::{join, join_all};
    use futures_util::poll;

    const SECOND: Duration = Duration::from_secs(1);

    /// Each takes a second, and is answered with how many were sent with it.
    fn batch(most: usize) -> Batch<u64, usize> {
        of(most, 1)
    }

    fn of(most: usize, at_once: usize) -> Batch<u64, usize> {
        let alike = |one: &u64, other: &u64| one / 100 == other / 100;
        Batch::new(most, at_once, alike, |items: Vec<u64>| {
            Box::pin(async move {
                sleep(SECOND).await;
                items.iter().map(|_| items.len()).collect()
            })
        })
    }

    async fn alone(_: u64) -> usize {
        sleep(SECOND).await;
        0
    }

    #[tokio::test(start_paused = true)]
    async fn one_alone_is_sent_at_once_and_those_who_come_meanwhile_go_together() {
        let (batch, begun) = (batch(10), Instant::now());
        for _ in 0..2 {
            assert_eq!(batch.ask(0, alone).await, Some(0), "nothing is under way");
        }
        assert_eq!(begun.elapsed(), 2 * SECOND);
        let answers = join_all((0..12).map(|item| batch.ask(item, alone))).await;
        let sent = |size| vec![Some(size); size];
        assert_eq!(answers, [vec![Some(0)], sent(10), sent(1)].concat());
        assert_eq!(batch.ask(0, alone).await, Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn some_are_under_way_at_once_and_those_who_come_in_the_same_turn_go_together() {
        let (batch, begun) = (of(10, 3), Instant::now());
        let ask = async |item: u64| (batch.ask(item, alone).await, begun.elapsed().as_millis());
        let later = async |after: u64| {
            sleep(Duration::from_millis(after)).await;
            join_all([0, 1].map(ask)).await
        };
        let (now, some) = join(ask(0), join_all([100, 200, 300, 400].map(later))).await;
        assert_eq!(now, (Some(0), 1_000));
        // The fourth when the first is answered.
        let told = [1_100, 1_200, 1_300, 2_100].map(|after| vec![(Some(2), after); 2]);
        assert_eq!(some, told);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_are_alike_go_together_in_the_order_of_their_first() {
        let (batch, begun) = (batch(10), Instant::now());
        let ask = async |item: u64| (batch.ask(item, alone).await, begun.elapsed().as_secs());
        let answers = join_all([0, 100, 1, 101, 200, 2].map(ask)).await;
        let told = [(0, 1), (2, 1), (2, 2), (2, 1), (1, 3), (2, 2)];
        assert_eq!(answers, told.map(|(size, after)| (Some(size), after)));
    }

    /// Each is answered with how many were sent with it; odd numbers have to be asked by themselves, and the hundreds fail.
    #[tokio::test(start_paused = true)]
    async fn what_cannot_go_together_is_asked_by_itself_and_what_fails_fails_for_all() {
        let failure = || Error::new(ErrorKind::Unavailable, "store", Operation::Acquire, "full");
        let alike = |one: &u64, other: &u64| one / 100 == other / 100;
        let batch = Batch::of_some(10, 2, alike, move |items: Vec<u64>| {
            Box::pin(async move {
                sleep(SECOND).await;
                let answer = |item: &u64| item.is_multiple_of(2).then_some(items.len());
                match items[0] < 100 {
                    true => Ok(items.iter().map(answer).collect()),
                    false => Err(failure()),
                }
            })
        });
        let ask = |item, timeout| {
            let batch = &batch;
            async move {
                let alone = |_| async {
                    sleep(SECOND).await;
                    Ok(0)
                };
                let (backend, operation) = ("store", Operation::Acquire);
                batch
                    .answer(&item, alone, timeout, backend, operation)
                    .await
            }
        };
        let of = async |items: &[u64], timeout| {
            let answers = join_all(items.iter().map(|item| ask(*item, timeout))).await;
            let told = |answer: Result<usize>| answer.map_err(|error| error.kind());
            answers.into_iter().map(told).collect::<Vec<_>>()
        };
        let failed = Err(ErrorKind::Unavailable);
        let answers = of(&[0, 2, 3, 4, 100, 102], 3 * SECOND).await;
        assert_eq!(answers, [Ok(0), Ok(3), Ok(0), Ok(3), failed, failed]);
        // Twice the timeout is not enough.
        let answers = of(&[0, 2], SECOND / 4).await;
        assert_eq!(answers, [Err(ErrorKind::Indeterminate); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_not_polled_keeps_nobody_waiting() {
        let batch = batch(10);
        let mut left = pin!(batch.ask(0, alone));
        assert!(poll!(&mut left).is_pending());
        let begun = Instant::now();
        assert_eq!(batch.ask(1, alone).await, Some(1));
        assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
        assert_eq!(left.await, Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_goes_takes_nobody_along_and_is_not_sent_any_more() {
        let batch = batch(10);
        let mut first = Box::pin(batch.ask(0, alone));
        assert!(poll!(&mut first).is_pending());
        let mut goes = Box::pin(batch.ask(1, alone));
        assert!(poll!(&mut goes).is_pending());
        let mut stays = Box::pin(batch.ask(2, alone));
        assert!(poll!(&mut stays).is_pending());
        drop((first, goes));
        assert_eq!(stays.await, Some(1), "it goes alone");
        // One that is under way is waited for, whoever goes.
        let mut first = Box::pin(batch.ask(0, alone));
        assert!(poll!(&mut first).is_pending());
        let two = [1, 2].map(|item| batch.ask(item, alone));
        let mut two = Box::pin(join_all(two));
        assert!(poll!(&mut two).is_pending());
        sleep(SECOND / 2).await;
        drop(two);
        let begun = Instant::now();
        assert_eq!(batch.ask(3, alone).await, Some(1));
        assert!(begun.elapsed() > SECOND, "{:?}", begun.elapsed());
    }

    #[test]
    fn whoever_is_sent_by_a_runtime_that_ends_hears_of_it() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        let (batch, one, other) = (Arc::new(batch(10)), runtime(), runtime());
        let mut first = Box::pin(batch.ask(0, alone));
        let mut second = Box::pin(batch.ask(1, alone));
        one.block_on(async {
            assert!(poll!(&mut first).is_pending());
            assert!(poll!(&mut second).is_pending());
            sleep(10 * ALONE).await;
        });
        drop((first, one));
        assert_eq!(other.block_on(second), None);
        assert_eq!(other.block_on(batch.ask(2, alone)), Some(0), "it goes on");
    }

    #[test]
    fn whoever_would_be_sent_by_a_runtime_that_hangs_is_sent_by_another() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        let (batch, hangs, other) = (batch(10), runtime(), runtime());
        let mut first = Box::pin(batch.ask(0, alone));
        let mut second = Box::pin(batch.ask(1, alone));
        hangs.block_on(async {
            assert!(poll!(&mut first).is_pending());
            assert!(poll!(&mut second).is_pending());
        });
        let third = other.block_on(async {
            sleep(SILENT).await;
            batch.ask(2, alone).await
        });
        assert_eq!(third, Some(2), "with the second");
        assert_eq!(other.block_on(second), Some(2));
        // It goes on, and ends.
        assert_eq!(hangs.block_on(first), Some(0));
        assert_eq!(other.block_on(batch.ask(3, alone)), Some(0));
    }
}
