//! `Wakeups`: the store tells nobody anything, so a waiter polls what is in the way.

use async_trait::async_trait;
use lockcore::backend::judge::{is_live, needed};
use lockcore::backend::{Changed, Wakeups, never};
use lockcore::{Claim, Grant, LockKey, Operation, OwnerId, Result, SessionId};

use crate::EsBackend;
use crate::error::Outcome;
use crate::polls::Polls;
use crate::read::States;
use crate::record::{Held, held, lock_id};
use crate::sweep::sessions_of;

/// So many of those who are in the way are followed: any of them may go.
const FOLLOWED: usize = 64;

#[async_trait]
impl Wakeups for EsBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let in_the_way = self
            .in_the_way(claims)
            .await
            .map_err(|failure| failure.into_error(Operation::Watch))?;
        if in_the_way.is_empty() {
            return Ok(Box::pin(std::future::ready(())));
        }
        let watch = Polls::all(&self.polls, in_the_way);
        Ok(Box::pin(watch.changed(self.clone())))
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let watch = Polls::turn(&self.polls, grant, owner, claim.clone());
        Ok(Some(Box::pin(watch.changed(self.clone()))))
    }

    async fn watch_session(&self, _: SessionId) -> Result<Changed> {
        Ok(never())
    }
}

impl EsBackend {
    /// Some of those in the way of one of the claims, with the records in which they stand.
    async fn in_the_way(&self, claims: &[Claim]) -> Outcome<Vec<(LockKey, Held)>> {
        let needed = needed(claims, None);
        let ids = needed.keys().map(|key| lock_id(key).into_owned());
        let documents = self.get(ids.collect()).await?;
        let records = needed.iter().zip(documents);
        let records: Vec<_> = records
            .filter_map(|((key, ask), document)| Some((key, ask, held(key, &document?.source))))
            .collect();
        let everybody = records.iter().flat_map(|(_, _, held)| held);
        let states = self.states(&sessions_of(everybody)).await?;
        let mut found = Vec::new();
        for (key, ask, mut held) in records {
            held.retain(|held| counts_by(held, &states));
            let met = ask.in_the_way(&held, |_| true);
            found.extend(met.into_iter().map(|held| (key.clone(), held.clone())));
            found.truncate(FOLLOWED);
        }
        Ok(found)
    }
}

/// Whether a holder counts, as the records of sessions stand; one without a record is dead.
pub(crate) fn counts_by(held: &Held, states: &States) -> bool {
    held.grant().is_none_or(|grant| {
        let state = states.get(&grant.session);
        state.is_some_and(|state| is_live(held, state))
    })
}
