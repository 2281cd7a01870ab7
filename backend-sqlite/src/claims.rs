//! `ClaimStore`: one transaction for each operation.

use async_trait::async_trait;
use lockcore::limits::{MAX_LISTED, TOMBSTONE_KEPT};
use lockcore::{
    Acquire, Acquired, Busy, Claim, ClaimStore, Grant, Life, LockKey, Operation, Refused, Result,
    SessionId, Sweep, Swept,
};
use rusqlite::{Row, params};

use crate::SqliteBackend;
use crate::clock::unix_us;
use crate::error::Outcome;
use crate::obstacles::{Asker, Found, Look};
use crate::record::{Entry, session_id, want_name};
use crate::sessions::unreadable;
use crate::sql;
use crate::thread::Worker;
use crate::transaction::{Met, Standing, Transaction};

/// So many rows are removed in one transaction at most, so that other processes do not wait for long.
const SWEPT_AT_ONCE: usize = 2_000;

#[async_trait]
impl ClaimStore for SqliteBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let request = request.clone();
        self.call(Operation::Acquire, move |worker| acquire(worker, &request))
            .await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        let keys: Vec<LockKey> = claims.iter().map(|claim| claim.key().clone()).collect();
        self.call(Operation::Release, move |worker| {
            worker
                .file
                .write(false, |transaction| release(transaction, grant, &keys))?;
            worker.watchers.released(grant, &keys);
            Ok(())
        })
        .await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let claims = claims.to_vec();
        self.call(Operation::Confirm, move |worker| {
            worker
                .file
                .write(false, |transaction| confirm(transaction, grant, &claims))
        })
        .await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let limit = limit.clamp(1, SWEPT_AT_ONCE);
        self.call(Operation::Sweep, move |worker| {
            worker
                .file
                .write(false, |transaction| sweep(transaction, which, limit))
        })
        .await
    }
}

fn acquire(worker: &mut Worker, request: &Acquire) -> Outcome<Acquired> {
    worker.file.write(false, |transaction| {
        if !may_acquire(transaction, request.grant)? {
            return Ok(Acquired::Void);
        }
        let asker = Asker {
            grant: request.grant,
            owner: request.owner,
        };
        let mut look = Look::by(transaction, asker);
        let mut refused = Vec::new();
        let mut more = false;
        for claim in &request.claims {
            let found = look.at(claim)?;
            if found.obstacles.is_empty() {
                continue;
            }
            if refused.len() == MAX_LISTED {
                more = true;
                break;
            }
            refused.push(refusal(transaction, claim, &found)?);
        }
        if !refused.is_empty() {
            return Ok(Acquired::Busy(Busy::new(refused, more)));
        }
        for entry in look.gone {
            drop_row(transaction, &entry)?;
        }
        let session = request.grant.session.get().to_be_bytes();
        let (n, m) = (request.grant.n.cast_signed(), request.owner.m.cast_signed());
        let since_ms = unix_us() / 1_000;
        for claim in &request.claims {
            let (key, want) = (claim.key().as_str(), want_name(claim.want()));
            transaction.execute(sql::HOLDER_PUT, params![key, session, n, m, want, since_ms])?;
        }
        Ok(Acquired::Acquired(transaction.draw_token()?))
    })
}

/// Whether the session lives and the number is not over.
fn may_acquire(transaction: &Transaction<'_>, grant: Grant) -> Outcome<bool> {
    match &*transaction.meet(grant.session)? {
        Met::Session(session) => {
            Ok(session.life == Life::Living && !session.over.contains(grant.n))
        }
        Met::Absent => Ok(false),
        Met::Unreadable => Err(unreadable()),
    }
}

fn refusal(transaction: &Transaction<'_>, claim: &Claim, found: &Found) -> Outcome<Refused> {
    let holders = found.obstacles.iter();
    Ok(Refused {
        claim: claim.clone(),
        holders: holders
            .map(|obstacle| obstacle.holder(transaction))
            .collect::<Outcome<_>>()?,
        more: found.more,
    })
}

/// Removes the holders of the grant.
fn release(transaction: &Transaction<'_>, grant: Grant, keys: &[LockKey]) -> Outcome<()> {
    let session = grant.session.get().to_be_bytes();
    let n = grant.n.cast_signed();
    for key in keys {
        let values = params![key.as_str(), session, n];
        let entry = transaction.first(sql::HOLDER_ROW, values, Entry::read)?;
        // A row that cannot be understood is not ours to drop, whatever session it names.
        if let Some(entry) = entry.filter(|entry| entry.known.is_some()) {
            drop_row(transaction, &entry)?;
        }
    }
    Ok(())
}

fn confirm(transaction: &Transaction<'_>, grant: Grant, claims: &[Claim]) -> Outcome<bool> {
    if !may_acquire(transaction, grant)? {
        return Ok(false);
    }
    let session = grant.session.get().to_be_bytes();
    let n = grant.n.cast_signed();
    for claim in claims {
        let values = params![claim.key().as_str(), session, n];
        let row = transaction.first(sql::HOLDER_ROW, values, Entry::read)?;
        if row.is_none_or(|row| row.known.is_none() || row.want != want_name(claim.want())) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn drop_row(transaction: &Transaction<'_>, entry: &Entry) -> Outcome<()> {
    let place = &entry.place;
    let values = params![place.key, place.session, place.n];
    transaction.execute(sql::HOLDER_DROP, values)?;
    Ok(())
}

fn sweep(transaction: &Transaction<'_>, which: Sweep, limit: usize) -> Outcome<Swept> {
    let mut removed = 0;
    match which {
        Sweep::Session(id) => removed += sweep_session(transaction, id, limit)?,
        Sweep::All => {
            end_what_is_due(transaction)?;
            let mut after: Vec<u8> = Vec::new();
            while removed < limit {
                let next = transaction.first(sql::NEXT_SESSION_OF_HOLDERS, [&after], |row| {
                    row.get::<_, Vec<u8>>(0)
                })?;
                let Some(session) = next else { break };
                if let Some(id) = session_id(rusqlite::types::ValueRef::Blob(&session)) {
                    removed += sweep_session(transaction, id, limit - removed)?;
                }
                after = session;
            }
            if removed < limit {
                removed += forget_tombstones(transaction, limit - removed)?;
            }
        }
    }
    if removed > 0 {
        transaction.frees();
    }
    Ok(Swept {
        removed,
        more: removed >= limit,
    })
}

/// Removes rows of the session that do not count; those that cannot be understood stay.
fn sweep_session(transaction: &Transaction<'_>, id: SessionId, limit: usize) -> Outcome<usize> {
    let ranges = match &*transaction.meet(id)? {
        Met::Session(session) if !session.life.counts() => vec![(i64::MIN, i64::MAX)],
        Met::Session(session) => {
            let over = session.over.as_slice().iter();
            over.map(|(from, to)| (from.cast_signed(), to.cast_signed()))
                .collect()
        }
        Met::Absent | Met::Unreadable => Vec::new(),
    };
    let mut gone = Vec::new();
    for (from, to) in ranges {
        if gone.len() == limit {
            break;
        }
        let values = params![id.get().to_be_bytes(), from, to];
        transaction.each(sql::HOLDERS_OF_SESSION, values, Entry::read, |entry| {
            if transaction.standing(&entry)? == Standing::Gone {
                gone.push(entry);
            }
            Ok(gone.len() < limit)
        })?;
    }
    for entry in &gone {
        drop_row(transaction, entry)?;
    }
    Ok(gone.len())
}

fn end_what_is_due(transaction: &Transaction<'_>) -> Outcome<()> {
    for id in ids(transaction, sql::SESSIONS_LIVING, [])? {
        transaction.meet(id)?;
    }
    Ok(())
}

/// Forgets sessions that died long ago and left nothing.
fn forget_tombstones(transaction: &Transaction<'_>, limit: usize) -> Outcome<usize> {
    let kept_ms = i64::try_from(TOMBSTONE_KEPT.as_millis()).unwrap_or(i64::MAX);
    let before_ms = (unix_us() / 1_000).saturating_sub(kept_ms);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let forgotten = ids(
        transaction,
        sql::SESSIONS_FORGETTABLE,
        params![before_ms, limit],
    )?;
    for id in &forgotten {
        transaction.execute(sql::SESSION_FORGET, [id.get().to_be_bytes()])?;
    }
    Ok(forgotten.len())
}

fn ids(
    transaction: &Transaction<'_>,
    statement: &str,
    values: impl rusqlite::Params,
) -> Outcome<Vec<SessionId>> {
    let mut ids = Vec::new();
    let read = |row: &Row<'_>| Ok(session_id(row.get_ref(0)?));
    transaction.each(statement, values, read, |id| {
        ids.extend(id);
        Ok(true)
    })?;
    Ok(ids)
}
