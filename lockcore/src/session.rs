//! Sessions and the names in them: [`SessionId`], [`Grant`], [`OwnerId`], [`Label`], [`Life`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::MAX_LABEL_BYTES;

/// The random 128-bit name of a session. As text: 32 lower-case hexadecimal digits.
///
/// A session is the liveness of one process in the store. Only its record has an expiry, and one write renews every
/// lock of the session. An id is used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u128);

impl SessionId {
    /// The session id with this number.
    #[must_use]
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(hex) {
            return Err(IdError);
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| IdError)
    }
}

/// The name of one request for one batch: `<session>/<number>`. The numbers rise; each is chosen before any I/O.
///
/// Sending a request again under its grant is safe. After a refusal, an undo or a release, the grant is never acquired
/// again: every further request has a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    /// The session of the request.
    pub session: SessionId,
    /// The number of the request in that session, from 1.
    pub n: u64,
}

/// The name of an owner, which may re-enter: `<session>/<number>`, always with the session of its grants. The book's
/// `process_id`.
///
/// It is a field of a holder, never the holder's name: two holders of one owner are released separately.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId {
    /// The session of the owner and of all its grants.
    pub session: SessionId,
    /// The number of the owner in that session, from 1.
    pub m: u64,
}

macro_rules! numbered {
    ($name:ident, $number:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.session, self.$number)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let (session, number) = text.split_once('/').ok_or(IdError)?;
                Ok(Self {
                    session: session.parse()?,
                    $number: decimal(number).ok_or(IdError)?,
                })
            }
        }
    };
}

numbered!(Grant, n);
numbered!(OwnerId, m);

/// Parses a decimal number in its only spelling: no sign, no blanks, no leading zeros.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// The text is no session id (32 lower-case hexadecimal digits), or no grant or owner (`<session id>/<number>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a session id of 32 lower-case hexadecimal digits, alone or followed by '/' and a number"
)]
pub struct IdError;

/// The text that describes a session to people: host, process id and program by default. At most 256 bytes of UTF-8
/// without control characters; it may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// A label of this library, which is short and valid.
    pub(crate) fn ours(text: &'static str) -> Self {
        Self::parse(text).expect("it is short and plain")
    }

    /// Takes the text as a label, unchanged.
    ///
    /// # Errors
    ///
    /// The text has more than 256 bytes, or a control character.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, LabelError> {
        let text = text.as_ref();
        if text.len() > MAX_LABEL_BYTES {
            return Err(LabelError::TooLong { bytes: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(LabelError::ControlCharacter);
        }
        Ok(Self(text.into()))
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::parse(text)
    }
}

/// Why a text is no label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// More than 256 bytes.
    #[error("a label has at most {MAX_LABEL_BYTES} bytes, this one has {bytes}: shorten it")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// A control character.
    #[error("a label has no control characters: remove them")]
    ControlCharacter,
}

/// The state of a session. A living session becomes abandoned or dead, an abandoned one dead; nothing goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// Its holders are live unless their number is retired.
    Living,
    /// Dead with an unsettled intent. Its holders are live, unless their number is retired, until the intent is settled
    /// or discarded.
    Abandoned,
    /// None of its holders is live.
    Dead,
}

impl Life {
    /// Whether holders of such a session are live, unless their number is retired.
    #[must_use]
    pub const fn is_live(self) -> bool {
        !matches!(self, Life::Dead)
    }

    /// The name of the state, as stored and printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Life::Living => "living",
            Life::Abandoned => "abandoned",
            Life::Dead => "dead",
        }
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling() {
        let session = SessionId::new(0xabc);
        let text = session.to_string();
        assert_eq!(text.parse::<SessionId>(), Ok(session));
        for bad in [
            "",
            "abc",
            &text.to_uppercase(),
            &format!("+{}", &text[1..]),
            &format!("{text}0"),
        ] {
            assert_eq!(bad.parse::<SessionId>(), Err(IdError), "{bad:?}");
        }
        let grant = Grant { session, n: 7 };
        assert_eq!(grant.to_string().parse::<Grant>(), Ok(grant));
        for bad in [
            format!("{text}/"),
            format!("{text}/07"),
            format!("{text}/+7"),
            format!("{text}/7/"),
            text,
        ] {
            assert_eq!(bad.parse::<Grant>(), Err(IdError), "{bad:?}");
        }
    }

    #[test]
    fn label_bounds_on_both_sides() {
        assert!(Label::parse("").is_ok());
        assert_eq!(Label::parse("a b").unwrap().to_string(), "a b");
        assert!(Label::parse("x".repeat(MAX_LABEL_BYTES)).is_ok());
        assert_eq!(
            Label::parse("x".repeat(MAX_LABEL_BYTES + 1)),
            Err(LabelError::TooLong {
                bytes: MAX_LABEL_BYTES + 1
            })
        );
        assert_eq!("a\tb".parse::<Label>(), Err(LabelError::ControlCharacter));
    }
}
