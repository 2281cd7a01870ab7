//! The ends of a session: it is left, closed, or found dead.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use tokio::time::Instant;

use super::renewals::pause;
use super::{Done, Keeper};
use crate::client::clock::{now, sleep_until};
use crate::client::core::Core;
use crate::client::order::{Keep, Left};
use crate::client::retry::until_answered;
use crate::client::session::Session;
use crate::{
    End, Error, ErrorKind, IntentChange, NoteKind, Operation, Ranges, Renewal, Renewed, Result,
    Sweep,
};

/// How long the store is asked why a session is dead.
const WHY: Duration = Duration::from_secs(1);

impl Keeper {
    /// Leaves the session, which nobody in this process relies on from then on: its lease may become shorter. Nothing of
    /// it is closed, and nobody renews it any more. If it has other grants, it goes on without what was to be kept:
    /// `false`.
    pub(super) async fn is_left(&mut self, keep: Keep) -> bool {
        let deadline = self.session.deadline.get();
        let answer = match deadline {
            Some(deadline) => {
                let core = Arc::clone(&self.core);
                // After that nobody is kept waiting for a store that fails.
                let limit = deadline.min(core.keeper_answers());
                tokio::select! {
                    biased;
                    kept = self.kept(&keep, deadline) => kept,
                    () = sleep_until(limit) => Err(no_lease(&core)),
                }
            }
            None => Ok(Left::NotHeld),
        };
        let is_left = !matches!(answer, Ok(Left::Shared));
        if is_left {
            self.news.end();
            self.session.die();
        } else {
            self.release(keep.release);
        }
        let _ = keep.done.send(answer);
        is_left
    }

    async fn kept(&mut self, keep: &Keep, deadline: Instant) -> Result<Left> {
        let kept: BTreeSet<u64> = keep.release.grants.iter().map(|(n, _)| *n).collect();
        // What an earlier attempt of the same acquisition has left is given back first.
        let goes = |keeper: &Self| {
            let going: BTreeSet<u64> = kept.union(&keeper.going).copied().collect();
            keeper.session.numbers().are_all_of(&going)
        };
        while !self.session.numbers().are_all_of(&kept) && goes(self) {
            if let Some(done) = self.work.next().await {
                self.done(done);
            }
        }
        if !self.session.numbers().are_all_of(&kept) {
            return Ok(Left::Shared);
        }
        self.session.deadline.pass();
        self.session.tell();
        if let Some(renewal) = self.renewal.take()
            && renewal.answer.await.is_ok_and(|answer| answer.is_living())
        {
            self.acknowledged = self.seq;
        }
        self.seq = self.seq.max(keep.seq - 1);
        let (mut failures, mut doubted) = (0, false);
        loop {
            // What is lost stays so, even if the store still has the lease.
            match now() < deadline {
                true => {}
                false if failures == 0 => return Ok(Left::NotHeld),
                false => return Err(no_lease(&self.core)),
            }
            match self.renewed_once_more(keep).await {
                Ok(renewed) if renewed.is_living() => {
                    if let Renewed::Noted(notes) = &renewed {
                        self.read(notes);
                    }
                    if self.session.evicted(kept.iter().copied()).is_none() {
                        return Ok(Left::Kept);
                    }
                    close_in_time(&self.core, &self.session, deadline).await;
                    return Ok(Left::NotHeld);
                }
                Ok(Renewed::Moved(incarnation)) => self.moving = Some(incarnation),
                // The lease may be as long as is left of it, and an earlier copy of this have made it so.
                Ok(Renewed::Dead | Renewed::Forgotten) if doubted => {
                    return Err(no_lease(&self.core));
                }
                Ok(Renewed::Dead | Renewed::Forgotten) => return Ok(Left::NotHeld),
                // An earlier copy may have been executed; its answer does not come any more.
                unanswered => {
                    doubted |= !unanswered.is_err_and(|it| it.is_certainly_without_effect());
                    failures += 1;
                    sleep_until(now() + pause(&self.core, failures)).await;
                }
            }
        }
    }

    /// Sends one last renewal, with a TTL of what is left.
    async fn renewed_once_more(&mut self, keep: &Keep) -> Result<Renewed> {
        self.seq += 1;
        let (retired, incarnation, granted) = {
            let numbers = self.session.numbers();
            match self.moving {
                Some(incarnation) => (numbers.retired(), incarnation, numbers.granted()),
                None => (numbers.retired(), numbers.incarnation(), Ranges::EMPTY),
            }
        };
        let left = keep.until.saturating_duration_since(now());
        let ttl = whole_milliseconds(left.max(self.core.info.min_ttl));
        let acknowledged = self.acknowledged;
        let renewal = Renewal::new(self.seq, retired, IntentChange::Keep)
            .after(acknowledged)
            .within(incarnation, granted)
            .lasting(ttl);
        self.core.backend.renew(self.session.id, &renewal).await
    }

    /// The store said that the session is dead. Its record tells why, if an operator has revoked it.
    pub(super) fn fall(&mut self) {
        self.session.falls();
        let (core, id) = (Arc::clone(&self.core), self.session.id);
        self.work.push(Box::pin(async move {
            let ended = core.backend.end(std::slice::from_ref(&id), End::IfDue);
            let ended = tokio::time::timeout(WHY, ended).await;
            let state = ended
                .ok()
                .and_then(Result::ok)
                .and_then(|mut states| states.pop());
            Done::Fell(state.and_then(|state| state.notes.last(NoteKind::Revoke)))
        }));
    }

    /// Closes the session at once and leaves its intent.
    pub(super) fn abandon(&mut self) {
        self.told_why = true;
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        self.work.push(Box::pin(async move {
            Done::Abandoned(close(&core, &session).await)
        }));
    }

    /// Nobody has a handle any more.
    pub(super) async fn close(&mut self) {
        if !self.session.is_dead() && self.intent == IntentChange::Drop {
            // The session was lost before the removal was acknowledged. It may still live in the store: a change that
            // is finished, or that never began, is not handed on if that can be helped.
            let (core, id) = (&self.core, self.session.id);
            let retired = self.session.numbers().retired();
            // Whatever the store remembers of the session.
            let renewal = Renewal::new(self.seq + 1, retired, IntentChange::Drop);
            let _ = until_answered(core, || true, || core.backend.renew(id, &renewal)).await;
        }
        if self.unclosed || !self.session.is_dead() {
            let due = self.renewed + self.core.config.ttl;
            close_in_time(&self.core, &self.session, due).await;
            self.session.die();
        }
        // Nothing counts any more, so a failure leaves only what the next sweep removes.
        let limit = self.core.backend.info().sweep_limit;
        while self.unswept {
            let swept = self
                .core
                .backend
                .sweep(Sweep::Session(self.session.id), limit)
                .await;
            self.unswept = swept.is_ok_and(|swept| swept.more);
        }
    }
}

/// Closes the session as its owner. A registered intent stays.
pub(super) async fn close(core: &Core, session: &Session) -> Result<()> {
    let ids = std::slice::from_ref(&session.id);
    until_answered(core, || true, || core.backend.end(ids, End::Close)).await?;
    Ok(())
}

/// Closes the session, or waits until it is due.
pub(super) async fn close_in_time(core: &Core, session: &Session, due: Instant) {
    let mut failures = 0;
    while close(core, session).await.is_err() && now() < due {
        failures += 1;
        sleep_until(due.min(now() + pause(core, failures))).await;
    }
}

/// No answer came before the end of the lease.
fn no_lease(core: &Core) -> Error {
    let what =
        "the last renewal was not acknowledged in time: whether the lock is kept is not known";
    in_doubt(core, Operation::Renew, what)
}

/// The same, of the renewal that was to remove the intent of a change that is done.
pub(super) fn left_in_doubt(core: &Core) -> Error {
    let what = "no answer came before the end of the lease: whether the intent is removed, and the lock was held until the \
                change was done, is not known";
    in_doubt(core, Operation::Release, what)
}

fn in_doubt(core: &Core, operation: Operation, what: &'static str) -> Error {
    Error::new(ErrorKind::Indeterminate, core.info.name, operation, what)
}

/// A TTL in milliseconds, as stores take it, and no shorter.
pub(crate) fn whole_milliseconds(ttl: Duration) -> Duration {
    let millisecond = Duration::from_millis(1);
    let whole = Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    match whole < ttl {
        true => whole + millisecond,
        false => whole,
    }
}
