//! The stored shape: rows as values, and what a row is that cannot be understood.

use std::time::{Duration, SystemTime};

use lockcore::backend::Registered;
use lockcore::backend::rows::{Held, HolderRow, Now, SessionRow, Stored, Strange, Waits};
use lockcore::{FencingToken, Grant, Intent, Label, Life, Mode, Notes, OwnerId, SessionId, Want};
use rusqlite::Result;
use rusqlite::types::ValueRef;

/// "LKKP", in the header of every file of ours.
pub(crate) const APPLICATION: i64 = 0x4c4b_4b50;
/// The version of the stored shape.
pub(crate) const VERSION: i64 = 3;

/// The store's time, with the boot that its leases count from.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) boot: &'a str,
    pub(crate) now: Now,
}

impl Moment<'_> {
    /// What `ended_ms` says of a session that lives: when it is due by the wall clock, for the next boot.
    fn date_of(self, due: Duration) -> Duration {
        self.now.date + due.saturating_sub(self.now.lease)
    }

    /// When a session of another boot is due that is so by that date. A lease with more left than its TTL was not measured by
    /// the wall clock as it is now: it is over.
    fn due_by(self, date: Duration, ttl: Duration) -> Duration {
        match date.checked_sub(self.now.date) {
            Some(left) if left <= ttl => self.now.lease + left,
            _ => Duration::ZERO,
        }
    }
}

/// Reads the columns of `session_load.sql`.
pub(crate) fn session(row: &rusqlite::Row<'_>, at: Moment<'_>) -> Result<Stored<SessionRow>> {
    let values: [ValueRef<'_>; 12] = {
        let mut values = [ValueRef::Null; 12];
        for (at, value) in values.iter_mut().enumerate() {
            *value = row.get_ref(at)?;
        }
        values
    };
    let read = || {
        let [
            label,
            ttl,
            its_boot,
            expires,
            life,
            ended,
            seq,
            retired,
            adoption,
            adopter,
            settled,
            notes,
        ] = values;
        let time = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let (its_boot, expires) = (text(its_boot)?, number(expires)?);
        let ttl = Duration::from_millis(u64::try_from(number(ttl)?).ok()?);
        let life = life_of(text(life)?)?;
        let ended = optional(ended, number)?.map(time);
        Some(SessionRow {
            label: Label::parse(text(label)?).ok()?,
            ttl,
            due: match (its_boot == at.boot, life, ended) {
                (true, ..) => time(expires),
                (false, Life::Living, Some(date)) => at.due_by(date, ttl),
                (false, ..) => Duration::ZERO,
            },
            life,
            ended: ended.filter(|_| life != Life::Living),
            seq: unsigned(seq)?,
            retired: text(retired)?.parse().ok()?,
            adoption: unsigned(adoption)?,
            adopter: optional(adopter, session_id)?,
            settled: optional(settled, unsigned)?,
            notes: Notes::stored(text(notes)?),
        })
    };
    Ok(read().map_or(Stored::Unreadable, Stored::Row))
}

/// The values for `session_create.sql` and `session_put.sql`.
pub(crate) fn with_session<T>(
    id: SessionId,
    row: &SessionRow,
    at: Moment<'_>,
    with: impl FnOnce(&[&dyn rusqlite::ToSql]) -> T,
) -> T {
    let ended = match row.life {
        Life::Living => Some(at.date_of(row.due)),
        Life::Abandoned | Life::Dead => row.ended,
    };
    with(&[
        &id.get().to_be_bytes(),
        &row.label.as_str(),
        &millis(row.ttl),
        &at.boot,
        &millis(row.due),
        &row.life.as_str(),
        &ended.map(millis),
        &row.seq.cast_signed(),
        &row.retired.to_string(),
        &row.adoption.cast_signed(),
        &row.adopter.map(|adopter| adopter.get().to_be_bytes()),
        &row.settled.map(u64::cast_signed),
        &row.notes.as_str(),
    ])
}

/// Which row of `holders`, whatever it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) session: Vec<u8>,
    pub(crate) n: i64,
}

/// Reads the columns of `holders_on_key.sql`.
pub(crate) fn holder(row: &rusqlite::Row<'_>) -> Result<HolderRow<Row>> {
    let id = Row {
        key: lossy(row.get_ref(0)?),
        session: bytes(row.get_ref(1)?).to_vec(),
        n: number(row.get_ref(2)?).unwrap_or_default(),
    };
    let m = number(row.get_ref(3)?).unwrap_or_default();
    let want = row.get_ref(4)?;
    let since_ms = number(row.get_ref(5)?).unwrap_or_default();
    let place = number(row.get_ref(6)?);
    let passed = number(row.get_ref(7)?).unwrap_or_default();
    let session = session_of(&id.session);
    let n = id.n.cast_unsigned();
    // A want that does not fit its key is as strange as one that does not exist.
    let mode = text(want)
        .and_then(want_of)
        .filter(|want| want.is_path() == id.key.starts_with('/'));
    let held = session.zip(mode).map(|(session, want)| Held {
        grant: Grant { session, n },
        owner: OwnerId {
            session,
            m: m.cast_unsigned(),
        },
        mode: want.mode(),
        waits: place.map(|place| Waits {
            place: place.cast_unsigned(),
            passed: u32::try_from(passed).unwrap_or(u32::MAX),
        }),
    });
    Ok(HolderRow {
        held: held.ok_or_else(|| strange(&id, m, &lossy(want), since_ms)),
        session,
        n,
        since: u64::try_from(since_ms)
            .ok()
            .and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))),
        id,
    })
}

/// A row that cannot be understood, and everything that it says.
fn strange(id: &Row, m: i64, want: &str, since_ms: i64) -> Strange {
    let (session, n) = (hex(&id.session), id.n);
    let plain: String = want.chars().filter(|c| !c.is_control()).take(32).collect();
    Strange {
        what: format!("unreadable record: session {session}, n {n}, want {plain:?}"),
        version: format!("{session}/{n}/{m}/{}/{since_ms};", hex(want.as_bytes())),
    }
}

/// Reads `token, payload`.
pub(crate) fn registered(row: &rusqlite::Row<'_>) -> Result<Stored<Registered>> {
    let token = number(row.get_ref(0)?).and_then(|token| u64::try_from(token).ok());
    let intent = Intent::new(bytes(row.get_ref(1)?)).ok();
    let registered = token.and_then(FencingToken::new).zip(intent);
    Ok(registered.map_or(Stored::Unreadable, |(token, intent)| {
        Stored::Row(Registered { token, intent })
    }))
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

/// The stored name of what holds in that mode and may stand beside others like it.
pub(crate) fn shared_name(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::IS => Some(want_name(Want::Share { limit: None })),
        Mode::S => Some(want_name(Want::Read)),
        Mode::IX | Mode::X => None,
    }
}

fn want_of(name: &str) -> Option<Want> {
    let share = Want::Share { limit: None };
    [Want::Create, Want::Upsert, share, Want::Write, Want::Read]
        .into_iter()
        .find(|want| want_name(*want) == name)
}

fn life_of(name: &str) -> Option<Life> {
    [Life::Living, Life::Abandoned, Life::Dead]
        .into_iter()
        .find(|life| life.as_str() == name)
}

pub(crate) fn session_id(value: ValueRef<'_>) -> Option<SessionId> {
    session_of(bytes(value))
}

pub(crate) fn session_of(bytes: &[u8]) -> Option<SessionId> {
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(SessionId::new(u128::from_be_bytes(bytes)))
}

/// A time, as it is stored.
pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A number of rows, as a statement takes it.
pub(crate) fn count(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// `Some(None)` for null, `None` for what is neither null nor understood.
fn optional<T>(
    value: ValueRef<'_>,
    read: impl FnOnce(ValueRef<'_>) -> Option<T>,
) -> Option<Option<T>> {
    match value {
        ValueRef::Null => Some(None),
        value => read(value).map(Some),
    }
}

fn number(value: ValueRef<'_>) -> Option<i64> {
    value.as_i64().ok()
}

/// Unsigned numbers are stored by their bits.
fn unsigned(value: ValueRef<'_>) -> Option<u64> {
    number(value).map(i64::cast_unsigned)
}

fn text(value: ValueRef<'_>) -> Option<&str> {
    value.as_str().ok()
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    value.as_bytes().unwrap_or_default()
}

fn lossy(value: ValueRef<'_>) -> String {
    String::from_utf8_lossy(bytes(value)).into_owned()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, params};

    use super::*;
    use crate::sql;

    fn file() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(sql::SCHEMA).unwrap();
        conn
    }

    const NOW: Now = Now {
        lease: Duration::from_secs(1_000),
        date: Duration::from_secs(5_000_000),
    };
    const HERE: Moment<'_> = Moment {
        boot: "b",
        now: NOW,
    };

    fn session() -> SessionRow {
        SessionRow {
            label: Label::parse("host 7 é").unwrap(),
            ttl: Duration::from_secs(30),
            due: Duration::from_millis(12),
            life: Life::Abandoned,
            ended: Some(Duration::from_millis(5)),
            seq: u64::MAX,
            retired: "1-4,7-7".parse().unwrap(),
            adoption: 3,
            adopter: Some(SessionId::new(9)),
            settled: Some(2),
            notes: Notes::stored("ask//1/a/b"),
        }
    }

    fn tombstone() -> SessionRow {
        let time = Duration::from_millis(4);
        SessionRow::tombstone(Now {
            lease: time,
            date: time,
        })
    }

    fn load_at(conn: &Connection, id: SessionId, at: Moment<'_>) -> Stored<SessionRow> {
        let id = [id.get().to_be_bytes()];
        conn.query_row(sql::SESSION_LOAD, id, |row| super::session(row, at))
            .unwrap()
    }

    fn load(conn: &Connection, id: SessionId) -> Stored<SessionRow> {
        load_at(conn, id, HERE)
    }

    fn write(conn: &Connection, statement: &str, id: SessionId, row: &SessionRow) -> usize {
        with_session(id, row, HERE, |values| conn.execute(statement, values)).unwrap()
    }

    fn insert(conn: &Connection, id: SessionId, row: &SessionRow) {
        assert_eq!(write(conn, sql::SESSION_CREATE, id, row), 1);
    }

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let conn = file();
        let (one, two) = (SessionId::new(1), SessionId::new(u128::MAX));
        insert(&conn, one, &session());
        assert_eq!(write(&conn, sql::SESSION_PUT, two, &tombstone()), 1);
        assert_eq!(load(&conn, one), Stored::Row(session()));
        assert_eq!(load(&conn, two), Stored::Row(tombstone()));
        let again = write(&conn, sql::SESSION_CREATE, one, &session());
        assert_eq!(again, 0, "an id is used once");
        let changed = SessionRow {
            seq: 4,
            adopter: None,
            ..session()
        };
        assert_eq!(write(&conn, sql::SESSION_PUT, one, &changed), 1);
        assert_eq!(load(&conn, one), Stored::Row(changed));
        assert_eq!(load(&conn, two), Stored::Row(tombstone()));
    }

    #[test]
    fn a_lease_goes_on_into_another_boot_by_the_wall_clock() {
        let conn = file();
        let id = SessionId::new(1);
        let living = SessionRow {
            due: NOW.lease + Duration::from_secs(20),
            life: Life::Living,
            ended: None,
            ..session()
        };
        insert(&conn, id, &living);
        assert_eq!(load(&conn, id), Stored::Row(living));
        // The machine has been up for five seconds.
        let after = |seconds: i64| {
            let date = NOW.date.as_secs().saturating_add_signed(seconds);
            let now = Now {
                lease: Duration::from_secs(5),
                date: Duration::from_secs(date),
            };
            let Stored::Row(row) = load_at(&conn, id, Moment { boot: "c", now }) else {
                panic!("it is readable")
            };
            assert_eq!(row.ended, None);
            let due = "SELECT count(*) FROM sessions WHERE id IN (";
            let due = format!("{due}{})", sql::SESSIONS_DUE);
            let values = params![millis(now.lease), "c", millis(now.date)];
            let is_due = conn.query_row(&due, values, |row| row.get::<_, i64>(0));
            assert_eq!(is_due.unwrap() == 1, row.due <= now.lease, "{seconds}");
            row.due
        };
        assert_eq!(after(8), Duration::from_secs(17));
        assert_eq!(after(20), Duration::from_secs(5), "it is due now");
        assert_eq!(after(21), Duration::ZERO);
        // Its TTL is half a minute.
        assert_eq!(after(-10), Duration::from_secs(35));
        assert_eq!(after(-11), Duration::ZERO, "the wall clock was set back");
        conn.execute("UPDATE sessions SET ended_ms = NULL", [])
            .unwrap();
        assert_eq!(after(8), Duration::ZERO, "an older program has written it");
    }

    #[test]
    fn every_bad_column_makes_a_session_unreadable() {
        for bad in [
            "label = char(7)",
            "label = printf('%0300d', 1)",
            "ttl_ms = -1",
            "life = 'undead'",
            "life = 'Living'",
            "over = '4-1'",
            "over = '1-2,3-4'",
            "adopter = x'00'",
            "label = CAST(x'ff' AS TEXT)",
        ] {
            let conn = file();
            let id = SessionId::new(1);
            insert(&conn, id, &session());
            conn.execute(&format!("UPDATE sessions SET {bad}"), [])
                .unwrap();
            assert_eq!(load(&conn, id), Stored::Unreadable, "{bad}");
        }
    }

    fn entry(key: &str, session: &[u8], want: &str) -> HolderRow<Row> {
        let conn = file();
        let put = params![key, session, 3, 4, want, 1_500, None::<i64>, None::<i64>];
        conn.execute(sql::HOLDER_PUT, put).unwrap();
        let all = params![key, [0_u8; 0], i64::MIN, None::<&str>, 1];
        conn.query_row(sql::HOLDERS_ON_KEY, all, holder).unwrap()
    }

    #[test]
    fn every_want_is_read_as_it_was_written() {
        let session = SessionId::new(7);
        for want in [
            Want::Create,
            Want::Upsert,
            Want::Share { limit: None },
            Want::Write,
            Want::Read,
        ] {
            let key = if want.is_path() { "/a" } else { "a" };
            let entry = entry(key, &session.get().to_be_bytes(), want_name(want));
            let held = entry.held.unwrap();
            assert_eq!(held.grant, Grant { session, n: 3 });
            assert_eq!(held.owner, OwnerId { session, m: 4 });
            assert_eq!(held.mode, want.mode());
            let shared = shared_name(want.mode());
            assert!(shared.is_none_or(|name| name == want_name(want)));
            assert_eq!(
                entry.since,
                Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500))
            );
        }
    }

    #[test]
    fn what_makes_no_holder_is_foreign() {
        let id = [7; 16];
        for (key, session, want) in [
            ("a", &id[..15], "create"),
            ("a", &[], "create"),
            ("a", &id, "Create"),
            ("a", &id, ""),
            ("a", &id, "write"),
            ("/a", &id, "create"),
        ] {
            let strange = entry(key, session, want).held.unwrap_err();
            assert!(strange.what.starts_with("unreadable record"), "{strange:?}");
        }
    }

    #[test]
    fn the_version_tells_foreign_rows_apart() {
        let id = Row {
            key: "a".into(),
            session: vec![1],
            n: 2,
        };
        assert_eq!(strange(&id, 3, "w", 4).version, "01/2/3/77/4;");
        // `want` is never what the wants of ours are called, and `;` and `/` cannot come out of hex.
        assert_ne!(strange(&id, 3, "w/4;", 4).version, "01/2/3/77/4;");
    }

    #[test]
    fn an_intent_is_read_as_it_was_written() {
        let conn = file();
        let read = || conn.query_row(sql::INTENT_LOAD, [[1u8; 16]], registered);
        let put = |token: i64| {
            conn.execute(
                sql::INTENT_PUT,
                rusqlite::params![[1u8; 16], token, [9u8; 3]],
            )
        };
        put(5).unwrap();
        let Stored::Row(there) = read().unwrap() else {
            panic!("it is readable")
        };
        assert_eq!(
            (there.token.get(), there.intent.as_bytes()),
            (5, &[9; 3][..])
        );
        put(-5).unwrap();
        assert_eq!(read().unwrap(), Stored::Unreadable);
    }
}
