//! [`Wire`]: the way to a store, which can be cut, lose answers and deliver requests twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::Acquire;
use lockcore::{Error, ErrorKind, Info, LockBackend, Operation, Result};

use tokio::sync::watch;

use crate::decorator::{Decorated, Decorator};
use crate::request::{Answer, Request};

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

    fn error(&self, kind: ErrorKind, request: &Request) -> Error {
        Error::new(kind, WIRE, request.operation(), "as the case wants it")
    }

    async fn passed(&self, request: &Request) -> Result<Answer> {
        let send = || request.send(self.inner());
        match self.fault() {
            Fault::None | Fault::Postpones | Fault::Repeats | Fault::AnswersLate(_) => send().await,
            Fault::Hangs => std::future::pending().await,
            Fault::Refuses => Err(self.error(ErrorKind::Unavailable, request)),
            Fault::LosesAnswers => {
                let answer = send().await;
                if self.counted(request.operation()) % 2 == 1 {
                    return Err(self.error(ErrorKind::Indeterminate, request));
                }
                answer
            }
            Fault::Doubles => {
                send().await?;
                send().await
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

    async fn call(&self, request: Request) -> Result<Answer> {
        let fault = self.fault();
        match &request {
            // Nothing is done to what people ask for.
            Request::Records { .. }
            | Request::Sessions { .. }
            | Request::SessionStates { .. }
            | Request::LeaseLeft { .. }
            | Request::Evict { .. } => {
                return request.send(self.inner()).await;
            }
            // The second answer would always be that the id is used.
            Request::Open { .. } if fault == Fault::Doubles => {
                return request.send(self.inner()).await;
            }
            Request::Renew { .. } => {
                self.renewals.fetch_add(1, Ordering::Relaxed);
            }
            Request::Acquire(acquire) => {
                self.acquisitions.fetch_add(1, Ordering::Relaxed);
                if matches!(fault, Fault::Postpones | Fault::Repeats) {
                    self.keep(acquire);
                }
                if fault == Fault::Postpones {
                    return Err(self.error(ErrorKind::Indeterminate, &request));
                }
            }
            // Not counted among the answers: the client asks for this when it likes.
            Request::WatchTurn { .. } => return self.passed(&request).await,
            Request::WatchSession { .. } => {
                let answer = self.passed(&request).await?;
                self.watched.send_modify(|watched| *watched += 1);
                return Ok(answer);
            }
            _ => {}
        }
        let answer = self.passed(&request).await;
        self.answers.send_modify(|answers| *answers += 1);
        if let (Request::Renew { .. }, Fault::AnswersLate(by)) = (&request, fault) {
            tokio::time::sleep(by).await;
        }
        answer
    }
}
