//! Who in this process waits for which keys, and who watches which session, for stores that push.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::{Claim, LockKey, SessionId};

/// The watches of a process, by key and by session.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use lockcore::backend::Watches;
/// use lockcore::{Claim, LockPath};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let watches = Arc::<Watches>::default();
/// let above = Watches::add(&watches, &[Claim::write(LockPath::parse("/a")?)]);
/// watches.wake(LockPath::parse("/a/b")?.as_key());
/// above.changed().await;
/// assert!(watches.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Watches(Mutex<Watching>);

#[derive(Debug, Default)]
struct Watching {
    next: u64,
    /// By number: the longest waiter is woken first, and a seed of the simulation repeats.
    watches: BTreeMap<u64, Arc<State>>,
    /// The watches of a key.
    keys: BTreeMap<LockKey, Vec<u64>>,
    /// The watches of a session.
    sessions: BTreeMap<SessionId, BTreeMap<u64, Arc<State>>>,
}

/// The state of one watch.
#[derive(Debug, Default)]
struct State {
    news: Notify,
    woken: AtomicBool,
    /// When a holder in the way is due.
    due: Mutex<Option<Instant>>,
}

impl Watches {
    /// A watch over claims. It stands until it is dropped.
    #[must_use]
    pub fn add(watches: &Arc<Self>, claims: &[Claim]) -> Watch {
        let keys: Vec<LockKey> = claims.iter().map(|claim| claim.key().clone()).collect();
        let state = Arc::new(State::default());
        let mut watching = watches.watching();
        let id = watching.number();
        for key in &keys {
            watching.keys.entry(key.clone()).or_default().push(id);
        }
        watching.watches.insert(id, Arc::clone(&state));
        drop(watching);
        Watch {
            watches: Arc::clone(watches),
            id,
            keys,
            session: None,
            state,
        }
    }

    /// A watch over a session. It stands until it is dropped.
    #[must_use]
    pub fn add_session(watches: &Arc<Self>, session: SessionId) -> Watch {
        let state = Arc::new(State::default());
        let mut watching = watches.watching();
        let id = watching.number();
        let of_session = watching.sessions.entry(session).or_default();
        of_session.insert(id, Arc::clone(&state));
        drop(watching);
        Watch {
            watches: Arc::clone(watches),
            id,
            keys: Vec::new(),
            session: Some(session),
            state,
        }
    }

    /// Wakes the watches of the key, of a path above it and of a path below it.
    pub fn wake(&self, key: &LockKey) {
        let watching = self.watching();
        watching.wake(key);
        if key.is_path() {
            key.ancestor_keys().for_each(|above| watching.wake(&above));
            let behind = (Bound::Excluded(key), Bound::Unbounded);
            let behind = watching.keys.range::<LockKey, _>(behind);
            for (_, ids) in behind.take_while(|(below, _)| key.is_above(below)) {
                watching.wake_each(ids);
            }
        }
    }

    /// Wakes all watches of keys.
    pub fn wake_all(&self) {
        self.watching().watches.values().for_each(|it| it.wake());
    }

    /// Wakes the watches of those keys of which that is so.
    pub fn wake_where(&self, mut concerns: impl FnMut(&LockKey) -> bool) {
        let watching = self.watching();
        for (key, ids) in &watching.keys {
            if concerns(key) {
                watching.wake_each(ids);
            }
        }
    }

    /// Wakes the watches of the session.
    pub fn wake_session(&self, session: SessionId) {
        let watching = self.watching();
        let of_session = watching.sessions.get(&session).into_iter();
        of_session
            .flat_map(BTreeMap::values)
            .for_each(|it| it.wake());
    }

    /// Wakes all watches: news may have been lost.
    pub fn wake_everybody(&self) {
        self.wake_all();
        let watching = self.watching();
        let of_sessions = watching.sessions.values();
        of_sessions
            .flat_map(BTreeMap::values)
            .for_each(|it| it.wake());
    }

    /// A holder in the way of the key is due at that time: the watches of the key resolve then.
    pub fn due(&self, key: &LockKey, at: Instant) {
        let watching = self.watching();
        let ids = watching.keys.get(key).into_iter().flatten();
        for state in ids.filter_map(|id| watching.watches.get(id)) {
            *locked(&state.due) = Some(at);
            state.news.notify_one();
        }
    }

    /// Whether somebody waits for one of these keys.
    #[must_use]
    pub fn stand_for(&self, claims: &[Claim]) -> bool {
        let watching = self.watching();
        let waits = |claim: &Claim| watching.keys.contains_key(claim.key());
        !watching.keys.is_empty() && claims.iter().any(waits)
    }

    /// Whether nobody watches a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watching().watches.is_empty()
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        locked(&self.0)
    }
}

impl Watching {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn wake(&self, key: &LockKey) {
        if let Some(ids) = self.keys.get(key) {
            self.wake_each(ids);
        }
    }

    fn wake_each(&self, ids: &[u64]) {
        for state in ids.iter().filter_map(|id| self.watches.get(id)) {
            state.wake();
        }
    }
}

impl State {
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A watch that stands until it is dropped.
#[derive(Debug)]
pub struct Watch {
    watches: Arc<Watches>,
    id: u64,
    keys: Vec<LockKey>,
    session: Option<SessionId>,
    state: Arc<State>,
}

impl Watch {
    /// Resolves when it was woken, or when somebody in the way is due.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the watch.
    pub async fn changed(self) {
        while !self.state.woken.load(Ordering::Acquire) {
            let due = *locked(&self.state.due);
            match due {
                None => self.state.news.notified().await,
                Some(due) => tokio::select! {
                    () = self.state.news.notified() => {}
                    () = sleep_until(due) => return,
                },
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watching = self.watches.watching();
        watching.watches.remove(&self.id);
        for key in &self.keys {
            if let Some(ids) = watching.keys.get_mut(key) {
                ids.retain(|id| *id != self.id);
                if ids.is_empty() {
                    watching.keys.remove(key);
                }
            }
        }
        if let Some(session) = &self.session
            && let Some(of_session) = watching.sessions.get_mut(session)
        {
            of_session.remove(&self.id);
            if of_session.is_empty() {
                watching.sessions.remove(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::Want;

    fn claims(keys: &[(&str, Want)]) -> Vec<Claim> {
        let claim = |(key, want): &(&str, Want)| Claim::new(LockKey::parse(key).unwrap(), *want);
        keys.iter().map(|it| claim(it).unwrap()).collect()
    }

    #[test]
    fn of_a_watch_that_was_dropped_nothing_is_left() {
        let watches = Arc::<Watches>::default();
        let claims = claims(&[("k", Want::Create), ("/a/b", Want::Write)]);
        let watch = || Watches::add(&watches, &claims);
        let (stays, goes, another) = (watch(), watch(), watch());
        let count = |watches: &Watches| {
            let watching = watches.watching();
            let entries: Vec<usize> = watching.keys.values().map(Vec::len).collect();
            (watching.watches.len(), entries)
        };
        assert_eq!(count(&watches), (3, vec![3, 3]));
        drop(goes);
        // Also one that was never asked.
        drop(another.changed());
        assert_eq!(count(&watches), (1, vec![1, 1]));
        assert!(watches.stand_for(&claims[..1]) && !watches.is_empty());
        drop(stays);
        assert_eq!(count(&watches), (0, Vec::new()));
        assert!(!watches.stand_for(&claims) && watches.is_empty());
    }

    #[test]
    fn a_key_wakes_itself_and_what_is_above_and_below() {
        let watches = Arc::<Watches>::default();
        let watch = |key| {
            let watch = Watches::add(&watches, &claims(&[(key, Want::Read)]));
            Box::pin(watch.changed())
        };
        let keys = ["/a", "/a/b", "/a/b/c", "/a/c", "/a/b!"];
        let mut all: Vec<_> = keys.into_iter().map(watch).collect();
        let mut woken = || -> Vec<bool> {
            let told = all
                .iter_mut()
                .map(|it| it.as_mut().now_or_never().is_some());
            told.collect()
        };
        assert_eq!(woken(), [false; 5]);
        watches.wake(&LockKey::parse("/a/b").unwrap());
        assert_eq!(woken(), [true, true, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_due_ends_the_watches_of_the_key() {
        let watches = Arc::<Watches>::default();
        let watch = Watches::add(&watches, &claims(&[("k", Want::Create)]));
        let other = Watches::add(&watches, &claims(&[("l", Want::Create)]));
        let due = Instant::now() + Duration::from_secs(1);
        watches.due(&LockKey::parse("k").unwrap(), due);
        watch.changed().await;
        assert_eq!(Instant::now(), due);
        assert!(other.changed().now_or_never().is_none());
    }

    #[test]
    fn a_session_wakes_who_watches_it_and_nobody_else() {
        let watches = Arc::<Watches>::default();
        let [one, other] = [SessionId::new(1), SessionId::new(2)];
        let watch = |session| Box::pin(Watches::add_session(&watches, session).changed());
        let mut all = vec![watch(one), watch(one), watch(other)];
        all.push(Box::pin(
            Watches::add(&watches, &claims(&[("k", Want::Create)])).changed(),
        ));
        let mut woken = || -> Vec<bool> {
            let told = all.iter_mut();
            told.map(|it| it.as_mut().now_or_never().is_some())
                .collect()
        };
        assert_eq!(woken(), [false; 4]);
        watches.wake_session(one);
        watches.wake_session(SessionId::new(3));
        assert_eq!(woken(), [true, true, false, false]);
    }

    #[test]
    fn whoever_frees_any_key_wakes_no_session_and_a_broken_way_wakes_all() {
        let watches = Arc::<Watches>::default();
        let session = SessionId::new(1);
        let watch = || {
            let session = Box::pin(Watches::add_session(&watches, session).changed());
            let key = Watches::add(&watches, &claims(&[("k", Want::Create)]));
            (session, Box::pin(key.changed()))
        };
        let (mut of_session, mut of_key) = watch();
        watches.wake_all();
        assert!(of_key.as_mut().now_or_never().is_some());
        assert!(of_session.as_mut().now_or_never().is_none());
        let (_, mut of_key) = watch();
        watches.wake_everybody();
        assert!(of_key.as_mut().now_or_never().is_some());
        assert!(of_session.as_mut().now_or_never().is_some());
        drop((of_session, of_key));
        assert!(watches.watching().sessions.is_empty(), "nothing is left");
    }
}
