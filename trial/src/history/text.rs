//! Words of the library as text, for events as JSON.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;

use lockcore::{Claim, LockKey, Mode, Want};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// A list of things with a text.
pub(super) mod list {
    use super::*;

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed = texts.iter().map(|text| text.parse());
        parsed.collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

/// A mode by its name.
pub(super) mod mode {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        mode: &Mode,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.as_str())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Mode, D::Error> {
        let name = String::deserialize(from)?;
        Mode::from_name(&name).ok_or_else(|| D::Error::custom("not a mode"))
    }
}

/// A list of claims, each as `write /a/b` or `share:3 name`.
pub(super) mod claims {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        claims: &[Claim],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(claims.iter().map(shown))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Claim>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed = texts
            .iter()
            .map(|text| parsed(text).ok_or_else(|| D::Error::custom("not a claim")));
        parsed.collect()
    }
}

/// A claim as text.
pub(crate) fn shown(claim: &Claim) -> String {
    let want = match claim.want() {
        Want::Create => "create".to_owned(),
        Want::Upsert => "upsert".to_owned(),
        Want::Share { limit: None } => "share".to_owned(),
        Want::Share { limit: Some(limit) } => format!("share:{limit}"),
        Want::Write => "write".to_owned(),
        Want::Read => "read".to_owned(),
    };
    format!("{want} {}", claim.key())
}

pub(crate) fn parsed(text: &str) -> Option<Claim> {
    let (want, key) = text.split_once(' ')?;
    let want = match want {
        "create" => Want::Create,
        "upsert" => Want::Upsert,
        "share" => Want::Share { limit: None },
        "write" => Want::Write,
        "read" => Want::Read,
        limited => Want::Share {
            limit: Some(limited.strip_prefix("share:")?.parse::<NonZeroU32>().ok()?),
        },
    };
    Claim::new(LockKey::parse(key).ok()?, want)
}
