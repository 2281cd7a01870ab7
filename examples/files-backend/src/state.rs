//! The stored shape, as `state.json` has it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use lockcore::judge::{Entry as _, Place};
use lockcore::{
    FencingToken, Grant, Holder, Intent, Label, Life, LockKey, Mode, OwnerId, Ranges, SessionId,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The version of the shape. A reader of another one refuses the file.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) format: u32,
    /// The last token that was given out.
    pub(crate) token: u64,
    pub(crate) sessions: Sessions,
    /// In path order, so that what is below a path stands directly behind it.
    pub(crate) records: BTreeMap<Text<LockKey>, Vec<Entry>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sessions {
    /// Rises whenever something was given back or stopped counting; who waits looks at it.
    pub(crate) freed: u64,
    pub(crate) by_id: BTreeMap<Text<SessionId>, Session>,
}

/// All times are microseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    #[serde(serialize_with = "put_label", deserialize_with = "get_label")]
    pub(crate) label: Label,
    pub(crate) ttl_us: u64,
    /// When it is due; of a dead one, when it died.
    pub(crate) until_us: u64,
    #[serde(with = "LifeName")]
    pub(crate) life: Life,
    pub(crate) seq: u64,
    pub(crate) over: Text<Ranges>,
    pub(crate) intent: Option<Left>,
    pub(crate) adoption: u64,
    pub(crate) adopter: Option<Text<SessionId>>,
    /// The adoption by which it was settled.
    pub(crate) settled_by: Option<u64>,
}

/// A registered intent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Left {
    pub(crate) token: Text<FencingToken>,
    #[serde(serialize_with = "put_intent", deserialize_with = "get_intent")]
    pub(crate) intent: Intent,
}

/// Who holds a key.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Ours(Held),
    /// What cannot be understood, as it stands in the file.
    Foreign(Box<RawValue>),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    pub(crate) grant: Text<Grant>,
    pub(crate) owner: Text<OwnerId>,
    #[serde(with = "ModeName")]
    pub(crate) mode: Mode,
    pub(crate) since_us: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            format: FORMAT,
            token: 0,
            sessions: Sessions::default(),
            records: BTreeMap::new(),
        }
    }
}

impl Entry {
    /// `None` for what cannot be understood: it counts, and only an eviction removes it.
    pub(crate) fn held(&self) -> Option<&Held> {
        match self {
            Entry::Ours(held) => Some(held),
            Entry::Foreign(_) => None,
        }
    }

    /// As a holder of `key`, met at that place.
    pub(crate) fn holder(&self, sessions: &Sessions, key: &LockKey, place: Place) -> Holder {
        let (label, life) = match self.grant() {
            Some(grant) => sessions.shown(grant.session),
            None => ("not a holder of this version".to_owned(), Life::Living),
        };
        let since = self.held().map(|held| Duration::from_micros(held.since_us));
        Holder {
            key: key.clone(),
            grant: self.grant(),
            owner: self.owner(),
            mode: place.seen(self.mode()),
            label,
            since: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
            life,
        }
    }
}

impl lockcore::judge::Entry for Entry {
    fn grant(&self) -> Option<Grant> {
        self.held().map(|held| held.grant.0)
    }

    fn owner(&self) -> Option<OwnerId> {
        self.held().map(|held| held.owner.0)
    }

    fn mode(&self) -> Mode {
        self.held().map_or(Mode::X, |held| held.mode)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(match serde_json::from_str(raw.get()) {
            Ok(held) => Entry::Ours(held),
            Err(_) => Entry::Foreign(raw),
        })
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Entry::Ours(held) => held.serialize(to),
            Entry::Foreign(raw) => raw.serialize(to),
        }
    }
}

/// A value that is stored as its one spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Text).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode")]
enum ModeName {
    IS,
    IX,
    S,
    X,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Life", rename_all = "lowercase")]
enum LifeName {
    Living,
    Abandoned,
    Dead,
}

fn put_label<S: Serializer>(label: &Label, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(label)
}

fn get_label<'de, D: Deserializer<'de>>(from: D) -> Result<Label, D::Error> {
    Label::parse(String::deserialize(from)?).map_err(D::Error::custom)
}

fn put_intent<S: Serializer>(intent: &Intent, to: S) -> Result<S::Ok, S::Error> {
    intent.as_bytes().serialize(to)
}

fn get_intent<'de, D: Deserializer<'de>>(from: D) -> Result<Intent, D::Error> {
    Intent::new(Vec::deserialize(from)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_almost_ours_is_foreign_and_kept_byte_for_byte() {
        let session = SessionId::new(1);
        let held = Held {
            grant: Text(Grant { session, n: 1 }),
            owner: Text(OwnerId { session, m: 2 }),
            mode: Mode::IS,
            since_us: 3,
        };
        let ours = serde_json::to_string(&Entry::Ours(held)).unwrap();
        assert_eq!(
            serde_json::from_str::<Entry>(&ours).unwrap().grant(),
            Some(held.grant.0)
        );
        for strange in [
            ours.replace("/1\"", "/01\""),
            ours.replace("IS", "is"),
            ours.replace("since_us", "until_us"),
            ours.replace('}', ",\"fence\": 1e400 }"),
            "12345678901234567890123".to_owned(),
            "null".to_owned(),
        ] {
            let entry: Entry = serde_json::from_str(&strange).unwrap();
            assert_eq!((entry.grant(), entry.mode()), (None, Mode::X), "{strange}");
            assert_eq!(serde_json::to_string(&entry).unwrap(), strange);
        }
    }
}
