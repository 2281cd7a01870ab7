//! The claims, each operation by the store's form.

use async_trait::async_trait;

use super::record::Held;
use super::records::Records;
use super::{Form, MemoryBackend, NAME, State};
use crate::backend::judge;
use crate::backend::rows::claims::{Sweeping, acquire, confirm, release};
use crate::backend::rows::sessions::end;
use crate::backend::rows::{Rows, ready};
use crate::limits::TOMBSTONE_KEPT;
use crate::{
    Acquire, Acquired, Claim, ClaimStore, End, Grant, LockKey, Operation, Result, SessionId, Stood,
    Sweep, Swept,
};

const NEVER_FAILS: &str = "no rule fails here";

#[async_trait]
impl ClaimStore for MemoryBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.form {
            Form::Atomic => loop {
                let asked = self.rules(Operation::Acquire, |state| {
                    match state.is_elsewhere(request.incarnation) {
                        true => Ok(Ok(Some(Acquired::Moved))),
                        false => ready(acquire(state, request)),
                    }
                })?;
                let asked = asked.map_err(|too_much| too_much.error(NAME))?;
                if let Some(acquired) = asked {
                    return Ok(acquired);
                }
            },
            Form::Records => judge::acquire(&Records(self), request).await,
        }
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        match self.form {
            Form::Atomic => self.rules(Operation::Release, |state| {
                ready(release(state, grant, claims))
            }),
            Form::Records => Ok(self.release_by_record(grant, claims).await),
        }
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        match self.form {
            Form::Atomic => self.rules(Operation::Confirm, |state| {
                ready(confirm(state, grant, claims))
            }),
            Form::Records => Ok(self.confirm_by_record(grant, claims).await),
        }
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        match self.form {
            Form::Atomic => {
                let mut sweeping = Sweeping::new(which, limit);
                loop {
                    match sweeping.then(self.act(&sweeping)?) {
                        Ok(next) => sweeping = next,
                        Err(swept) => return Ok(swept),
                    }
                }
            }
            Form::Records => self.sweep_by_record(which, limit).await,
        }
    }
}

impl MemoryBackend {
    async fn sweep_by_record(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let (found, mut more) = self.update(|state| state.sweepable(which, limit));
        let mut removed = 0;
        // What was seen not to count never counts again, so it may be removed later.
        for (key, grants) in found {
            self.pause().await;
            let gone = |held: &Held| held.grant.is_some_and(|grant| grants.contains(&grant));
            removed += self.update(|state| state.remove(&key, gone));
        }
        if which == Sweep::All && !more {
            // Only here, where no holder of theirs is left.
            self.pause().await;
            let left = limit.saturating_sub(removed);
            let forgotten = self.rules(Operation::Sweep, |state| {
                let before = state.now().date.saturating_sub(TOMBSTONE_KEPT);
                ready(state.forget(before, left))
            })?;
            more = forgotten == left;
            removed += forgotten;
        }
        let holding = self.update(|state| ready(state.holding(None, usize::MAX)));
        let holding = holding.expect(NEVER_FAILS).len();
        Ok(Swept::new(removed, more).of_sessions(holding))
    }
}

impl State {
    /// Up to `limit` holders that do not count, by record, and whether there may be more.
    fn sweepable(&mut self, which: Sweep, limit: usize) -> (Vec<(LockKey, Vec<Grant>)>, bool) {
        let all = which == Sweep::All;
        let asked = |id: &SessionId| all || which == Sweep::Session(*id);
        let holding = ready(self.holding(None, usize::MAX)).expect(NEVER_FAILS);
        let due = ready(self.due()).expect(NEVER_FAILS);
        let due = due.into_iter().filter(|_| all);
        for id in due.chain(holding.into_iter().filter(asked)) {
            ready(end(self, id, End::IfDue)).expect(NEVER_FAILS);
        }
        let mut found = Vec::new();
        let mut left = limit;
        for (key, record) in &self.records {
            let mut grants: Vec<Grant> = record
                .holders
                .iter()
                .filter(|held| !self.is_live(held))
                .filter_map(|held| held.grant)
                .filter(|grant| asked(&grant.session))
                .collect();
            if grants.len() > left {
                grants.truncate(left);
                found.push((key.clone(), grants));
                return (found, true);
            }
            left -= grants.len();
            if !grants.is_empty() {
                found.push((key.clone(), grants));
            }
        }
        (found, false)
    }
}
