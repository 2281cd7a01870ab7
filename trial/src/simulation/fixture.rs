//! [`Fixture`]: what everybody in a run shares.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockcore::{LockBackend, MemoryBackend};

use super::client::Client;
use super::resource::Resources;
use super::{Failovers, Plan};
use crate::faults::Observed;
use crate::history::{Recorder, What};
use lockcore_conformance::Decorated;

#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) plan: Plan,
    pub(super) recorder: Recorder,
    pub(super) store: Arc<MemoryBackend>,
    pub(super) observed: Arc<Decorated<Observed<MemoryBackend>>>,
    resources: Mutex<Resources>,
    /// The client of each slot; a slot is empty for a while after a kill.
    clients: Mutex<Vec<Option<Arc<Client>>>>,
    next: AtomicU64,
    processes: AtomicU64,
    stopped: AtomicBool,
}

impl Fixture {
    pub(super) fn new(plan: Plan) -> Self {
        let recorder = Recorder::new();
        let store = match plan.atomic {
            true => MemoryBackend::new(),
            false => MemoryBackend::records(),
        };
        let store = store.with_keys_per_batch(plan.keys_per_batch);
        let store = match plan.failovers {
            Some(Failovers::Told) => store.named(),
            Some(Failovers::Untold) | None => store,
        };
        let observed = Arc::new(Observed::new(Arc::clone(&store), recorder.clone()));
        Self {
            recorder,
            store,
            observed,
            resources: Mutex::default(),
            clients: Mutex::new(vec![None; plan.clients]),
            next: AtomicU64::new(1),
            processes: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            plan,
        }
    }

    pub(super) fn backend(&self) -> Arc<dyn LockBackend> {
        Arc::clone(&self.observed) as Arc<dyn LockBackend>
    }

    pub(super) fn record(&self, process: u32, what: What) {
        self.recorder.record(process, what);
    }

    /// A number for an attempt, an owner or an adoption.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a process.
    pub(super) fn process(&self) -> u32 {
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        u32::try_from(process).expect("a run has few processes")
    }

    /// Programs begin nothing new.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Vec<Option<Arc<Client>>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn resources(&self) -> MutexGuard<'_, Resources> {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients that are there.
    pub(super) fn clients(&self) -> Vec<Arc<Client>> {
        self.slots().iter().flatten().cloned().collect()
    }
}

/// Runs something that belongs to no client.
#[expect(
    clippy::disallowed_methods,
    reason = "what belongs to no client cannot be paused or killed with one"
)]
pub(super) fn detached(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}
