//! [`Faulty`]: a store as one client sees it over a bad network.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::Changed;
use lockcore::{Error, ErrorKind, Info, LockBackend, Result};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::RequestFault;
use lockcore_conformance::{Answer, Request};
use lockcore_conformance::{Decorated, Decorator};

/// The quality of the network. Probabilities are from 0 to 1.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Weather {
    /// The usual time that a request or an answer takes at most.
    pub delay: Duration,
    /// The probability that one takes up to ten times as long.
    pub slow: f64,
    /// The probability that a request never arrives.
    pub lost_request: f64,
    /// The probability that an answer never arrives.
    pub lost_answer: f64,
    /// The probability that a request is executed once more, later.
    pub repeated: f64,
    /// The longest time until then.
    pub late: Duration,
    /// The probability that the store cannot be reached, and the client knows.
    pub unavailable: f64,
}

impl Weather {
    /// No faults, and everything takes up to a millisecond.
    pub const FAIR: Weather = Weather {
        delay: Duration::from_millis(1),
        slow: 0.0,
        lost_request: 0.0,
        lost_answer: 0.0,
        repeated: 0.0,
        late: Duration::ZERO,
        unavailable: 0.0,
    };
}

/// One client's connection to the store.
#[derive(Debug, Clone)]
pub struct Link(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Xoshiro256PlusPlus,
    weather: Weather,
    cut: bool,
    /// The additional time of every answer.
    lag: Duration,
    under_way: usize,
    met: BTreeMap<RequestFault, usize>,
}

/// The fate of one request.
#[derive(Debug, Clone, Copy)]
struct Fate {
    unavailable: bool,
    /// When the request arrives, if it does, and how many others overtake it there.
    arrives: Option<(Duration, u32)>,
    /// How long its answer takes, if it arrives.
    answer: Option<Duration>,
    /// When the request is executed once more.
    again: Option<Duration>,
}

impl Link {
    /// A link whose faults follow from the seed.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            weather,
            cut: false,
            lag: Duration::ZERO,
            under_way: 0,
            met: BTreeMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the weather from now on.
    pub fn set(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Cuts or restores the link. While it is cut, requests and answers are lost.
    pub fn cut(&self, cut: bool) {
        self.state().cut = cut;
    }

    /// Delays every answer by this time from now on.
    pub fn lag(&self, lag: Duration) {
        self.state().lag = lag;
    }

    /// The number of requests that may yet be executed.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.state().under_way
    }

    /// How often each fault has met a request since the last call.
    #[must_use]
    pub fn met(&self) -> BTreeMap<RequestFault, usize> {
        std::mem::take(&mut self.state().met)
    }

    fn fate(&self) -> Fate {
        let state = &mut *self.state();
        let (rng, weather) = (&mut state.rng, state.weather);
        let mut delay = |slow| {
            let longest = weather.delay * if slow { 10 } else { 1 };
            // Whole milliseconds, so that many arrive at the same time.
            let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            Duration::from_millis(rng.random_range(0..=longest))
        };
        let (request, answer) = ([delay(false), delay(true)], [delay(false), delay(true)]);
        let mut chance = |of: f64| rng.random::<f64>() < of;
        let unavailable = chance(if state.cut { 0.3 } else { weather.unavailable });
        let arrives = !chance(weather.lost_request) && !state.cut;
        let answers = !chance(weather.lost_answer);
        let arrival = request[usize::from(chance(weather.slow))];
        let answer = answer[usize::from(chance(weather.slow))] + state.lag;
        let again = chance(weather.repeated) && !state.cut;
        let late = weather.late.mul_f64(rng.random());
        // What is refused is not sent.
        let sent = !unavailable;
        for (fault, meets) in [
            (RequestFault::Refused, unavailable),
            (RequestFault::Lost, sent && !arrives),
            (RequestFault::AnswerLost, sent && arrives && !answers),
            (RequestFault::Repeated, sent && again),
        ] {
            if meets {
                *state.met.entry(fault).or_default() += 1;
            }
        }
        Fate {
            unavailable,
            arrives: arrives.then_some((arrival, rng.random_range(0..4))),
            answer: answers.then_some(answer),
            again: again.then_some(arrival + late),
        }
    }

    fn is_cut(&self) -> bool {
        self.state().cut
    }

    /// Sends something independently of the client: whatever happens to the client, it stays under way.
    #[expect(
        clippy::disallowed_methods,
        reason = "what is under way belongs to no client any more"
    )]
    fn send(&self, request: impl Future<Output = ()> + Send + 'static) {
        let sent = Sent::new(self);
        drop(tokio::spawn(async move {
            let _sent = sent;
            request.await;
        }));
    }
}

/// Counts a request while it may be executed.
struct Sent(Link);

impl Sent {
    fn new(link: &Link) -> Self {
        link.state().under_way += 1;
        Self(link.clone())
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.0.state().under_way -= 1;
    }
}

/// A store behind a [`Link`]. A request travels by itself: dropping the call loses only the answer, and a copy may be
/// executed long after the caller has given up.
pub struct Faulty {
    store: Arc<dyn LockBackend>,
    link: Link,
    timeout: Duration,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty")
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// The store behind the link. A client waits for an answer for `timeout`.
    #[must_use]
    pub fn new(store: Arc<dyn LockBackend>, link: Link, timeout: Duration) -> Decorated<Self> {
        Decorated(Self {
            store,
            link,
            timeout,
        })
    }

    fn unless_cut(&self, changed: Changed) -> Changed {
        let link = self.link.clone();
        Box::pin(async move {
            changed.await;
            if link.is_cut() {
                std::future::pending().await
            }
        })
    }
}

#[async_trait]
impl Decorator for Faulty {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    fn info(&self) -> Info {
        let mut info = self.store.info();
        info.repeats = true;
        info
    }

    async fn call(&self, request: Request) -> Result<Answer> {
        let info = self.store.info();
        let (name, atomic, operation) = (info.name, info.atomic, request.operation());
        let fate = self.link.fate();
        if fate.unavailable {
            sleep(Duration::from_millis(1)).await;
            let what = "the simulated network refuses the connection";
            return Err(Error::new(ErrorKind::Unavailable, name, operation, what));
        }
        let (answer, answered) = oneshot::channel();
        let (ended, first) = oneshot::channel::<()>();
        if let Some((delay, let_by)) = fate.arrives {
            let (request, store) = (request.clone(), Arc::clone(&self.store));
            let link = self.link.clone();
            self.link.send(async move {
                sleep(delay).await;
                for _ in 0..let_by {
                    tokio::task::yield_now().await;
                }
                let executed = request.send(&*store).await;
                drop(ended);
                if let Some(delay) = fate.answer {
                    sleep(delay).await;
                    if !link.is_cut() {
                        // The caller may be gone.
                        drop(answer.send(executed));
                    }
                }
            });
        }
        if let Some(later) = fate.again {
            let store = Arc::clone(&self.store);
            self.link.send(async move {
                if !atomic {
                    // A call may be several requests, and what is sent twice is one of them, not two calls at once.
                    drop(first.await);
                }
                sleep(later).await;
                drop(request.send(&*store).await);
            });
        }
        let timeout = async {
            sleep(self.timeout).await;
            let what = "no answer from the simulated network";
            Err(Error::new(ErrorKind::Indeterminate, name, operation, what))
        };
        tokio::pin!(timeout);
        tokio::select! {
            biased;
            // A watch that was set up over a link that is cut later resolves no more.
            Ok(answer) = answered => answer.map(|answer| answer.watching(|changed| self.unless_cut(changed))),
            error = &mut timeout => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockcore::MemoryBackend;
    use lockcore::backend::Inspect as _;

    use super::*;

    /// Each fault alone, in a hundred requests of which each meets it; what the client is told, and what was executed.
    #[tokio::test(start_paused = true)]
    async fn every_fault_is_counted_when_it_meets_a_request() {
        const REQUESTS: usize = 100;
        let mut all = [Weather::FAIR; 4];
        all[0].unavailable = 1.0;
        all[1].lost_request = 1.0;
        all[2].lost_answer = 1.0;
        all[3].repeated = 1.0;
        let faults = [
            RequestFault::Refused,
            RequestFault::Lost,
            RequestFault::AnswerLost,
            RequestFault::Repeated,
        ];
        for (fault, weather) in faults.into_iter().zip(all) {
            let link = Link::new(1, weather);
            let store = Faulty::new(MemoryBackend::new(), link.clone(), Duration::from_secs(1));
            for _ in 0..REQUESTS {
                let asked = store.sessions(None, 1).await;
                assert_eq!(asked.is_ok(), fault == RequestFault::Repeated, "{fault:?}");
            }
            assert_eq!(link.met(), BTreeMap::from([(fault, REQUESTS)]));
            assert_eq!(link.met(), BTreeMap::new(), "they are told once");
        }
    }
}
