//! The stored shape: rows as values, and what a row is that cannot be understood.

use std::time::{Duration, SystemTime};

use lockcore::{
    FencingToken, Grant, Intent, Label, Life, OwnerId, Ranges, Registered, SessionId, SessionState,
    Want,
};
use rusqlite::types::ValueRef;
use rusqlite::{Result, Row};

/// "LKKP", in the header of every file of ours.
pub(crate) const APPLICATION: i64 = 0x4c4b_4b50;
/// The version of the stored shape.
pub(crate) const VERSION: i64 = 1;

/// What is said of a session whose record cannot be understood.
pub(crate) const UNREADABLE_SESSION: &str = "unreadable session record";

/// A session's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) label: Label,
    pub(crate) ttl_ms: i64,
    /// The boot that `expires_ms` counts from.
    pub(crate) boot: String,
    pub(crate) expires_ms: i64,
    pub(crate) life: Life,
    /// Since 1970, once it is not living any more.
    pub(crate) ended_ms: Option<i64>,
    pub(crate) seq: u64,
    pub(crate) over: Ranges,
    pub(crate) adoption: u64,
    pub(crate) adopter: Option<SessionId>,
    /// The adoption number by which it was settled.
    pub(crate) settled: Option<u64>,
}

impl Session {
    /// What stands for a session that has no record.
    pub(crate) fn tombstone(ended_ms: i64) -> Self {
        Self {
            label: Label::parse("").expect("the empty text is a label"),
            ttl_ms: 0,
            boot: String::new(),
            expires_ms: 0,
            life: Life::Dead,
            ended_ms: Some(ended_ms),
            seq: 0,
            over: Ranges::EMPTY,
            adoption: 0,
            adopter: None,
            settled: None,
        }
    }

    /// Reads the columns of `session_load.sql`; `None` if they make no record.
    pub(crate) fn read(row: &Row<'_>) -> Result<Option<Self>> {
        let settled = row.get_ref(10)?;
        let adopter = row.get_ref(9)?;
        let ended = row.get_ref(5)?;
        Ok((|| {
            Some(Self {
                label: Label::parse(text(row.get_ref(0).ok()?)?).ok()?,
                ttl_ms: number(row.get_ref(1).ok()?).filter(|ms| *ms >= 0)?,
                boot: text(row.get_ref(2).ok()?)?.to_owned(),
                expires_ms: number(row.get_ref(3).ok()?)?,
                life: life(text(row.get_ref(4).ok()?)?)?,
                ended_ms: optional(ended, number)?,
                seq: number(row.get_ref(6).ok()?)?.cast_unsigned(),
                over: text(row.get_ref(7).ok()?)?.parse().ok()?,
                adoption: number(row.get_ref(8).ok()?)?.cast_unsigned(),
                adopter: optional(adopter, session_id)?,
                settled: optional(settled, number)?.map(i64::cast_unsigned),
            })
        })())
    }

    /// The values for `session_insert.sql` and `session_write.sql`, the id in front.
    pub(crate) fn write<T>(
        &self,
        id: SessionId,
        with: impl FnOnce(&[&dyn rusqlite::ToSql]) -> T,
    ) -> T {
        with(&[
            &id.get().to_be_bytes(),
            &self.label.as_str(),
            &self.ttl_ms,
            &self.boot,
            &self.expires_ms,
            &self.life.as_str(),
            &self.ended_ms,
            &self.seq.cast_signed(),
            &self.over.to_string(),
            &self.adoption.cast_signed(),
            &self.adopter.map(|adopter| adopter.get().to_be_bytes()),
            &self.settled.map(u64::cast_signed),
        ])
    }

    /// What the traits say about it.
    pub(crate) fn state(&self, session: SessionId) -> SessionState {
        SessionState {
            session,
            label: self.label.clone(),
            life: self.life,
            over: self.over.clone(),
            adoption: self.adoption,
            adopter: self.adopter,
        }
    }
}

/// What the traits say about a session whose record cannot be understood: it lives, and nobody can end it.
pub(crate) fn unreadable_state(session: SessionId) -> SessionState {
    SessionState {
        session,
        label: Label::parse(UNREADABLE_SESSION).expect("it is short and plain"),
        life: Life::Living,
        over: Ranges::EMPTY,
        adoption: 0,
        adopter: None,
    }
}

/// A row of `holders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where it stands.
    pub(crate) place: Place,
    /// As stored; what it means is in `known`.
    pub(crate) m: i64,
    pub(crate) want: String,
    pub(crate) since_ms: i64,
    /// `None` if it cannot be understood: a foreign holder.
    pub(crate) known: Option<Known>,
}

/// Which row of `holders`, whatever it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) session: Vec<u8>,
    pub(crate) n: i64,
}

/// What a row of `holders` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) grant: Grant,
    pub(crate) owner: OwnerId,
    /// Without the limit of a share, which is not stored.
    pub(crate) want: Want,
}

impl Entry {
    /// Reads the columns of `holders_on_key.sql`.
    pub(crate) fn read(row: &Row<'_>) -> Result<Self> {
        let place = Place {
            key: lossy(row.get_ref(0)?),
            session: bytes(row.get_ref(1)?).to_vec(),
            n: number(row.get_ref(2)?).unwrap_or_default(),
        };
        let m = number(row.get_ref(3)?).unwrap_or_default();
        let want = lossy(row.get_ref(4)?);
        let known = (|| {
            let session = session_id(ValueRef::Blob(&place.session))?;
            let (n, m) = (place.n.cast_unsigned(), m.cast_unsigned());
            // A want that does not fit its key is as strange as one that does not exist.
            let want =
                want_of(&want).filter(|want| want.is_path() == place.key.starts_with('/'))?;
            Some(Known {
                grant: Grant { session, n },
                owner: OwnerId { session, m },
                want,
            })
        })();
        Ok(Self {
            known,
            m,
            want,
            since_ms: number(row.get_ref(5)?).unwrap_or_default(),
            place,
        })
    }

    pub(crate) fn since(&self) -> Option<SystemTime> {
        let ms = u64::try_from(self.since_ms).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
    }

    /// What can be said of a row that cannot be understood.
    pub(crate) fn unreadable(&self) -> String {
        let want: String = self
            .want
            .chars()
            .filter(|c| !c.is_control())
            .take(32)
            .collect();
        format!(
            "unreadable record: session {}, n {}, want {want:?}",
            hex(&self.place.session),
            self.place.n,
        )
    }
}

/// Reads `token, payload`; `None` if they make no intent.
pub(crate) fn registered(row: &Row<'_>) -> Result<Option<Registered>> {
    let token = number(row.get_ref(0)?).and_then(|token| u64::try_from(token).ok());
    let intent = Intent::new(bytes(row.get_ref(1)?)).ok();
    Ok(token
        .and_then(FencingToken::new)
        .zip(intent)
        .map(|(token, intent)| Registered { token, intent }))
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

fn want_of(name: &str) -> Option<Want> {
    Some(match name {
        "create" => Want::Create,
        "upsert" => Want::Upsert,
        "share" => Want::Share { limit: None },
        "write" => Want::Write,
        "read" => Want::Read,
        _ => return None,
    })
}

fn life(name: &str) -> Option<Life> {
    [Life::Living, Life::Abandoned, Life::Dead]
        .into_iter()
        .find(|life| life.as_str() == name)
}

pub(crate) fn session_id(value: ValueRef<'_>) -> Option<SessionId> {
    let bytes = <[u8; 16]>::try_from(bytes(value)).ok()?;
    Some(SessionId::new(u128::from_be_bytes(bytes)))
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

fn text(value: ValueRef<'_>) -> Option<&str> {
    value.as_str().ok()
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    value.as_bytes().unwrap_or_default()
}

fn lossy(value: ValueRef<'_>) -> String {
    String::from_utf8_lossy(bytes(value)).into_owned()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::sql;

    fn file() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(sql::SCHEMA).unwrap();
        conn
    }

    fn session() -> Session {
        Session {
            label: Label::parse("host 7 é").unwrap(),
            ttl_ms: 30_000,
            boot: "b".into(),
            expires_ms: 12,
            life: Life::Abandoned,
            ended_ms: Some(5),
            seq: u64::MAX,
            over: "1-4,7-7".parse().unwrap(),
            adoption: 3,
            adopter: Some(SessionId::new(9)),
            settled: Some(2),
        }
    }

    fn load(conn: &Connection, id: SessionId) -> Option<Session> {
        conn.query_row(sql::SESSION_LOAD, [id.get().to_be_bytes()], Session::read)
            .unwrap()
    }

    fn insert(conn: &Connection, id: SessionId, session: &Session) {
        let changed = session.write(id, |values| conn.execute(sql::SESSION_INSERT, values));
        assert_eq!(changed.unwrap(), 1);
    }

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let conn = file();
        let (one, two) = (SessionId::new(1), SessionId::new(u128::MAX));
        insert(&conn, one, &session());
        insert(&conn, two, &Session::tombstone(4));
        assert_eq!(load(&conn, one), Some(session()));
        assert_eq!(load(&conn, two), Some(Session::tombstone(4)));
        let again = session().write(one, |values| conn.execute(sql::SESSION_INSERT, values));
        assert_eq!(again.unwrap(), 0, "an id is used once");
        let changed = Session {
            seq: 4,
            adopter: None,
            ..session()
        };
        changed
            .write(one, |values| conn.execute(sql::SESSION_WRITE, values))
            .unwrap();
        assert_eq!(load(&conn, one), Some(changed));
        assert_eq!(load(&conn, two), Some(Session::tombstone(4)));
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
            assert_eq!(load(&conn, id), None, "{bad}");
        }
    }

    fn entry(key: &str, session: &[u8], want: &str) -> Entry {
        let conn = file();
        conn.execute(
            sql::HOLDER_PUT,
            rusqlite::params![key, session, 3, 4, want, 1_500],
        )
        .unwrap();
        conn.query_row(
            sql::HOLDERS_ON_KEY,
            rusqlite::params![key, None::<&str>],
            Entry::read,
        )
        .unwrap()
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
            let known = entry.known.unwrap();
            assert_eq!(known.grant, Grant { session, n: 3 });
            assert_eq!(known.owner, OwnerId { session, m: 4 });
            assert_eq!(known.want, want);
            assert_eq!(
                entry.since(),
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
            let entry = entry(key, session, want);
            assert_eq!(entry.known, None, "{key} {session:?} {want}");
            assert!(entry.unreadable().starts_with("unreadable record"));
        }
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
        let there = read().unwrap().unwrap();
        assert_eq!(
            (there.token.get(), there.intent.as_bytes()),
            (5, &[9; 3][..])
        );
        put(-5).unwrap();
        assert_eq!(read().unwrap(), None);
    }
}
