//! A session as its own process knows it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::client::clock::{now, sleep_awake_until, sleep_until};
use crate::client::deadline::Deadline;
use crate::client::lost::LostReason;
use crate::client::numbers::Numbers;
use crate::client::order::Order;
use crate::{Grant, Incarnation, Note, OwnerId, SessionId};

/// The state that guards, attempts and the keeper share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) deadline: Deadline,
    /// The store said that it is dead.
    dead: AtomicBool,
    /// The same, while the keeper asks for the reason; then it is `dead`.
    falling: AtomicBool,
    /// The note of the operator who revoked it.
    revoked: OnceLock<Note>,
    /// Grants that an operator has evicted.
    evicted: Mutex<BTreeMap<u64, Note>>,
    any_evicted: AtomicBool,
    /// Grants that somebody has asked for, with the last note of each, and how many came before that.
    asked: Mutex<BTreeMap<u64, (u64, Note)>>,
    any_asked: AtomicBool,
    /// The store said that it knows less of the session than it had acknowledged.
    forgotten: AtomicBool,
    /// Its keeper has ended.
    is_left: AtomicBool,
    died: Notify,
    numbers: Mutex<Numbers>,
    owners: AtomicU64,
}

impl Session {
    pub(crate) fn new(id: SessionId, deadline: Deadline, incarnation: Incarnation) -> Self {
        Self {
            id,
            deadline,
            dead: AtomicBool::new(false),
            falling: AtomicBool::new(false),
            revoked: OnceLock::new(),
            evicted: Mutex::default(),
            any_evicted: AtomicBool::new(false),
            asked: Mutex::default(),
            any_asked: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
            died: Notify::new(),
            numbers: Mutex::new(Numbers::new(incarnation)),
            owners: AtomicU64::new(1),
        }
    }

    pub(crate) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new grant, and the incarnation that its request is meant for. Its number is live until it is retired.
    pub(crate) fn grant(&self) -> (Grant, Incarnation) {
        let mut numbers = self.numbers();
        let grant = Grant {
            session: self.id,
            n: numbers.begin(),
        };
        (grant, numbers.incarnation())
    }

    /// A new owner.
    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId {
            session: self.id,
            m: self.owners.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether guards of the session are valid now. Once `false`, never `true` again.
    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid_at(now())
    }

    /// The same, as far as anybody has seen by now; does not read the clock.
    pub(crate) fn was_valid(&self) -> bool {
        self.deadline.get().is_some()
    }

    pub(crate) fn is_valid_at(&self, now: Instant) -> bool {
        self.deadline.is_ahead(now)
    }

    /// The time until guards of the session become invalid if no further renewal is acknowledged.
    pub(crate) fn remaining(&self) -> Duration {
        let now = now();
        let deadline = self.deadline.get().filter(|_| self.deadline.is_ahead(now));
        deadline.map_or(Duration::ZERO, |deadline| {
            deadline.saturating_duration_since(now)
        })
    }

    /// The store said that the session is dead, or it was closed.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Release);
        self.deadline.pass();
        self.tell();
    }

    /// The store said that it is dead. Nothing is valid any more; [`fell`](Self::fell) tells why.
    pub(crate) fn falls(&self) {
        self.falling.store(true, Ordering::Release);
        self.deadline.pass();
    }

    /// It is dead. The note tells why, if an operator has revoked it.
    pub(crate) fn fell(&self, revoked: Option<Note>) {
        if let Some(note) = revoked {
            let _ = self.revoked.set(note);
        }
        self.die();
    }

    /// Whether any of its grants was evicted.
    pub(crate) fn has_evicted(&self) -> bool {
        self.any_evicted.load(Ordering::Acquire)
    }

    /// The operator's note, if one of the grants was evicted.
    pub(crate) fn evicted(&self, mut numbers: impl Iterator<Item = u64>) -> Option<Note> {
        if !self.has_evicted() {
            return None;
        }
        let evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.find_map(|n| evicted.get(&n).cloned())
    }

    /// An operator has evicted the grant, which the store has granted. From now on its guard is lost. Then its number
    /// is retired, so that the next renewal frees what it holds. Returns `false`, and does nothing, if it is no longer
    /// held.
    pub(crate) fn evict(&self, number: u64, note: Note) -> bool {
        let mut numbers = self.numbers();
        if !numbers.is_granted(number) {
            return false;
        }
        let mut evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        evicted.insert(number, note);
        self.any_evicted.store(true, Ordering::Release);
        numbers.end(number);
        drop((evicted, numbers));
        self.tell();
        true
    }

    /// Somebody would like to have what these grants hold, each as the last note about it says. Grants that are no longer
    /// held are forgotten.
    pub(crate) fn ask(&self, notes: impl Iterator<Item = (u64, Note)>) {
        let numbers = self.numbers();
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|n, _| numbers.is_granted(*n));
        let before = asked.values().map(|(at, _)| *at).max().unwrap_or(0);
        let mut any = false;
        for (n, note) in notes.filter(|(n, _)| numbers.is_granted(*n)) {
            if asked.get(&n).is_none_or(|(_, last)| *last != note) {
                asked.insert(n, (before + 1, note));
                any = true;
            }
        }
        self.any_asked.store(!asked.is_empty(), Ordering::Release);
        drop((asked, numbers));
        if any {
            self.tell();
        }
    }

    /// The latest note about one of these grants, if somebody has asked for it.
    pub(crate) fn asked(&self, numbers: impl Iterator<Item = u64>) -> Option<Note> {
        if !self.any_asked.load(Ordering::Acquire) {
            return None;
        }
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = numbers.filter_map(|n| asked.get(&n));
        let last = notes.max_by_key(|(at, _)| *at);
        last.map(|(_, note)| note.clone())
    }

    /// Resolves when somebody has asked for one of these grants, and not only as that note says.
    pub(crate) async fn is_asked(
        &self,
        numbers: impl Iterator<Item = u64> + Clone,
        last: Option<&Note>,
    ) -> Note {
        // About each grant there is a note of its own.
        let what = |note: &Note| (note.at, note.by.clone(), note.reason.clone());
        loop {
            let told = self.died.notified();
            if let Some(note) = self.asked(numbers.clone())
                && last.map(what) != Some(what(&note))
            {
                return note;
            }
            told.await;
        }
    }

    /// The store has lost some acknowledged writes. The session may live there.
    pub(crate) fn forget(&self) {
        self.forgotten.store(true, Ordering::Release);
        self.deadline.pass();
        self.tell();
    }

    /// Resolves when the session is no longer of that incarnation.
    pub(crate) async fn moved(&self, from: Incarnation) {
        loop {
            let told = self.died.notified();
            if self.numbers().incarnation() != from {
                return;
            }
            told.await;
        }
    }

    /// Notifies those who wait for its end or its move.
    pub(crate) fn tell(&self) {
        self.died.notify_waiters();
    }

    /// Its keeper ends, which would have notified of its end.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.tell();
    }

    /// Why it is no longer valid; `None` while the keeper asks the store for that.
    pub(crate) fn why(&self) -> Option<LostReason> {
        if self.forgotten.load(Ordering::Acquire) {
            return Some(LostReason::Forgotten);
        }
        if self.is_dead() {
            let revoked = self.revoked.get().cloned().map(Box::new);
            return Some(revoked.map_or(LostReason::Dead, LostReason::Revoked));
        }
        let falling = self.falling.load(Ordering::Acquire);
        (!falling).then_some(LostReason::Deadline)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Resolves when one of these grants is no longer valid, even if the session's keeper hangs or has ended. After a
    /// suspension the keeper notices it, so that many waiters here cost nothing.
    pub(crate) async fn lost(&self, numbers: impl Iterator<Item = u64> + Clone) -> LostReason {
        loop {
            let died = self.died.notified();
            if let Some(note) = self.evicted(numbers.clone()) {
                return LostReason::Evicted(note.into());
            }
            let deadline = self.deadline.get();
            match deadline {
                Some(deadline) if self.is_valid() => tokio::select! {
                    biased;
                    () = died => {}
                    () = async { Box::pin(sleep_awake_until(deadline)).await }, if self.is_left.load(Ordering::Acquire) => {}
                    () = sleep_until(deadline) => {}
                },
                _ => match self.why() {
                    Some(why) => return why,
                    // Nobody asks why any more.
                    None if self.is_left.load(Ordering::Acquire) => return LostReason::Dead,
                    None => died.await,
                },
            }
        }
    }
}

/// A session that is kept open: while a handle exists, its keeper renews it.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

impl Handle {
    /// Sends an order to the keeper. Without a keeper (its runtime has ended) nothing happens: the session dies when it
    /// is due.
    pub(crate) fn order(&self, order: Order) {
        // From here on nobody has it. One with an intent is held until the intent is gone.
        if let Order::Release(release) = &order
            && !release.with_intent
        {
            let mut numbers = self.session.numbers();
            release.grants.iter().for_each(|(n, _)| numbers.let_go(*n));
        }
        // The receiver is gone only with the keeper's runtime.
        let _ = self.orders.send(order);
    }

    /// Whether new acquisitions may use the session.
    pub(crate) fn is_usable(&self) -> bool {
        self.is_kept() && self.session.is_valid()
    }

    /// Whether its keeper exists.
    pub(crate) fn is_kept(&self) -> bool {
        !self.orders.is_closed()
    }

    pub(crate) fn downgrade(&self) -> WeakHandle {
        WeakHandle {
            session: Arc::clone(&self.session),
            orders: self.orders.downgrade(),
        }
    }
}

/// A session, without keeping it open.
#[derive(Debug, Clone)]
pub(crate) struct WeakHandle {
    pub(crate) session: Arc<Session>,
    orders: mpsc::WeakUnboundedSender<Order>,
}

impl WeakHandle {
    pub(crate) fn upgrade(&self) -> Option<Handle> {
        Some(Handle {
            session: Arc::clone(&self.session),
            orders: self.orders.upgrade()?,
        })
    }
}
