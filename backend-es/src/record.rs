//! The stored shape: ids, lock records and session records, and what a document is that cannot be understood.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use lockcore::backend::judge::Entry;
use lockcore::backend::rows::Waits;
use lockcore::backend::{Acquire, Ranges};
use lockcore::{
    FencingToken, Grant, Holder, Label, Life, LockKey, Mode, Notes, OwnerId, SessionId,
    SessionState,
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The version of the stored shape, in the index's mapping.
pub(crate) const VERSION: u64 = 4;
/// Longest id of a document.
const MAX_ID_BYTES: usize = 512;
const SESSION: &str = "~session/";
const INTENT: &str = "~intent/";
const HASHED: &str = "~sha256/";
/// The id of the document that is written before a look.
pub(crate) const MARK: &str = "~mark";

/// The id of a key's lock record: the key, unless it is too long for one or looks like an id of ours.
pub(crate) fn lock_id(key: &LockKey) -> Cow<'_, str> {
    let text = key.as_str();
    if text.len() <= MAX_ID_BYTES && !text.starts_with('~') {
        return Cow::Borrowed(text);
    }
    let mut id = HASHED.to_owned();
    for byte in Sha256::digest(text) {
        let _ = write!(id, "{byte:02x}");
    }
    Cow::Owned(id)
}

/// The key of a lock record, by its id and what it says; `None` for other documents.
pub(crate) fn key_of(id: &str, document: &Value) -> Option<LockKey> {
    if !id.starts_with('~') {
        return LockKey::parse(id).ok();
    }
    let key = LockKey::parse(document["key"].as_str()?).ok()?;
    (lock_id(&key) == id).then_some(key)
}

/// The id of a session's record.
pub(crate) fn session_id(session: SessionId) -> String {
    format!("{SESSION}{session}")
}

/// The id of the payload of a session's intent, which was registered by the renewal of that number.
pub(crate) fn intent_id(session: SessionId, seq: u64) -> String {
    format!("{INTENT}{session}/{seq}")
}

/// The session whose intent has this id.
pub(crate) fn session_of_intent(id: &str) -> Option<SessionId> {
    let (session, _) = id.strip_prefix(INTENT)?.split_once('/')?;
    session.parse().ok()
}

/// Somebody in a lock record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// `None` for a foreign one, which nobody can judge.
    pub(crate) known: Option<Known>,
    pub(crate) mode: Mode,
    /// What can be said of a foreign one.
    pub(crate) label: String,
    /// If it holds nothing and waits: its place, and the key of its claim.
    pub(crate) waits: Option<(Waits, LockKey)>,
}

/// A holder or a waiter of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) grant: Grant,
    pub(crate) owner: OwnerId,
    pub(crate) since_ms: Option<u64>,
    /// How many records the grant was entered in.
    pub(crate) of: u64,
}

impl Held {
    fn foreign(mode: Mode, label: String) -> Self {
        Self {
            known: None,
            mode,
            label,
            waits: None,
        }
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        self.known.map(|known| known.grant)
    }

    /// As the traits say it, with the state of its session.
    pub(crate) fn holder(&self, key: &LockKey, state: Option<&SessionState>) -> Holder {
        let (label, life) = match state {
            Some(state) => (state.label.to_string(), state.life),
            None => (self.label.clone(), Life::Living),
        };
        let since = self.known.and_then(|known| known.since_ms);
        let since = since.map(Duration::from_millis);
        Holder {
            key: key.clone(),
            grant: self.grant(),
            owner: self.known.map(|known| known.owner),
            mode: self.mode,
            label,
            since: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
            life,
            waiting: self.waits().map(Waits::waiting),
        }
    }
}

impl Entry for Held {
    fn grant(&self) -> Option<Grant> {
        self.grant()
    }

    fn owner(&self) -> Option<OwnerId> {
        self.known.map(|known| known.owner)
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn waits(&self) -> Option<Waits> {
        self.waits.as_ref().map(|(waits, _)| *waits)
    }
}

/// Who is in the lock record of a key, as the scripts read it too.
pub(crate) fn held(key: &LockKey, document: &Value) -> Vec<Held> {
    let count = document["lock_count"]
        .as_i64()
        .and_then(|count| i32::try_from(count).ok());
    match (count, &document["holders"]) {
        (Some(count), Value::Object(holders)) if document["key"] == key.as_str() => {
            let mut held: Vec<Held> = holders.iter().map(|(name, of)| read(name, of)).collect();
            let ours = held.iter().filter(|held| held.waits.is_none()).count();
            let ours = i32::try_from(ours).unwrap_or(i32::MAX);
            held.extend(shares(count.saturating_sub(ours)));
            held
        }
        (Some(count @ 1..), Value::Null) if document["lock_type"] == "shared" => {
            shares(count).into_iter().collect()
        }
        _ => vec![unreadable(document)],
    }
}

/// Shares that are counted only, as the book's clients write them: whoever counts is a writer below.
fn shares(count: i32) -> Option<Held> {
    let label = format!("{count} of another writer, by count");
    (count > 0).then(|| Held::foreign(Mode::IX, label))
}

/// What stands for a document that cannot be understood.
pub(crate) fn unreadable(document: &Value) -> Held {
    let label = match &document["process_id"] {
        Value::String(process) => format!("another writer's process {}", shown(process)),
        Value::Number(process) => format!("another writer's process {process}"),
        _ => "a record of another writer, or of a newer version".to_owned(),
    };
    Held::foreign(Mode::X, label)
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

fn read(name: &str, of: &Value) -> Held {
    let known = || {
        let grant: Grant = name.parse().ok()?;
        let owner: OwnerId = of["owner"].as_str()?.parse().ok()?;
        let session: SessionId = of["session"].as_str()?.parse().ok()?;
        let mode = Mode::from_name(of["mode"].as_str()?)?;
        let known = Known {
            grant,
            owner,
            since_ms: of["since"].as_u64(),
            of: of["of"].as_u64().unwrap_or(1),
        };
        let waits = match &of["waits"] {
            Value::Null => None,
            claim => Some((waits(of)?, LockKey::parse(claim.as_str()?).ok()?)),
        };
        (grant.session == session && owner.session == session).then_some((known, mode, waits))
    };
    match known() {
        Some((known, mode, waits)) => Held {
            known: Some(known),
            mode,
            label: String::new(),
            waits,
        },
        None => Held::foreign(Mode::X, format!("another writer's holder {}", shown(name))),
    }
}

/// The place in line that an entry has, or had before it was granted.
fn waits(entry: &Value) -> Option<Waits> {
    Some(Waits {
        place: entry["place"].as_u64()?,
        passed: u32::try_from(entry["passed"].as_u64()?).ok()?,
    })
}

/// The place that a grant has, or had, in a record.
pub(crate) fn place(document: &Value, grant: Grant) -> Option<u64> {
    Some(waits(&document["holders"][grant.to_string()])?.place)
}

/// Whether the request was sent before: its entry was there already.
pub(crate) fn stood(document: &Value, grant: Grant) -> bool {
    document["holders"][grant.to_string()]["again"] == Value::Bool(true)
}

/// A lock record with one holder, as the script writes it. Those of a request in one mode differ in the key alone.
#[derive(Serialize)]
pub(crate) struct Sole<'a> {
    key: &'a str,
    lock_type: &'static str,
    lock_count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_id: Option<&'a str>,
    processes: [&'a str; 1],
    holders: &'a RawValue,
}

/// Who asks, as text.
pub(crate) struct Names {
    grant: Grant,
    owner: String,
    session: String,
    since_ms: u64,
    of: usize,
    attempt: Option<u64>,
    /// How it waits, and what for; it holds nothing then.
    waits: Option<(u64, LockKey)>,
    /// The one entry of the holders, the same on every key, by its mode.
    holders: BTreeMap<Mode, Box<RawValue>>,
}

impl Names {
    /// Of a request that needs so many records.
    pub(crate) fn new(request: &Acquire, of: usize, since_ms: u64) -> Self {
        Self {
            attempt: None,
            waits: None,
            grant: request.grant,
            owner: request.owner.to_string(),
            session: request.grant.session.to_string(),
            since_ms,
            of,
            holders: BTreeMap::new(),
        }
    }

    /// The same, of that attempt.
    pub(crate) fn of_attempt(self, attempt: Option<u64>) -> Self {
        Self { attempt, ..self }
    }

    /// The same, of a grant that waits at that place for a claim of that key.
    pub(crate) fn waiting(self, place: u64, claim: &LockKey) -> Self {
        let waits = Some((place, claim.clone()));
        Self { waits, ..self }
    }

    /// The record of a key that nobody else holds.
    pub(crate) fn sole<'a>(&'a mut self, key: &'a LockKey, mode: Mode) -> Sole<'a> {
        let holders = self.holders.entry(mode).or_insert_with(|| {
            let mut entry = json!({
                "owner": self.owner, "session": self.session, "mode": mode.as_str(), "since": self.since_ms, "of": self.of,
            });
            if let Some(attempt) = self.attempt {
                entry["attempt"] = attempt.into();
            }
            if let Some((place, claim)) = &self.waits {
                entry["waits"] = claim.as_str().into();
                entry["place"] = (*place).into();
                entry["passed"] = 0.into();
            }
            let holders = to_raw_value(&json!({self.grant.to_string(): entry}));
            holders.expect("a JSON value has a form in JSON")
        });
        Sole {
            key: key.as_str(),
            lock_type: lock_type(mode),
            lock_count: u32::from(self.waits.is_none()),
            process_id: (mode == Mode::X && self.waits.is_none()).then_some(&self.owner),
            processes: [&self.session],
            holders,
        }
    }
}

/// What the book's clients are told of a holder in this mode.
fn lock_type(mode: Mode) -> &'static str {
    match mode {
        Mode::IS | Mode::IX => "shared",
        Mode::S | Mode::X => "exclusive",
    }
}

/// The lock record without what is foreign in it; `None` if nothing is left.
pub(crate) fn without_foreign(key: &LockKey, document: &Value) -> Option<Value> {
    let ours = |(name, of): &(&String, &Value)| read(name, of).known.is_some();
    let holders = document["holders"].as_object()?;
    let holders: Map<String, Value> = holders
        .iter()
        .filter(ours)
        .map(|(name, of)| (name.clone(), of.clone()))
        .collect();
    if holders.is_empty() {
        return None;
    }
    let of = |mode: &str| holders.values().find(move |of| of["mode"] == mode);
    let waiters = holders.values().filter(|of| !of["waits"].is_null()).count();
    let exclusive = of("X").or_else(|| of("S")).is_some();
    let sessions: BTreeSet<&str> = holders
        .values()
        .filter_map(|of| of["session"].as_str())
        .collect();
    let mut record = json!({
        "key": key.as_str(),
        "lock_type": if exclusive { "exclusive" } else { "shared" },
        "lock_count": holders.len() - waiters,
        "processes": sessions,
        "holders": holders,
    });
    if let Some(holder) = of("X").filter(|_| waiters == 0) {
        record["process_id"] = holder["owner"].clone();
    }
    Some(record)
}

/// A session's record, as far as anybody but the scripts reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) state: SessionState,
    pub(crate) intent: Option<Named>,
}

/// What a session says of its intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) token: FencingToken,
    /// The number of the renewal that has registered it.
    pub(crate) seq: u64,
}

impl Session {
    /// `None` for what is no record of this version.
    pub(crate) fn read(session: SessionId, document: &Value) -> Option<Self> {
        let life = match document["state"].as_str()? {
            "living" => Life::Living,
            "abandoned" => Life::Abandoned,
            "dead" => Life::Dead,
            _ => return None,
        };
        let range = |range: &Value| Some((range[0].as_u64()?, range[1].as_u64()?));
        let retired = document["retired"].as_array()?.iter().map(range);
        let intent = match &document["intent"] {
            Value::Null => None,
            intent => Some(Named {
                token: intent["token"].as_str()?.parse().ok()?,
                seq: intent["seq"].as_u64()?,
            }),
        };
        let adopter = match &document["adopter"] {
            Value::Null => None,
            Value::String(adopter) => Some(adopter.parse().ok()?),
            _ => return None,
        };
        let numbers = ["ttl", "seq"].map(|name| document[name].as_u64());
        let mut state = SessionState::new(session, life);
        state.label = Label::parse(document["label"].as_str()?).ok()?;
        state.retired = Ranges::new(retired.collect::<Option<_>>()?).ok()?;
        state.adoption = document["adoption"].as_u64()?;
        state.adopter = adopter;
        state.notes = match &document["notes"] {
            Value::Null => Notes::default(),
            notes => Notes::stored(notes.as_str()?),
        };
        state.ended = document["ended"]
            .as_u64()
            .and_then(|ended| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ended)));
        // What is missing would stop the scripts; and who has died is abandoned if there is an intent.
        let whole = numbers.iter().all(Option::is_some);
        let consistent = life == Life::Living || (life == Life::Abandoned) == intent.is_some();
        (whole && consistent).then_some(Self { state, intent })
    }

    /// Whether a grant of that number may be written.
    pub(crate) fn allows(&self, n: u64) -> bool {
        self.state.life == Life::Living && !self.state.retired.contains(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> LockKey {
        LockKey::parse(text).unwrap()
    }

    fn ours(n: u64, mode: &str) -> (String, Value) {
        let session = SessionId::new(7);
        let entry = json!({"owner": format!("{session}/3"), "session": session.to_string(), "mode": mode, "since": 1000});
        (format!("{session}/{n}"), entry)
    }

    #[test]
    fn keys_are_ids_unless_they_cannot_be() {
        for text in [
            "a",
            "/clinton/projects",
            "..",
            "_all",
            "é",
            &"x".repeat(512),
        ] {
            let key = key(text);
            assert_eq!(lock_id(&key), text);
            assert_eq!(key_of(text, &json!({})), Some(key));
        }
        for text in [
            "~",
            "~session/00000000000000000000000000000007",
            &"x".repeat(513),
            &"é".repeat(257),
        ] {
            let key = key(text);
            let id = lock_id(&key).into_owned();
            assert_eq!(id.len(), "~sha256/".len() + 64, "{id}");
            assert!(id.starts_with("~sha256/"));
            assert_eq!(key_of(&id, &json!({"key": text})), Some(key));
            assert_eq!(key_of(&id, &json!({"key": "other"})), None);
        }
        assert_eq!(
            lock_id(&key("~")),
            "~sha256/7ace431cb61584cb9b8dc7ec08cf38ac0a2d649660be86d349fb43108b542fa4"
        );
    }

    #[test]
    fn holders_of_ours_are_read() {
        let entries: Map<String, Value> = [ours(1, "IX"), ours(2, "IS")].into_iter().collect();
        let record =
            json!({"key": "/a", "lock_type": "shared", "lock_count": 3, "holders": entries});
        let held = held(&key("/a"), &record);
        assert_eq!(held.len(), 3);
        assert_eq!(held[0].known.unwrap().grant.n, 1);
        assert_eq!(held[1].mode, Mode::IS);
        assert_eq!(
            (held[2].known, held[2].mode),
            (None, Mode::IX),
            "one share of another writer"
        );
    }

    #[test]
    fn foreign_records_block_as_the_book_means_it() {
        let shared = held(&key("/a"), &json!({"lock_type": "shared", "lock_count": 2}));
        assert_eq!(shared.len(), 1);
        assert_eq!(shared[0].mode, Mode::IX);
        for document in [
            json!({}),
            json!({"process_id": 123}),
            json!({"lock_type": "exclusive"}),
            json!({"lock_type": "shared"}),
            json!({"lock_type": "shared", "lock_count": 0}),
            json!({"lock_type": "shared", "lock_count": -1}),
            json!({"lock_type": "shared", "lock_count": 1.5}),
            json!({"lock_type": "shared", "lock_count": "1"}),
            json!({"lock_type": "shared", "lock_count": 3_000_000_000_u64}),
            json!({"key": "/a", "lock_count": 1, "holders": []}),
            json!({"key": "/b", "lock_count": 1, "holders": {}}),
        ] {
            let held = held(&key("/a"), &document);
            assert_eq!(
                (held.len(), held[0].known, held[0].mode),
                (1, None, Mode::X),
                "{document}"
            );
        }
        assert_eq!(
            unreadable(&json!({"process_id": 123})).label,
            "another writer's process 123"
        );
    }

    #[test]
    fn holders_that_cannot_be_judged_are_foreign() {
        let (name, entry) = ours(1, "X");
        let changed = |field: &str, value: Value| {
            let mut entry = entry.clone();
            entry[field] = value;
            (name.clone(), entry)
        };
        for (name, entry) in [
            changed("mode", json!("covet")),
            changed("mode", Value::Null),
            changed("owner", json!("somebody")),
            changed("session", json!(SessionId::new(8).to_string())),
            ("somebody".to_owned(), entry.clone()),
            (name.clone(), json!(5)),
        ] {
            let record = json!({"key": "a", "lock_count": 1, "holders": {name: entry}});
            let held = held(&key("a"), &record);
            assert_eq!(
                (held.len(), held[0].known, held[0].mode),
                (1, None, Mode::X),
                "{record}"
            );
            assert_eq!(without_foreign(&key("a"), &record), None);
        }
    }

    #[test]
    fn an_eviction_leaves_what_is_ours() {
        let (name, entry) = ours(1, "IX");
        let record =
            json!({"key": "/a", "lock_count": 5, "holders": {name.clone(): entry, "x": 5}});
        let left = without_foreign(&key("/a"), &record).unwrap();
        assert_eq!(left["lock_count"], 1);
        assert_eq!(left["lock_type"], "shared");
        assert_eq!(left["processes"], json!([SessionId::new(7).to_string()]));
        assert_eq!(left["holders"].as_object().unwrap().len(), 1);
        assert_eq!(without_foreign(&key("/a"), &json!({})), None);
    }

    #[test]
    fn a_record_with_one_holder_is_read_back() {
        let session = SessionId::new(7);
        let (grant, owner) = (Grant { session, n: 4 }, OwnerId { session, m: 9 });
        let mut names = Names::new(&Acquire::new(grant, owner, Vec::new()), 3, 5);
        let key = key("k");
        let known = Known {
            grant,
            owner,
            since_ms: Some(5),
            of: 3,
        };
        for mode in Mode::ALL {
            let record = serde_json::to_value(names.sole(&key, mode)).unwrap();
            let held = held(&key, &record);
            assert_eq!(held.len(), 1);
            assert_eq!((held[0].known, held[0].mode), (Some(known), mode));
            // An eviction writes the same.
            assert_eq!(without_foreign(&key, &record), Some(record));
        }
    }

    #[test]
    fn session_records_are_read_or_are_not_believed() {
        let id = SessionId::new(7);
        let record = json!({"session": id.to_string(), "label": "l", "ttl": 1000, "state": "abandoned", "seq": 3,
            "retired": [[1, 4], [7, 7]], "intent": {"token": "5", "seq": 2}, "adoption": 2, "adopter": SessionId::new(8).to_string()});
        let read = Session::read(id, &record).unwrap();
        assert_eq!(read.state.retired.to_string(), "1-4,7-7");
        assert_eq!((read.state.life, read.state.adoption), (Life::Abandoned, 2));
        assert_eq!(
            read.intent.map(|intent| (intent.token.get(), intent.seq)),
            Some((5, 2))
        );
        for (field, value) in [
            ("state", json!("live")),
            ("state", Value::Null),
            ("state", json!("dead")),
            ("retired", json!({})),
            ("retired", json!([[4, 1]])),
            ("retired", json!([1])),
            ("label", Value::Null),
            ("ttl", json!("x")),
            ("seq", Value::Null),
            ("intent", json!(5)),
            ("intent", json!({"token": "5"})),
            ("intent", json!({"seq": 2})),
            ("intent", Value::Null),
            ("adoption", json!(-1)),
            ("adopter", json!("x")),
        ] {
            let mut record = record.clone();
            record[field] = value.clone();
            assert_eq!(Session::read(id, &record), None, "{field}: {value}");
        }
        assert_eq!(Session::read(id, &json!({})), None);
    }
}
