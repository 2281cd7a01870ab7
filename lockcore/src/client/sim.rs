//! For simulations only, built with `--cfg lockcore_sim`: clients that are paused and killed, and the switch for those that
//! break a rule, which are made in a copy of this package, as `trial/breaches.txt` says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::SessionId;

thread_local! {
    static CURRENT: RefCell<Option<Gate>> = const { RefCell::new(None) };
    static BROKEN: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// Numbers that are over and that a broken client uses again.
    static SPENT: RefCell<BTreeMap<SessionId, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on the clients of this thread break that rule, or none.
pub fn break_rule(rule: Option<&'static str>) {
    BROKEN.set(rule);
    SPENT.take();
}

/// Whether the clients of this thread break the rule.
#[must_use]
pub fn breaks(rule: &str) -> bool {
    BROKEN.get() == Some(rule)
}

/// The number is over by that rule. A client that breaks it remembers the number.
pub fn spent(rule: &str, session: SessionId, n: u64) {
    if breaks(rule) {
        SPENT.with_borrow_mut(|spent| spent.insert(session, n));
    }
}

/// The number that a broken client uses once more.
#[must_use]
pub fn reused(session: SessionId) -> Option<u64> {
    SPENT.with_borrow_mut(|spent| spent.remove(&session))
}

/// What all futures of one client go through: its process, as it were. While it is closed none of them is polled,
/// as after SIGSTOP; when it is gone they are dropped without being polled, as after SIGKILL.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    gone: bool,
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses the client.
    pub fn close(&self) {
        self.state().closed = true;
    }

    /// Lets the client go on.
    pub fn open(&self) {
        self.state().closed = false;
        self.wake();
    }

    /// Kills the client. Whatever it has sent stays under way; dropping what it has in memory sends nothing, as
    /// nobody of it is polled any more.
    pub fn kill(&self) {
        self.state().gone = true;
        self.wake();
    }

    /// Whether the client was killed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state().gone
    }

    fn wake(&self) {
        let wakers: Vec<Waker> = self.state().wakers.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The future as one of this client's: it and whatever it spawns. `None` if the client is killed.
    pub fn run<F: Future>(&self, future: F) -> Gated<F> {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        drop(state);
        Gated {
            gate: self.clone(),
            id,
            future: Some(Box::pin(future)),
        }
    }
}

/// A future of one client.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Gated<F: Future> {
    gate: Gate,
    id: u64,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        {
            let mut state = this.gate.state();
            match state.wakers.get_mut(&this.id) {
                Some(waker) => waker.clone_from(cx.waker()),
                None => drop(state.wakers.insert(this.id, cx.waker().clone())),
            }
            if state.closed && !state.gone {
                return Poll::Pending;
            }
        }
        if this.gate.is_gone() {
            this.future = None;
            return Poll::Ready(None);
        }
        let Some(future) = &mut this.future else {
            return Poll::Pending;
        };
        let before = CURRENT.replace(Some(this.gate.clone()));
        let polled = future.as_mut().poll(cx);
        CURRENT.set(before);
        match polled {
            Poll::Ready(_) if this.gate.is_gone() => Poll::Ready(None),
            polled => polled.map(Some),
        }
    }
}

impl<F: Future> Drop for Gated<F> {
    fn drop(&mut self) {
        self.gate.state().wakers.remove(&self.id);
    }
}

/// A future that is spawned belongs to the client in whose poll that happens.
pub(crate) fn gated(
    future: impl Future<Output = ()> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let gate = CURRENT.with_borrow(Clone::clone);
    async move {
        match gate {
            Some(gate) => drop(gate.run(future).await),
            None => future.await,
        }
    }
}
