//! [`Intent`]: the change that a holder is about to make, for the process that may have to finish it.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::FencingToken;
use crate::limits::MAX_INTENT_BYTES;

/// The holder's own description of the change that it is about to make: at most 64 KiB, JSON by convention.
///
/// `Debug` shows its length, never its content.
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
    /// There are more than 64 KiB.
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
    /// The value cannot be written as JSON, or has more than 64 KiB.
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

/// An intent as its session's record keeps it: with the token of the guard that registered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The guard's token, which is greater than any of the store's. All writes of the holder under its locks carry it.
    pub token: FencingToken,
    /// The description of the change.
    pub intent: Intent,
}

/// Why a value is no intent.
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
