//! The rows of a file, as the rules see them.

use std::time::Duration;

use lockcore::backend::judge::Place;
use lockcore::backend::rows::{
    At, Corrupt, Freed, HolderRow, Now, Rows, SessionRow, Stored, Waits,
};
use lockcore::backend::{Acquire, Registered};
use lockcore::{Claim, FencingToken, Grant, LockKey, SessionId};
use rusqlite::params;

use crate::error::{Failure, Outcome};
use crate::record::{self, Row, count, millis};
use crate::sql;
use crate::transaction::Transaction;

impl Rows for Transaction<'_> {
    type Id = Row;
    type Failure = Failure;

    fn now(&self) -> Now {
        self.now
    }

    fn id(key: &LockKey, grant: Grant) -> Row {
        Row {
            key: key.as_str().to_owned(),
            session: grant.session.get().to_be_bytes().to_vec(),
            n: grant.n.cast_signed(),
        }
    }

    fn key(row: &Row) -> Option<LockKey> {
        LockKey::parse(&row.key).ok()
    }

    fn frees(&mut self, freed: Freed<'_>) {
        match freed {
            Freed::Claims(claims) => {
                let keys = claims.iter().map(|claim| claim.key().clone());
                self.freed.keys.extend(keys);
            }
            Freed::Key(key) => self.freed.keys.push(key.clone()),
            Freed::Any => self.freed.any = true,
        }
    }

    async fn next_token(&mut self) -> Outcome<FencingToken> {
        let last = self.first(sql::TOKEN_LOAD, [], |row| row.get::<_, i64>(0))?;
        let least = i64::try_from(self.now.date.as_micros()).unwrap_or(i64::MAX);
        let next = last.and_then(|last| Some(last.checked_add(1)?.max(least)));
        if let Some(next) = next {
            self.execute(sql::TOKEN_STORE, [next])?;
        }
        next.and_then(|last| u64::try_from(last).ok())
            .and_then(FencingToken::new)
            .ok_or_else(|| Corrupt("the counter of the tokens is gone or broken").into())
    }

    async fn session(&mut self, id: SessionId) -> Outcome<Stored<SessionRow>> {
        let at = self.moment();
        let stored = self.first(sql::SESSION_LOAD, [id.get().to_be_bytes()], |row| {
            record::session(row, at)
        })?;
        Ok(stored.unwrap_or(Stored::Absent))
    }

    async fn create_session(&mut self, id: SessionId, row: &SessionRow) -> Outcome<bool> {
        let write = |values: &[&dyn rusqlite::ToSql]| self.execute(sql::SESSION_CREATE, values);
        Ok(record::with_session(id, row, self.moment(), write)? == 1)
    }

    async fn put_session(&mut self, id: SessionId, row: &SessionRow) -> Outcome<()> {
        let write = |values: &[&dyn rusqlite::ToSql]| self.execute(sql::SESSION_PUT, values);
        record::with_session(id, row, self.moment(), write)?;
        Ok(())
    }

    async fn intent(&mut self, id: SessionId) -> Outcome<Stored<Registered>> {
        let values = [id.get().to_be_bytes()];
        let stored = self.first(sql::INTENT_LOAD, values, record::registered)?;
        Ok(stored.unwrap_or(Stored::Absent))
    }

    async fn put_intent(&mut self, id: SessionId, intent: Option<&Registered>) -> Outcome<()> {
        let id = id.get().to_be_bytes();
        match intent {
            Some(put) => {
                let token = put.token.get().cast_signed();
                self.execute(sql::INTENT_PUT, params![id, token, put.intent.as_bytes()])?
            }
            None => self.execute(sql::INTENT_DROP, [id])?,
        };
        Ok(())
    }

    async fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Outcome<Vec<(SessionId, Stored<SessionRow>)>> {
        let after = after.map_or(Vec::new(), |id| id.get().to_be_bytes().to_vec());
        let at = self.moment();
        let read = self.all(sql::SESSIONS_PAGE, params![after, count(most)], |row| {
            let id = record::session_id(row.get_ref(12)?);
            Ok(id.zip(Some(record::session(row, at)?)))
        })?;
        Ok(read.into_iter().flatten().collect())
    }

    async fn due(&mut self) -> Outcome<Vec<SessionId>> {
        let values = params![
            millis(self.now.lease),
            self.clock.boot(),
            millis(self.now.date)
        ];
        let ids = self.all(sql::SESSIONS_DUE, values, |row| {
            Ok(record::session_id(row.get_ref(0)?))
        })?;
        Ok(ids.into_iter().flatten().collect())
    }

    async fn forget(&mut self, before: Duration, most: usize) -> Outcome<usize> {
        self.execute(sql::SESSIONS_FORGET, params![millis(before), count(most)])
    }

    async fn holders(
        &mut self,
        at: At<'_>,
        after: Option<&Row>,
        most: usize,
    ) -> Outcome<Vec<HolderRow<Row>>> {
        let key = at.key.as_str();
        let (session, n) = after.map_or((&[][..], i64::MIN), |row| (&row.session[..], row.n));
        let but = at.but.and_then(record::shared_name);
        let most = count(most);
        if at.place != Place::Below {
            let values = params![key, session, n, but, most];
            return self.all(sql::HOLDERS_ON_KEY, values, record::holder);
        }
        // '0' is the byte after '/': this is everything below and nothing else.
        let from = after.map_or_else(|| format!("{key}/"), |row| row.key.clone());
        let values = params![from, session, n, but, format!("{key}0"), most];
        self.all(sql::HOLDERS_BELOW, values, record::holder)
    }

    async fn holder(&mut self, id: &Row) -> Outcome<Option<HolderRow<Row>>> {
        let values = params![id.key, id.session, id.n];
        self.first(sql::HOLDER_ROW, values, record::holder)
    }

    async fn hold(&mut self, request: &Acquire, waits: Option<Waits>) -> Outcome<()> {
        let session = request.grant.session.get().to_be_bytes();
        let (n, m) = (request.grant.n.cast_signed(), request.owner.m.cast_signed());
        let since = millis(self.now.date);
        let place = waits.map(|waits| waits.place.cast_signed());
        let passed = waits.map(|waits| waits.passed);
        for claim in &request.claims {
            let (key, want) = (claim.key().as_str(), record::want_name(claim.want()));
            let values = params![key, session, n, m, want, since, place, passed];
            self.execute(sql::HOLDER_PUT, values)?;
        }
        Ok(())
    }

    async fn release(&mut self, grant: Grant, claims: &[Claim]) -> Outcome<usize> {
        let (session, n) = (grant.session.get().to_be_bytes(), grant.n.cast_signed());
        let mut removed = 0;
        for claim in claims {
            let values = params![claim.key().as_str(), session, n];
            let row = self.first(sql::HOLDER_ROW, values, record::holder)?;
            // A row that cannot be understood is not ours to drop, whatever session it names.
            if let Some(held) = row.and_then(|row| row.held.ok()) {
                let dropped = self.execute(sql::HOLDER_DROP, values)?;
                removed += dropped * usize::from(held.waits.is_none());
            }
        }
        Ok(removed)
    }

    async fn remove(&mut self, ids: &[Row]) -> Outcome<()> {
        for id in ids {
            self.execute(sql::HOLDER_DROP, params![id.key, id.session, id.n])?;
        }
        Ok(())
    }

    async fn of_session(
        &mut self,
        id: SessionId,
        (from, to): (u64, u64),
        after: Option<(u64, &str)>,
        most: usize,
    ) -> Outcome<Vec<(String, HolderRow<Row>)>> {
        // Unsigned numbers are stored by their bits: those of both signs are all.
        let all = from <= i64::MAX.cast_unsigned() && to > i64::MAX.cast_unsigned();
        let (from, to) = match all {
            true => (i64::MIN, i64::MAX),
            false => (from.cast_signed(), to.cast_signed()),
        };
        let (n, key) = after.map_or((from, ""), |(n, key)| (n.cast_signed(), key));
        let values = params![id.get().to_be_bytes(), n, to, n, key, count(most)];
        self.all(sql::HOLDERS_OF_SESSION, values, |row| {
            let row = record::holder(row)?;
            Ok((row.id.key.clone(), row))
        })
    }

    async fn holding(&mut self, after: Option<SessionId>, most: usize) -> Outcome<Vec<SessionId>> {
        let mut ids = Vec::new();
        let mut last = after.map_or(Vec::new(), |id| id.get().to_be_bytes().to_vec());
        while ids.len() < most {
            let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
            let Some(next) = self.first(sql::NEXT_SESSION_OF_HOLDERS, [&last], read)? else {
                break;
            };
            ids.extend(record::session_of(&next));
            last = next;
        }
        Ok(ids)
    }

    async fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> Outcome<Vec<LockKey>> {
        let mut keys = Vec::new();
        // In order of bytes all keys with one prefix stand together.
        let behind = after.map(LockKey::as_str).filter(|after| *after >= prefix);
        let read = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let mut next = match behind {
            Some(after) => self.first(sql::NEXT_KEY, [after], read)?,
            None => self.first(sql::FIRST_KEY, [prefix], read)?,
        };
        while let Some(key) = next.filter(|key| key.starts_with(prefix)) {
            keys.extend(LockKey::parse(&key));
            if keys.len() == most {
                break;
            }
            next = self.first(sql::NEXT_KEY, [&key], read)?;
        }
        Ok(keys)
    }
}
