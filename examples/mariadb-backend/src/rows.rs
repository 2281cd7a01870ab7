//! The rows of a database, as the rules see them.

use std::time::Duration;

use lockcore::backend::judge::Place;
use lockcore::backend::rows::{
    At, Corrupt, Freed, HolderRow, Keyed, Now, Rows, SessionRow, Stored, Waits,
};
use lockcore::backend::{Acquire, Registered};
use lockcore::{Claim, FencingToken, Grant, LockKey, SessionId};
use sqlx::mysql::{MySql, MySqlPool, MySqlRow};
use sqlx::{QueryBuilder, Row as _, Transaction, query};

use crate::error::Outcome;
use crate::record::{self, Id, bytes, micros};

/// A transaction that has begun.
pub(crate) struct Begun {
    transaction: Transaction<'static, MySql>,
    now: Now,
    token: u64,
}

impl Begun {
    /// Begins one that only reads.
    pub(crate) async fn reading(pool: &MySqlPool) -> Outcome<Self> {
        Self::begin(
            pool,
            "SELECT CAST(0 AS UNSIGNED), CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)",
        )
        .await
    }

    /// Begins one that writes, when nobody else does: its time is not before the lock on the row of the tokens.
    pub(crate) async fn writing(pool: &MySqlPool) -> Outcome<Self> {
        Self::begin(
            pool,
            "SELECT last, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED) FROM lockkeeper_tokens
             WHERE version = 3 FOR UPDATE",
        )
        .await
    }

    async fn begin(pool: &MySqlPool, first: &'static str) -> Outcome<Self> {
        let mut transaction = pool.begin().await?;
        let row = query(first).fetch_optional(&mut *transaction).await?;
        let row = row.ok_or(Corrupt(
            "the counter of the tokens is gone, or of another version: connect again",
        ))?;
        let now = Duration::from_micros(row.try_get(1)?);
        Ok(Self {
            transaction,
            now: Now {
                lease: now,
                date: now,
            },
            token: row.try_get(0)?,
        })
    }

    pub(crate) async fn commit(self) -> sqlx::Result<()> {
        self.transaction.commit().await
    }

    /// Drops the rows of a grant whose place is so. Says how many there were.
    async fn drop_rows(
        &mut self,
        grant: Grant,
        claims: &[Claim],
        place: &'static str,
    ) -> Outcome<usize> {
        // A row that cannot be understood is not ours to drop, whatever session it names.
        let mut statement = QueryBuilder::new(
            "DELETE FROM lockkeeper_holders
             WHERE want IN ('create', 'upsert', 'share', 'write', 'read')
             AND (want IN ('write', 'read')) = (LEFT(name, 1) = '/') AND place ",
        );
        statement
            .push(place)
            .push(" AND session = ")
            .push_bind(bytes(grant.session))
            .push(" AND n = ")
            .push_bind(grant.n);
        statement.push(" AND name IN (");
        let mut names = statement.separated(", ");
        for claim in claims {
            names.push_bind(claim.key().as_str().as_bytes().to_vec());
        }
        let removed = statement
            .push(")")
            .build()
            .execute(&mut *self.transaction)
            .await?;
        Ok(usize::try_from(removed.rows_affected()).unwrap_or(usize::MAX))
    }
}

fn holders(rows: &[MySqlRow]) -> Outcome<Vec<HolderRow<Id>>> {
    Ok(rows.iter().map(record::holder).collect::<Result<_, _>>()?)
}

/// A number of rows, as a statement takes it.
fn count(most: usize) -> u64 {
    most.try_into().unwrap_or(u64::MAX)
}

/// The first bytes that come after all that begin so; `None` where there are none.
fn behind(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    // No byte of a text is the last one.
    *bytes.last_mut()? += 1;
    Some(bytes)
}

impl Rows for Begun {
    type Id = Id;
    type Failure = crate::error::Failure;

    fn now(&self) -> Now {
        self.now
    }

    fn id(key: &LockKey, grant: Grant) -> Id {
        Id {
            name: key.as_str().as_bytes().to_vec(),
            session: bytes(grant.session),
            n: grant.n,
        }
    }

    fn key(id: &Id) -> Option<LockKey> {
        LockKey::parse(std::str::from_utf8(&id.name).ok()?).ok()
    }

    /// Waiters poll.
    fn frees(&mut self, _: Freed<'_>) {}

    async fn next_token(&mut self) -> Outcome<FencingToken> {
        let next = self
            .token
            .checked_add(1)
            .map(|next| next.max(micros(self.now.date)));
        let token = next.and_then(FencingToken::new);
        let token = token.ok_or(Corrupt("the last token cannot be"))?;
        self.token = token.get();
        query("UPDATE lockkeeper_tokens SET last = ? WHERE version = 3")
            .bind(self.token)
            .execute(&mut *self.transaction)
            .await?;
        Ok(token)
    }

    async fn session(&mut self, id: SessionId) -> Outcome<Stored<SessionRow>> {
        let row = query("SELECT * FROM lockkeeper_sessions WHERE id = ?")
            .bind(bytes(id))
            .fetch_optional(&mut *self.transaction)
            .await?;
        Ok(row.as_ref().map_or(Stored::Absent, record::session))
    }

    async fn create_session(&mut self, id: SessionId, row: &SessionRow) -> Outcome<bool> {
        let used = query(
            "SELECT 1 FROM lockkeeper_sessions WHERE id = ? UNION ALL
             SELECT 1 FROM lockkeeper_intents WHERE session = ? UNION ALL
             (SELECT 1 FROM lockkeeper_holders WHERE session = ? LIMIT 1)",
        )
        .bind(bytes(id))
        .bind(bytes(id))
        .bind(bytes(id))
        .fetch_all(&mut *self.transaction)
        .await?;
        if used.is_empty() {
            self.put_session(id, row).await?;
        }
        Ok(used.is_empty())
    }

    async fn put_session(&mut self, id: SessionId, row: &SessionRow) -> Outcome<()> {
        query("REPLACE INTO lockkeeper_sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(bytes(id))
            .bind(row.label.as_str().as_bytes().to_vec())
            .bind(micros(row.ttl))
            .bind(micros(row.due))
            .bind(row.life.as_str())
            .bind(row.ended.map(micros))
            .bind(row.seq)
            .bind(row.retired.to_string())
            .bind(row.adoption)
            .bind(row.adopter.map(bytes))
            .bind(row.settled)
            .bind(row.notes.as_str())
            .execute(&mut *self.transaction)
            .await?;
        Ok(())
    }

    async fn intent(&mut self, id: SessionId) -> Outcome<Stored<Registered>> {
        let row = query("SELECT token, payload FROM lockkeeper_intents WHERE session = ?")
            .bind(bytes(id))
            .fetch_optional(&mut *self.transaction)
            .await?;
        Ok(row.as_ref().map_or(Stored::Absent, record::registered))
    }

    async fn put_intent(&mut self, id: SessionId, intent: Option<&Registered>) -> Outcome<()> {
        let statement = match intent {
            Some(put) => query("REPLACE INTO lockkeeper_intents VALUES (?, ?, ?)")
                .bind(bytes(id))
                .bind(put.token.get())
                .bind(put.intent.as_bytes().to_vec()),
            None => query("DELETE FROM lockkeeper_intents WHERE session = ?").bind(bytes(id)),
        };
        statement.execute(&mut *self.transaction).await?;
        Ok(())
    }

    async fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> Outcome<Vec<(SessionId, Stored<SessionRow>)>> {
        let rows = query("SELECT * FROM lockkeeper_sessions WHERE id > ? ORDER BY id LIMIT ?")
            .bind(after.map(bytes).unwrap_or_default())
            .bind(count(most))
            .fetch_all(&mut *self.transaction)
            .await?;
        let read = rows
            .iter()
            .filter_map(|row| Some((record::session_id(row, 0)?, record::session(row))));
        Ok(read.collect())
    }

    async fn due(&mut self) -> Outcome<Vec<SessionId>> {
        let rows = query("SELECT id FROM lockkeeper_sessions WHERE life = 'living' AND due <= ?")
            .bind(micros(self.now.lease))
            .fetch_all(&mut *self.transaction)
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| record::session_id(row, 0))
            .collect())
    }

    async fn forget(&mut self, before: Duration, most: usize) -> Outcome<usize> {
        let done = query(
            "DELETE FROM lockkeeper_sessions WHERE life = 'dead' AND ended < ?
             AND NOT EXISTS (SELECT 1 FROM lockkeeper_intents WHERE session = id)
             AND NOT EXISTS (SELECT 1 FROM lockkeeper_holders WHERE session = id) LIMIT ?",
        )
        .bind(micros(before))
        .bind(count(most))
        .execute(&mut *self.transaction)
        .await?;
        Ok(done.rows_affected().try_into().unwrap_or(most))
    }

    async fn holders(
        &mut self,
        at: At<'_>,
        after: Option<&Id>,
        most: usize,
    ) -> Outcome<Vec<HolderRow<Id>>> {
        let key = at.key.as_str();
        let (session, n) = after.map_or((Vec::new(), 0), |id| (id.session.clone(), id.n));
        let statement = if at.place == Place::Below {
            // '0' is the byte after '/': this is everything below and nothing else.
            let from = after.map_or_else(|| format!("{key}/").into_bytes(), |id| id.name.clone());
            query(
                "SELECT * FROM lockkeeper_holders WHERE name >= ? AND name < ?
                 AND (name > ? OR session > ? OR (session = ? AND n > ?)) AND want <> ?
                 ORDER BY name, session, n LIMIT ?",
            )
            .bind(from.clone())
            .bind(format!("{key}0").into_bytes())
            .bind(from)
        } else {
            query(
                "SELECT * FROM lockkeeper_holders WHERE name = ?
                 AND (session > ? OR (session = ? AND n > ?)) AND want <> ?
                 ORDER BY session, n LIMIT ?",
            )
            .bind(key.as_bytes().to_vec())
        };
        let rows = statement
            .bind(session.clone())
            .bind(session)
            .bind(n)
            .bind(record::shared_name(at.but))
            .bind(count(most))
            .fetch_all(&mut *self.transaction)
            .await?;
        holders(&rows)
    }

    async fn holder(&mut self, id: &Id) -> Outcome<Option<HolderRow<Id>>> {
        let row =
            query("SELECT * FROM lockkeeper_holders WHERE name = ? AND session = ? AND n = ?")
                .bind(id.name.clone())
                .bind(id.session.clone())
                .bind(id.n)
                .fetch_optional(&mut *self.transaction)
                .await?;
        Ok(row.as_ref().map(record::holder).transpose()?)
    }

    async fn hold(&mut self, request: &Acquire, waits: Option<Waits>) -> Outcome<()> {
        let (grant, m, since) = (request.grant, request.owner.m, micros(self.now.date));
        let mut statement = QueryBuilder::new("REPLACE INTO lockkeeper_holders ");
        statement.push_values(&request.claims, |mut row, claim| {
            row.push_bind(claim.key().as_str().as_bytes().to_vec())
                .push_bind(bytes(grant.session))
                .push_bind(grant.n)
                .push_bind(m)
                .push_bind(record::want_name(claim.want()))
                .push_bind(since)
                .push_bind(waits.map(|waits| waits.place))
                .push_bind(waits.map(|waits| waits.passed));
        });
        statement.build().execute(&mut *self.transaction).await?;
        Ok(())
    }

    async fn release(&mut self, grant: Grant, claims: &[Claim]) -> Outcome<usize> {
        let held = self.drop_rows(grant, claims, "IS NULL").await?;
        if held < claims.len() {
            self.drop_rows(grant, claims, "IS NOT NULL").await?;
        }
        Ok(held)
    }

    async fn remove(&mut self, ids: &[Id]) -> Outcome<()> {
        for id in ids {
            query("DELETE FROM lockkeeper_holders WHERE name = ? AND session = ? AND n = ?")
                .bind(id.name.clone())
                .bind(id.session.clone())
                .bind(id.n)
                .execute(&mut *self.transaction)
                .await?;
        }
        Ok(())
    }

    async fn of_session(
        &mut self,
        id: SessionId,
        (from, to): (u64, u64),
        after: Option<(u64, &str)>,
        most: usize,
    ) -> Outcome<Vec<Keyed<Id>>> {
        let (n, name) = after.unwrap_or((from, ""));
        let rows = query(
            "SELECT * FROM lockkeeper_holders WHERE session = ? AND n >= ? AND n <= ? AND (n > ? OR name > ?)
             ORDER BY n, name LIMIT ?",
        )
        .bind(bytes(id))
        .bind(n)
        .bind(to)
        .bind(n)
        .bind(name.as_bytes().to_vec())
        .bind(count(most))
        .fetch_all(&mut *self.transaction)
        .await?;
        let rows = holders(&rows)?.into_iter();
        Ok(rows
            .map(|row| (String::from_utf8_lossy(&row.id.name).into_owned(), row))
            .collect())
    }

    async fn holding(&mut self, after: Option<SessionId>, most: usize) -> Outcome<Vec<SessionId>> {
        let rows = query(
            "SELECT DISTINCT session FROM lockkeeper_holders WHERE session > ? ORDER BY session LIMIT ?",
        )
        .bind(after.map(bytes).unwrap_or_default())
        .bind(count(most))
        .fetch_all(&mut *self.transaction)
        .await?;
        Ok(rows
            .iter()
            .filter_map(|row| record::session_id(row, 0))
            .collect())
    }

    async fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> Outcome<Vec<LockKey>> {
        let mut keys = Vec::new();
        let mut last = after
            .map(|key| key.as_str().as_bytes().to_vec())
            .unwrap_or_default();
        // A name that is no key is passed over.
        while keys.len() < most {
            let mut statement =
                QueryBuilder::new("SELECT DISTINCT name FROM lockkeeper_holders WHERE name >= ");
            statement
                .push_bind(prefix.as_bytes().to_vec())
                .push(" AND name > ")
                .push_bind(last);
            if let Some(end) = behind(prefix) {
                statement.push(" AND name < ").push_bind(end);
            }
            statement
                .push(" ORDER BY name LIMIT ")
                .push_bind(count(most - keys.len()));
            let rows = statement.build().fetch_all(&mut *self.transaction).await?;
            let names: Vec<Vec<u8>> = rows
                .iter()
                .map(|row| row.try_get(0))
                .collect::<Result<_, _>>()?;
            let Some(end) = names.last() else { break };
            last = end.clone();
            keys.extend(
                names
                    .iter()
                    .filter_map(|name| LockKey::parse(std::str::from_utf8(name).ok()?).ok()),
            );
        }
        Ok(keys)
    }
}
