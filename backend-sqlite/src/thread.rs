//! The one writer thread of a backend. Whoever asks may go away: what was begun is finished.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lockcore::{Error, ErrorKind, Operation, Result};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::error::{Failure, NAME, Outcome};
use crate::file::File;
use crate::wakeups::Watchers;

/// Something to do, and whether it is a renewal.
struct Job {
    renews: bool,
    work: Box<dyn FnOnce(&mut Worker) + Send>,
}

/// What the thread works with.
pub(crate) struct Worker {
    pub(crate) file: File,
    pub(crate) watchers: Watchers,
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
                    let mut worker = Worker {
                        file,
                        watchers: Watchers::default(),
                    };
                    run(&mut worker, asked);
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
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + self.limit;
        let work = Box::new(move |worker: &mut Worker| {
            let outcome = if Instant::now() < deadline {
                worker.file.deadline().set(deadline);
                work(worker)
            } else {
                Err(Failure::Found(
                    ErrorKind::Unavailable,
                    "too much is waiting for the file in this process".into(),
                ))
            };
            let _ = answer.send(outcome);
        });
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

fn gone(kind: ErrorKind, operation: Operation) -> Error {
    Error::new(kind, NAME, operation, "its thread has ended")
}

/// What was asked and is not begun.
struct Asked {
    jobs: Receiver<Job>,
    renewals: VecDeque<Job>,
    others: VecDeque<Job>,
}

impl Asked {
    fn keep(&mut self, job: Job) {
        match job.renews {
            true => self.renewals.push_back(job),
            false => self.others.push_back(job),
        }
    }

    /// The next, a renewal if there is one; where nothing is asked, it waits until then.
    fn next(&mut self, until: Option<Instant>) -> std::result::Result<Job, RecvTimeoutError> {
        loop {
            while let Ok(job) = self.jobs.try_recv() {
                self.keep(job);
            }
            let next = self.renewals.pop_front();
            if let Some(job) = next.or_else(|| self.others.pop_front()) {
                return Ok(job);
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
        match asked.next(worker.watchers.next_look()) {
            Ok(job) => (job.work)(worker),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        worker.watchers.look(&mut worker.file);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

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
}
