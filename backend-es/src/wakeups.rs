//! `Wakeups`: the store tells nobody anything, so whoever waits looks at what is in the way.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{Changed, Claim, LockKey, Operation, Result, SessionId, SessionState, Wakeups};

use crate::EsBackend;
use crate::claims::needed;
use crate::error::Outcome;
use crate::read::Document;
use crate::record::{Held, counts, held, lock_id};
use crate::sweep::sessions_of;

/// Longest time from one look to the next. Somebody who has just released a key lets that much time pass, so that all
/// who wait for it have looked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(75);
/// Looks come up to that much earlier, at random, so that processes do not look in step.
const JITTER_MS: u64 = 25;
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
            // A store that cannot be read ends the watch, too: the client asks by itself, and will see the error.
            while backend.all_stand(&in_the_way).await.unwrap_or(false) {
                let early = Duration::from_millis(rand::random_range(0..=JITTER_MS));
                tokio::time::sleep(LOOK_EVERY - early).await;
            }
        }))
    }
}

impl EsBackend {
    /// Some of those in the way of one of the claims, with the records in which they stand.
    async fn in_the_way(&self, claims: &[Claim]) -> Outcome<Vec<(LockKey, Held)>> {
        let needed = needed(claims);
        let keys: Vec<&LockKey> = needed.keys().collect();
        let records = self.holders(&keys).await?;
        let mut found = Vec::new();
        for ((key, ask), held) in needed.iter().zip(records) {
            let room = FOLLOWED - found.len();
            let met = ask.in_the_way(&held, None, |_| true);
            found.extend(met.into_iter().take(room).map(|held| (key.clone(), held)));
        }
        Ok(found)
    }

    /// Whether everybody stands where they stood. Nobody at all does not.
    async fn all_stand(&self, in_the_way: &[(LockKey, Held)]) -> Outcome<bool> {
        let mut keys: Vec<&LockKey> = in_the_way.iter().map(|(key, _)| key).collect();
        keys.dedup();
        let records: BTreeMap<&LockKey, Vec<Held>> = keys
            .iter()
            .copied()
            .zip(self.holders(&keys).await?)
            .collect();
        let stands = |(key, held): &(LockKey, Held)| records[key].contains(held);
        Ok(!in_the_way.is_empty() && in_the_way.iter().all(stands))
    }

    /// Who holds each of the keys and counts, as things stand.
    async fn holders(&self, keys: &[&LockKey]) -> Outcome<Vec<Vec<Held>>> {
        let ids = keys.iter().map(|key| lock_id(key).into_owned());
        let documents = self.get(ids.collect()).await?;
        let read = |(key, document): (&&LockKey, Option<Document>)| match document {
            Some(document) => held(key, &document.source),
            None => Vec::new(),
        };
        let mut records: Vec<Vec<Held>> = keys.iter().zip(documents).map(read).collect();
        let states = self.states_of(records.iter().flatten()).await?;
        for held in &mut records {
            held.retain(|held| counts_by(held, &states));
        }
        Ok(records)
    }

    /// What the sessions of these holders are, as their records stand.
    pub(crate) async fn states_of<'a>(
        &self,
        held: impl Iterator<Item = &'a Held>,
    ) -> Outcome<BTreeMap<SessionId, SessionState>> {
        let states = self.states(&sessions_of(held)).await?;
        let known = states.into_iter().flatten();
        Ok(known.map(|state| (state.session, state)).collect())
    }
}

/// Whether a holder counts, as the records of sessions stand; one without a record is dead.
pub(crate) fn counts_by(held: &Held, states: &BTreeMap<SessionId, SessionState>) -> bool {
    held.grant().is_none_or(|grant| {
        states
            .get(&grant.session)
            .is_some_and(|state| counts(state, grant))
    })
}
