//! [`FencingToken`].

use std::fmt;
use std::str::FromStr;

/// A number that every guard carries and that only rises. Of two grants of one key, the later has the greater token,
/// across release, expiry, takeover, restart and failover of the store, and re-creation of the namespace.
///
/// A resource that remembers the greatest token it has seen, and refuses smaller ones, is safe from a holder that was
/// paused and does not know that its lock is gone. A token that nobody checks protects nobody.
///
/// # The token of a guard and the token of the store
///
/// A grant of the store may pass from one guard of a process to the next, at most 63 times. So the token of a guard is
/// 64 times the store's token of its grant, plus one for each guard that had the grant before. Programs see this token:
/// on a guard, on a recovery, and in the command's environment and output. A registered intent has it too
/// ([`Registered`](crate::backend::Registered)). The token that a store gives out with a grant or an adoption is the
/// store's own, at most [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN). Lists of records and sessions contain no
/// tokens.
///
/// # As a number
///
/// A token is below 2^63, so it fits into a signed 64-bit integer such as SQL's `bigint`. It is printed as a decimal
/// string. It is near 10^17 today, and so above 2^53: JavaScript, jq and the Lua of Redis compute in floating point and
/// confuse it with its neighbours. There, keep it as a string or as a 64-bit integer (`BigInt`), and in JSON as a
/// string. Of two strings, the longer one is the greater token; of two strings of equal length, the later one in text
/// order.
///
/// # Examples
///
/// ```
/// use lockcore::FencingToken;
///
/// let token: FencingToken = "112742891520000064".parse()?;
/// assert_eq!(token.get(), 112_742_891_520_000_064);
/// assert_eq!(token.to_string(), "112742891520000064");
/// assert!("+1".parse::<FencingToken>().is_err());
/// # Ok::<(), lockcore::TokenError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number; `None` from 2^63 on.
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

    /// The store's token of the grant, and the number of other guards of the same process that had the grant before
    /// this guard.
    #[must_use]
    pub const fn grant_and_pass(self) -> (Self, u8) {
        let each = Self::PASSES as u64 + 1;
        let pass = (self.0 % each).to_le_bytes()[0];
        (Self(self.0 / each), pass)
    }

    /// How many guards of one process may have a grant of the store after the first one.
    pub(crate) const PASSES: u8 = 63;

    /// The token of a guard that has the grant, with this token of the store, after so many others of its process.
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
    use crate::limits::MAX_STORE_TOKEN;

    #[test]
    fn tokens_rise_by_grant_and_then_by_pass() {
        let of_the_store = |number| FencingToken::new(number).unwrap();
        let (one, next) = (of_the_store(6), of_the_store(7));
        assert_eq!(one.handed_on(0).get(), 384);
        assert_eq!(one.handed_on(63).get(), 447);
        assert!(one.handed_on(FencingToken::PASSES) < next.handed_on(0));
        let last = of_the_store(MAX_STORE_TOKEN).handed_on(FencingToken::PASSES);
        assert_eq!(last.get(), u64::MAX >> 1);
    }

    #[test]
    fn a_token_says_its_grant_and_its_pass() {
        let greatest = (1 << 57) - 1;
        for (number, pass) in [(0, 0), (1, 0), (1, 63), (greatest, 1), (greatest, 63)] {
            let of_store = FencingToken::new(number).unwrap();
            let token = of_store.handed_on(pass);
            assert_eq!(token.grant_and_pass(), (of_store, pass));
            assert!(FencingToken::new(token.get()).is_some());
        }
        let rise = [(1, 0), (1, 1), (1, 63), (2, 0)];
        let tokens = rise.map(|(number, pass)| FencingToken::new(number).unwrap().handed_on(pass));
        assert!(tokens.is_sorted_by(|before, after| before < after));
    }

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
