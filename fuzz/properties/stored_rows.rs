//! Rows of an SQLite file, as somebody else may have written them: holders, a session, its intent, the token.
//!
//! - nothing that is asked panics; what fails is the machinery's error that something is corrupt;
//! - a holder that cannot be understood is in the way of everything on its key, above it and below it;
//! - a holder whose session cannot be understood is in the way of whoever wants the key for himself;
//! - a row that cannot be understood is the same afterwards, byte for byte;
//! - a token is greater than the stored one.

use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, ClaimStore, End, Filter, Incarnation, Inspect, Ranges, SessionStore,
    Sweep, Wakeups,
};
use lockcore::{Claim, Error, ErrorKind, Grant, Label, LockKey, OwnerId, SessionId, Want};
use lockcore_sqlite::{SqliteBackend, SqliteConfig};
use rusqlite::{Connection, params};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The row that has the last token.
const TOKEN: &str = "key = '' AND session = x'' AND n = 0";
/// Whoever asks.
const ASKER: SessionId = SessionId::new(1);
/// The session whose record is changed.
const CHANGED: SessionId = SessionId::new(2);
/// No session has this id.
const ABSENT: SessionId = SessionId::new(3);

pub(crate) fn hold(data: &[u8]) {
    thread_local!(static STORE: Store = Store::new());
    STORE.with(|store| store.runtime.block_on(store.hold(&mut Input(data))));
}

/// The input, from which every value takes some bytes.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((byte, rest)) => {
                self.0 = rest;
                *byte
            }
            None => 0,
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte() % 32).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.to_vec()
    }

    /// Small, or any.
    fn number(&mut self) -> i64 {
        match self.byte() {
            255 => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            small => i64::from(small) - 8,
        }
    }

    fn text(&mut self, known: &[&str]) -> Vec<u8> {
        match known.get(usize::from(self.byte()) % (known.len() + 1)) {
            Some(known) => known.as_bytes().to_vec(),
            None => self.bytes(),
        }
    }
}

/// A row of `holders`.
struct Row {
    key: Vec<u8>,
    session: Vec<u8>,
    n: i64,
    m: i64,
    want: Vec<u8>,
    since_ms: i64,
}

impl Row {
    fn read(input: &mut Input<'_>) -> Self {
        Self {
            key: input.text(&["k", "/a", "/a/b", "/a/b/c", "l"]),
            session: match input.byte() % 4 {
                0 => CHANGED.get().to_be_bytes().to_vec(),
                1 => ABSENT.get().to_be_bytes().to_vec(),
                _ => input.bytes(),
            },
            n: input.number(),
            m: input.number(),
            want: input.text(&["create", "upsert", "share", "write", "read"]),
            since_ms: input.number(),
        }
    }

    fn is_token(&self) -> bool {
        self.key.is_empty() && self.session.is_empty() && self.n == 0
    }

    fn is_path(&self) -> bool {
        self.key.starts_with(b"/")
    }

    fn understood(&self) -> bool {
        let wants: &[&[u8]] = match self.is_path() {
            true => &[b"write", b"read"],
            false => &[b"create", b"upsert", b"share"],
        };
        self.session.len() == 16 && wants.contains(&self.want.as_slice())
    }

    /// Whether it stands on the key, on an ancestor, or below.
    fn meets(&self, key: &str) -> bool {
        let key = key.as_bytes();
        let above = |one: &[u8], other: &[u8]| {
            self.is_path() && other.strip_prefix(one).is_some_and(|rest| rest[0] == b'/')
        };
        key == self.key || above(key, &self.key) || above(&self.key, key)
    }

    fn shares(&self) -> bool {
        self.want == b"share" || self.want == b"read"
    }
}

struct Store {
    runtime: Runtime,
    backend: std::sync::Arc<SqliteBackend>,
    file: Connection,
    _directory: TempDir,
}

impl Store {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime of this thread");
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("locks.db");
        let connecting = SqliteBackend::connect(SqliteConfig::new(&path));
        Self {
            backend: runtime.block_on(connecting).expect("an empty file"),
            file: Connection::open(&path).expect("the same file"),
            runtime,
            _directory: directory,
        }
    }

    async fn hold(&self, input: &mut Input<'_>) {
        let label = Label::parse("someone").expect("a label");
        self.execute(&format!("DELETE FROM holders WHERE NOT ({TOKEN})"), &[]);
        self.execute("DELETE FROM intents", &[]);
        self.execute("DELETE FROM sessions", &[]);
        self.set_token(0);
        for session in [ASKER, CHANGED] {
            let opened = self
                .backend
                .open(session, &label, Duration::from_secs(3600));
            opened.await.expect("a new session");
        }
        let readable = self.change_session(input);
        let last = match input.byte() % 4 {
            0 => input.number(),
            _ => 0,
        };
        self.set_token(last);
        let rows: Vec<Row> = (0..1 + input.byte() % 4)
            .map(|_| Row::read(input))
            .filter(|row| !row.is_token())
            .collect();
        for row in &rows {
            self.execute(
                "INSERT OR REPLACE INTO holders (key, session, n, m, want, since_ms)
                 VALUES (CAST(?1 AS TEXT), ?2, ?3, ?4, CAST(?5 AS TEXT), ?6)",
                &[
                    &row.key,
                    &row.session,
                    &row.n,
                    &row.m,
                    &row.want,
                    &row.since_ms,
                ],
            );
        }
        // A later row may have replaced an earlier one of the same name.
        let rows: Vec<&Row> = rows
            .iter()
            .enumerate()
            .filter(|(at, row)| {
                let name = |row: &Row| (row.key.clone(), row.session.clone(), row.n);
                rows[at + 1..].iter().all(|later| name(later) != name(row))
            })
            .map(|(_, row)| row)
            .collect();
        let before = self.not_understood(&rows);
        self.ask(&rows, readable, last).await;
        self.do_everything(&rows).await;
        assert_eq!(self.not_understood(&rows), before, "rows stay as they are");
    }

    /// Changes some columns of a living session; says whether the record can still be understood.
    fn change_session(&self, input: &mut Input<'_>) -> bool {
        let mut readable = true;
        let columns = input.byte();
        let mut set = |column: &str, value: &dyn rusqlite::ToSql, good: bool| {
            self.execute(
                &format!("UPDATE sessions SET {column} WHERE id = ?2"),
                &[value, &CHANGED.get().to_be_bytes()],
            );
            readable &= good;
        };
        if columns & 1 != 0 {
            let label = input.bytes();
            let good = std::str::from_utf8(&label).is_ok_and(|label| Label::parse(label).is_ok());
            set("label = CAST(?1 AS TEXT)", &label, good);
        }
        if columns & 2 != 0 {
            let ttl = input.number();
            set("ttl_ms = ?1", &ttl, ttl >= 0);
        }
        if columns & 4 != 0 {
            let life = input.text(&["living", "abandoned", "dead"]);
            let known: [&[u8]; 3] = [b"living", b"abandoned", b"dead"];
            set(
                "life = CAST(?1 AS TEXT)",
                &life,
                known.contains(&life.as_slice()),
            );
        }
        if columns & 8 != 0 {
            let retired = input.text(&["", "1-4", "0-18446744073709551615"]);
            let text = std::str::from_utf8(&retired);
            let good = text.is_ok_and(|retired| retired.parse::<Ranges>().is_ok());
            set("over = CAST(?1 AS TEXT)", &retired, good);
        }
        if columns & 16 != 0 {
            let adopter = input.bytes();
            set("adopter = ?1", &adopter, adopter.len() == 16);
        }
        if columns & 32 != 0 {
            let boot = input.bytes();
            let good = std::str::from_utf8(&boot).is_ok();
            set("boot = CAST(?1 AS TEXT)", &boot, good);
        }
        if columns & 64 != 0 {
            set("seq = ?1", &input.number(), true);
            set("adoption = ?1", &input.number(), true);
            set("settled = ?1", &input.number(), true);
            set("ended_ms = ?1", &input.number(), true);
            set("expires_ms = ?1", &input.number(), true);
            let notes = input.text(&["", "ask//1/a/b", "new/1 2"]);
            let good = std::str::from_utf8(&notes).is_ok();
            set("notes = CAST(?1 AS TEXT)", &notes, good);
        }
        if columns & 128 != 0 {
            let id = CHANGED.get().to_be_bytes();
            let (token, payload) = (input.number(), input.bytes());
            self.execute(
                "INSERT INTO intents (session, token, payload) VALUES (?1, ?2, ?3)",
                &[&id, &token, &payload],
            );
        }
        readable
    }

    /// Asks for the keys, for those above and for those below, in every way.
    async fn ask(&self, rows: &[&Row], readable: bool, last: i64) {
        let mut n = 1_000;
        let mut keys = vec!["k", "l", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/b"];
        keys.extend(
            rows.iter()
                .filter_map(|row| std::str::from_utf8(&row.key).ok()),
        );
        for key in keys {
            let Ok(parsed) = LockKey::parse(key) else {
                continue;
            };
            for want in [
                Want::Create,
                Want::Upsert,
                Want::Share { limit: None },
                Want::Share {
                    limit: std::num::NonZeroU32::new(1_000),
                },
                Want::Write,
                Want::Read,
            ] {
                let Some(claim) = Claim::new(parsed.clone(), want) else {
                    continue;
                };
                n += 1;
                let request = request(n, claim);
                let answer = may_be_corrupt(self.backend.acquire(&request).await);
                let exclusive = !matches!(want, Want::Share { .. } | Want::Read);
                let held = rows.iter().any(|row| {
                    let unknown_session = !readable && row.session == CHANGED.get().to_be_bytes();
                    row.meets(key)
                        && (!row.understood() || unknown_session && (exclusive || !row.shares()))
                });
                match answer {
                    Some(Acquired::Acquired(token)) => {
                        assert!(!held, "{want:?} {key:?} was granted");
                        assert!(i64::try_from(token.get()).is_ok_and(|token| token > last));
                        let released = self.backend.release(request.grant, &request.claims);
                        released.await.expect("a release of what is ours");
                    }
                    Some(Acquired::Busy(_)) | None => {}
                    Some(answer) => panic!("the asker lives: {answer:?}"),
                }
            }
        }
    }

    /// Everything else that can be asked; what it answers is not looked at.
    async fn do_everything(&self, rows: &[&Row]) {
        let backend = &self.backend;
        let mut filters = vec![Filter::Prefix(String::new()), Filter::Session(CHANGED)];
        for row in rows {
            let Some(key) = std::str::from_utf8(&row.key).ok() else {
                continue;
            };
            let Ok(key) = LockKey::parse(key) else {
                continue;
            };
            let want = if key.is_path() {
                Want::Write
            } else {
                Want::Create
            };
            let claim = Claim::new(key.clone(), want).expect("of its kind");
            filters.push(Filter::Key(key));
            may_be_corrupt(backend.watch(std::slice::from_ref(&claim)).await);
            for session in [CHANGED, ABSENT] {
                let n = row.n.cast_unsigned();
                let claims = [claim.clone()];
                may_be_corrupt(backend.confirm(Grant { session, n }, &claims).await);
                may_be_corrupt(backend.release(Grant { session, n }, &claims).await);
            }
        }
        for filter in &filters {
            may_be_corrupt(backend.records(filter, None, 10).await);
        }
        may_be_corrupt(backend.sessions(None, 10).await);
        for how in [End::IfDue, End::Revoke] {
            may_be_corrupt(backend.end(&[CHANGED], how).await);
        }
        let seen = may_be_corrupt(backend.end(&[CHANGED], End::IfDue).await);
        let seen = seen.map_or(0, |states| states[0].adoption);
        may_be_corrupt(
            backend
                .adopt(CHANGED, seen, ASKER, Adopt::Take, Incarnation::UNKNOWN)
                .await,
        );
        may_be_corrupt(
            backend
                .settle(CHANGED, seen.saturating_add(1), ASKER, Incarnation::UNKNOWN)
                .await,
        );
        may_be_corrupt(
            backend
                .adopt(CHANGED, seen, ASKER, Adopt::GiveUp, Incarnation::UNKNOWN)
                .await,
        );
        may_be_corrupt(backend.end(&[CHANGED], End::Discard).await);
        may_be_corrupt(backend.sweep(Sweep::Session(CHANGED), 100).await);
        may_be_corrupt(backend.sweep(Sweep::All, 100).await);
    }

    /// The rows that nobody but an operator may change.
    fn not_understood(&self, rows: &[&Row]) -> Vec<Vec<u8>> {
        let load = |row: &&Row| {
            self.file
                .query_row(
                    "SELECT CAST(key AS BLOB) || session || CAST(want AS BLOB) || n || m || since_ms
                     FROM holders WHERE key = CAST(?1 AS TEXT) AND session = ?2 AND n = ?3",
                    params![row.key, row.session, row.n],
                    |row| row.get_ref(0).map(|value| value.as_bytes().map(<[u8]>::to_vec)),
                )
                .expect("the row is there")
                .expect("text or bytes")
        };
        rows.iter()
            .filter(|row| !row.understood())
            .map(load)
            .collect()
    }

    fn set_token(&self, last: i64) {
        let statement = format!("UPDATE holders SET m = ?1 WHERE {TOKEN}");
        let changed = self.file.execute(&statement, [last]);
        assert_eq!(changed, Ok(1), "the row of the token");
    }

    fn execute(&self, statement: &str, values: &[&dyn rusqlite::ToSql]) {
        self.file.execute(statement, values).expect(statement);
    }
}

fn request(n: u64, claim: Claim) -> Acquire {
    Acquire::new(
        Grant { session: ASKER, n },
        OwnerId {
            session: ASKER,
            m: n,
        },
        vec![claim],
    )
}

fn may_be_corrupt<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            None
        }
    }
}
