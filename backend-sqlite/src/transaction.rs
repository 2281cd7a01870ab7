//! What is done inside one transaction: statements, the sessions that it meets, tokens.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use lockcore::{FencingToken, Life, SessionId};
use rusqlite::{Connection, OptionalExtension as _, Params, Row, ToSql};

use crate::clock::{Clock, unix_us};
use crate::error::{Failure, Outcome};
use crate::record::{Entry, Session, UNREADABLE_SESSION};
use crate::sql;

/// Whether a transaction may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A transaction that has begun.
pub(crate) struct Transaction<'a> {
    conn: &'a Connection,
    clock: &'a Clock,
    access: Access,
    /// Milliseconds since boot, once for all.
    now_ms: i64,
    met: RefCell<HashMap<SessionId, Rc<Met>>>,
    freed: Cell<bool>,
}

/// A session, as a transaction met it.
#[derive(Debug)]
pub(crate) enum Met {
    /// Its record; in a transaction that writes, one that was due has died and one that was absent is a tombstone.
    Session(Session),
    /// There is none, and this transaction only reads.
    Absent,
    /// A record that cannot be understood: never dead, and it frees nothing.
    Unreadable,
}

/// What a holder is to everybody but its owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It counts.
    Counts,
    /// It cannot be judged, so it stays; with what can be said of it.
    Foreign(String),
    /// It does not count, and never will again.
    Gone,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(conn: &'a Connection, clock: &'a Clock, access: Access) -> Self {
        Self {
            conn,
            clock,
            access,
            now_ms: clock.now_ms(),
            met: RefCell::default(),
            freed: Cell::new(false),
        }
    }

    pub(crate) fn execute(&self, statement: &str, values: impl Params) -> Outcome<usize> {
        Ok(self.conn.prepare_cached(statement)?.execute(values)?)
    }

    /// The first row, if there is one.
    pub(crate) fn first<T>(
        &self,
        statement: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Outcome<Option<T>> {
        let mut statement = self.conn.prepare_cached(statement)?;
        Ok(statement.query_row(values, read).optional()?)
    }

    /// Every row, until `each` says that it is enough.
    pub(crate) fn each<T>(
        &self,
        statement: &str,
        values: impl Params,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut each: impl FnMut(T) -> Outcome<bool>,
    ) -> Outcome<()> {
        let mut statement = self.conn.prepare_cached(statement)?;
        let mut rows = statement.query(values)?;
        while let Some(row) = rows.next()? {
            if !each(read(row)?)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether this transaction may have freed somebody's claim.
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.get()
    }

    pub(crate) fn frees(&self) {
        self.freed.set(true);
    }

    /// When a lease of that length ends that begins now.
    pub(crate) fn lease(&self, ttl_ms: i64) -> (String, i64) {
        let expires = self.now_ms.saturating_add(ttl_ms);
        (self.clock.boot().to_owned(), expires)
    }

    /// Whether a living session may be made dead by anybody: its time is up, or it is of another boot, of which no
    /// process is left.
    pub(crate) fn is_due(&self, session: &Session) -> bool {
        session.life == Life::Living
            && (session.expires_ms <= self.now_ms || session.boot != self.clock.boot())
    }

    /// The session, made dead first if it is due, or given a tombstone if there is no record of it.
    pub(crate) fn meet(&self, id: SessionId) -> Outcome<Rc<Met>> {
        if let Some(met) = self.met.borrow().get(&id) {
            return Ok(met.clone());
        }
        let met = match self.load(id)? {
            Met::Session(session) if self.access == Access::Write && self.is_due(&session) => {
                Met::Session(self.die(id, session)?)
            }
            Met::Absent if self.access == Access::Write => {
                let tombstone = Session::tombstone(unix_us() / 1_000);
                tombstone.write(id, |values| self.execute(sql::SESSION_INSERT, values))?;
                Met::Session(tombstone)
            }
            met => met,
        };
        let met = Rc::new(met);
        self.met.borrow_mut().insert(id, met.clone());
        Ok(met)
    }

    /// The session's record as it stands; whether it is due is not looked at.
    pub(crate) fn load(&self, id: SessionId) -> Outcome<Met> {
        let stored = self.first(sql::SESSION_LOAD, [id.get().to_be_bytes()], Session::read)?;
        Ok(match stored {
            None => Met::Absent,
            Some(None) => Met::Unreadable,
            Some(Some(session)) => Met::Session(session),
        })
    }

    /// Writes the session's record.
    pub(crate) fn store(&self, id: SessionId, session: &Session) -> Outcome<()> {
        session.write(id, |values: &[&dyn ToSql]| {
            self.execute(sql::SESSION_WRITE, values)
        })?;
        self.met.borrow_mut().remove(&id);
        Ok(())
    }

    /// The death of a living session: it is abandoned if it leaves an intent.
    pub(crate) fn die(&self, id: SessionId, mut session: Session) -> Outcome<Session> {
        let values = [id.get().to_be_bytes()];
        let left = self.first(sql::INTENT_EXISTS, values, |row| row.get(0))?;
        session.life = match left {
            Some(true) => Life::Abandoned,
            _ => Life::Dead,
        };
        session.ended_ms = Some(unix_us() / 1_000);
        self.store(id, &session)?;
        self.frees();
        Ok(session)
    }

    /// What becomes of a row of `holders`.
    pub(crate) fn standing(&self, entry: &Entry) -> Outcome<Standing> {
        let Some(known) = &entry.known else {
            return Ok(Standing::Foreign(entry.unreadable()));
        };
        Ok(match &*self.meet(known.grant.session)? {
            Met::Session(session) if session.life.counts() => {
                if session.over.contains(known.grant.n) {
                    Standing::Gone
                } else {
                    Standing::Counts
                }
            }
            Met::Session(_) | Met::Absent => Standing::Gone,
            Met::Unreadable => {
                Standing::Foreign(format!("{UNREADABLE_SESSION} {}", known.grant.session))
            }
        })
    }

    /// A token greater than every one before.
    pub(crate) fn draw_token(&self) -> Outcome<FencingToken> {
        let last = self.first(sql::TOKEN_LOAD, [], |row| row.get::<_, i64>(0))?;
        let next = last.and_then(|last| Some(last.checked_add(1)?.max(unix_us())));
        if let Some(next) = next {
            self.execute(sql::TOKEN_STORE, [next])?;
        }
        next.and_then(|last| u64::try_from(last).ok())
            .and_then(FencingToken::new)
            .ok_or_else(|| Failure::corrupt("the counter of the tokens is gone or broken"))
    }
}
