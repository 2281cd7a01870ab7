//! [`MemoryBackend`]: the reference store, in the memory of this process.

mod claims;
mod clock;
#[cfg(any(test, lockcore_sim))]
mod failover;
mod inspect;
mod record;
mod records;
mod rows;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod wakeups;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clock::Clock;
#[cfg(any(test, lockcore_sim))]
pub use failover::MemoryCopy;
use record::{Held, Record};
use table::Table;

use crate::backend::Watches;
use crate::backend::rows::{Act, Corrupt, ready};
use crate::{
    FencingToken, Grant, Incarnation, Info, Life, LockBackend, LockKey, Mode, Operation, Ranges,
    Registered, Result, SessionId, Survives,
};

const NAME: &str = "memory";

/// The reference store: deterministic, in the memory of this process, with a clock that tests can move. Every other
/// backend is compared against it.
///
/// It has two forms, which refuse and grant alike. The *atomic* one ([`new`](Self::new)) takes any step in one action
/// and keeps a path where it was claimed; its ancestors are found in the order of the keys. The one of *records*
/// ([`records`](Self::records)) is what a store of documents is: each ancestor is a record too, every record is
/// written by itself, and other requests come in between.
///
/// The clock follows [`tokio::time`], paused or not, and begins at 2024-01-01.
///
/// # Cancel safety
///
/// Dropping a call of the atomic form leaves it done or not begun, except [`end`](crate::SessionStore::end) of several
/// sessions; of the form of records, dropping an acquire or a release leaves it done in part, as a broken connection
/// would.
///
/// # Examples
///
/// ```
/// use lockcore::backend::{Acquire, Acquired, ClaimStore, SessionStore};
/// use lockcore::{Claim, Grant, LockPath, MemoryBackend, OwnerId, SessionId};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryBackend::new();
/// let session = SessionId::new(1);
/// store.open(session, &lockcore::Label::parse("me")?, lockcore::limits::DEFAULT_TTL).await?;
/// let request = |n, path| {
///     Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![Claim::write(path)])
/// };
/// let above = store.acquire(&request(1, LockPath::parse("/clinton")?)).await?;
/// assert!(matches!(above, Acquired::Acquired(_)));
/// let below = store.acquire(&request(2, LockPath::parse("/clinton/projects")?)).await?;
/// assert!(matches!(below, Acquired::Busy(_)));
/// # Ok(())
/// # }
/// ```
pub struct MemoryBackend {
    form: Form,
    keys_per_step: usize,
    state: Mutex<State>,
    watches: Arc<Watches>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Atomic,
    Records,
}

/// All that is stored.
#[derive(Debug)]
struct State {
    clock: Clock,
    sessions: Table,
    intents: BTreeMap<SessionId, Registered>,
    records: BTreeMap<LockKey, Record>,
    /// The number of the last write.
    writes: u64,
    /// Its name; none as long as nothing is to take over.
    incarnation: Incarnation,
    /// What stopped counting, of which nobody was told yet.
    freed: Freed,
}

#[derive(Debug, Default)]
struct Freed {
    keys: Vec<LockKey>,
    any: bool,
    /// Somebody watches.
    is_wanted: bool,
}

impl MemoryBackend {
    /// An empty store of the atomic form: any step in one action implicit, 1,000 keys per step.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::of(Form::Atomic, 1_000)
    }

    /// An empty store of the form of records: one record at a time, each ancestor a record, other requests in
    /// between, 100 keys per step.
    #[must_use]
    pub fn records() -> Arc<Self> {
        Self::of(Form::Records, 100)
    }

    fn of(form: Form, keys_per_step: usize) -> Arc<Self> {
        Arc::new(Self {
            form,
            keys_per_step,
            state: Mutex::new(State {
                clock: Clock::new(),
                sessions: Table::default(),
                intents: BTreeMap::new(),
                records: BTreeMap::new(),
                writes: 0,
                incarnation: Incarnation::UNKNOWN,
                freed: Freed::default(),
            }),
            watches: Arc::default(),
        })
    }

    /// The same store with other steps. For where it is made.
    ///
    /// # Panics
    ///
    /// Panics if the store is already shared: what [`info`](LockBackend::info) says does not change.
    #[must_use]
    pub fn with_keys_per_step(mut self: Arc<Self>, keys_per_step: usize) -> Arc<Self> {
        Arc::get_mut(&mut self)
            .expect("the steps are chosen where the store is made")
            .keys_per_step = keys_per_step;
        self
    }

    /// Moves the clock forward. Nobody is woken by that: a session that became due ends when it is met.
    pub fn advance(&self, by: Duration) {
        self.update(|state| state.clock.advance(by));
    }

    /// Moves the clock back, as a real one may step.
    pub fn retreat(&self, by: Duration) {
        self.update(|state| state.clock.retreat(by));
    }

    /// Puts something on the key that cannot be understood: it is held, by nobody that could be judged, until it is
    /// [evicted](crate::Inspect::evict).
    pub fn plant(&self, key: &LockKey) {
        self.update(|state| {
            let (version, now) = (state.number(), state.clock.now());
            let record = state.records.entry(key.clone()).or_default();
            record.version = version;
            record.put(Held {
                grant: None,
                owner: None,
                mode: Mode::X,
                since: now,
                of: 1,
            });
        });
    }

    /// One action on the store. Whoever waits is told when something stopped counting in it.
    fn update<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (answer, freed) = {
            let mut state = self
                .state
                .lock()
                .expect("nothing panics while it holds the state");
            state.clock.begin();
            state.freed.is_wanted = !self.watches.is_empty();
            let answer = act(&mut state);
            (answer, std::mem::take(&mut state.freed))
        };
        if freed.any {
            self.watches.wake_all();
        }
        freed.keys.iter().for_each(|key| self.watches.wake(key));
        answer
    }

    /// One action by the [rules](crate::backend::rows).
    fn rules<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut State) -> std::result::Result<T, Corrupt>,
    ) -> Result<T> {
        self.update(act)
            .map_err(|corrupt| corrupt.error(NAME, operation))
    }

    fn act<A: Act>(&self, act: &A) -> Result<A::Answer> {
        self.rules(A::OPERATION, |state| ready(act.run(state)))
    }

    /// Lets other requests come in before the next record, where the store cannot keep them out.
    async fn pause(&self) {
        if self.form == Form::Records {
            tokio::task::yield_now().await;
        }
    }
}

impl State {
    /// The number of the write that is being made.
    fn number(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// Whether a holder counts, as things stand; nothing is written.
    fn counts(&self, grant: Grant) -> bool {
        let session = self.sessions.get(grant.session);
        session.is_some_and(|session| session.counts(grant.n))
    }

    /// Whether the session lives, as things stand, and the number is not over.
    fn lives(&self, grant: Grant) -> bool {
        let session = self.sessions.get(grant.session);
        session.is_some_and(|session| session.life == Life::Living && session.counts(grant.n))
    }

    /// Whether a request is meant for another incarnation.
    fn is_elsewhere(&self, meant: Incarnation) -> bool {
        meant.is_known() && self.incarnation.is_known() && meant != self.incarnation
    }

    /// Whether all of these grants are there, each with all of its records.
    fn has_granted(&self, session: SessionId, granted: &Ranges) -> bool {
        let held = self.records.values().flat_map(|record| &record.holders);
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        for held in held {
            let own = held.grant.filter(|grant| grant.session == session);
            if let Some(grant) = own {
                let left = left.entry(grant.n).or_insert(held.of);
                *left = left.saturating_sub(1);
            }
        }
        let mut ranges = granted.as_slice().iter();
        ranges.all(|(from, to)| (*from..=*to).all(|n| left.get(&n) == Some(&0)))
    }

    /// Removes holders of one key, and the record with the last of them. Says how many there were.
    fn remove(&mut self, key: &LockKey, gone: impl Fn(Option<Grant>) -> bool) -> usize {
        let number = self.writes + 1;
        let Entry::Occupied(mut entry) = self.records.entry(key.clone()) else {
            return 0;
        };
        let record = entry.get_mut();
        let before = record.holders.len();
        record.holders.retain(|held| !gone(held.grant));
        let removed = before - record.holders.len();
        if removed > 0 {
            record.version = number;
            self.writes = number;
        }
        if entry.get().holders.is_empty() {
            entry.remove();
        }
        removed
    }
}

/// The token of the write of that number.
fn token(number: u64) -> FencingToken {
    FencingToken::new((Clock::created_ms() << 10) + number)
        .expect("the base leaves more numbers than there will be writes")
}

impl LockBackend for MemoryBackend {
    fn info(&self) -> Info {
        Info {
            keys_per_step: self.keys_per_step,
            atomic: self.form == Form::Atomic,
            survives: Survives {
                crash: false,
                power_loss: false,
                failover: true,
            },
            ..Info::new(NAME, "this process")
        }
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend")
            .field("form", &self.form)
            .field("keys_per_step", &self.keys_per_step)
            .finish_non_exhaustive()
    }
}
