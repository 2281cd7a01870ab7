//! [`FencingToken`].

use std::fmt;
use std::str::FromStr;

/// A number that every grant carries and that only rises: of two grants of one key, the later has the greater token,
/// across release, expiry, takeover, restart and failover of the store, and re-creation of the namespace.
///
/// Below 2^63, so that it fits a signed 64-bit column, and printed as a decimal string. A resource that remembers the
/// greatest token it has seen and refuses smaller ones is safe from a holder that was paused and does not know that
/// its lock is gone; a token that nobody checks protects nobody.
///
/// # Examples
///
/// ```
/// use lockcore::FencingToken;
///
/// let token: FencingToken = "1700000000000000".parse()?;
/// assert_eq!(token.get(), 1_700_000_000_000_000);
/// assert_eq!(token.to_string(), "1700000000000000");
/// assert!("+1".parse::<FencingToken>().is_err());
/// # Ok::<(), lockcore::TokenError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token from its number; `None` from 2^63 on.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number >> 63 == 0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// So many guards of one process at most have a grant of the store after the first one.
    pub(crate) const PASSES: u8 = 63;

    /// The token of a guard, of the store's: that of whoever has the grant after so many others of its process.
    pub(crate) const fn handed_on(self, pass: u8) -> Self {
        Self(self.0 * (Self::PASSES as u64 + 1) + pass as u64)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for FencingToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        crate::session::decimal(text)
            .and_then(Self::new)
            .ok_or(TokenError)
    }
}

/// The text is no fencing token: a decimal number below 2^63, without sign, blanks or leading zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a decimal number below 2^63 without sign or leading zeros")]
pub struct TokenError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_one_token() {
        for text in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "01",
            "0x1",
            "9223372036854775808",
            "1.0",
        ] {
            assert_eq!(text.parse::<FencingToken>(), Err(TokenError), "{text:?}");
        }
        for text in ["0", "1", "9223372036854775807"] {
            assert_eq!(text.parse::<FencingToken>().unwrap().to_string(), text);
        }
        assert!(FencingToken::new(u64::MAX >> 1).is_some());
        assert!(FencingToken::new((u64::MAX >> 1) + 1).is_none());
    }
}
