//! A session as its own process knows it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::client::clock::{now, sleep_awake_until, sleep_until};
use crate::client::deadline::Deadline;
use crate::client::numbers::Numbers;
use crate::client::order::Order;
use crate::{Grant, Incarnation, OwnerId, SessionId};

/// Why something is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The store said that the session is dead, or the session was closed.
    Dead,
    /// The deadline passed without an acknowledged renewal: the store could not be reached, or this process was
    /// paused. Others may hold the locks from now on.
    Deadline,
    /// The store has lost writes that it acknowledged to the session, as one does that fails over to a copy that was
    /// behind, or is restored; or it may have, and the guard has an intent. Others may hold the locks.
    Forgotten,
}

/// What guards, attempts and the keeper share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) deadline: Deadline,
    /// The store said that it is dead.
    dead: AtomicBool,
    /// The store said that it knows less of it than it acknowledged.
    forgotten: AtomicBool,
    /// Its keeper is gone.
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

    /// A new grant, and the incarnation that its request is meant for; its number lives until it is ended.
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

    /// Whether guards of the session are valid now; once no, never again.
    pub(crate) fn is_valid(&self) -> bool {
        self.deadline.is_ahead(now())
    }

    /// The time until guards of the session are not valid any more, if no further renewal is acknowledged.
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

    /// The store has lost some of what it acknowledged. The session may live there.
    pub(crate) fn forget(&self) {
        self.forgotten.store(true, Ordering::Release);
        self.deadline.pass();
        self.tell();
    }

    /// Whoever waits for its end looks again.
    pub(crate) fn tell(&self) {
        self.died.notify_waiters();
    }

    /// Its keeper goes, which would have told of its end.
    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.tell();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Resolves when the session is not valid any more, even if its keeper hangs or is gone. After a suspension it is the
    /// keeper who notices, so that many who wait here cost nothing.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let died = self.died.notified();
            let deadline = self.deadline.get();
            match deadline {
                Some(deadline) if self.is_valid() => tokio::select! {
                    biased;
                    () = died => {}
                    () = sleep_awake_until(deadline), if self.is_left.load(Ordering::Acquire) => {}
                    () = sleep_until(deadline) => {}
                },
                _ if self.forgotten.load(Ordering::Acquire) => return LostReason::Forgotten,
                _ if self.is_dead() => return LostReason::Dead,
                _ => return LostReason::Deadline,
            }
        }
    }
}

/// A session that is kept: while a handle lives, its keeper renews it.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

impl Handle {
    /// Asks the keeper. Without one (its runtime is gone) nothing happens: the session dies when it is due.
    pub(crate) fn order(&self, order: Order) {
        // The receiver is gone only with the keeper's runtime.
        let _ = self.orders.send(order);
    }

    /// Whether new acquisitions may use the session.
    pub(crate) fn is_usable(&self) -> bool {
        !self.orders.is_closed() && self.session.is_valid()
    }

    pub(crate) fn downgrade(&self) -> WeakHandle {
        WeakHandle {
            session: Arc::clone(&self.session),
            orders: self.orders.downgrade(),
        }
    }
}

/// A session, without keeping it.
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
