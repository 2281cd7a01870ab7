//! Mistakes in sweeping, and in forgetting who has died.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockcore::backend::{Acquire, Acquired, End, Incarnation, Opened, Page, Sweep, Swept};
use lockcore::{Label, Life, LockBackend, Result, SessionId, SessionState, async_trait};
use lockcore_conformance::{Decorated, Decorator, Law};

use crate::Broken;
use crate::alias::Aliases;
use crate::support::{Granted, Store, life, lock};

pub(crate) fn all() -> Vec<Broken> {
    let swept = |name, how: How| {
        Broken::new(name, Law::Listing, move |store| Sweeps {
            store,
            how: how.clone(),
        })
    };
    vec![
        swept("sweep that removes nothing", How::Nothing),
        swept("sweep that ignores its limit", How::Everything),
        swept("sweep that takes twice its limit", How::Twice),
        swept("sweep that says no more too early", How::More(false)),
        swept("sweep that says more for ever", How::More(true)),
        swept("sweep that counts one too many", How::Counts(1)),
        swept("sweep that counts one too few", How::Counts(-1)),
        swept("sweep that takes what is over alone", How::OfTheLiving),
        Broken::new(
            "sweep that frees what is due and nobody has ended",
            Law::ExpiryFrees,
            |store| Frees(store, Granted::default()),
        ),
        Broken::new("tombstones that never go", Law::Listing, NeverForgets),
        Broken::new("tombstones that are not listed", Law::DeadStaysDead, Hides),
        Broken::new(
            "tombstones that go after an hour",
            Law::DeadStaysDead,
            Forgets::new,
        ),
        Broken::new(
            "changes half done that are thrown away after half a day",
            Law::Listing,
            Discards::new,
        ),
    ]
}

#[derive(Clone)]
enum How {
    Nothing,
    Everything,
    Twice,
    More(bool),
    Counts(isize),
    OfTheLiving,
}

struct Sweeps {
    store: Store,
    how: How,
}

#[async_trait]
impl Decorator for Sweeps {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let nothing = Swept::new(0, false);
        let limit = match self.how {
            How::Nothing => return Ok(nothing),
            How::OfTheLiving => match which {
                Sweep::Session(session) if life(&self.store, session).await? != Life::Living => {
                    return Ok(nothing);
                }
                _ => limit,
            },
            How::Everything => usize::MAX,
            How::Twice => 2 * limit,
            _ => limit,
        };
        let mut swept = self.store.sweep(which, limit).await?;
        match self.how {
            How::More(more) => swept.more = more,
            How::Counts(off) if swept.removed > 0 => {
                swept.removed = swept.removed.saturating_add_signed(off);
            }
            _ => {}
        }
        Ok(swept)
    }
}

/// Every session that is listed.
async fn sessions(store: &dyn LockBackend) -> Result<Vec<SessionState>> {
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = store.sessions(after.as_deref(), 100).await?;
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

/// Sweeps what each session has left, and keeps its record.
struct NeverForgets(Store);

#[async_trait]
impl Decorator for NeverForgets {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        if which != Sweep::All {
            return self.0.sweep(which, limit).await;
        }
        let mut removed = 0;
        for state in sessions(&*self.0).await? {
            let _ = life(&self.0, state.session).await?;
            let rest = limit - removed;
            let swept = self.0.sweep(Sweep::Session(state.session), rest).await?;
            removed += swept.removed;
            if swept.more || removed >= limit {
                return Ok(Swept::new(removed, true));
            }
        }
        Ok(Swept::new(removed, false))
    }
}

/// Refuses the id of a session that nobody sees.
struct Hides(Store);

#[async_trait]
impl Decorator for Hides {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let mut page = self.0.sessions(after, limit).await?;
        page.items.retain(|state| state.life != Life::Dead);
        Ok(page)
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let states = self.0.session_states(sessions).await?.into_iter();
        let states = states.map(|state| state.filter(|state| state.life != Life::Dead));
        Ok(states.collect())
    }
}

/// Knows how long ago a session was first met: by another one, which is due then.
struct Hourglass {
    runs: Duration,
    glasses: Mutex<HashMap<SessionId, SessionId>>,
}

impl Hourglass {
    fn of(runs: Duration) -> Self {
        let glasses = Mutex::default();
        Self { runs, glasses }
    }

    fn is_one(&self, session: SessionId) -> bool {
        lock(&self.glasses).values().any(|glass| *glass == session)
    }

    async fn has_run_out(&self, store: &dyn LockBackend, session: SessionId) -> Result<bool> {
        let known = lock(&self.glasses).get(&session).copied();
        if let Some(glass) = known {
            return Ok(store.end(&[glass], End::IfDue).await?[0].life != Life::Living);
        }
        let glass = SessionId::new(!session.get());
        let label = Label::parse("glass").expect("a short text");
        let _ = store.open(glass, &label, self.runs).await?;
        lock(&self.glasses).insert(session, glass);
        Ok(false)
    }
}

/// Forgets who has been dead for an hour.
struct Forgets {
    store: Decorated<Aliases>,
    glass: Hourglass,
    forgotten: Mutex<Vec<SessionId>>,
}

impl Forgets {
    fn new(store: Store) -> Self {
        Self {
            store: Decorated(Aliases::new(store)),
            glass: Hourglass::of(Duration::from_secs(3_600)),
            forgotten: Mutex::default(),
        }
    }
}

#[async_trait]
impl Decorator for Forgets {
    fn inner(&self) -> &dyn LockBackend {
        &self.store
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        if lock(&self.forgotten).contains(&session) {
            lock(&self.forgotten).retain(|forgotten| *forgotten != session);
            self.store.reopen(session, label, ttl).await?;
            return Ok(Opened::Opened(Incarnation::UNKNOWN));
        }
        self.store.open(session, label, ttl).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let swept = self.store.sweep(which, limit).await?;
        if which == Sweep::All && !swept.more {
            for state in sessions(&self.store).await? {
                let dead = state.life == Life::Dead && !self.glass.is_one(state.session);
                if dead && self.glass.has_run_out(&self.store, state.session).await? {
                    lock(&self.forgotten).push(state.session);
                }
            }
        }
        Ok(swept)
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let mut page = self.store.sessions(after, limit).await?;
        page.items.retain(|state| !self.glass.is_one(state.session));
        Ok(page)
    }
}

/// Discards who has been abandoned for half a day.
struct Discards {
    store: Store,
    glass: Hourglass,
}

impl Discards {
    fn new(store: Store) -> Self {
        let glass = Hourglass::of(Duration::from_secs(12 * 3_600));
        Self { store, glass }
    }
}

#[async_trait]
impl Decorator for Discards {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        if which == Sweep::All {
            for state in sessions(&*self.store).await? {
                let abandoned = state.life == Life::Abandoned;
                if abandoned && self.glass.has_run_out(&*self.store, state.session).await? {
                    self.store.end(&[state.session], End::Discard).await?;
                }
            }
        }
        self.store.sweep(which, limit).await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let mut page = self.store.sessions(after, limit).await?;
        page.items.retain(|state| !self.glass.is_one(state.session));
        Ok(page)
    }
}

/// Takes a lease that is over for the end of its session.
struct Frees(Store, Granted);

#[async_trait]
impl Decorator for Frees {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.0.acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.1.note(request);
        }
        Ok(answer)
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let all = sessions(&*self.0).await?.into_iter();
        let all: Vec<SessionId> = all.map(|state| state.session).collect();
        let left = self.0.lease_left(&all).await?;
        for (session, left) in all.into_iter().zip(left) {
            if left == Some(Duration::ZERO) {
                for held in self.1.of(session) {
                    let _ = self.0.release(held.grant, &held.claims).await?;
                }
            }
        }
        self.0.sweep(which, limit).await
    }
}
