//! What is stored, as the [rules](crate::backend::rows) see it.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

use super::State;
use super::record::{Held, Record};
use crate::backend::judge::Place;
use crate::backend::rows::{self, At, Corrupt, Done, Freed, HolderRow, Now, Rows, SessionRow};
use crate::backend::rows::{Stored, Strange, Waits};
use crate::{Acquire, Claim, FencingToken, Grant, LockKey, Registered, SessionId};

/// A holder's row: of what cannot be understood there is one on a key.
pub(super) type Id = (LockKey, Option<Grant>);

impl Rows for State {
    type Id = Id;
    type Failure = Corrupt;

    fn now(&self) -> Now {
        let now = self.clock.now();
        Now {
            lease: now,
            date: now,
        }
    }

    fn id(key: &LockKey, grant: Grant) -> Id {
        (key.clone(), Some(grant))
    }

    fn key((key, _): &Id) -> Option<LockKey> {
        Some(key.clone())
    }

    fn frees(&mut self, freed: Freed<'_>) {
        if !self.freed.is_wanted {
            return;
        }
        match freed {
            Freed::Claims(claims) => {
                let keys = claims.iter().map(|claim| claim.key().clone());
                self.freed.keys.extend(keys);
            }
            Freed::Key(key) => self.freed.keys.push(key.clone()),
            Freed::Any => self.freed.any = true,
        }
    }

    async fn next_token(&mut self) -> Done<FencingToken, Self> {
        Ok(super::token(self.number()))
    }

    async fn session(&mut self, id: SessionId) -> Done<Stored<SessionRow>, Self> {
        let stored = self.sessions.get(id);
        Ok(stored.map_or(Stored::Absent, |row| Stored::Row(row.clone())))
    }

    async fn lives(&mut self, grant: Grant) -> Done<Stored<bool>, Self> {
        Ok(Stored::Row(State::lives(self, grant)))
    }

    async fn create_session(&mut self, id: SessionId, row: &SessionRow) -> Done<bool, Self> {
        let is_new = self.sessions.get(id).is_none();
        if is_new {
            self.sessions.put(id, row.clone());
        }
        Ok(is_new)
    }

    async fn put_session(&mut self, id: SessionId, row: &SessionRow) -> Done<(), Self> {
        self.sessions.put(id, row.clone());
        Ok(())
    }

    async fn intent(&mut self, id: SessionId) -> Done<Stored<Registered>, Self> {
        let stored = self.intents.get(&id).cloned();
        Ok(stored.map_or(Stored::Absent, Stored::Row))
    }

    async fn put_intent(&mut self, id: SessionId, intent: Option<&Registered>) -> Done<(), Self> {
        match intent {
            Some(intent) => self.intents.insert(id, intent.clone()),
            None => self.intents.remove(&id),
        };
        Ok(())
    }

    async fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Done<Vec<(SessionId, Stored<SessionRow>)>, Self> {
        let behind = self.sessions.behind(after);
        let rows = behind.map(|(id, row)| (*id, Stored::Row(row.clone())));
        Ok(rows.take(most).collect())
    }

    async fn due(&mut self) -> Done<Vec<SessionId>, Self> {
        Ok(self.sessions.due(self.now()))
    }

    async fn forget(&mut self, before: Duration, most: usize) -> Done<usize, Self> {
        // A sweep asks for this once no holder of the dead is left.
        Ok(self.sessions.forget(before, most))
    }

    async fn holders(
        &mut self,
        at: At<'_>,
        after: Option<&Id>,
        most: usize,
    ) -> Done<Vec<HolderRow<Id>>, Self> {
        let rows = |(key, record)| {
            let record: &Record = record;
            let after = after.filter(|(last, _)| last == key);
            let behind = after.map_or(0, |(_, grant)| record.behind(*grant));
            let held = record.holders[behind..].iter();
            held.map(move |held| (key, record, held))
        };
        let wanted = |row: &(&LockKey, &Record, &Held)| at.but != Some(row.2.mode);
        let from = match (at.place, after) {
            (Place::Below, Some((key, _))) => Bound::Included(key),
            (Place::Below, None) => Bound::Excluded(at.key),
            (Place::Key | Place::Above, _) => {
                let here = self.records.get_key_value(at.key);
                let rows = here.into_iter().flat_map(rows).filter(wanted);
                return Ok(rows.take(most).map(row).collect());
            }
        };
        // Nothing is below a flat key; what is below a path stands directly behind it.
        let behind = self.records.range::<LockKey, _>((from, Bound::Unbounded));
        let below = behind.take_while(|(key, _)| at.key.is_above(key));
        let rows = below.flat_map(rows).filter(wanted);
        Ok(rows.take(most).map(row).collect())
    }

    async fn holder(&mut self, (key, grant): &Id) -> Done<Option<HolderRow<Id>>, Self> {
        let record = self.records.get(key);
        let held = record.and_then(|record| Some((key, record, record.get(*grant)?)));
        Ok(held.map(row))
    }

    async fn hold(&mut self, request: &Acquire, waits: Option<Waits>) -> Done<(), Self> {
        let (version, since) = (self.number(), self.clock.now());
        for claim in &request.claims {
            let record = self.records.entry(claim.key().clone()).or_default();
            record.version = version;
            let mode = claim.want().mode();
            if waits.is_some() || !record.stands(request.grant, mode) {
                record.put(Held {
                    of: request.claims.len(),
                    grant: Some(request.grant),
                    owner: Some(request.owner),
                    mode,
                    since,
                    attempt: 0,
                    waits,
                    waited: None,
                    claim: None,
                });
            }
        }
        Ok(())
    }

    async fn release(&mut self, grant: Grant, claims: &[Claim]) -> Done<usize, Self> {
        let mut removed = 0;
        for key in claims.iter().map(Claim::key) {
            let held = self
                .records
                .get(key)
                .and_then(|record| record.get(Some(grant)));
            let holds = held.is_some_and(|held| held.waits.is_none());
            self.remove(key, |held| held.grant == Some(grant));
            removed += usize::from(holds);
        }
        Ok(removed)
    }

    async fn remove(&mut self, ids: &[Id]) -> Done<(), Self> {
        for (key, grant) in ids {
            State::remove(self, key, |held| held.grant == *grant);
        }
        Ok(())
    }

    async fn of_session(
        &mut self,
        id: SessionId,
        (from, to): (u64, u64),
        after: Option<(u64, &str)>,
        most: usize,
    ) -> Done<Vec<(String, HolderRow<Id>)>, Self> {
        let after = after.and_then(|(n, key)| Some((LockKey::parse(key).ok()?, n)));
        let first = after
            .as_ref()
            .map_or(Bound::Unbounded, |(key, _)| Bound::Included(key));
        let mut found = Vec::new();
        for (key, record) in self.records.range::<LockKey, _>((first, Bound::Unbounded)) {
            for held in &record.holders {
                let grant = held.grant.filter(|grant| grant.session == id);
                let Some(n) = grant.map(|grant| grant.n) else {
                    continue;
                };
                let is_behind = after.as_ref().is_none_or(|(last, m)| (last, *m) < (key, n));
                if (from..=to).contains(&n) && is_behind {
                    found.push((key.as_str().to_owned(), row((key, record, held))));
                    if found.len() == most {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    async fn holding(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Done<Vec<SessionId>, Self> {
        let grants = self.records.values().flat_map(|record| &record.holders);
        let ids: BTreeSet<SessionId> = grants
            .filter_map(|held| held.grant)
            .map(|grant| grant.session)
            .filter(|id| after.is_none_or(|after| *id > after))
            .collect();
        Ok(ids.into_iter().take(most).collect())
    }

    async fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> Done<Vec<LockKey>, Self> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.records.range::<LockKey, _>((from, Bound::Unbounded));
        let keys = behind.map(|(key, _)| key);
        let keys = keys.filter(|key| key.as_str().starts_with(prefix));
        Ok(keys.take(most).cloned().collect())
    }
}

fn row((key, record, held): (&LockKey, &Record, &Held)) -> HolderRow<Id> {
    let understood = held.grant.zip(held.owner).map(|(grant, owner)| rows::Held {
        grant,
        owner,
        mode: held.mode,
        waits: held.waits,
    });
    HolderRow {
        id: (key.clone(), held.grant),
        session: held.grant.map(|grant| grant.session),
        n: held.grant.map_or(0, |grant| grant.n),
        since: understood.map(|_| SystemTime::UNIX_EPOCH + held.since),
        held: understood.ok_or_else(|| Strange {
            what: super::record::STRANGE.to_owned(),
            version: record.version.to_string(),
        }),
    }
}
