//! `Wakeups`: the store tells nobody anything, so whoever waits looks at what is in the way.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::judge::needed;
use lockcore::backend::{Changed, Wakeups, never};
use lockcore::{Claim, LockKey, Operation, Result, SessionId};

use crate::EsBackend;
use crate::error::Outcome;
use crate::read::{States, states};
use crate::record::{Held, held, lock_id, session_id};
use crate::sweep::sessions_of;

/// Longest time from one look to the next. Somebody who has just released a key lets that much time pass, so that all
/// who wait for it have looked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks come up to that much earlier, at random, so that processes do not look in step.
const JITTER_MS: u64 = 50;
/// So many of those who are in the way are followed: any of them may go.
const FOLLOWED: usize = 64;

#[async_trait]
impl Wakeups for EsBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let in_the_way = self
            .in_the_way(claims)
            .await
            .map_err(|failure| failure.into_error(Operation::Watch))?;
        let backend = self.clone();
        Ok(Box::pin(async move {
            if in_the_way.is_empty() {
                return;
            }
            loop {
                let early = Duration::from_millis(rand::random_range(0..=JITTER_MS));
                tokio::time::sleep(LOOK_EVERY - early).await;
                // A store that cannot be read ends the watch, too: the client asks by itself, and will see the error.
                if !backend.all_stand(&in_the_way).await.unwrap_or(false) {
                    return;
                }
            }
        }))
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

    /// Whether everybody still stands there and counts, in one request.
    async fn all_stand(&self, in_the_way: &[(LockKey, Held)]) -> Outcome<bool> {
        let mut keys: Vec<&LockKey> = in_the_way.iter().map(|(key, _)| key).collect();
        keys.dedup();
        let sessions = sessions_of(in_the_way.iter().map(|(_, held)| held));
        let records = keys.iter().map(|key| lock_id(key).into_owned());
        let ids = records.chain(sessions.iter().map(|session| session_id(*session)));
        let mut documents = self.get(ids.collect()).await?;
        let states = states(&sessions, documents.split_off(keys.len()));
        let records: BTreeMap<&LockKey, Vec<Held>> = keys
            .into_iter()
            .zip(documents)
            .filter_map(|(key, document)| Some((key, held(key, &document?.source))))
            .collect();
        let stands = |(key, held): &(LockKey, Held)| {
            records.get(key).is_some_and(|all| all.contains(held)) && counts_by(held, &states)
        };
        Ok(in_the_way.iter().all(stands))
    }
}

/// Whether a holder counts, as the records of sessions stand; one without a record is dead.
pub(crate) fn counts_by(held: &Held, states: &States) -> bool {
    held.grant().is_none_or(|grant| {
        states
            .get(&grant.session)
            .is_some_and(|state| state.counts(grant.n))
    })
}
