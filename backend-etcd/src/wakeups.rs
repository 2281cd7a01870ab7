//! `Wakeups`: one stream for each process. It tells the owners of sessions of what operators do to those, and once somebody
//! has waited, of every release and death of the namespace.
//!
//! It is opened without a revision to start at: one that starts at a past revision is served by the server's loop for
//! late watches, every 100 ms. Whoever waits looks again after the watch stands, so nothing has to be told from before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use etcd_client::{KeyValue, WatchStream};
use lockcore::backend::{self, Changed, Task, Together, Wakeups};
use lockcore::{Claim, LockKey, Result, SessionId};

use crate::EtcdBackend;
use crate::link::SharedLink;
use crate::record::{Names, read_news};

#[async_trait]
impl Wakeups for EtcdBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        // First the watch, then the stream: what is told between the two is not missed.
        let watch = backend::Watches::add(&self.watches.shared.all, claims);
        self.watches.shared.forget(claims);
        self.listening(true).await?;
        Ok(Box::pin(watch.changed()))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let watch = backend::Watches::add_session(&self.watches.shared.all, session);
        self.listening(false).await?;
        Ok(Box::pin(watch.changed()))
    }
}

impl EtcdBackend {
    /// Makes sure that the stream stands, on the connection that is used, and tells of releases if that is wanted.
    async fn listening(&self, releases: bool) -> Result<()> {
        let shared = &self.watches.shared;
        let stands = || {
            let standing = lock(&shared.standing);
            let tells = !releases || standing.releases;
            standing.number != 0 && standing.number == self.link.number() && tells
        };
        while !stands() {
            let begin = || {
                let link = Arc::clone(&self.link);
                let (shared, task) = (
                    Arc::clone(&self.watches.shared),
                    Arc::clone(&self.watches.task),
                );
                async move {
                    let hearing = listen(shared, link).await?;
                    *lock(&task) = Some(hearing);
                    Ok(())
                }
            };
            let within = self.link.config.timeout;
            if let Some(made) = self.watches.making.make(within, begin).await {
                // It may have been begun for less.
                made?;
            }
        }
        Ok(())
    }
}

async fn listen(shared: Arc<Shared>, link: SharedLink) -> Result<Task> {
    // It goes on telling of releases: nobody should need two when it is made anew.
    let releases = lock(&shared.standing).releases || !shared.all.is_empty();
    let (stream, number) = link.watch(releases).await?;
    let stands = Stands::new(shared, number, releases);
    Ok(Task::begin(hear(stands, stream, link.names.clone())))
}

/// A stream. When it goes, also with a runtime that has never run it, everybody looks: of what was told while another took
/// its place neither may have heard.
struct Stands {
    shared: Arc<Shared>,
    stream: u64,
}

impl Stands {
    fn new(shared: Arc<Shared>, number: u64, releases: bool) -> Self {
        let mut standing = lock(&shared.standing);
        let stream = standing.stream + 1;
        *standing = Standing {
            stream,
            number,
            releases,
        };
        drop(standing);
        Self { shared, stream }
    }
}

impl Drop for Stands {
    fn drop(&mut self) {
        let mut standing = lock(&self.shared.standing);
        // Another one may stand by now, on the same connection.
        if standing.stream == self.stream {
            standing.number = 0;
        }
        drop(standing);
        *lock(&self.shared.met) = Met::default();
        self.shared.all.wake_everybody();
    }
}

/// Hears of news and removals until the stream ends.
async fn hear(stands: Stands, mut stream: WatchStream, names: Names) {
    let shared = &stands.shared;
    let news = names.news();
    while let Ok(Some(told)) = stream.message().await {
        for event in told.events() {
            match event.kv() {
                Some(told) if told.key() == news => {
                    read_news(told.value()).for_each(|session| shared.all.wake_session(session));
                }
                Some(removed) => shared.removed(&names, removed),
                None => {}
            }
        }
        // Nobody can be told any more, as where what was to be told is compacted.
        if told.canceled() {
            return;
        }
    }
}

/// So many ends of sessions are remembered.
const ENDED: usize = 4_096;

/// The watches of this process, and the task that hears for them.
#[derive(Default)]
pub(crate) struct Watches {
    shared: Arc<Shared>,
    task: Arc<Mutex<Option<Task>>>,
    making: Together<Result<()>>,
}

impl Watches {
    /// Whether somebody of this process waits for one of these keys.
    pub(crate) fn stand_for(&self, claims: &[Claim]) -> bool {
        self.shared.all.stand_for(claims)
    }

    /// Whoever waits for that claim was refused, as of a revision, by these sessions and nobody else, if all are known.
    pub(crate) fn refused(&self, claim: &Claim, revision: i64, by: Option<BTreeSet<SessionId>>) {
        // Who waits for a path is also kept by what is above and below it.
        if !claim.key().is_path() && self.stand_for(std::slice::from_ref(claim)) {
            let has_ended = lock(&self.shared.met).add(claim.key(), revision, by);
            if has_ended {
                self.shared.all.wake(claim.key());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Shared {
    standing: Mutex<Standing>,
    all: Arc<backend::Watches>,
    met: Mutex<Met>,
}

/// By whom those were refused who watch a key: the end of another session is nothing to them.
#[derive(Default)]
struct Met {
    /// By key, of all who were refused since they were woken; `None` where not all are known.
    keys: BTreeMap<LockKey, Option<BTreeSet<SessionId>>>,
    /// Sessions that have ended, and as of which revision: of who is refused by one that was, the end was told before.
    ended: BTreeMap<SessionId, i64>,
    /// Of those that ended up to that revision nothing is known.
    forgotten: i64,
}

impl Met {
    /// Says whether the end of one of these sessions was told already.
    fn add(&mut self, key: &LockKey, revision: i64, by: Option<BTreeSet<SessionId>>) -> bool {
        let by = by.filter(|_| revision >= self.forgotten);
        let has_ended = |session| self.ended.get(session).is_some_and(|at| *at > revision);
        let may_have_ended = match &by {
            Some(by) => by.iter().any(has_ended),
            // It may be any that has ended since.
            None => revision < self.forgotten || self.ended.values().any(|at| *at > revision),
        };
        if may_have_ended {
            self.keys.remove(key);
            return true;
        }
        let met = self.keys.entry(key.clone());
        let met = met.or_insert_with(|| Some(BTreeSet::new()));
        match (met.as_mut(), by) {
            (Some(met), Some(by)) => met.extend(by),
            _ => *met = None,
        }
        false
    }

    fn has_ended(&mut self, session: SessionId, revision: i64) {
        if self.ended.len() >= ENDED {
            self.ended.clear();
            self.forgotten = revision;
        }
        self.ended.insert(session, revision);
    }

    /// Whether a watch of that key may be for that session.
    fn is_for(&self, key: &LockKey, session: SessionId) -> bool {
        let met = self.keys.get(key).and_then(Option::as_ref);
        met.is_none_or(|met| met.contains(&session))
    }
}

/// The stream that stands.
#[derive(Default)]
struct Standing {
    /// How many there were, with this one.
    stream: u64,
    /// The connection on which it stands; 0 if none does.
    number: u64,
    /// Whether it tells of releases, too.
    releases: bool,
}

impl Shared {
    /// By whom a new watch is kept out it learns when it asks.
    fn forget(&self, claims: &[Claim]) {
        let mut met = lock(&self.met);
        for claim in claims {
            met.keys.remove(claim.key());
        }
    }

    /// Wakes those who may get their claim now that this key is gone.
    fn removed(&self, names: &Names, removed: &KeyValue) {
        let name = removed.key();
        let mut met = lock(&self.met);
        if self.all.is_empty() {
            met.keys.clear();
            return;
        }
        match (names.read_holder(name), names.read_session(name)) {
            (Some((key, ..)), _) => {
                met.keys.remove(&key);
                self.all.wake(&key);
            }
            // A session has died, or the intent that it has left is settled.
            (None, Some((session, "live" | "intent"))) => {
                met.has_ended(session, removed.mod_revision());
                let mut others = BTreeMap::new();
                self.all.wake_where(|key| {
                    let is_for = met.is_for(key, session);
                    // Who is woken asks again.
                    others.extend(met.keys.remove_entry(key).filter(|_| !is_for));
                    is_for
                });
                met.keys = others;
            }
            (None, Some(_)) => {}
            (None, None) => self.all.wake_all(),
        }
    }
}
