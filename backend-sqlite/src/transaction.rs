//! What is done inside one transaction: statements, and what they freed.

use std::time::Duration;

use lockcore::LockKey;
use lockcore::backend::rows::Now;
use rusqlite::{Connection, OptionalExtension as _, Params, Row};

use crate::clock::{Clock, since_1970};
use crate::error::Outcome;
use crate::record::Moment;

/// A transaction that has begun.
pub(crate) struct Transaction<'a> {
    /// Of nobody else, so that the transaction may be handed from thread to thread.
    conn: &'a mut Connection,
    pub(crate) clock: &'a Clock,
    pub(crate) freed: &'a mut Freed,
    /// Once for all.
    pub(crate) now: Now,
}

/// What may have been freed, for who waits in this process.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    pub(crate) keys: Vec<LockKey>,
    pub(crate) any: bool,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(conn: &'a mut Connection, clock: &'a Clock, freed: &'a mut Freed) -> Self {
        // As precise as what is stored, so that nothing is due before its time.
        let lease = clock.now().as_millis();
        let lease = Duration::from_millis(u64::try_from(lease).unwrap_or(u64::MAX));
        Self {
            conn,
            clock,
            freed,
            now: Now {
                lease,
                date: since_1970(),
            },
        }
    }

    /// The time, with the boot that it counts from.
    pub(crate) fn moment(&self) -> Moment<'a> {
        Moment {
            boot: self.clock.boot(),
            now: self.now,
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

    /// All rows.
    pub(crate) fn all<T>(
        &self,
        statement: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Outcome<Vec<T>> {
        let mut statement = self.conn.prepare_cached(statement)?;
        let rows = statement.query_map(values, read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}
