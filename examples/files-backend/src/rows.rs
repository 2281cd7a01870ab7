//! What is stored, as the rules see it: a value that one action has for itself, so that nothing here waits or fails.

use std::collections::BTreeSet;
use std::time::Duration;

use lockcore::backend::judge::{Entry as _, Place};
use lockcore::backend::rows::{
    At, Corrupt, Done, Freed, Held, HolderRow, Now, Rows, SessionRow, Stored, Waits,
};
use lockcore::backend::{Acquire, End, Registered};
use lockcore::{Claim, FencingToken, Grant, Life, LockKey, SessionId};

use crate::state::{Id, Left, Session, State, Text, holder, raw};

impl State {
    /// All holders on keys that are asked for, in their order.
    fn on(&self, asked: impl Fn(&LockKey) -> bool) -> Vec<HolderRow<Id>> {
        let keys = self.records.iter().filter(|(key, _)| asked(&key.0));
        let rows = keys.flat_map(|(key, raw)| raw.iter().map(|raw| holder(&key.0, raw)));
        let mut rows: Vec<HolderRow<Id>> = rows.collect();
        rows.sort_by(|one, other| one.id.cmp(&other.id));
        rows
    }

    /// Removes holders of one key, and the record with the last of them. Says how many there were.
    fn drop(&mut self, (key, grant): &Id) -> usize {
        let key = Text(key.clone());
        let Some(stored) = self.records.get_mut(&key) else {
            return 0;
        };
        let before = stored.len();
        stored.retain(|raw| holder(&key.0, raw).grant() != *grant);
        let removed = before - stored.len();
        if stored.is_empty() {
            self.records.remove(&key);
        }
        removed
    }
}

impl Rows for State {
    type Id = Id;
    type Failure = Corrupt;

    fn now(&self) -> Now {
        Now {
            lease: self.now,
            date: self.now,
        }
    }

    fn id(key: &LockKey, grant: Grant) -> Id {
        (key.clone(), Some(grant))
    }

    fn key((key, _): &Id) -> Option<LockKey> {
        Some(key.clone())
    }

    /// Waiters poll.
    fn frees(&mut self, _: Freed<'_>) {}

    /// Rises even if the file was lost, as long as the clock does.
    async fn next_token(&mut self) -> Done<FencingToken, Self> {
        let now = u64::try_from(self.now.as_micros()).unwrap_or(u64::MAX);
        self.token = now.max(self.token + 1);
        FencingToken::new(self.token).ok_or(Corrupt("the last token cannot be"))
    }

    async fn session(&mut self, id: SessionId) -> Done<Stored<SessionRow>, Self> {
        let stored = self.sessions.get(&Text(id));
        Ok(stored.map_or(Stored::Absent, |it| Stored::Row(it.row.clone())))
    }

    async fn create_session(&mut self, id: SessionId, row: &SessionRow) -> Done<bool, Self> {
        let is_new = !self.sessions.contains_key(&Text(id));
        if is_new {
            self.put_session(id, row).await?;
        }
        Ok(is_new)
    }

    async fn put_session(&mut self, id: SessionId, row: &SessionRow) -> Done<(), Self> {
        let intent = self.sessions.remove(&Text(id)).and_then(|it| it.intent);
        let row = row.clone();
        self.sessions.insert(Text(id), Session { row, intent });
        Ok(())
    }

    async fn intent(&mut self, id: SessionId) -> Done<Stored<Registered>, Self> {
        let stored = self.sessions.get(&Text(id));
        Ok(match stored.and_then(|it| it.intent.as_ref()) {
            Some(left) => left.read().map_or(Stored::Unreadable, Stored::Row),
            None => Stored::Absent,
        })
    }

    async fn put_intent(&mut self, id: SessionId, intent: Option<&Registered>) -> Done<(), Self> {
        if let Some(session) = self.sessions.get_mut(&Text(id)) {
            session.intent = intent.map(Left::new);
        }
        Ok(())
    }

    async fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Done<Vec<(SessionId, Stored<SessionRow>)>, Self> {
        let behind = self.sessions.iter().filter(|(id, _)| Some(id.0) > after);
        let rows = behind.map(|(id, it)| (id.0, Stored::Row(it.row.clone())));
        Ok(rows.take(most).collect())
    }

    async fn due(&mut self) -> Done<Vec<SessionId>, Self> {
        let now = self.now();
        let sessions = self.sessions.iter();
        let due = sessions.filter(|(_, it)| it.row.ends(End::IfDue, now));
        Ok(due.map(|(id, _)| id.0).collect())
    }

    async fn forget(&mut self, before: Duration, most: usize) -> Done<usize, Self> {
        // A sweep asks for this once no holder of the dead is left.
        let is_old = |row: &SessionRow| row.ended.is_some_and(|ended| ended <= before);
        let dead = self
            .sessions
            .iter()
            .filter(|(_, it)| it.row.life == Life::Dead);
        let old = dead.filter(|(_, it)| is_old(&it.row)).map(|(id, _)| *id);
        let old: Vec<Text<SessionId>> = old.take(most).collect();
        self.sessions.retain(|id, _| !old.contains(id));
        Ok(old.len())
    }

    async fn holders(
        &mut self,
        at: At<'_>,
        after: Option<&Id>,
        most: usize,
    ) -> Done<Vec<HolderRow<Id>>, Self> {
        let rows = self.on(|key| match at.place {
            Place::Below => at.key.is_above(key),
            Place::Key | Place::Above => at.key == key,
        });
        let behind = rows.into_iter().filter(|row| Some(&row.id) > after);
        Ok(behind.take(most).collect())
    }

    async fn holder(&mut self, id: &Id) -> Done<Option<HolderRow<Id>>, Self> {
        let rows = self.on(|key| *key == id.0);
        Ok(rows.into_iter().find(|row| row.id == *id))
    }

    async fn hold(&mut self, request: &Acquire, waits: Option<Waits>) -> Done<(), Self> {
        for claim in &request.claims {
            self.drop(&Self::id(claim.key(), request.grant));
            let held = Held {
                grant: request.grant,
                owner: request.owner,
                mode: claim.want().mode(),
                waits,
            };
            let held = raw(&held, self.now);
            let key = Text(claim.key().clone());
            self.records.entry(key).or_default().push(held);
        }
        Ok(())
    }

    async fn release(&mut self, grant: Grant, claims: &[Claim]) -> Done<usize, Self> {
        let mut removed = 0;
        for claim in claims {
            let id = Self::id(claim.key(), grant);
            let held = self.holder(&id).await?.and_then(|row| row.held.ok());
            self.drop(&id);
            removed += usize::from(held.is_some_and(|held| held.waits.is_none()));
        }
        Ok(removed)
    }

    async fn remove(&mut self, ids: &[Id]) -> Done<(), Self> {
        for id in ids {
            self.drop(id);
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
        let mut rows = self.on(|_| true);
        rows.retain(|row| row.session == Some(id) && (from..=to).contains(&row.n));
        rows.sort_by_key(|row| row.n);
        let rows = rows.into_iter().map(|row| (row.id.0.to_string(), row));
        let behind = rows.filter(|(key, row)| after.is_none_or(|it| it < (row.n, key.as_str())));
        Ok(behind.take(most).collect())
    }

    async fn holding(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Done<Vec<SessionId>, Self> {
        let rows = self.on(|_| true);
        let ids: BTreeSet<SessionId> = rows.iter().filter_map(|row| row.session).collect();
        let behind = ids.into_iter().filter(|id| Some(*id) > after);
        Ok(behind.take(most).collect())
    }

    async fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> Done<Vec<LockKey>, Self> {
        let keys = self.records.keys().map(|key| &key.0);
        let behind = keys.filter(|key| Some(*key) > after);
        let asked = behind.filter(|key| key.as_str().starts_with(prefix));
        Ok(asked.take(most).cloned().collect())
    }
}
