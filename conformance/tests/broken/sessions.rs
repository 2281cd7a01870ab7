//! Mistakes with the life of a session.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lockcore::backend::{Acquire, Acquired, End, Incarnation, Opened, Renewal, Renewed, Stood};
use lockcore::{
    Claim, Grant, Label, Life, LockBackend, Result, SessionId, SessionState, async_trait,
};
use lockcore_conformance::{Decorated, Decorator, Law};

use crate::Broken;
use crate::alias::Aliases;
use crate::support::{Ghost, Granted, Store, life, lock};

pub(crate) fn all() -> Vec<Broken> {
    let revives = |how| move |store| Revives::new(store, how);
    vec![
        Broken::new(
            "write of a dead session obeyed",
            Law::DeadStaysDead,
            Obeys::new,
        ),
        Broken::new(
            "late open that revives a used id",
            Law::DeadStaysDead,
            revives(How::ByOpen),
        ),
        Broken::new(
            "renewal that revives",
            Law::DeadStaysDead,
            revives(How::ByRenewal),
        ),
        Broken::new(
            "renewal that re-acquires",
            Law::DeadStaysDead,
            revives(How::WithItsLocks),
        ),
        Broken::new(
            "death by reading only",
            Law::DeadStaysDead,
            revives(How::AfterReading),
        ),
        Broken::new(
            "death that an acquisition does not write",
            Law::DeadStaysDead,
            revives(How::Judged),
        ),
        Broken::new(
            "death that is decided before a renewal",
            Law::DeadStaysDead,
            Decides,
        ),
        Broken::new("lease of which nothing is told", Law::Listing, Silent),
        Broken::new("look that uses an id up", Law::Listing, |store| {
            Ends(store, Asks::ForAll)
        }),
        Broken::new("look that ends who is due", Law::Listing, |store| {
            Ends(store, Asks::ForTheKnown)
        }),
        Broken::new("sessions told in an order of its own", Law::Listing, Sorts),
        Broken::new("expiry that never comes", Law::ExpiryFrees, Immortal),
        Broken::new(
            "renewal whose number is not looked at",
            Law::OneWriter,
            Unordered::new,
        ),
        Broken::new(
            "renewal that does not look at what was acknowledged",
            Law::OneWriter,
            |store| Remembers(store, |_| 0),
        ),
        Broken::new(
            "renewal that takes what is the last for forgotten",
            Law::OneWriter,
            |store| Remembers(store, |acknowledged| acknowledged + 1),
        ),
        Broken::new("TTL that never changes", Law::ExpiryFrees, SameTtl),
        Broken::new("TTL in whole seconds", Law::DiesOfItsEnd, |store| {
            Stored(store, |ttl| Duration::from_secs(ttl.as_secs()))
        }),
        Broken::new("TTL in sixteen bits", Law::Limits, |store| {
            Stored(store, |ttl| {
                let seconds = Duration::from_secs(ttl.as_secs() & 0xffff);
                seconds + Duration::from_nanos(ttl.subsec_nanos().into())
            })
        }),
    ]
}

/// Takes locks for who has died.
struct Obeys {
    store: Store,
    ghost: Ghost,
}

impl Obeys {
    fn new(store: Store) -> Self {
        let ghost = Ghost::new();
        Self { store, ghost }
    }
}

#[async_trait]
impl Decorator for Obeys {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.store.acquire(request).await?;
        if answer == Acquired::Void && life(&self.store, request.grant.session).await? == Life::Dead
        {
            return self
                .ghost
                .acquires(&self.store, request.claims.clone())
                .await;
        }
        Ok(answer)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    ByOpen,
    ByRenewal,
    WithItsLocks,
    AfterReading,
    /// Whoever was only found to be due by somebody who asked for its key.
    Judged,
}

/// Brings a dead session back.
struct Revives {
    store: Decorated<Aliases>,
    how: How,
    opened: Mutex<HashMap<SessionId, (Label, Duration)>>,
    /// Who has died, and whether somebody only found it to be due.
    died: Mutex<HashMap<SessionId, bool>>,
    granted: Granted,
}

impl Revives {
    fn new(store: Store, how: How) -> Self {
        Self {
            store: Decorated(Aliases::new(store)),
            how,
            opened: Mutex::default(),
            died: Mutex::default(),
            granted: Granted::default(),
        }
    }

    async fn is_dead(&self, session: SessionId) -> Result<bool> {
        Ok(self.end(&[session], End::IfDue).await?[0].life == Life::Dead)
    }
}

#[async_trait]
impl Decorator for Revives {
    fn inner(&self) -> &dyn LockBackend {
        &self.store
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let opened = self.inner().open(session, label, ttl).await?;
        if opened != Opened::Used {
            lock(&self.opened).insert(session, (label.clone(), ttl));
        } else if self.how == How::ByOpen && self.is_dead(session).await? {
            self.store.reopen(session, label, ttl).await?;
            return Ok(Opened::Opened(Incarnation::UNKNOWN));
        }
        Ok(opened)
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewed = self.inner().renew(session, renewal).await?;
        let ended = lock(&self.died).contains_key(&session);
        if renewed != Renewed::Dead || !self.is_dead(session).await? {
            return Ok(renewed);
        }
        let revives = match self.how {
            How::ByOpen => false,
            How::ByRenewal | How::WithItsLocks => true,
            How::Judged => !ended,
            How::AfterReading => lock(&self.died).get(&session) == Some(&true),
        };
        let opened = lock(&self.opened).get(&session).cloned();
        let (true, Some((label, ttl))) = (revives, opened) else {
            return Ok(renewed);
        };
        self.store.reopen(session, &label, ttl).await?;
        if self.how != How::ByRenewal {
            for request in self.granted.of(session) {
                let _ = self.inner().acquire(&request).await?;
            }
        }
        self.inner().renew(session, renewal).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let ended = self.inner().end(sessions, how).await?;
        let mut died = lock(&self.died);
        for state in ended.iter().filter(|state| state.life == Life::Dead) {
            died.entry(state.session).or_insert(how == End::IfDue);
        }
        Ok(ended)
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let answer = self.inner().acquire(request).await?;
        if matches!(answer, Acquired::Acquired(_)) {
            self.granted.note(request);
        }
        Ok(answer)
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.granted.forget(grant);
        self.inner().release(grant, claims).await
    }
}

struct Immortal(Store);

#[async_trait]
impl Decorator for Immortal {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn open(&self, session: SessionId, label: &Label, _: Duration) -> Result<Opened> {
        self.0.open(session, label, self.0.info().max_ttl).await
    }
}

/// Whichever renewal arrives last is the last.
struct Unordered {
    store: Store,
    last: Mutex<HashMap<SessionId, u64>>,
}

impl Unordered {
    fn new(store: Store) -> Self {
        let last = Mutex::default();
        Self { store, last }
    }
}

#[async_trait]
impl Decorator for Unordered {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let seq = {
            let mut last = lock(&self.last);
            let last = last.entry(session).or_default();
            *last = renewal.seq.max(*last + 1);
            *last
        };
        let mut renewal = renewal.clone();
        renewal.seq = seq;
        self.store.renew(session, &renewal).await
    }
}

/// Renews for the TTL of the opening.
struct SameTtl(Store);

#[async_trait]
impl Decorator for SameTtl {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        renewal.ttl = None;
        self.0.renew(session, &renewal).await
    }
}

/// Stores something else than the TTL.
struct Stored(Store, fn(Duration) -> Duration);

#[async_trait]
impl Decorator for Stored {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.0.open(session, label, self.1(ttl)).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let mut renewal = renewal.clone();
        renewal.ttl = renewal.ttl.map(self.1);
        self.0.renew(session, &renewal).await
    }
}

/// Takes another number for the acknowledged one.
struct Remembers(Store, fn(u64) -> u64);

#[async_trait]
impl Decorator for Remembers {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let acknowledged = self.1(renewal.acknowledged);
        self.0
            .renew(session, &renewal.clone().after(acknowledged))
            .await
    }
}

/// Tells nothing of what is left of leases.
struct Silent(Store);

#[async_trait]
impl Decorator for Silent {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        Ok(vec![None; sessions.len()])
    }
}

/// Asks for sessions as for some that are due; or does so for those that there are.
struct Ends(Store, Asks);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    ForAll,
    ForTheKnown,
}

#[async_trait]
impl Decorator for Ends {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let states = self.0.session_states(sessions).await?;
        let all = sessions.iter().zip(states);
        let asked = all.filter(|(_, state)| self.1 == Asks::ForAll || state.is_some());
        let asked: Vec<SessionId> = asked.map(|(session, _)| *session).collect();
        self.0.end(&asked, End::IfDue).await?;
        self.0.session_states(sessions).await
    }
}

/// Tells of sessions by their ids.
struct Sorts(Store);

#[async_trait]
impl Decorator for Sorts {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let mut sorted = sessions.to_vec();
        sorted.sort();
        self.0.session_states(&sorted).await
    }
}

/// Looks whether a session is due, and ends it a moment later whatever has come meanwhile.
struct Decides(Store);

#[async_trait]
impl Decorator for Decides {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if how == End::IfDue {
            let left = self.0.lease_left(sessions).await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
            for (session, left) in sessions.iter().zip(left) {
                if left == Some(Duration::ZERO) {
                    self.0.end(&[*session], End::Revoke).await?;
                }
            }
        }
        self.0.end(sessions, how).await
    }
}
