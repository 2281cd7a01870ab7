//! [`Wire`]: the way to a store, which can be cut, lose answers and deliver requests twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, End, Incarnation, Opened, Renewal, Renewed,
    Settled, Stood, Sweep, Swept,
};
use lockcore::{
    Claim, Error, ErrorKind, Grant, Info, Label, LockBackend, Note, Operation, OwnerId, Result,
    SessionId, SessionState,
};

use tokio::sync::watch;

use crate::decorator::{Decorated, Decorator};

/// What errors of a broken wire name in place of the backend.
pub(crate) const WIRE: &str = "the kit's wire";

/// What becomes of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// They arrive and are answered.
    None,
    /// They never arrive, and are never answered.
    Hangs,
    /// They certainly do not arrive.
    Refuses,
    /// They arrive, and of each operation every second answer is lost.
    LosesAnswers,
    /// They arrive twice; the second answer counts.
    Doubles,
    /// Those that acquire are kept until [`Wire::deliver`], and their senders know nothing.
    Postpones,
    /// They arrive, and those that acquire once more at [`Wire::deliver`].
    Repeats,
    /// They arrive, and renewals are answered so much later.
    AnswersLate(Duration),
}

pub(crate) struct Wire {
    backend: Arc<dyn LockBackend>,
    fault: Mutex<Fault>,
    kept: Mutex<Vec<Acquire>>,
    calls: Mutex<HashMap<Operation, usize>>,
    renewals: AtomicUsize,
    acquisitions: AtomicUsize,
    answers: watch::Sender<usize>,
    watched: watch::Sender<usize>,
}

impl Wire {
    pub(crate) fn new(backend: Arc<dyn LockBackend>) -> Arc<Decorated<Self>> {
        Arc::new(Decorated(Self {
            backend,
            fault: Mutex::new(Fault::None),
            kept: Mutex::default(),
            calls: Mutex::default(),
            renewals: AtomicUsize::new(0),
            acquisitions: AtomicUsize::new(0),
            answers: watch::Sender::new(0),
            watched: watch::Sender::new(0),
        }))
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Delivers what was kept; how many requests that were.
    pub(crate) async fn deliver(&self) -> Result<usize> {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        for request in &kept {
            self.backend.acquire(request).await?;
        }
        Ok(kept.len())
    }

    fn keep(&self, request: &Acquire) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(request.clone());
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renewals that were sent.
    pub(crate) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::Relaxed)
    }

    /// Requests to acquire that were sent.
    pub(crate) fn acquisitions(&self) -> usize {
        self.acquisitions.load(Ordering::Relaxed)
    }

    /// Answers that were received.
    pub(crate) fn answers(&self) -> usize {
        *self.answers.borrow()
    }

    /// Until so many answers were received.
    pub(crate) async fn answered(&self, answers: usize) {
        // The sender is this one.
        let _ = self.answers.subscribe().wait_for(|n| *n >= answers).await;
    }

    /// Until a session is watched.
    pub(crate) async fn watched(&self) {
        // The sender is this one.
        let _ = self.watched.subscribe().wait_for(|n| *n > 0).await;
    }

    /// How many calls of that operation there were, with this one.
    fn counted(&self, operation: Operation) -> usize {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(operation).or_default();
        *calls += 1;
        *calls
    }

    fn error(&self, kind: ErrorKind, operation: Operation) -> Error {
        Error::new(kind, WIRE, operation, "as the case wants it")
    }

    async fn call<T, F>(&self, operation: Operation, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let answer = self.passed(operation, call).await;
        self.answers.send_modify(|answers| *answers += 1);
        answer
    }

    async fn passed<T, F>(&self, operation: Operation, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match self.fault() {
            Fault::None | Fault::Postpones | Fault::Repeats | Fault::AnswersLate(_) => call().await,
            Fault::Hangs => std::future::pending().await,
            Fault::Refuses => Err(self.error(ErrorKind::Unavailable, operation)),
            Fault::LosesAnswers => {
                let answer = call().await;
                if self.counted(operation) % 2 == 1 {
                    return Err(self.error(ErrorKind::Indeterminate, operation));
                }
                answer
            }
            Fault::Doubles => {
                call().await?;
                call().await
            }
        }
    }
}

#[async_trait]
impl Decorator for Wire {
    fn inner(&self) -> &dyn LockBackend {
        &*self.backend
    }

    fn info(&self) -> Info {
        let mut info = self.backend.info();
        // It may double them.
        info.repeats = true;
        info
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        if self.fault() == Fault::Doubles {
            // The second answer would always be that the id is used.
            return self.backend.open(session, label, ttl).await;
        }
        self.call(Operation::Open, || self.backend.open(session, label, ttl))
            .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault();
        let renewed = self
            .call(Operation::Renew, || self.backend.renew(session, renewal))
            .await;
        if let Fault::AnswersLate(by) = fault {
            tokio::time::sleep(by).await;
        }
        renewed
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.call(Operation::End, || self.backend.end(sessions, how))
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
        self.call(Operation::Adopt, || {
            self.backend.adopt(session, seen, adopter, how, within)
        })
        .await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.call(Operation::Settle, || {
            self.backend.settle(session, adoption, adopter, within)
        })
        .await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.call(Operation::Note, || self.backend.note(session, note))
            .await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        if matches!(self.fault(), Fault::Postpones | Fault::Repeats) {
            self.keep(request);
        }
        if self.fault() == Fault::Postpones {
            return Err(self.error(ErrorKind::Indeterminate, Operation::Acquire));
        }
        self.call(Operation::Acquire, || self.backend.acquire(request))
            .await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.call(Operation::Release, || self.backend.release(grant, claims))
            .await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.call(Operation::Confirm, || self.backend.confirm(grant, claims))
            .await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.call(Operation::Sweep, || self.backend.sweep(which, limit))
            .await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.call(Operation::Watch, || self.backend.watch(claims))
            .await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let turn = || self.backend.watch_turn(grant, owner, claim);
        self.passed(Operation::Watch, turn).await
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        // Not counted among the answers: the client asks for this when it likes.
        let watch = || self.backend.watch_session(session);
        let changed = self.passed(Operation::Watch, watch).await?;
        self.watched.send_modify(|watched| *watched += 1);
        Ok(changed)
    }
}
