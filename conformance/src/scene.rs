//! [`Scene`]: one space, its journal, and the chance of one case.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockcore::backend::{End, Filter, Opened, Record, Sweep};
use lockcore::{
    Claim, FencingToken, Holder, Info, Label, Life, LockBackend, LockKey, SessionId, SessionState,
    Want,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::actor::Actor;
use crate::fixture::{BoxError, Space};
use crate::journal::Journal;
use crate::recorded::Recorded;
use crate::verdict::{Verdict, Wrong, ensure, ensure_eq};

/// TTL of sessions whose end by time is not the subject.
const LONG: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub(crate) struct Scene(Arc<Inner>);

struct Inner {
    space: Arc<dyn Space>,
    journal: Journal,
    chance: Mutex<StdRng>,
    seed: u64,
    connections: AtomicUsize,
    stranger: OnceCell<Actor>,
}

impl Scene {
    pub(crate) fn new(space: Arc<dyn Space>, seed: u64, journal: Journal) -> Self {
        Self(Arc::new(Inner {
            space,
            journal,
            chance: Mutex::new(StdRng::seed_from_u64(seed)),
            seed,
            connections: AtomicUsize::new(0),
            stranger: OnceCell::new(),
        }))
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.0.journal
    }

    pub(crate) fn space(&self) -> &Arc<dyn Space> {
        &self.0.space
    }

    pub(crate) fn seed(&self) -> u64 {
        self.0.seed
    }

    /// One choice by chance.
    pub(crate) fn chance<T>(&self, choose: impl FnOnce(&mut StdRng) -> T) -> T {
        choose(&mut self.0.chance.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One of these, by chance.
    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A number below `end`, by chance.
    pub(crate) fn below(&self, end: usize) -> usize {
        self.chance(|chance| chance.random_range(0..end))
    }

    /// A connection of its own, whose requests are written down.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        let name = format!(
            "c{}",
            self.0.connections.fetch_add(1, Ordering::Relaxed) + 1
        );
        let backend = self.0.space.connect().await?;
        Ok(Arc::new(Recorded::new(
            backend,
            self.0.journal.clone(),
            name,
        )))
    }

    /// A session id that was never used.
    pub(crate) fn session_id(&self) -> SessionId {
        let session = SessionId::new(self.chance(|chance| chance.random()));
        self.0.journal.name(session);
        session
    }

    /// As many sessions as are named.
    pub(crate) async fn actors<const N: usize>(&self) -> Verdict<[Actor; N]> {
        let mut actors = Vec::new();
        for _ in 0..N {
            actors.push(self.actor().await?);
        }
        Ok(actors
            .try_into()
            .unwrap_or_else(|_| unreachable!("it has made {N}")))
    }

    /// A process of its own, with a session that does not become due during the case.
    pub(crate) async fn actor(&self) -> Verdict<Actor> {
        let backend = self.connect().await?;
        let ttl = LONG.min(backend.info().max_ttl);
        self.open(backend, ttl).await
    }

    /// A process of its own, with a session of this TTL.
    pub(crate) async fn actor_for(&self, ttl: Duration) -> Verdict<Actor> {
        let backend = self.connect().await?;
        self.open(backend, ttl).await
    }

    /// One more session of the same process.
    pub(crate) async fn beside(&self, actor: &Actor) -> Verdict<Actor> {
        let ttl = LONG.min(actor.backend().info().max_ttl);
        self.beside_for(actor, ttl).await
    }

    /// One more session of the same process, of this TTL.
    pub(crate) async fn beside_for(&self, actor: &Actor, ttl: Duration) -> Verdict<Actor> {
        self.open(actor.backend().clone(), ttl).await
    }

    /// A process whose session has this label.
    pub(crate) async fn labelled(&self, label: &str) -> Verdict<Actor> {
        let backend = self.connect().await?;
        let ttl = LONG.min(backend.info().max_ttl);
        let session = self.session_id();
        self.open_as(backend, session, label, ttl).await
    }

    async fn open(&self, backend: Arc<dyn LockBackend>, ttl: Duration) -> Verdict<Actor> {
        let session = self.session_id();
        let label = format!("process of {session}");
        self.open_as(backend, session, &label, ttl).await
    }

    /// A process with this session.
    pub(crate) async fn open_as(
        &self,
        backend: Arc<dyn LockBackend>,
        session: SessionId,
        label: &str,
        ttl: Duration,
    ) -> Verdict<Actor> {
        let label = Label::parse(label)?;
        let sent = Instant::now();
        let opened = backend.open(session, &label, ttl).await?;
        let Opened::Opened(incarnation) = opened else {
            return Err(Wrong(format!("{session}: a new id was used")));
        };
        Ok(Actor::new(backend, session, label, ttl, sent).within(incarnation))
    }

    /// A process that has nothing to do with the others; always the same one.
    pub(crate) async fn stranger(&self) -> Verdict<&Actor> {
        self.0.stranger.get_or_try_init(|| self.actor()).await
    }

    /// The key is free: a stranger takes it exclusively, and gives it back.
    pub(crate) async fn free(&self, key: &str) -> Verdict {
        self.token_of(key).await.map(drop)
    }

    /// The same, and the token that the stranger got.
    pub(crate) async fn token_of(&self, key: &str) -> Verdict<FencingToken> {
        let stranger = self.stranger().await?;
        let request = stranger.ask(&[exclusive(key)]);
        let token = stranger.take(&request).await?;
        stranger.release(&request).await?;
        Ok(token)
    }

    /// The key is held: a stranger is refused it.
    pub(crate) async fn held(&self, key: &str) -> Verdict<Vec<Holder>> {
        let stranger = self.stranger().await?;
        let busy = stranger.refused(&stranger.ask(&[exclusive(key)])).await?;
        Ok(busy.first().holders.clone())
    }

    /// The key's record, if it has one, as a stranger sees it.
    pub(crate) async fn record(&self, key: &str) -> Verdict<Option<Record>> {
        let stranger = self.stranger().await?;
        let key = LockKey::parse(key)?;
        let filter = Filter::Key(key.clone());
        let page = stranger.backend().records(&filter, None, 10).await?;
        ensure!(
            page.items.len() <= 1 && page.items.iter().all(|record| record.key == key),
            "the records of {key:?} are at most its own: {:?}",
            page.items
        );
        Ok(page.items.into_iter().next())
    }

    /// What the session is, after it was made dead or abandoned if it is due.
    pub(crate) async fn state(&self, session: SessionId) -> Verdict<SessionState> {
        self.end(session, End::IfDue).await
    }

    /// The session is this.
    pub(crate) async fn is(&self, session: SessionId, life: Life) -> Verdict {
        ensure_eq!(self.state(session).await?.life, life, "{session}");
        Ok(())
    }

    /// The session is this, was adopted so often, and this one has it.
    pub(crate) async fn is_adopted(
        &self,
        session: SessionId,
        life: Life,
        adoption: u64,
        adopter: Option<SessionId>,
    ) -> Verdict {
        let state = self.state(session).await?;
        let seen = (state.life, state.adoption, state.adopter);
        ensure_eq!(seen, (life, adoption, adopter), "{session}");
        Ok(())
    }

    /// Ends the session as a stranger; it is this then.
    pub(crate) async fn ends(&self, session: SessionId, how: End, life: Life) -> Verdict {
        ensure_eq!(self.end(session, how).await?.life, life, "{session}");
        Ok(())
    }

    /// Ends the session as a stranger.
    pub(crate) async fn end(&self, session: SessionId, how: End) -> Verdict<SessionState> {
        self.stranger().await?.end_of(session, how).await
    }

    /// Writes a record that cannot be understood.
    pub(crate) async fn plant(&self, key: &str) -> Verdict {
        self.0
            .journal
            .note(format!("garbage is planted on {key:?}"));
        Ok(self.0.space.plant(&LockKey::parse(key)?).await?)
    }

    /// Evicts the record of the key as it is seen now.
    pub(crate) async fn evict(&self, key: &str) -> Verdict {
        let Some(record) = self.record(key).await? else {
            return Err(Wrong(format!("{key} is held and not listed")));
        };
        let evicted = self.stranger().await?.backend().evict(&record).await?;
        ensure!(
            evicted,
            "a foreign record that is as it was seen is evicted"
        );
        Ok(())
    }

    /// Sweeps the namespace until the store says that there is no more.
    pub(crate) async fn sweep_all(&self) -> Verdict {
        self.sweep(Sweep::All).await
    }

    /// Sweeps until the store says that there is no more.
    pub(crate) async fn sweep(&self, which: Sweep) -> Verdict {
        self.sweep_by(which, 100).await.map(drop)
    }

    /// Sweeps by this limit until the store says that there is no more, and says how much went.
    pub(crate) async fn sweep_by(&self, which: Sweep, limit: usize) -> Verdict<usize> {
        let stranger = self.stranger().await?;
        let mut removed = 0;
        for _ in 0..1_000 {
            let swept = stranger.backend().sweep(which, limit).await?;
            removed += swept.removed;
            if !swept.more {
                return Ok(removed);
            }
        }
        Err(Wrong("a sweep that never ends".to_owned()))
    }

    /// Makes the end of the session lie by so much further back, where the space can.
    pub(crate) async fn age(&self, session: SessionId, by: Duration) -> Verdict<bool> {
        let aged = self.0.space.age(session, by).await?;
        let what = if aged {
            "was"
        } else {
            "cannot be said to have been"
        };
        self.0
            .journal
            .note(format!("the end of {session} {what} {by:?} earlier"));
        Ok(aged)
    }

    /// How long the store takes to grant a key, as the median of some: at least 2 ms, so that a moment is held even
    /// where it takes no time, and at most a quarter of a second.
    pub(crate) async fn round_trip(&self) -> Verdict<Duration> {
        let stranger = self.stranger().await?;
        let mut took = Vec::new();
        for n in 0..5 {
            let request = stranger.ask(&[(Want::Create, &format!("round trip {n}"))]);
            let since = Instant::now();
            stranger.take(&request).await?;
            took.push(since.elapsed());
            stranger.release(&request).await?;
        }
        took.sort();
        let median = took[took.len() / 2];
        let round_trip = median.clamp(Duration::from_millis(2), Duration::from_millis(250));
        self.0
            .journal
            .note(format!("a round trip is {round_trip:?}"));
        Ok(round_trip)
    }

    /// Lets the store's time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        self.0.journal.note(format!("{time:?} pass"));
        self.0.space.pass(time).await;
    }

    /// Lets time pass until a session of this TTL that was renewed by now is due.
    pub(crate) async fn expire(&self, ttl: Duration) {
        let moment = Duration::from_millis(1);
        self.pass(ttl + self.0.space.allowance() + moment).await;
    }

    /// The longest that a case may have to wait for the store's time.
    pub(crate) async fn longest_wait(&self) -> Duration {
        match self.0.space.connect().await {
            Ok(backend) => (backend.info().min_ttl + self.0.space.allowance()) * 20,
            Err(_) => Duration::ZERO,
        }
    }
}

/// The shortest TTL of the store.
pub(crate) fn short(info: &Info) -> Duration {
    info.min_ttl
}

/// What takes a key so that nobody else may hold it.
pub(crate) fn exclusive(key: &str) -> (Want, &str) {
    if key.starts_with('/') {
        (Want::Write, key)
    } else {
        (Want::Create, key)
    }
}

/// A claim from its parts.
pub(crate) fn claim(want: Want, key: &str) -> Verdict<Claim> {
    Claim::new(LockKey::parse(key)?, want)
        .ok_or_else(|| Wrong(format!("{want:?} takes no key like {key:?}")))
}
