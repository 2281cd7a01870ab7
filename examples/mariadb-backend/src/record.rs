//! The stored shape: rows as values, and what a row is that cannot be understood.

use std::time::{Duration, SystemTime};

use lockcore::backend::Registered;
use lockcore::backend::rows::{Held, HolderRow, SessionRow, Stored, Strange, Waits};
use lockcore::{FencingToken, Grant, Intent, Label, Life, Mode, Notes, OwnerId, SessionId, Want};
use sqlx::mysql::MySqlRow;
use sqlx::{Row as _, ValueRef as _};

/// Which row of the holders, whatever it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) name: Vec<u8>,
    pub(crate) session: Vec<u8>,
    pub(crate) n: u64,
}

/// Reads a row of the sessions, in the order of the schema.
pub(crate) fn session(row: &MySqlRow) -> Stored<SessionRow> {
    let read = || {
        let number = |at: usize| row.try_get::<u64, _>(at).ok();
        let optional = |at: usize| row.try_get::<Option<u64>, _>(at).ok();
        let adopter = match row.try_get_raw(9).ok()?.is_null() {
            true => None,
            false => Some(session_id(row, 9)?),
        };
        Some(SessionRow {
            label: Label::parse(std::str::from_utf8(row.try_get(1).ok()?).ok()?).ok()?,
            ttl: Duration::from_micros(number(2)?),
            due: Duration::from_micros(number(3)?),
            life: life_of(row.try_get(4).ok()?)?,
            ended: optional(5)?.map(Duration::from_micros),
            seq: number(6)?,
            retired: row.try_get::<&str, _>(7).ok()?.parse().ok()?,
            adoption: number(8)?,
            adopter,
            settled: optional(10)?,
            notes: Notes::stored(row.try_get::<&str, _>(11).ok()?),
        })
    };
    read().map_or(Stored::Unreadable, Stored::Row)
}

/// Reads a row of the holders, in the order of the schema.
pub(crate) fn holder(row: &MySqlRow) -> Result<HolderRow<Id>, sqlx::Error> {
    let id = Id {
        name: row.try_get(0)?,
        session: row.try_get(1)?,
        n: row.try_get(2)?,
    };
    let (m, want, since): (u64, &str, u64) = (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let (place, passed): (Option<u64>, Option<u32>) = (row.try_get(6)?, row.try_get(7)?);
    let session = session_of(&id.session);
    // A want that does not fit its key is as strange as one that does not exist.
    let known = want_of(want).filter(|want| want.is_path() == id.name.starts_with(b"/"));
    let held = session.zip(known).map(|(session, want)| Held {
        grant: Grant { session, n: id.n },
        owner: OwnerId { session, m },
        mode: want.mode(),
        waits: place.map(|place| Waits {
            place,
            passed: passed.unwrap_or(0),
        }),
    });
    Ok(HolderRow {
        held: held.ok_or_else(|| Strange {
            what: format!("unreadable record: n {}, want {want:?}", id.n),
            version: format!("{:?}/{}/{m}/{want:?}/{since};", id.session, id.n),
        }),
        session,
        n: id.n,
        since: SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(since)),
        id,
    })
}

/// Reads `token, payload`.
pub(crate) fn registered(row: &MySqlRow) -> Stored<Registered> {
    let token = row.try_get(0).ok().and_then(FencingToken::new);
    let payload: Option<Vec<u8>> = row.try_get(1).ok();
    let intent = payload.and_then(|payload| Intent::new(payload).ok());
    let registered = token.zip(intent);
    registered.map_or(Stored::Unreadable, |(token, intent)| {
        Stored::Row(Registered { token, intent })
    })
}

pub(crate) fn session_id(row: &MySqlRow, at: usize) -> Option<SessionId> {
    session_of(row.try_get(at).ok()?)
}

fn session_of(bytes: &[u8]) -> Option<SessionId> {
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(SessionId::new(u128::from_be_bytes(bytes)))
}

/// A session's id, as it is stored.
pub(crate) fn bytes(id: SessionId) -> Vec<u8> {
    id.get().to_be_bytes().to_vec()
}

/// A time, as it is stored.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The stored name of a want.
pub(crate) fn want_name(want: Want) -> &'static str {
    match want {
        Want::Create => "create",
        Want::Upsert => "upsert",
        Want::Share { .. } => "share",
        Want::Write => "write",
        Want::Read => "read",
    }
}

/// The stored name of what holds in that mode and may stand beside others like it; of all else none.
pub(crate) fn shared_name(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::IS) => want_name(Want::Share { limit: None }),
        Some(Mode::S) => want_name(Want::Read),
        Some(Mode::IX | Mode::X) | None => "",
    }
}

fn want_of(name: &str) -> Option<Want> {
    let share = Want::Share { limit: None };
    let mut all = [Want::Create, Want::Upsert, share, Want::Write, Want::Read].into_iter();
    all.find(|want| want_name(*want) == name)
}

fn life_of(name: &str) -> Option<Life> {
    let mut all = [Life::Living, Life::Abandoned, Life::Dead].into_iter();
    all.find(|life| life.as_str() == name)
}
