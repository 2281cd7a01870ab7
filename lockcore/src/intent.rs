//! [`Intent`]: what a holder is about to do, for whoever has to finish it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::FencingToken;
use crate::limits::MAX_INTENT_BYTES;

/// The holder's own description of the change that it is about to make: at most 64 KiB, JSON by convention.
///
/// `Debug` shows how long it is, never what it says.
///
/// # Examples
///
/// ```
/// use lockcore::Intent;
///
/// let intent = Intent::json(&serde_json::json!({"rename": ["/clinton", "/bush"]}))?;
/// assert_eq!(intent.as_bytes(), br#"{"rename":["/clinton","/bush"]}"#);
/// assert!(Intent::new(vec![0; 64 * 1024 + 1]).is_err());
/// # Ok::<(), lockcore::IntentError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Intent(Arc<[u8]>);

impl Intent {
    /// An intent of any bytes.
    ///
    /// # Errors
    ///
    /// More than 64 KiB.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, IntentError> {
        let bytes = bytes.into();
        if bytes.len() > MAX_INTENT_BYTES {
            return Err(IntentError::TooLong { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// An intent that is a value as JSON.
    ///
    /// # Errors
    ///
    /// A value that JSON cannot say, and one of more than 64 KiB.
    pub fn json(value: &impl Serialize) -> Result<Self, IntentError> {
        Self::new(serde_json::to_vec(value).map_err(IntentError::Json)?)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Intent({} bytes)", self.0.len())
    }
}

/// An intent as it is kept in its session's record: with the token of the guard that registered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The guard's token, which is greater than any of the store's. Whatever the holder wrote under its locks carries it.
    pub token: FencingToken,
    /// The description of the change.
    pub intent: Intent,
}

/// Why something is no intent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntentError {
    /// More than 64 KiB.
    #[error(
        "an intent has at most {MAX_INTENT_BYTES} bytes, this one has {bytes}: store the rest elsewhere and name it"
    )]
    TooLong {
        /// Bytes of the intent.
        bytes: usize,
    },
    /// The value cannot be written as JSON.
    #[error("the intent cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_on_both_sides_and_a_debug_without_payload() {
        let intent = Intent::new(vec![b'x'; MAX_INTENT_BYTES]).unwrap();
        assert_eq!(format!("{intent:?}"), "Intent(65536 bytes)");
        assert!(matches!(
            Intent::new(vec![b'x'; MAX_INTENT_BYTES + 1]),
            Err(IntentError::TooLong { bytes }) if bytes == MAX_INTENT_BYTES + 1
        ));
    }
}
