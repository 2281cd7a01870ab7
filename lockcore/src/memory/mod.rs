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
    Durability, FencingToken, Grant, Incarnation, Info, Life, LockBackend, LockKey, Mode,
    Operation, Ranges, Registered, Result, SessionId,
};

const NAME: &str = "memory";

/// The reference store: deterministic, in the memory of this process, with a clock that tests can move. Every other
/// backend is compared against it.
///
/// It has two forms, which grant and refuse alike. The *atomic* form ([`new`](Self::new)) takes any batch in one
/// action. It keeps a path only where it was claimed; ancestors are found by the order of the keys. The form of
/// *records* ([`records`](Self::records)) works like a store of documents: each ancestor is a record too, every record
/// is written by itself, and other requests come in between.
///
/// The clock follows [`tokio::time`], paused or not, and begins at 2024-01-01.
///
/// # Cancel safety
///
/// Dropping a call of the atomic form leaves it done or not begun, except [`end`](crate::SessionStore::end) of several
/// sessions. In the form of records, dropping an acquire or a release may leave it partly done, as a broken connection
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
    keys_per_batch: usize,
    state: Mutex<State>,
    watches: Arc<Watches>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Atomic,
    Records,
}

/// The whole content of the store.
#[derive(Debug)]
struct State {
    clock: Clock,
    sessions: Table,
    intents: BTreeMap<SessionId, Registered>,
    records: BTreeMap<LockKey, Record>,
    /// The number of the last write.
    writes: u64,
    /// The number of the last attempt at a batch of records.
    attempts: u64,
    /// The incarnation; unknown as long as no copy is to take over.
    incarnation: Incarnation,
    /// What stopped being live, and nobody was notified of yet.
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
    /// An empty store of the atomic form: any batch in one action, ancestors implicit, 1,000 keys per batch.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::of(Form::Atomic, 1_000)
    }

    /// An empty store of the form of records: one record at a time, each ancestor a record, other requests in between,
    /// 100 keys per batch.
    #[must_use]
    pub fn records() -> Arc<Self> {
        Self::of(Form::Records, 100)
    }

    fn of(form: Form, keys_per_batch: usize) -> Arc<Self> {
        Arc::new(Self {
            form,
            keys_per_batch,
            state: Mutex::new(State {
                clock: Clock::new(),
                sessions: Table::default(),
                intents: BTreeMap::new(),
                records: BTreeMap::new(),
                writes: 0,
                attempts: 0,
                incarnation: Incarnation::UNKNOWN,
                freed: Freed::default(),
            }),
            watches: Arc::default(),
        })
    }

    /// The same store with batches of another size. Call it where the store is created.
    ///
    /// # Panics
    ///
    /// Panics if the store is already shared, because the result of [`info`](LockBackend::info) must not change.
    #[must_use]
    pub fn with_keys_per_batch(mut self: Arc<Self>, keys_per_batch: usize) -> Arc<Self> {
        Arc::get_mut(&mut self)
            .expect("the batches are chosen where the store is made")
            .keys_per_batch = keys_per_batch;
        self
    }

    /// Moves the clock forward. This wakes nobody: a session that became due ends when it is met.
    pub fn advance(&self, by: Duration) {
        self.update(|state| state.clock.advance(by));
    }

    /// Moves the clock back, as a real clock may step.
    pub fn retreat(&self, by: Duration) {
        self.update(|state| state.clock.retreat(by));
    }

    /// Puts a record on the key that cannot be understood. It holds the key, for a holder that nobody can judge, until
    /// it is [evicted](crate::Inspect::evict).
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
                attempt: 0,
                waits: None,
                waited: None,
                claim: None,
            });
        });
    }

    /// One action on the store. If something stopped being live, waiters are notified.
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

    /// Lets other requests come in before the next record, in the form that cannot keep them out.
    async fn pause(&self) {
        if self.form == Form::Records {
            tokio::task::yield_now().await;
        }
    }
}

impl State {
    /// The number of the write in progress.
    fn number(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// Whether an entry is live at present. Writes nothing.
    fn is_live(&self, held: &Held) -> bool {
        let Some(grant) = held.grant else { return true };
        let session = self.sessions.get(grant.session);
        let waits = held.waits.is_some();
        session.is_some_and(|session| {
            session.is_live(grant.n) && (!waits || session.life == Life::Living)
        })
    }

    /// Whether the session is alive at present and the number is not retired.
    fn lives(&self, grant: Grant) -> bool {
        let session = self.sessions.get(grant.session);
        session.is_some_and(|session| session.life == Life::Living && session.is_live(grant.n))
    }

    /// Whether a request is meant for another incarnation.
    fn is_elsewhere(&self, meant: Incarnation) -> bool {
        meant.is_known() && self.incarnation.is_known() && meant != self.incarnation
    }

    /// Whether all of these grants exist, each with all of its records.
    fn has_granted(&self, session: SessionId, granted: &Ranges) -> bool {
        let held = self.records.values().flat_map(|record| &record.holders);
        let held = held.filter(|held| held.waits.is_none());
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

    /// Removes entries of one key, and the record with the last of them. Returns how many there were.
    fn remove(&mut self, key: &LockKey, gone: impl Fn(&Held) -> bool) -> usize {
        let number = self.writes + 1;
        let Entry::Occupied(mut entry) = self.records.entry(key.clone()) else {
            return 0;
        };
        let record = entry.get_mut();
        let before = record.holders.len();
        record.holders.retain(|held| !gone(held));
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
            keys_per_batch: self.keys_per_batch,
            atomic: self.form == Form::Atomic,
            durability: Durability {
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
            .field("keys_per_batch", &self.keys_per_batch)
            .finish_non_exhaustive()
    }
}
