//! The one writer thread of a backend. Whoever asks may go away: what was begun is finished.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lockcore::{Error, ErrorKind, Operation, Result};
use tokio::sync::oneshot;

use crate::config::SqliteConfig;
use crate::error::{Failure, NAME, Outcome};
use crate::file::File;
use crate::wakeups::Watchers;

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

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
                    run(&mut worker, &asked);
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

    /// Has the thread do something, after all that was asked before.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&mut Worker) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + self.limit;
        let job: Job = Box::new(move |worker| {
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
        self.jobs
            .send(job)
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

/// Works until nobody can ask any more. Without watchers it sleeps until it is asked; with some it looks for them
/// every now and then, between what it is asked and when it is asked nothing.
fn run(worker: &mut Worker, asked: &Receiver<Job>) {
    loop {
        let job = match worker.watchers.next_look() {
            None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => asked.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match job {
            Ok(job) => job(worker),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        worker.watchers.look(&mut worker.file);
    }
}
