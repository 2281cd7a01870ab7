//! For simulations only, built with `--cfg lockcore_sim`: clients that are paused and killed, and clients that break
//! one of their rules. In every other build all of this is nothing.

#![cfg_attr(
    not(lockcore_sim),
    expect(
        unreachable_pub,
        dead_code,
        reason = "public in the simulation's build only"
    )
)]

#[cfg(lockcore_sim)]
pub(crate) use gate::gated;
#[cfg(lockcore_sim)]
pub use gate::{Gate, Gated};
#[cfg(lockcore_sim)]
pub use rules::{break_rule, keep_all_rules};
pub(crate) use rules::{broken, reused, spent};

/// A rule of the client that a simulation can switch off, to see that the breach is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// A deadline counts from before the renewal was sent, not from its answer.
    DeadlineFromSend,
    /// An answer after the deadline revives nothing.
    Latch,
    /// A guard is handed out only if the deadline is ahead after the last answer.
    LookBeforeHandingOut,
    /// A grant is never acquired again after a refusal.
    GrantOverAfterRefusal,
    /// A grant is never acquired again after a release.
    GrantOverAfterRelease,
    /// Claims are taken in path order, not in byte order.
    PathOrder,
    /// A path that is read and has a path to write below it is written.
    ReadAboveWriteIsWrite,
    /// "Busy" settles nothing while another copy is unanswered.
    BusySettlesNothing,
    /// A request of unknown outcome that is given up is over.
    UnknownIsOver,
    /// Every renewal carries all numbers that are over.
    RenewalsCarryOver,
    /// An answer acknowledges what was sent, not what is wanted now.
    AnswerOfWhatWasSent,
    /// The intent is registered when all claims are granted, not before.
    IntentLastIn,
    /// The claims are released when the removal of the intent is acknowledged, not before.
    IntentFirstOut,
    /// Only a release removes the intent, not the drop of a guard.
    DropLeavesIntent,
    /// What else of the session is released leaves the intent alone.
    OthersLeaveIntent,
    /// If the session is lost before the removal of the intent is acknowledged, nothing is released.
    LostReleasesNothing,
    /// Who closes the session of a dropped guard first stops believing in the others of that session.
    CloseAfterLastBelief,
    /// The steps of a session that died are gone.
    StepsDieWithSession,
    /// What was granted before a refusal is given back.
    RefusalUndoes,
    /// A session is adopted only when its former adopter was established dead.
    FormerAdopterDead,
    /// One task of a process at a time adopts a session.
    OneTaskAdopts,
    /// An adoption that is not wanted or not known is given up.
    GiveUpAdoption,
    /// Whoever already holds something does not stand in line behind those who wait in the same process.
    HoldersLookThemselves,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 23] = [
        Rule::DeadlineFromSend,
        Rule::Latch,
        Rule::LookBeforeHandingOut,
        Rule::GrantOverAfterRefusal,
        Rule::GrantOverAfterRelease,
        Rule::PathOrder,
        Rule::ReadAboveWriteIsWrite,
        Rule::BusySettlesNothing,
        Rule::UnknownIsOver,
        Rule::RenewalsCarryOver,
        Rule::AnswerOfWhatWasSent,
        Rule::IntentLastIn,
        Rule::IntentFirstOut,
        Rule::DropLeavesIntent,
        Rule::OthersLeaveIntent,
        Rule::LostReleasesNothing,
        Rule::CloseAfterLastBelief,
        Rule::StepsDieWithSession,
        Rule::RefusalUndoes,
        Rule::FormerAdopterDead,
        Rule::OneTaskAdopts,
        Rule::GiveUpAdoption,
        Rule::HoldersLookThemselves,
    ];
}

#[cfg(not(lockcore_sim))]
mod rules {
    use super::Rule;
    use crate::client::session::Session;

    pub(crate) const fn broken(_rule: Rule) -> bool {
        false
    }

    pub(crate) const fn spent(_rule: Rule, _session: &Session, _n: u64) {}

    pub(crate) const fn reused(_session: &Session) -> Option<u64> {
        None
    }
}

#[cfg(lockcore_sim)]
mod rules {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::Rule;
    use crate::SessionId;
    use crate::client::session::Session;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
        /// Numbers that are over and that a broken client uses again.
        static SPENT: RefCell<BTreeMap<SessionId, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// From now on the clients of this thread break the rule.
    pub fn break_rule(rule: Rule) {
        keep_all_rules();
        BROKEN.set(Some(rule));
    }

    /// From now on the clients of this thread keep all rules.
    pub fn keep_all_rules() {
        BROKEN.set(None);
        SPENT.take();
    }

    pub(crate) fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }

    /// The number is over by that rule. A client that breaks it remembers the number.
    pub(crate) fn spent(rule: Rule, session: &Session, n: u64) {
        if broken(rule) {
            SPENT.with_borrow_mut(|spent| spent.insert(session.id, n));
        }
    }

    /// The number that a broken client uses once more.
    pub(crate) fn reused(session: &Session) -> Option<u64> {
        let n = SPENT.with_borrow_mut(|spent| spent.remove(&session.id))?;
        session.numbers().revive(n);
        Some(n)
    }
}

#[cfg(lockcore_sim)]
mod gate {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::task::{Context, Poll, Waker};

    thread_local! {
        static CURRENT: RefCell<Option<Gate>> = const { RefCell::new(None) };
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
}
