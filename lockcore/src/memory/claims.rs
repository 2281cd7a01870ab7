//! The claims, each operation by the store's form.

use async_trait::async_trait;

use super::{Form, MemoryBackend, State};
use crate::{Acquire, Acquired, Claim, ClaimStore, Grant, LockKey, Result, Sweep, Swept};

#[async_trait]
impl ClaimStore for MemoryBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.form {
            Form::Atomic => Ok(self.update(|state| state.acquire(request))),
            Form::Records => self.acquire_by_record(request).await,
        }
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        match self.form {
            Form::Atomic => {
                self.update(|state| state.release(grant, claims));
                self.watchers.wake(claims.iter().map(Claim::key));
            }
            Form::Records => self.release_by_record(grant, claims).await,
        }
        Ok(())
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        Ok(match self.form {
            Form::Atomic => self.update(|state| state.confirm(grant, claims)),
            Form::Records => self.confirm_by_record(grant, claims).await,
        })
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let (found, mut more) = self.update(|state| state.sweepable(which, limit));
        let mut removed = 0;
        // What was seen not to count never counts again, so it may be removed later.
        for (key, grants) in found {
            self.pause().await;
            let gone = |held: Option<Grant>| held.is_some_and(|grant| grants.contains(&grant));
            removed += self.update(|state| state.remove(&key, gone));
        }
        if which == Sweep::All && !more {
            // Only here, where no holder of theirs is left.
            self.pause().await;
            let left = limit.saturating_sub(removed);
            let forgotten = self.update(|state| {
                let now = state.clock.now();
                state.sessions.forget(left, now)
            });
            more = forgotten == left;
            removed += forgotten;
        }
        Ok(Swept { removed, more })
    }
}

impl State {
    /// Up to `limit` holders that do not count, by record, and whether there may be more.
    fn sweepable(&mut self, which: Sweep, limit: usize) -> (Vec<(LockKey, Vec<Grant>)>, bool) {
        let now = self.clock.now();
        if which == Sweep::All {
            self.sessions.end_due(now);
        }
        let mut found = Vec::new();
        let mut left = limit;
        for (key, record) in &self.records {
            let mut grants: Vec<Grant> = record
                .holders
                .iter()
                .filter_map(|held| held.grant)
                .filter(|grant| match which {
                    Sweep::Session(session) => grant.session == session,
                    Sweep::All => true,
                })
                .filter(|grant| !self.sessions.judge(*grant, now))
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
