//! [`Spy`]: a store whose requests are written down, and some of which fail as a test says.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::{
    Acquire, Acquired, Adopt, Adopted, Adoption, Changed, Claim, ClaimStore, End, Error, ErrorKind,
    FencingToken, Filter, Grant, Incarnation, Info, Inspect, IntentChange, Label, LockBackend,
    Locks, LocksBuilder, MemoryBackend, Note, Opened, Operation, Page, Ranges, Record, Renewal,
    Renewed, Result, SessionId, SessionState, SessionStore, Settled, Stood, Sweep, Swept, Wakeups,
};

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Open(SessionId),
    Renew(SessionId, Renewal),
    End(Vec<SessionId>, End),
    Adopt(SessionId, u64, Adopt),
    Settle(SessionId),
    Acquire(Acquire),
    Release(Grant),
    Confirm(Grant),
    Sweep(Sweep, usize),
    Watch,
    WatchSession(SessionId),
}

impl Call {
    fn operation(&self) -> Operation {
        match self {
            Call::Open(_) => Operation::Open,
            Call::Renew(..) => Operation::Renew,
            Call::End(..) => Operation::End,
            Call::Adopt(..) => Operation::Adopt,
            Call::Settle(_) => Operation::Settle,
            Call::Acquire(_) => Operation::Acquire,
            Call::Release(_) => Operation::Release,
            Call::Confirm(_) => Operation::Confirm,
            Call::Sweep(..) => Operation::Sweep,
            Call::Watch | Call::WatchSession(_) => Operation::Watch,
        }
    }

    /// The keys that are asked for, if it asks for some.
    pub(super) fn keys(&self) -> Option<Vec<String>> {
        match self {
            Call::Acquire(request) => {
                let keys = request.claims.iter().map(|claim| claim.key().to_string());
                Some(keys.collect())
            }
            _ => None,
        }
    }

    /// Whether it is a renewal that changes the intent in this way.
    pub(super) fn changes_intent(&self, how: impl Fn(&IntentChange) -> bool) -> bool {
        matches!(self, Call::Renew(_, renewal) if how(&renewal.intent))
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// It is executed and answered.
    Answered,
    /// It is executed at once, and answered so much later.
    AnsweredAfter(Duration),
    /// The store has one connection: it is executed when those before are answered, and answered so much later.
    InTurn(Duration),
    /// It is executed, and its outcome stays unknown.
    AnswerLost,
    /// The same, which is told so much later.
    AnswerLostAfter(Duration),
    /// What acquires is executed up to there, in steps of the runtime, and one more at [`Spy::deliver`]; its outcome
    /// stays unknown.
    Kept(usize),
    /// It is not executed, a moment passes, and the answer is an error.
    Fails(ErrorKind),
    /// The same, when so much time has passed.
    FailsAfter(Duration, ErrorKind),
    /// It is not executed and never answered.
    Hangs,
    /// It is not executed, and the session of what acquires is said to be dead.
    Void,
    /// What acquires or adopts is executed, and said to have this token.
    Token(FencingToken),
    /// What renews is acknowledged, and the store loses it.
    Forgotten,
    /// What watches a session resolves at once.
    Wakes,
}

type Decide = dyn FnMut(&Call) -> Fate + Send;

pub(super) struct Spy {
    store: Arc<MemoryBackend>,
    info: Info,
    begun: Instant,
    clients: AtomicU64,
    calls: Mutex<Vec<(Duration, Call)>>,
    decide: Mutex<Box<Decide>>,
    kept: Mutex<Vec<BoxFuture<'static, Result<Acquired>>>>,
    connection: tokio::sync::Mutex<()>,
    /// Each watch over a session has one.
    standing: Arc<()>,
    /// Whether the records of sessions are gone when somebody writes a note there.
    pub(super) forgets: AtomicBool,
    /// The number of the incarnation, and what it has lost of those before.
    incarnation: Mutex<(u128, HashSet<Grant>)>,
}

impl Spy {
    pub(super) fn new(store: Arc<MemoryBackend>) -> Arc<Self> {
        Self::with_info(store, |_| ())
    }

    /// A store that says something else of itself than is true.
    pub(super) fn with_info(
        store: Arc<MemoryBackend>,
        change: impl FnOnce(&mut Info),
    ) -> Arc<Self> {
        let mut info = store.info();
        change(&mut info);
        Arc::new(Self {
            store,
            info,
            begun: Instant::now(),
            clients: AtomicU64::new(0),
            calls: Mutex::default(),
            decide: Mutex::new(Box::new(|_| Fate::Answered)),
            forgets: AtomicBool::default(),
            incarnation: Mutex::default(),
            kept: Mutex::default(),
            connection: tokio::sync::Mutex::default(),
            standing: Arc::default(),
        })
    }

    /// A client with a seed of its own, so that its pauses are the same in every run.
    pub(super) fn builder(self: &Arc<Self>) -> LocksBuilder {
        let seed = self.clients.fetch_add(1, Ordering::Relaxed);
        Locks::builder(Arc::clone(self) as Arc<dyn LockBackend>).seed(seed)
    }

    pub(super) fn locks(self: &Arc<Self>) -> Locks {
        self.builder().build().unwrap()
    }

    /// From now on this becomes of requests.
    pub(super) fn decide(&self, decide: impl FnMut(&Call) -> Fate + Send + 'static) {
        *self.decide.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(decide);
    }

    /// From now on everything is answered.
    pub(super) fn answer_all(&self) {
        self.decide(|_| Fate::Answered);
    }

    /// How many watches over sessions stand.
    pub(super) fn standing(&self) -> usize {
        Arc::strong_count(&self.standing) - 1
    }

    /// Whether some request is kept.
    pub(super) fn has_kept(&self) -> bool {
        !self
            .kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Executes one more step of what was kept.
    pub(super) async fn deliver(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        for mut request in kept {
            let _ = futures_util::poll!(&mut request);
        }
    }

    /// Executes a request as far as that.
    async fn keep(&self, request: &Acquire, polls: usize) {
        let (store, request) = (Arc::clone(&self.store), request.clone());
        let mut execute: BoxFuture<'static, _> =
            Box::pin(async move { store.acquire(&request).await });
        for _ in 0..polls {
            if futures_util::poll!(&mut execute).is_ready() {
                return;
            }
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(execute);
    }

    /// The time since it was made.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    fn calls(&self) -> MutexGuard<'_, Vec<(Duration, Call)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the requests that `which` takes, and when each was sent, from the first one on or a later.
    pub(super) fn sent(&self, which: impl Fn(&Call) -> bool) -> Vec<(Duration, Call)> {
        let mut sent = self.calls().clone();
        sent.retain(|(_, call)| which(call));
        sent
    }

    /// When those requests were sent.
    pub(super) fn times(&self, which: impl Fn(&Call) -> bool) -> Vec<Duration> {
        self.sent(which).into_iter().map(|(at, _)| at).collect()
    }

    /// How many of them were sent.
    pub(super) fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.sent(which).len()
    }

    /// What was asked for, request by request.
    pub(super) fn asked(&self) -> Vec<Vec<String>> {
        let calls = self.calls();
        calls.iter().filter_map(|(_, call)| call.keys()).collect()
    }

    /// Writes the request down.
    fn fate(&self, call: Call) -> (Operation, Fate) {
        let operation = call.operation();
        let fate = {
            let mut decide = self.decide.lock().unwrap_or_else(PoisonError::into_inner);
            decide(&call)
        };
        let mut calls = self.calls();
        assert!(calls.len() < 100_000, "requests without end");
        calls.push((self.elapsed(), call));
        (operation, fate)
    }

    async fn answer<T>(
        &self,
        (operation, fate): (Operation, Fate),
        execute: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let error = |kind| Error::new(kind, self.info.name, operation, "as the test says");
        match fate {
            Fate::Answered => execute.await,
            Fate::AnsweredAfter(time) => {
                let answer = execute.await;
                sleep(time).await;
                answer
            }
            Fate::InTurn(time) => {
                let _connection = self.connection.lock().await;
                let answer = execute.await;
                sleep(time).await;
                answer
            }
            Fate::AnswerLost => {
                execute.await?;
                Err(error(ErrorKind::Indeterminate))
            }
            Fate::AnswerLostAfter(time) => {
                execute.await?;
                sleep(time).await;
                Err(error(ErrorKind::Indeterminate))
            }
            Fate::Fails(kind) => {
                sleep(Duration::from_millis(1)).await;
                Err(error(kind))
            }
            Fate::FailsAfter(time, kind) => {
                sleep(time).await;
                Err(error(kind))
            }
            Fate::Hangs => std::future::pending().await,
            Fate::Void | Fate::Token(_) | Fate::Kept(_) | Fate::Forgotten | Fate::Wakes => {
                panic!("{operation} has no such answer")
            }
        }
    }

    /// Another incarnation begins, the first one that has a name if there was none, which has lost all grants on these keys.
    pub(super) async fn fails_over(&self, lost: &[&str]) {
        let is_lost = |claim: &Claim| lost.contains(&claim.key().as_str());
        let mut grants = HashSet::new();
        for (_, call) in self.sent(|_| true) {
            if let Call::Acquire(request) = call
                && request.claims.iter().any(is_lost)
            {
                let released = self.store.release(request.grant, &request.claims);
                released.await.unwrap();
                grants.insert(request.grant);
            }
        }
        let mut incarnation = self.names();
        incarnation.0 += 1;
        incarnation.1.extend(grants);
    }

    fn names(&self) -> MutexGuard<'_, (u128, HashSet<Grant>)> {
        self.incarnation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::new(self.names().0)
    }

    /// Of a store with a name that says it itself.
    fn is_elsewhere(&self, meant: Incarnation) -> bool {
        let here = self.incarnation();
        meant.is_known() && here.is_known() && meant != here
    }

    fn has_lost(&self, session: SessionId, granted: &Ranges) -> bool {
        let is_lost = |grant: &Grant| grant.session == session && granted.contains(grant.n);
        self.names().1.iter().any(is_lost)
    }

    async fn call<T>(&self, call: Call, execute: impl Future<Output = Result<T>>) -> Result<T> {
        self.answer(self.fate(call), execute).await
    }
}

#[async_trait]
impl SessionStore for Spy {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let execute = async {
            Ok(match self.store.open(session, label, ttl).await? {
                Opened::Opened(stores) if stores.is_known() => Opened::Opened(stores),
                Opened::Opened(_) => Opened::Opened(self.incarnation()),
                used => used,
            })
        };
        self.call(Call::Open(session), execute).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let execute = async {
            if self.is_elsewhere(renewal.incarnation) {
                Ok(Renewed::Moved(self.incarnation()))
            } else if self.has_lost(session, &renewal.granted) {
                Ok(Renewed::Forgotten)
            } else {
                self.store.renew(session, renewal).await
            }
        };
        match self.fate(Call::Renew(session, renewal.clone())) {
            (_, Fate::Forgotten) => Ok(Renewed::Living),
            fate => self.answer(fate, execute).await,
        }
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let execute = self.store.end(sessions, how);
        self.call(Call::End(sessions.to_vec(), how), execute).await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let execute = async {
            match self.is_elsewhere(within) {
                true => Ok(Adopted::Moved),
                false => self.store.adopt(session, seen, adopter, how, within).await,
            }
        };
        match self.fate(Call::Adopt(session, seen, how)) {
            (_, Fate::Token(token)) => Ok(match execute.await? {
                Adopted::Adopted(adoption) => Adopted::Adopted(Adoption { token, ..adoption }),
                other => other,
            }),
            fate => self.answer(fate, execute).await,
        }
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let execute = async {
            match self.is_elsewhere(within) {
                true => Ok(Settled::Moved),
                false => self.store.settle(session, adoption, adopter, within).await,
            }
        };
        self.call(Call::Settle(session), execute).await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        Ok(!self.forgets.load(Ordering::Relaxed) && self.store.note(session, note).await?)
    }
}

#[async_trait]
impl ClaimStore for Spy {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let execute = async {
            match self.is_elsewhere(request.incarnation) {
                true => Ok(Acquired::Moved),
                false => self.store.acquire(request).await,
            }
        };
        match self.fate(Call::Acquire(request.clone())) {
            (_, Fate::Void) => Ok(Acquired::Void),
            (operation, Fate::Kept(polls)) => {
                self.keep(request, polls).await;
                let kind = ErrorKind::Indeterminate;
                Err(Error::new(kind, self.info.name, operation, "it is kept"))
            }
            (_, Fate::Token(token)) => {
                execute.await?;
                Ok(Acquired::Acquired(token))
            }
            fate => self.answer(fate, execute).await,
        }
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let execute = self.store.release(grant, claims);
        self.call(Call::Release(grant), execute).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let execute = self.store.confirm(grant, claims);
        self.call(Call::Confirm(grant), execute).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let execute = self.store.sweep(which, limit);
        self.call(Call::Sweep(which, limit), execute).await
    }
}

#[async_trait]
impl Wakeups for Spy {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let execute = self.store.watch(claims);
        self.call(Call::Watch, execute).await
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        match self.fate(Call::WatchSession(session)) {
            (_, Fate::Wakes) => Ok(Box::pin(std::future::ready(()))),
            fate => {
                let changed = self.answer(fate, self.store.watch_session(session)).await?;
                let stands = Arc::clone(&self.standing);
                Ok(Box::pin(async move {
                    changed.await;
                    drop(stands);
                }))
            }
        }
    }
}

#[async_trait]
impl Inspect for Spy {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.store.records(filter, after, limit).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.store.sessions(after, limit).await
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        self.store.session_states(sessions).await
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        self.store.lease_left(sessions).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.store.evict(seen).await
    }
}

impl LockBackend for Spy {
    fn info(&self) -> Info {
        self.info.clone()
    }
}
