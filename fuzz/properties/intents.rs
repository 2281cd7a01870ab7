//! Intents. The first byte says how often the rest is repeated, so that short inputs reach the limit.
//!
//! - bytes are an intent exactly up to 64 KiB, and are kept as they are;
//! - a value is the intent that JSON says, and reading it yields JSON again;
//! - `Debug` says how long it is and nothing of what it says.

use lockcore::Intent;
use lockcore::limits::MAX_INTENT_BYTES;
use serde_json::Value;

pub(crate) fn hold(data: &[u8]) {
    let Some((times, rest)) = data.split_first() else {
        return;
    };
    let bytes = rest.repeat(usize::from(*times).pow(2).max(1));
    let intent = Intent::new(bytes.as_slice());
    assert_eq!(intent.is_ok(), bytes.len() <= MAX_INTENT_BYTES);
    if let Ok(intent) = intent {
        assert_eq!(intent.as_bytes(), bytes);
        let debug = format!("{intent:?}");
        assert_eq!(debug, format!("Intent({} bytes)", bytes.len()));
    }
    if let Ok(value) = serde_json::from_slice::<Value>(rest) {
        let repeated = Value::Array(vec![value; usize::from(*times)]);
        let text = serde_json::to_vec(&repeated).expect("a value that was read");
        match Intent::json(&repeated) {
            Ok(intent) => {
                assert_eq!(intent.as_bytes(), text);
                assert!(serde_json::from_slice::<Value>(intent.as_bytes()).is_ok());
            }
            Err(_) => assert!(text.len() > MAX_INTENT_BYTES, "{} bytes", text.len()),
        }
    }
}
