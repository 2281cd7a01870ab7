//! `SessionStore`: one transaction for each operation.

use std::time::Duration;

use async_trait::async_trait;
use lockcore::{
    Adopt, Adoption, End, IntentChange, Label, Life, Opened, Operation, Ranges, Renewal, Renewed,
    Result, SessionId, SessionState, SessionStore,
};

use crate::SqliteBackend;
use crate::clock::unix_us;
use crate::error::{Failure, Outcome};
use crate::record::{Session, registered, unreadable_state};
use crate::sql;
use crate::transaction::{Met, Transaction};

#[async_trait]
impl SessionStore for SqliteBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let label = label.clone();
        self.call(Operation::Open, move |worker| {
            let opened = worker
                .file
                .write(false, |transaction| open(transaction, session, label, ttl))?;
            Ok(opened)
        })
        .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let renewal = renewal.clone();
        self.call(Operation::Renew, move |worker| {
            let durable = renewal.intent != IntentChange::Keep;
            worker
                .file
                .write(durable, |transaction| renew(transaction, session, &renewal))
        })
        .await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let sessions = sessions.to_vec();
        self.call(Operation::End, move |worker| {
            let states = worker.file.write(how == End::Discard, |transaction| {
                let states = sessions.iter().map(|id| end(transaction, *id, how));
                states.collect::<Outcome<Vec<_>>>()
            })?;
            Ok(states)
        })
        .await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        self.call(Operation::Adopt, move |worker| {
            worker.file.write(false, |transaction| match how {
                Adopt::Take => take(transaction, session, seen, adopter),
                Adopt::GiveUp => give_up(transaction, session, seen, adopter).map(|()| None),
            })
        })
        .await
    }

    async fn settle(&self, session: SessionId, adoption: u64) -> Result<bool> {
        self.call(Operation::Settle, move |worker| {
            worker
                .file
                .write(true, |transaction| settle(transaction, session, adoption))
        })
        .await
    }
}

fn open(
    transaction: &Transaction<'_>,
    id: SessionId,
    label: Label,
    ttl: Duration,
) -> Outcome<Opened> {
    let key = [id.get().to_be_bytes()];
    if transaction.first(sql::SESSION_LEFT_SOMETHING, key, |row| row.get(0))? != Some(false) {
        return Ok(Opened::Used);
    }
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let (boot, expires_ms) = transaction.lease(ttl_ms);
    let session = Session {
        label,
        ttl_ms,
        boot,
        expires_ms,
        life: Life::Living,
        ended_ms: None,
        seq: 0,
        over: Ranges::EMPTY,
        adoption: 0,
        adopter: None,
        settled: None,
    };
    let inserted = session.write(id, |values| {
        transaction.execute(sql::SESSION_INSERT, values)
    })?;
    Ok(if inserted == 1 {
        Opened::Opened
    } else {
        Opened::Used
    })
}

fn renew(transaction: &Transaction<'_>, id: SessionId, renewal: &Renewal) -> Outcome<Renewed> {
    let mut session = match transaction.load(id)? {
        Met::Session(session) => session,
        Met::Absent => return Ok(Renewed::Dead),
        Met::Unreadable => return Err(unreadable()),
    };
    if session.life != Life::Living {
        return Ok(Renewed::Dead);
    }
    if renewal.seq <= session.seq {
        return Ok(Renewed::Overtaken);
    }
    let key = id.get().to_be_bytes();
    match &renewal.intent {
        IntentChange::Keep => {}
        IntentChange::Put(put) => {
            let token = put.token.get().cast_signed();
            let values = rusqlite::params![key, token, put.intent.as_bytes()];
            transaction.execute(sql::INTENT_PUT, values)?;
        }
        IntentChange::Drop => {
            transaction.execute(sql::INTENT_DROP, [key])?;
        }
    }
    if session.over != renewal.over {
        session.over = renewal.over.clone();
        transaction.frees();
    }
    session.seq = renewal.seq;
    (session.boot, session.expires_ms) = transaction.lease(session.ttl_ms);
    transaction.store(id, &session)?;
    Ok(Renewed::Living)
}

fn end(transaction: &Transaction<'_>, id: SessionId, how: End) -> Outcome<SessionState> {
    // A record that is absent becomes a tombstone here, whatever was asked.
    let met = match how {
        End::IfDue => transaction.meet(id)?,
        _ => match transaction.load(id)? {
            Met::Absent => transaction.meet(id)?,
            met => met.into(),
        },
    };
    let session = match &*met {
        Met::Session(session) => session,
        Met::Absent => return Ok(Session::tombstone(0).state(id)),
        Met::Unreadable => return Ok(unreadable_state(id)),
    };
    let ended = match (how, session.life) {
        (End::Close | End::Revoke, Life::Living) => transaction.die(id, session.clone())?,
        (End::Discard, Life::Abandoned) => {
            let mut session = session.clone();
            session.adoption = session.adoption.saturating_add(1);
            session.adopter = None;
            finish(transaction, id, session)?
        }
        _ => return Ok(session.state(id)),
    };
    Ok(ended.state(id))
}

/// The end of an abandoned session: its intent is gone and its locks are free.
fn finish(transaction: &Transaction<'_>, id: SessionId, mut session: Session) -> Outcome<Session> {
    transaction.execute(sql::INTENT_DROP, [id.get().to_be_bytes()])?;
    session.life = Life::Dead;
    session.ended_ms = Some(unix_us() / 1_000);
    transaction.store(id, &session)?;
    transaction.frees();
    Ok(session)
}

fn take(
    transaction: &Transaction<'_>,
    id: SessionId,
    seen: u64,
    adopter: SessionId,
) -> Outcome<Option<Adoption>> {
    let mut session = match transaction.load(id)? {
        Met::Session(session) if session.life == Life::Abandoned => session,
        Met::Session(_) | Met::Absent => return Ok(None),
        Met::Unreadable => return Err(unreadable()),
    };
    let number = seen.saturating_add(1);
    if session.adoption == seen {
        session.adoption = number;
        session.adopter = Some(adopter);
        transaction.store(id, &session)?;
    } else if session.adoption != number || session.adopter != Some(adopter) {
        return Ok(None);
    }
    let left = transaction
        .first(sql::INTENT_LOAD, [id.get().to_be_bytes()], registered)?
        .flatten()
        .ok_or_else(|| Failure::corrupt("the intent of an abandoned session is gone or broken"))?;
    Ok(Some(Adoption {
        number,
        token: transaction.draw_token()?,
        left,
    }))
}

/// Also of a session that is not abandoned yet: an adoption that is under way may reach it later.
fn give_up(
    transaction: &Transaction<'_>,
    id: SessionId,
    seen: u64,
    adopter: SessionId,
) -> Outcome<()> {
    let met = transaction.meet(id)?;
    let mut session = match &*met {
        Met::Session(session) => session.clone(),
        Met::Absent => return Ok(()),
        Met::Unreadable => return Err(unreadable()),
    };
    let mine = session.adoption == seen.saturating_add(1) && session.adopter == Some(adopter);
    if session.adoption == seen || mine {
        session.adoption = session.adoption.saturating_add(1);
        session.adopter = None;
        transaction.store(id, &session)?;
    }
    Ok(())
}

fn settle(transaction: &Transaction<'_>, id: SessionId, adoption: u64) -> Outcome<bool> {
    let mut session = match transaction.load(id)? {
        Met::Session(session) => session,
        Met::Absent => return Ok(false),
        Met::Unreadable => return Err(unreadable()),
    };
    match session.life {
        Life::Living => Ok(false),
        Life::Dead => Ok(session.settled == Some(adoption)),
        Life::Abandoned => {
            let mine = session.adoption == adoption && session.adopter.is_some();
            if mine {
                session.settled = Some(adoption);
                finish(transaction, id, session)?;
            }
            Ok(mine)
        }
    }
}

pub(crate) fn unreadable() -> Failure {
    Failure::corrupt("the session's record cannot be understood")
}

#[cfg(test)]
mod tests {
    use lockcore::{FencingToken, Intent, Registered};

    use super::*;
    use crate::{SqliteConfig, Synchronous};

    const NORMAL: i64 = 1;
    const FULL: i64 = 2;

    async fn last(backend: &SqliteBackend) -> i64 {
        let ask = backend.call(Operation::Inspect, |worker| Ok(worker.file.synchronous()));
        ask.await.unwrap()
    }

    /// What the commits of each operation waited for.
    async fn commits(synchronous: Synchronous) -> Vec<i64> {
        let directory = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(directory.path().join("locks.db")).synchronous(synchronous);
        let backend = SqliteBackend::connect(config).await.unwrap();
        let (one, two) = (SessionId::new(1), SessionId::new(2));
        let put = IntentChange::Put(Registered {
            token: FencingToken::new(1).unwrap(),
            intent: Intent::new("x").unwrap(),
        });
        let mut seen = Vec::new();
        for id in [one, two] {
            let label = Label::parse("").unwrap();
            backend
                .open(id, &label, Duration::from_secs(30))
                .await
                .unwrap();
        }
        seen.push(last(&backend).await);
        let changes = [IntentChange::Keep, put.clone(), IntentChange::Drop, put];
        for (seq, intent) in (1..).zip(changes) {
            let over = Ranges::EMPTY;
            let renewal = Renewal { seq, over, intent };
            for id in [one, two] {
                backend.renew(id, &renewal).await.unwrap();
            }
            seen.push(last(&backend).await);
        }
        backend.end(&[one, two], End::Close).await.unwrap();
        seen.push(last(&backend).await);
        backend.end(&[two], End::Discard).await.unwrap();
        seen.push(last(&backend).await);
        backend.adopt(one, 0, two, Adopt::Take).await.unwrap();
        seen.push(last(&backend).await);
        assert!(backend.settle(one, 1).await.unwrap());
        seen.push(last(&backend).await);
        seen
    }

    #[tokio::test]
    async fn what_is_said_about_an_intent_waits_for_the_disk() {
        assert_eq!(
            commits(Synchronous::Normal).await,
            // open, keep, put, drop, put, close, discard, adopt, settle
            [NORMAL, NORMAL, FULL, FULL, FULL, NORMAL, FULL, NORMAL, FULL]
        );
        assert_eq!(commits(Synchronous::Full).await, [FULL; 9]);
    }
}
