//! The stored shape, as `state.json` has it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use lockcore::backend::rows::{Held, HolderRow, SessionRow, Strange, Waits};
use lockcore::backend::{Ranges, Registered};
use lockcore::{
    FencingToken, Grant, Intent, Label, Life, LockKey, Mode, Notes, OwnerId, SessionId,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The version of the shape. A reader of another one refuses the file.
pub(crate) const FORMAT: u32 = 4;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub(crate) format: u32,
    /// The last token that was given out.
    pub(crate) token: u64,
    pub(crate) sessions: BTreeMap<Text<SessionId>, Session>,
    /// In path order, so that what is below a path stands directly behind it; holders as they stand in the file.
    pub(crate) records: BTreeMap<Text<LockKey>, Vec<Box<RawValue>>>,
    /// When the file is read.
    #[serde(skip)]
    pub(crate) now: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    #[serde(with = "SessionShape")]
    pub(crate) row: SessionRow,
    pub(crate) intent: Option<Left>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SessionRow", deny_unknown_fields)]
struct SessionShape {
    #[serde(with = "text")]
    label: Label,
    ttl: Duration,
    due: Duration,
    #[serde(with = "LifeName")]
    life: Life,
    ended: Option<Duration>,
    seq: u64,
    #[serde(with = "text")]
    retired: Ranges,
    adoption: u64,
    #[serde(with = "optional_text")]
    adopter: Option<SessionId>,
    settled: Option<u64>,
    #[serde(with = "text")]
    notes: Notes,
}

/// A registered intent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Left {
    token: Text<FencingToken>,
    intent: Vec<u8>,
}

/// Who holds a key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Holder {
    grant: Text<Grant>,
    owner: Text<OwnerId>,
    #[serde(with = "ModeName")]
    mode: Mode,
    since: Duration,
    /// Its place in line and how often it was passed, if it holds nothing and waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<(u64, u32)>,
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

impl Default for State {
    fn default() -> Self {
        Self {
            format: FORMAT,
            token: 0,
            sessions: BTreeMap::new(),
            records: BTreeMap::new(),
            now: Duration::ZERO,
        }
    }
}

impl Left {
    pub(crate) fn new(left: &Registered) -> Self {
        Self {
            token: Text(left.token),
            intent: left.intent.as_bytes().to_vec(),
        }
    }

    /// `None` if it cannot be understood.
    pub(crate) fn read(&self) -> Option<Registered> {
        Some(Registered {
            token: self.token.0,
            intent: Intent::new(self.intent.clone()).ok()?,
        })
    }
}

/// Which holder: of what cannot be understood there is one on a key.
pub(crate) type Id = (LockKey, Option<Grant>);

/// What a holder means; one that cannot be understood is kept byte for byte.
pub(crate) fn holder(key: &LockKey, raw: &RawValue) -> HolderRow<Id> {
    let read = serde_json::from_str::<Holder>(raw.get());
    let grant = read.as_ref().ok().map(|read| read.grant.0);
    let since = read.as_ref().ok().map(|read| read.since);
    HolderRow {
        id: (key.clone(), grant),
        session: grant.map(|grant| grant.session),
        n: grant.map_or(0, |grant| grant.n),
        since: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
        held: read
            .map(|read| Held {
                grant: read.grant.0,
                owner: read.owner.0,
                mode: read.mode,
                waits: read.waits.map(|(place, passed)| Waits { place, passed }),
            })
            .map_err(|_| Strange {
                what: "not a holder of this version".to_owned(),
                version: format!("{},", raw.get()),
            }),
    }
}

/// A holder as it stands in the file.
pub(crate) fn raw(held: &Held, since: Duration) -> Box<RawValue> {
    serde_json::value::to_raw_value(&Holder {
        grant: Text(held.grant),
        owner: Text(held.owner),
        mode: held.mode,
        since,
        waits: held.waits.map(|waits| (waits.place, waits.passed)),
    })
    .expect("a holder is plain data")
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

mod text {
    use super::*;

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        Text::deserialize(from).map(|text| text.0)
    }
}

mod optional_text {
    use super::*;

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Text).serialize(to)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::deserialize(from)?.map(|text: Text<T>| text.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_almost_ours_is_foreign_and_kept_byte_for_byte() {
        let key = LockKey::parse("a").unwrap();
        let session = SessionId::new(1);
        let grant = Grant { session, n: 1 };
        let owner = OwnerId { session, m: 2 };
        let held = Held {
            grant,
            owner,
            mode: Mode::IS,
            waits: None,
        };
        let ours = raw(&held, Duration::from_micros(3));
        assert_eq!(holder(&key, &ours).held.unwrap().grant, grant);
        let ours = ours.get();
        for strange in [
            ours.replace("/1\"", "/01\""),
            ours.replace("IS", "is"),
            ours.replace("since", "until"),
            ours.replace("}}", "},\"fence\": 1e400 }"),
            "12345678901234567890123".to_owned(),
            "null".to_owned(),
        ] {
            assert_ne!(strange, ours);
            let read: Box<RawValue> = serde_json::from_str(&strange).unwrap();
            let row = holder(&key, &read);
            assert_eq!(row.id.1, None, "{strange}");
            assert!(row.held.unwrap_err().version.contains(&strange));
            assert_eq!(serde_json::to_string(&read).unwrap(), strange);
        }
    }
}
