//! The one writer thread of a backend. Whoever asks may go away: what was begun is finished.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lockcore::backend::rows::{Access, Act, ready};
use lockcore::{Error, ErrorKind, Operation, Result};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::error::{Failure, NAME, Outcome};
use crate::file::File;
use crate::transaction::Transaction;
use crate::wakeups::Watchers;

/// Something to do, and whether it is a renewal.
struct Job {
    renews: bool,
    work: Work,
}

enum Work {
    /// Whatever it is.
    Alone(Box<dyn FnOnce(&mut Worker) + Send>),
    /// It changes the store, and may share a transaction.
    Act(Box<dyn Joint>),
}

/// So many share a transaction at most.
const TOGETHER: usize = 64;
/// When a transaction has gone on for so long, no further act begins in it: other processes wait meanwhile.
const KEEPS_OTHERS_WAITING: Duration = Duration::from_millis(2);

/// What the thread works with.
pub(crate) struct Worker {
    pub(crate) file: File,
    pub(crate) watchers: Watchers,
    /// As [`KEEPS_OTHERS_WAITING`], but in tests.
    longest: Duration,
}

impl Worker {
    fn new(file: File) -> Self {
        Self {
            file,
            watchers: Watchers::default(),
            longest: KEEPS_OTHERS_WAITING,
        }
    }
}

/// The way to the thread, which ends when this is dropped and all is done that was asked before.
pub(crate) struct Thread {
    jobs: Sender<Job>,
    limit: Duration,
}

impl Thread {
    /// Starts the thread and opens the file on it.
    pub(crate) async fn start(config: SqliteConfig) -> Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let (ready, started) = oneshot::channel();
        let limit = config.limit();
        std::thread::Builder::new()
            .name("lockkeeper-sqlite".into())
            .spawn(move || match File::new(&config) {
                Ok(file) => {
                    let _ = ready.send(Ok(()));
                    run(&mut Worker::new(file), asked);
                }
                Err(failure) => {
                    let _ = ready.send(Err(failure));
                }
            })
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    NAME,
                    Operation::Connect,
                    "its thread cannot be started",
                )
                .with_source(error)
            })?;
        match started.await {
            Ok(Ok(())) => Ok(Self { jobs, limit }),
            Ok(Err(failure)) => Err(failure.into_error(Operation::Connect)),
            Err(_) => Err(gone(ErrorKind::Unavailable, Operation::Connect)),
        }
    }

    /// Has the thread do something: after all that was asked before, except that renewals go first.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Worker) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let deadline = Instant::now() + self.limit;
        let (answer, answered) = oneshot::channel();
        let work = Box::new(move |worker: &mut Worker| {
            let outcome = worker.within(deadline).and_then(|()| work(worker));
            let _ = answer.send(outcome);
        });
        self.ask(operation, Work::Alone(work), answered).await
    }

    /// Has the thread do something that changes the store, in one transaction with others of the kind that wait meanwhile.
    pub(crate) async fn act<A: Act>(&self, act: A) -> Result<A::Answer> {
        let deadline = Instant::now() + self.limit;
        let (answer, answered) = oneshot::channel();
        let act = Acting {
            act,
            deadline,
            came: None,
            answer,
        };
        let work = Work::Act(Box::new(act));
        self.ask(A::OPERATION, work, answered).await
    }

    async fn ask<T>(
        &self,
        operation: Operation,
        work: Work,
        answered: oneshot::Receiver<Outcome<T>>,
    ) -> Result<T> {
        let renews = operation == Operation::Renew;
        self.jobs
            .send(Job { renews, work })
            .map_err(|_| gone(ErrorKind::Unavailable, operation))?;
        match answered.await {
            Ok(outcome) => outcome.map_err(|failure| failure.into_error(operation)),
            Err(_) => Err(gone(ErrorKind::Indeterminate, operation)),
        }
    }
}

/// An act that may share a transaction.
trait Joint: Send {
    fn operation(&self) -> Operation;
    fn access(&self) -> Access;
    /// Until when it waits for other processes.
    fn deadline(&self) -> Instant;
    /// Does it in a transaction, which may be undone afterwards.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Outcome<()>;
    /// Says what came of it, in a transaction that was committed or failed.
    fn answer(self: Box<Self>, outcome: Outcome<()>);
}

struct Acting<A: Act> {
    act: A,
    deadline: Instant,
    /// What came of it, if that is committed.
    came: Option<A::Answer>,
    answer: oneshot::Sender<Outcome<A::Answer>>,
}

impl<A: Act> Joint for Acting<A> {
    fn operation(&self) -> Operation {
        A::OPERATION
    }

    fn access(&self) -> Access {
        self.act.access()
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn run(&mut self, transaction: &mut Transaction<'_>) -> Outcome<()> {
        self.came = Some(ready(self.act.run(transaction))?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Outcome<()>) {
        let came = self.came.ok_or_else(not_done);
        // Who asked may have gone.
        let _ = self.answer.send(outcome.and(came));
    }
}

fn not_done() -> Failure {
    Failure::Found(ErrorKind::Indeterminate, "it was not done".into())
}

impl Worker {
    /// It is done until then, or not at all.
    fn within(&mut self, deadline: Instant) -> Outcome<()> {
        if Instant::now() >= deadline {
            let what = "too much is waiting for the file in this process";
            return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
        }
        self.file.deadline().set(deadline);
        Ok(())
    }

    /// Does them in one transaction, as many as take no longer than others may be kept waiting, and then the rest. Where
    /// that fails without effect, each has one of its own.
    fn together(&mut self, mut acts: VecDeque<Box<dyn Joint>>) {
        while acts.len() > 1 {
            match self.transact(acts.make_contiguous()) {
                Ok(done) => acts.drain(..done).for_each(|act| act.answer(Ok(()))),
                Err(failure) if failure.is_without_effect() => break,
                Err(failure) => {
                    let all = acts.drain(..);
                    return all.for_each(|act| act.answer(Err(failure.copy())));
                }
            }
        }
        for mut act in acts {
            let outcome = self.transact(std::slice::from_mut(&mut act));
            act.answer(outcome.map(drop));
        }
    }

    /// How many of them were done.
    fn transact(&mut self, acts: &mut [Box<dyn Joint>]) -> Outcome<usize> {
        let deadline = acts.iter().map(|act| act.deadline()).min();
        self.within(deadline.ok_or_else(not_done)?)?;
        for act in &*acts {
            self.file.check(act.operation())?;
        }
        let (access, longest) = (acts[0].access(), self.longest);
        self.file.transact(access, |transaction| {
            let begin = Instant::now();
            let mut done = 0;
            for act in acts {
                act.run(transaction)?;
                done += 1;
                if begin.elapsed() >= longest {
                    break;
                }
            }
            Ok(done)
        })
    }
}

fn gone(kind: ErrorKind, operation: Operation) -> Error {
    Error::new(kind, NAME, operation, "its thread has ended")
}

/// What was asked and is not begun.
struct Asked {
    jobs: Receiver<Job>,
    renewals: VecDeque<Work>,
    others: VecDeque<Work>,
}

impl Asked {
    fn keep(&mut self, job: Job) {
        match job.renews {
            true => self.renewals.push_back(job.work),
            false => self.others.push_back(job.work),
        }
    }

    /// The next, a renewal if there is one; where nothing is asked, it waits until then.
    fn next(&mut self, until: Option<Instant>) -> std::result::Result<Work, RecvTimeoutError> {
        loop {
            if let Some(work) = self.first().and_then(VecDeque::pop_front) {
                return Ok(work);
            }
            let job = match until {
                None => self.jobs.recv()?,
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.jobs.recv_timeout(left)?
                }
            };
            self.keep(job);
        }
    }

    /// Where the next one stands, if there is one.
    fn first(&mut self) -> Option<&mut VecDeque<Work>> {
        while let Ok(job) = self.jobs.try_recv() {
            self.keep(job);
        }
        let queues = [&mut self.renewals, &mut self.others];
        queues.into_iter().find(|queue| !queue.is_empty())
    }

    /// The next one, if it is an act like that.
    fn next_act(&mut self, is_like: impl Fn(&dyn Joint) -> bool) -> Option<Box<dyn Joint>> {
        let first = self.first()?;
        let like = |work: &Work| matches!(work, Work::Act(act) if is_like(&**act));
        first.front().filter(|work| like(work))?;
        match first.pop_front()? {
            Work::Act(act) => Some(act),
            Work::Alone(_) => None,
        }
    }
}

/// Works until nobody can ask any more. Without watchers it sleeps until it is asked; with some it looks for them
/// every now and then, between what it is asked and when it is asked nothing.
fn run(worker: &mut Worker, jobs: Receiver<Job>) {
    let mut asked = Asked {
        jobs,
        renewals: VecDeque::new(),
        others: VecDeque::new(),
    };
    loop {
        match asked.next(worker.watchers.next_poll()) {
            Ok(Work::Alone(work)) => work(worker),
            Ok(Work::Act(act)) => {
                let waits = worker.file.waits_for_disk(act.access());
                let is_like = |act: &dyn Joint| worker.file.waits_for_disk(act.access()) == waits;
                let mut acts = VecDeque::from([act]);
                while acts.len() < TOGETHER
                    && let Some(act) = asked.next_act(is_like)
                {
                    acts.push_back(act);
                }
                worker.together(acts);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        worker.watchers.poll(&mut worker.file);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::future::{join, join_all};
    use lockcore::backend::rows::Looking;
    use lockcore::backend::{
        Acquire, Acquired, ClaimStore as _, IntentChange, Ranges, Registered, Renewal,
        SessionStore as _,
    };
    use lockcore::{Claim, FencingToken, Grant, Intent, Label, LockKey, OwnerId, SessionId, Want};

    use super::*;
    use crate::{SqliteBackend, Synchronous};

    #[tokio::test]
    async fn a_renewal_waits_for_no_other_request() {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db"));
        let thread = Thread::start(config).await.unwrap();
        let begun = Arc::new(Mutex::new(Vec::new()));
        let note = |operation| {
            let begun = Arc::clone(&begun);
            thread.call(operation, move |_| {
                begun.lock().unwrap().push(operation);
                Ok(())
            })
        };
        let (go_on, stopped) = channel::<()>();
        let at_work = thread.call(Operation::Sweep, move |_| {
            stopped.recv().unwrap();
            Ok(())
        });
        let (acquire, renew) = (Operation::Acquire, Operation::Renew);
        let all_asked = async { go_on.send(()).unwrap() };
        let (at_work, first, second, renewal, ()) = tokio::join!(
            at_work,
            note(acquire),
            note(acquire),
            note(renew),
            all_asked
        );
        for answer in [at_work, first, second, renewal] {
            answer.unwrap();
        }
        assert_eq!(*begun.lock().unwrap(), [renew, acquire, acquire]);
    }

    const SESSION: SessionId = SessionId::new(1);
    const BROKEN: SessionId = SessionId::new(2);

    /// Two sessions, and what commits wait for.
    async fn backend(synchronous: Synchronous) -> (tempfile::TempDir, Arc<SqliteBackend>) {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db")).synchronous(synchronous);
        let backend = SqliteBackend::connect(config).await.unwrap();
        let (label, ttl) = (Label::parse("").unwrap(), Duration::from_secs(30));
        for id in [SESSION, BROKEN] {
            backend.open(id, &label, ttl).await.unwrap();
        }
        goes_on_for(&backend, Duration::from_secs(3_600)).await;
        (directory, backend)
    }

    async fn goes_on_for(backend: &SqliteBackend, longest: Duration) {
        let set = backend.call(Operation::Inspect, move |worker| {
            worker.longest = longest;
            Ok(())
        });
        set.await.unwrap();
    }

    /// What comes of it when all of it is asked while the thread is busy, and in how many transactions.
    async fn meanwhile<T>(backend: &SqliteBackend, asked: impl Future<Output = T>) -> (T, usize) {
        let begun = |worker: &mut Worker| Ok(worker.file.begun);
        let before = backend.call(Operation::Inspect, begun).await.unwrap();
        let (begins, begun_now) = oneshot::channel();
        let (go_on, stopped) = channel::<()>();
        let busy = backend.call(Operation::Sweep, move |_| {
            begins.send(()).unwrap();
            stopped.recv().unwrap();
            Ok(())
        });
        let asked = async {
            begun_now.await.unwrap();
            let all_asked = async { go_on.send(()).unwrap() };
            join(asked, all_asked).await.0
        };
        let (busy, came) = join(busy, asked).await;
        busy.unwrap();
        let after = backend.call(Operation::Inspect, begun).await.unwrap();
        (came, after - before)
    }

    fn request(session: SessionId, n: u64, keys: &[&str]) -> Acquire {
        let claim = |key: &&str| Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap();
        let (grant, owner) = (Grant { session, n }, OwnerId { session, m: n });
        Acquire::new(grant, owner, keys.iter().map(claim).collect())
    }

    fn acquired(answer: &Result<Acquired>) -> FencingToken {
        match answer {
            Ok(Acquired::Acquired(token)) => *token,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_is_asked_meanwhile_shares_a_transaction_in_its_order() {
        let (_directory, backend) = backend(Synchronous::Normal).await;
        let requests = [(1, "a"), (2, "b"), (3, "a"), (4, "c")];
        let requests = requests.map(|(n, key)| request(SESSION, n, &[key]));
        let asked = join_all(requests.iter().map(|request| backend.acquire(request)));
        let (answers, begun) = meanwhile(&backend, asked).await;
        assert_eq!(begun, 1);
        assert!(matches!(answers[2], Ok(Acquired::Busy(_))), "{answers:?}");
        let tokens = [0, 1, 3].map(|at| acquired(&answers[at]));
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        for (request, stands) in requests.iter().zip([true, true, false, true]) {
            let held = backend.confirm(request.grant, &request.claims).await;
            assert_eq!(held.unwrap(), stands, "{request:?}");
        }
    }

    #[tokio::test]
    async fn one_that_fails_takes_nothing_from_the_others() {
        let (directory, backend) = backend(Synchronous::Normal).await;
        rusqlite::Connection::open(directory.path().join("locks.db"))
            .unwrap()
            .execute(
                "UPDATE sessions SET life = 'undead' WHERE id = ?1",
                [BROKEN.get().to_be_bytes()],
            )
            .map(|changed| assert_eq!(changed, 1))
            .unwrap();
        let requests = [(SESSION, 1, "a"), (BROKEN, 1, "b"), (SESSION, 2, "c")];
        let requests = requests.map(|(session, n, key)| request(session, n, &[key]));
        let asked = join_all(requests.iter().map(|request| backend.acquire(request)));
        let (answers, begun) = meanwhile(&backend, asked).await;
        assert_eq!(begun, 4, "one for all, and then one for each");
        let failed = answers[1].as_ref().unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Corrupt);
        for at in [0, 2] {
            acquired(&answers[at]);
            let Acquire { grant, claims, .. } = &requests[at];
            assert!(backend.confirm(*grant, claims).await.unwrap());
        }
    }

    /// Whatever had been done in it.
    #[tokio::test]
    async fn a_commit_of_unknown_outcome_is_one_for_all_who_share_it() {
        let (_directory, backend) = backend(Synchronous::Normal).await;
        let fails = "PRAGMA foreign_keys = ON;
            CREATE TABLE above (id INTEGER PRIMARY KEY);
            CREATE TABLE below (id INTEGER REFERENCES above (id) DEFERRABLE INITIALLY DEFERRED);
            CREATE TRIGGER fails AFTER INSERT ON holders WHEN NEW.key = 'b'
            BEGIN INSERT INTO below VALUES (1); END;";
        let fails = backend.call(Operation::Inspect, move |worker| {
            worker.file.batch(fails);
            Ok(())
        });
        fails.await.unwrap();
        let requests = [(1, "a"), (2, "b"), (3, "c")];
        let requests = requests.map(|(n, key)| request(SESSION, n, &[key]));
        let asked = join_all(requests.iter().map(|request| backend.acquire(request)));
        let (answers, begun) = meanwhile(&backend, asked).await;
        assert_eq!(begun, 1, "none of them is done again");
        for (answer, request) in answers.iter().zip(&requests) {
            let failed = answer.as_ref().unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Indeterminate, "{failed}");
            let held = backend.confirm(request.grant, &request.claims).await;
            assert!(!held.unwrap(), "it was undone");
        }
    }

    #[tokio::test]
    async fn who_does_not_wait_for_the_disk_shares_with_nobody_who_does() {
        for (synchronous, transactions) in [(Synchronous::Normal, 2), (Synchronous::Full, 1)] {
            let (_directory, backend) = backend(synchronous).await;
            let requests = [(1, "a"), (2, "b")].map(|(n, key)| request(SESSION, n, &[key]));
            let put = IntentChange::Put(Registered {
                token: FencingToken::new(1).unwrap(),
                intent: Intent::new("x").unwrap(),
            });
            let renewal = Renewal::new(1, Ranges::EMPTY, put);
            let acquired = join_all(requests.iter().map(|request| backend.acquire(request)));
            let asked = join(acquired, backend.renew(SESSION, &renewal));
            let ((answers, renewed), begun) = meanwhile(&backend, asked).await;
            assert!(answers.iter().all(Result::is_ok) && renewed.unwrap().is_living());
            assert_eq!(begun, transactions, "{synchronous:?}");
        }
    }

    #[tokio::test]
    async fn a_transaction_that_has_gone_on_for_long_takes_nothing_more_on() {
        let (_directory, backend) = backend(Synchronous::Normal).await;
        goes_on_for(&backend, Duration::ZERO).await;
        let requests = [(1, "a"), (2, "b"), (3, "c")];
        let requests = requests.map(|(n, key)| request(SESSION, n, &[key]));
        let asked = join_all(requests.iter().map(|request| backend.acquire(request)));
        let (answers, begun) = meanwhile(&backend, asked).await;
        for answer in &answers {
            acquired(answer);
        }
        assert_eq!(begun, requests.len());
    }

    #[test]
    fn who_has_waited_too_long_is_told_so_and_the_others_are_served() {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db"));
        let mut worker = Worker::new(File::new(&config).unwrap());
        let acting = |deadline| {
            let (answer, answered) = oneshot::channel();
            let acting: Box<dyn Joint> = Box::new(Acting {
                act: Looking {
                    claims: Vec::new(),
                    most: 1,
                },
                deadline,
                came: None,
                answer,
            });
            (acting, answered)
        };
        let now = Instant::now();
        let (late, mut told) = acting(now);
        let (other, mut served) = acting(now + Duration::from_secs(60));
        worker.together(VecDeque::from([late, other]));
        let told = told.try_recv().unwrap().map(drop).unwrap_err();
        let told = told.into_error(Operation::Watch);
        assert_eq!(told.kind(), ErrorKind::Unavailable);
        assert!(told.to_string().contains("too much is waiting"), "{told}");
        assert!(served.try_recv().unwrap().is_ok());
    }
}
