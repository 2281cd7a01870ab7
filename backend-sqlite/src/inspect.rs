//! `Inspect`: what is there, for people. Listing changes nothing: a session that is due is shown as it is recorded.

use async_trait::async_trait;
use lockcore::limits::MAX_LISTED;
use lockcore::{
    Claim, Error, ErrorKind, Filter, Inspect, LockKey, LockPath, Mode, Operation, Page, Record,
    Result, SessionId, SessionState,
};
use rusqlite::params;

use crate::SqliteBackend;
use crate::error::{NAME, Outcome};
use crate::obstacles::{Look, holder};
use crate::record::{Entry, Session, hex, session_id, unreadable_state};
use crate::sql;
use crate::transaction::{Standing, Transaction};

/// So many keys are looked at for one page at most; where few of them are held the page is short.
const LOOKED_AT: usize = 5_000;

#[async_trait]
impl Inspect for SqliteBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let filter = filter.clone();
        let after = after.map(str::to_owned);
        let place = match (&filter, &after) {
            (Filter::Session(_), Some(after)) => Some(place(after).ok_or_else(not_ours)?),
            _ => None,
        };
        self.call(Operation::Inspect, move |worker| {
            worker.file.read(|transaction| match &filter {
                Filter::Key(key) => one(transaction, key),
                Filter::Prefix(prefix) => by_prefix(transaction, prefix, after.as_deref(), limit),
                Filter::Session(session) => {
                    let (n, key) = place.unwrap_or((i64::MIN, String::new()));
                    by_session(transaction, *session, (n, &key), limit)
                }
            })
        })
        .await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let after = match after {
            Some(after) => unhex(after).ok_or_else(not_ours)?,
            None => Vec::new(),
        };
        self.call(Operation::Inspect, move |worker| {
            worker
                .file
                .read(|transaction| sessions(transaction, after, limit))
        })
        .await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let (key, version) = (seen.key.clone(), seen.version.clone());
        self.call(Operation::Inspect, move |worker| {
            worker
                .file
                .write(false, |transaction| evict(transaction, &key, &version))
        })
        .await
    }
}

fn not_ours() -> Error {
    let what = "the place to go on from was not given out by this store";
    Error::new(ErrorKind::Config, NAME, Operation::Inspect, what)
}

/// The record of one key, with those who hold something below it.
fn one(transaction: &Transaction<'_>, key: &LockKey) -> Outcome<Page<Record>> {
    let (mut record, _) = record(transaction, key)?;
    if let Some(path) = key.as_path() {
        below(transaction, path, &mut record)?;
    }
    Ok(Page {
        items: Some(record)
            .filter(|record| !record.holders.is_empty())
            .into_iter()
            .collect(),
        next: None,
    })
}

fn below(transaction: &Transaction<'_>, path: LockPath, record: &mut Record) -> Outcome<()> {
    // Everybody below is in the way of somebody who would write the path, and nobody else has these modes there.
    let found = Look::by_nobody(transaction, 2 * MAX_LISTED).at(&Claim::write(path))?;
    for obstacle in &found.obstacles {
        let key = &record.key;
        if obstacle.entry.place.key == key.as_str() || obstacle.key != *key {
            continue;
        }
        if record.holders.len() == MAX_LISTED {
            record.more = true;
            break;
        }
        record.holders.push(obstacle.holder(transaction)?);
    }
    record.more |= found.more;
    Ok(())
}

fn by_prefix(
    transaction: &Transaction<'_>,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Outcome<Page<Record>> {
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    let mut looked_at = 0;
    let next_key = |statement, after: &str| {
        transaction.first(statement, [after], |row| row.get::<_, String>(0))
    };
    let mut key = match after.filter(|after| *after >= prefix) {
        Some(after) => next_key(sql::NEXT_KEY, after)?,
        None => next_key(sql::FIRST_KEY, prefix)?,
    };
    // In order of bytes all keys with one prefix stand together.
    while let Some(here) = key.filter(|key| key.starts_with(prefix)) {
        looked_at += 1;
        if let Ok(parsed) = LockKey::parse(&here) {
            let (record, _) = record(transaction, &parsed)?;
            page.items
                .extend(Some(record).filter(|record| !record.holders.is_empty()));
        }
        key = next_key(sql::NEXT_KEY, &here)?;
        if page.items.len() >= limit || looked_at >= LOOKED_AT {
            page.next = key.is_some().then_some(here);
            break;
        }
    }
    Ok(page)
}

fn by_session(
    transaction: &Transaction<'_>,
    session: SessionId,
    (n, key): (i64, &str),
    limit: usize,
) -> Outcome<Page<Record>> {
    let mut places = Vec::new();
    let looked_at = i64::try_from(LOOKED_AT).unwrap_or(i64::MAX);
    let values = params![session.get().to_be_bytes(), n, key, looked_at];
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    transaction.each(sql::KEYS_OF_SESSION, values, read, |place| {
        places.push(place);
        Ok(true)
    })?;
    let all = places.len() < LOOKED_AT;
    let last = places.len();
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    for (at, (n, key)) in places.into_iter().enumerate() {
        let ends_here = at + 1 == last;
        if let Ok(parsed) = LockKey::parse(&key) {
            let (record, holding) = record(transaction, &parsed)?;
            if holding.contains(&session) {
                page.items.push(record);
            }
        }
        if page.items.len() >= limit || ends_here {
            page.next = (!(all && ends_here)).then(|| format!("{n}:{key}"));
            break;
        }
    }
    Ok(page)
}

fn place(after: &str) -> Option<(i64, String)> {
    let (n, key) = after.split_once(':')?;
    Some((n.parse().ok()?, key.to_owned()))
}

/// What stands on the key itself, and every session that has a holder there which counts.
fn record(transaction: &Transaction<'_>, key: &LockKey) -> Outcome<(Record, Vec<SessionId>)> {
    let mut record = Record {
        key: key.clone(),
        holders: Vec::new(),
        more: false,
        version: String::new(),
    };
    let mut holding = Vec::new();
    let values = params![key.as_str(), None::<&str>];
    transaction.each(sql::HOLDERS_ON_KEY, values, Entry::read, |mut entry| {
        holding.extend(session_id(rusqlite::types::ValueRef::Blob(
            &entry.place.session,
        )));
        let foreign = match transaction.standing(&entry)? {
            Standing::Counts => None,
            Standing::Foreign(what) => {
                record.version += &version(&entry);
                entry.known = None;
                Some(what)
            }
            Standing::Gone => {
                holding.pop();
                return Ok(true);
            }
        };
        if record.holders.len() == MAX_LISTED {
            record.more = true;
            return Ok(true);
        }
        let mode = entry.known.map_or(Mode::X, |known| known.want.mode());
        let holder = holder(transaction, &entry, key.clone(), mode, foreign)?;
        record.holders.push(holder);
        Ok(true)
    })?;
    Ok((record, holding))
}

/// Everything that a foreign row says; the version of a record is that of its foreign rows, one after the other.
fn version(entry: &Entry) -> String {
    let (place, m, since_ms) = (&entry.place, entry.m, entry.since_ms);
    format!(
        "{}/{}/{m}/{}/{since_ms};",
        hex(&place.session),
        place.n,
        hex(entry.want.as_bytes()),
    )
}

fn evict(transaction: &Transaction<'_>, key: &LockKey, seen: &str) -> Outcome<bool> {
    let mut foreign = Vec::new();
    let mut now = String::new();
    let values = params![key.as_str(), None::<&str>];
    transaction.each(sql::HOLDERS_ON_KEY, values, Entry::read, |entry| {
        if let Standing::Foreign(_) = transaction.standing(&entry)? {
            now += &version(&entry);
            foreign.push(entry.place);
        }
        Ok(true)
    })?;
    if foreign.is_empty() || now != seen {
        return Ok(false);
    }
    for place in foreign {
        let values = params![place.key, place.session, place.n];
        transaction.execute(sql::HOLDER_DROP, values)?;
    }
    transaction.frees();
    Ok(true)
}

fn sessions(
    transaction: &Transaction<'_>,
    after: Vec<u8>,
    limit: usize,
) -> Outcome<Page<SessionState>> {
    let mut page = Page {
        items: Vec::new(),
        next: None,
    };
    let mut last = after.clone();
    let values = params![
        after,
        i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
    ];
    let read = |row: &rusqlite::Row<'_>| Ok((Session::read(row)?, row.get::<_, Vec<u8>>(11)?));
    let mut seen = 0;
    transaction.each(sql::SESSIONS_PAGE, values, read, |(session, id)| {
        if seen == limit {
            page.next = Some(hex(&last));
            return Ok(false);
        }
        seen += 1;
        // A session whose id is none cannot be named; whatever holds in its name is listed by key.
        if let Some(parsed) = session_id(rusqlite::types::ValueRef::Blob(&id)) {
            page.items.push(
                session.map_or_else(|| unreadable_state(parsed), |session| session.state(parsed)),
            );
        }
        last = id;
        Ok(true)
    })?;
    Ok(page)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair)
                .ok()
                .filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_go_on_from_are_read_or_refused() {
        assert_eq!(place("-3:a:b"), Some((-3, "a:b".into())));
        assert_eq!(place("a"), None);
        assert_eq!(place("x:a"), None);
        assert_eq!(unhex("00ff"), Some(vec![0, 255]));
        assert_eq!(unhex(""), Some(vec![]));
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("0g"), None);
        assert_eq!(unhex("é"), None);
    }

    #[test]
    fn the_version_tells_foreign_rows_apart() {
        let place = crate::record::Place {
            key: "a".into(),
            session: vec![1],
            n: 2,
        };
        let entry = Entry {
            place,
            m: 3,
            want: "w".into(),
            since_ms: 4,
            known: None,
        };
        assert_eq!(version(&entry), "01/2/3/77/4;");
        // `want` is never what the wants of ours are called, and `;` and `/` cannot come out of hex.
        let other = Entry {
            want: "w/4;".into(),
            ..entry
        };
        assert_ne!(version(&other), "01/2/3/77/4;");
    }
}
