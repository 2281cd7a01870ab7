//! [`Observed`]: a store whose requests are told to `tracing` and `metrics`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::client::clock::now;
#[cfg(feature = "metrics")]
use crate::client::telemetry::is_recorded;
use crate::store::{
    Acquire, Acquired, Adopt, Adopted, Changed, ClaimStore, End, Filter, Incarnation, Inspect,
    Opened, Page, Record, Renewal, Renewed, SessionStore, Settled, Stood, Sweep, Swept, Wakeups,
};
use crate::{
    Claim, ErrorKind, Grant, Info, Label, LockBackend, Note, Operation, OwnerId, Result, SessionId,
    SessionState,
};

/// Tells how long each request takes and how it ends. The rest is the store's.
pub(crate) struct Observed {
    inner: Arc<dyn LockBackend>,
    #[cfg(feature = "tracing")]
    store: &'static str,
    #[cfg(feature = "metrics")]
    meters: Option<Box<meters::Meters>>,
}

impl Observed {
    pub(crate) fn new(inner: Arc<dyn LockBackend>) -> Self {
        let store = inner.info().name;
        Self {
            inner,
            #[cfg(feature = "tracing")]
            store,
            #[cfg(feature = "metrics")]
            meters: is_recorded().then(|| Box::new(meters::Meters::new(store))),
        }
    }

    /// Whether anybody wants to know.
    fn is_heard(&self) -> bool {
        #[cfg(feature = "metrics")]
        if self.meters.is_some() {
            return true;
        }
        #[cfg(feature = "tracing")]
        return tracing::enabled!(target: "lockkeeper::request", tracing::Level::DEBUG);
        #[cfg(not(feature = "tracing"))]
        false
    }

    async fn timed<T>(
        &self,
        operation: Operation,
        answer: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let since = now();
        let answer = answer.await;
        let outcome = match &answer {
            Ok(_) => "answered",
            Err(error) => match error.kind() {
                ErrorKind::Unavailable => "unavailable",
                ErrorKind::Indeterminate => "indeterminate",
                _ => "failed",
            },
        };
        self.tell(operation, outcome, since);
        answer
    }

    fn tell(&self, operation: Operation, outcome: &'static str, since: Instant) {
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "lockkeeper::request",
            tracing::Level::DEBUG,
            store = self.store,
            %operation,
            outcome,
            took_us = u64::try_from(took(since).as_micros()).unwrap_or(u64::MAX),
            "request"
        );
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.requested(operation, outcome, took(since).as_secs_f64());
        }
    }
}

fn took(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

#[async_trait]
impl SessionStore for Observed {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.timed(Operation::Open, self.inner.open(session, label, ttl))
            .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.timed(Operation::Renew, self.inner.renew(session, renewal))
            .await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.timed(Operation::End, self.inner.end(sessions, how))
            .await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let adopted = self.inner.adopt(session, seen, adopter, how, within);
        self.timed(Operation::Adopt, adopted).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let settled = self.inner.settle(session, adoption, adopter, within);
        self.timed(Operation::Settle, settled).await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.timed(Operation::Note, self.inner.note(session, note))
            .await
    }
}

#[async_trait]
impl ClaimStore for Observed {
    // These two are written out, so that they cost nothing while nobody listens.
    fn acquire<'life0, 'life1, 'async_trait>(
        &'life0 self,
        request: &'life1 Acquire,
    ) -> BoxFuture<'async_trait, Result<Acquired>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        let answer = self.inner.acquire(request);
        match self.is_heard() {
            true => Box::pin(self.timed(Operation::Acquire, answer)),
            false => answer,
        }
    }

    fn release<'life0, 'life1, 'async_trait>(
        &'life0 self,
        grant: Grant,
        claims: &'life1 [Claim],
    ) -> BoxFuture<'async_trait, Result<Stood>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        let answer = self.inner.release(grant, claims);
        match self.is_heard() {
            true => Box::pin(self.timed(Operation::Release, answer)),
            false => answer,
        }
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.timed(Operation::Confirm, self.inner.confirm(grant, claims))
            .await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.timed(Operation::Sweep, self.inner.sweep(which, limit))
            .await
    }
}

#[async_trait]
impl Wakeups for Observed {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.timed(Operation::Watch, self.inner.watch(claims)).await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let watched = self.inner.watch_turn(grant, owner, claim);
        self.timed(Operation::Watch, watched).await
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        self.timed(Operation::Watch, self.inner.watch_session(session))
            .await
    }
}

#[async_trait]
impl Inspect for Observed {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let page = self.inner.records(filter, after, limit);
        self.timed(Operation::Inspect, page).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.timed(Operation::Inspect, self.inner.sessions(after, limit))
            .await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.timed(Operation::Inspect, self.inner.evict(seen)).await
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        self.timed(Operation::Inspect, self.inner.session_states(sessions))
            .await
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        self.timed(Operation::Inspect, self.inner.lease_left(sessions))
            .await
    }
}

impl LockBackend for Observed {
    fn info(&self) -> Info {
        self.inner.info()
    }
}

#[cfg(feature = "metrics")]
mod meters {
    use metrics::{Counter, Histogram, counter, histogram};

    use crate::Operation;

    const OPERATIONS: [Operation; 12] = [
        Operation::Open,
        Operation::Renew,
        Operation::End,
        Operation::Adopt,
        Operation::Settle,
        Operation::Note,
        Operation::Acquire,
        Operation::Release,
        Operation::Confirm,
        Operation::Sweep,
        Operation::Watch,
        Operation::Inspect,
    ];
    const OUTCOMES: [&str; 4] = ["answered", "unavailable", "indeterminate", "failed"];

    pub(super) struct Meters(Vec<(Operation, [Counter; OUTCOMES.len()], Histogram)>);

    impl Meters {
        pub(super) fn new(store: &'static str) -> Self {
            let of = |operation: Operation| {
                let name = operation.to_string();
                let counters = OUTCOMES.map(|outcome| {
                    counter!("lockkeeper.requests", "store" => store, "operation" => name.clone(), "outcome" => outcome)
                });
                let seconds =
                    histogram!("lockkeeper.request.seconds", "store" => store, "operation" => name);
                (operation, counters, seconds)
            };
            Self(OPERATIONS.map(of).into())
        }

        pub(super) fn requested(&self, operation: Operation, outcome: &str, seconds: f64) {
            let mut all = self.0.iter();
            let Some((_, counters, histogram)) = all.find(|(it, ..)| *it == operation) else {
                return;
            };
            if let Some(at) = OUTCOMES.iter().position(|it| *it == outcome) {
                counters[at].increment(1);
            }
            histogram.record(seconds);
        }
    }
}
