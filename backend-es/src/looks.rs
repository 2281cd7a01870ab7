//! What those of this process who wait look at: all of them together, by the same requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockcore::backend::Task;
use lockcore::{LockKey, SessionId};
use tokio::sync::watch::{self, Receiver};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::EsBackend;
use crate::error::Outcome;
use crate::read::states;
use crate::record::{Held, held, lock_id, session_id};
use crate::sweep::sessions_of;
use crate::wakeups::counts_by;

/// Longest time from one look to the next. Somebody who has just released a key lets that much time pass, so that all
/// who wait for it have looked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(60);
/// Looks come up to that much earlier, at random, so that processes do not look in step.
const JITTER_MS: u64 = 30;
/// So many documents are looked at by one request.
const AT_ONCE: usize = 1_000;

/// Somebody in the way, with the record in which he stands.
type InTheWay = (LockKey, Held);

/// Who waits for whom, and their next look.
#[derive(Debug)]
pub(crate) struct Looks {
    watching: Mutex<Watching>,
    /// A look that takes longer says nothing any more: its runtime may stand still.
    patience: Duration,
}

#[derive(Debug, Default)]
struct Watching {
    next: u64,
    watches: BTreeMap<u64, Arc<[InTheWay]>>,
    round: Option<Arc<Round>>,
}

/// A look at everything that is watched.
#[derive(Debug)]
struct Round {
    at: Instant,
    look: OnceLock<Look>,
}

#[derive(Debug)]
struct Look {
    /// In the runtime of whoever was first. When that ends, nothing is said, and everybody asks by himself.
    _task: Task,
    /// Of each watch that is looked at whether all of those still stand there and count.
    said: Receiver<Option<Arc<BTreeMap<u64, bool>>>>,
}

/// A watch over those who are in the way, which stands until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    looks: Arc<Looks>,
    number: u64,
}

impl Looks {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            watching: Mutex::default(),
            patience,
        }
    }

    pub(crate) fn add(looks: &Arc<Self>, in_the_way: Vec<InTheWay>) -> Watch {
        let mut watching = looks.watching();
        watching.next += 1;
        let number = watching.next;
        watching.watches.insert(number, in_the_way.into());
        drop(watching);
        Watch {
            looks: Arc::clone(looks),
            number,
        }
    }

    /// The look that is to come, or is under way.
    fn round(&self) -> Arc<Round> {
        let mut watching = self.watching();
        let late = |round: &Round| round.at + self.patience <= Instant::now();
        watching
            .round
            .take_if(|round| round.is_over() || late(round));
        let round = watching.round.get_or_insert_with(|| {
            let early = Duration::from_millis(rand::random_range(0..=JITTER_MS));
            Arc::new(Round {
                at: Instant::now() + LOOK_EVERY - early,
                look: OnceLock::new(),
            })
        });
        Arc::clone(round)
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    fn is_over(&self) -> bool {
        let said = self.look.get().map(|look| &look.said);
        said.is_some_and(|said| said.has_changed().is_err() || said.borrow().is_some())
    }

    /// Begins the look, where nobody has.
    fn look(&self, backend: &EsBackend) -> &Look {
        self.look.get_or_init(|| {
            let (says, said) = watch::channel(None);
            let backend = backend.clone();
            let task = Task::begin(async move {
                let watches = backend.looks.watching().watches.clone();
                // A store that cannot be read ends the watches: the clients ask by themselves, and will see the error.
                if let Ok(stand) = backend.which_stand(&watches).await {
                    says.send_replace(Some(Arc::new(stand)));
                }
            });
            Look { _task: task, said }
        })
    }
}

impl Watch {
    /// Resolves when one of those who were in the way does not stand there any more, or does not count.
    pub(crate) async fn changed(self, backend: EsBackend) {
        loop {
            let round = self.looks.round();
            sleep_until(round.at).await;
            let mut said = round.look(&backend).said.clone();
            let said = timeout_at(
                round.at + self.looks.patience,
                said.wait_for(Option::is_some),
            );
            let Ok(Ok(said)) = said.await else {
                return;
            };
            // One that was set up after the look began is in the next.
            let stand = said.as_ref().and_then(|stand| stand.get(&self.number));
            if stand == Some(&false) {
                return;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looks.watching().watches.remove(&self.number);
    }
}

impl EsBackend {
    /// Of each watch whether everybody still stands there and counts.
    async fn which_stand(
        &self,
        watches: &BTreeMap<u64, Arc<[InTheWay]>>,
    ) -> Outcome<BTreeMap<u64, bool>> {
        let all = || watches.values().flat_map(|watch| watch.iter());
        let keys: BTreeSet<&LockKey> = all().map(|(key, _)| key).collect();
        let sessions: Vec<SessionId> = sessions_of(all().map(|(_, held)| held));
        let records = keys.iter().map(|key| lock_id(key).into_owned());
        let ids = records.chain(sessions.iter().map(|session| session_id(*session)));
        let ids: Vec<String> = ids.collect();
        let mut documents = Vec::with_capacity(ids.len());
        for some in ids.chunks(AT_ONCE) {
            documents.extend(self.get(some.to_vec()).await?);
        }
        let states = states(&sessions, documents.split_off(keys.len()));
        let records = keys.into_iter().zip(documents);
        let records: BTreeMap<&LockKey, Vec<Held>> = records
            .filter_map(|(key, document)| Some((key, held(key, &document?.source))))
            .collect();
        let stands = |(key, held): &InTheWay| {
            let there = records.get(key).is_some_and(|all| all.contains(held));
            there && counts_by(held, &states)
        };
        let stand = watches.iter();
        Ok(stand
            .map(|(number, watch)| (*number, watch.iter().all(stands)))
            .collect())
    }
}
