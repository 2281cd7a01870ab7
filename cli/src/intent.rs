//! Intents as the command line has them: JSON, as an argument or in a file, and on one line for who recovers.

use std::fs::File;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lockkeeper::limits::MAX_INTENT_BYTES;
use lockkeeper::{FencingToken, Intent, SessionState};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// The intent of `--intent JSON` or `--intent @FILE`; its text is kept as it is.
pub(crate) fn parse(argument: &str) -> Result<Intent, Failure> {
    let bytes = match argument.strip_prefix('@') {
        None => argument.as_bytes().to_vec(),
        Some(file) => read(file)
            .map_err(|error| Failure::usage(format!("--intent @{file} cannot be read: {error}")))?,
    };
    let intent =
        Intent::new(bytes).map_err(|error| Failure::usage(format!("--intent: {error}")))?;
    match serde_json::from_slice::<&RawValue>(intent.as_bytes()) {
        Ok(_) => Ok(intent),
        Err(error) => Err(Failure::usage(format!(
            "--intent is no JSON ({error}): quote it as one argument, or put it into a file and give @FILE"
        ))),
    }
}

/// The file, or enough of it to tell that it is too long.
fn read(file: &str) -> std::io::Result<Vec<u8>> {
    let bound = u64::try_from(MAX_INTENT_BYTES + 1).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    File::open(file)?.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// One line for the command that recovers. Tokens are decimal strings: a JSON number that large is rounded by many
/// readers.
#[derive(Serialize)]
struct Line<'a> {
    session: String,
    label: &'a str,
    token: String,
    old_token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intent_base64: Option<String>,
}

/// The line of an adopted session, with its end.
pub(crate) fn line(
    state: &SessionState,
    token: FencingToken,
    old_token: FencingToken,
    intent: &Intent,
) -> String {
    // An end of line in JSON is never inside a string, so a blank does as well.
    let flat = |text: &str| text.replace(['\n', '\r'], " ");
    let text = std::str::from_utf8(intent.as_bytes()).map(flat);
    let json = text
        .ok()
        .and_then(|text| serde_json::from_str::<Box<RawValue>>(&text).ok());
    let line = Line {
        session: state.session.to_string(),
        label: state.label.as_str(),
        token: token.to_string(),
        old_token: old_token.to_string(),
        intent_base64: json.is_none().then(|| STANDARD.encode(intent.as_bytes())),
        intent: json.as_deref(),
    };
    let mut line = serde_json::to_string(&line).expect("strings and JSON are JSON");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {

    use lockkeeper::{Label, Life, SessionId};

    use super::*;

    fn written(intent: &[u8]) -> String {
        let mut state = SessionState::new(SessionId::new(1), Life::Abandoned);
        state.label = Label::parse("web \"1\"").unwrap();
        let token = |number| FencingToken::new(number).unwrap();
        line(&state, token(9), token(7), &Intent::new(intent).unwrap())
    }

    #[test]
    fn json_stays_as_it_is_on_one_line() {
        let text = written(b"{\"n\": 12345678901234567890.10,\r\n \"s\": \"a\\nb\"}\n");
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["intent"]["s"], "a\nb");
        assert!(text.contains("12345678901234567890.10"), "{text}");
        assert_eq!(value["token"], "9");
        assert_eq!(value["old_token"], "7");
        assert_eq!(value["label"], "web \"1\"");
        assert_eq!(value.get("intent_base64"), None);
    }

    #[test]
    fn other_bytes_are_base64() {
        for (bytes, text) in [
            (&b"\xff\x00"[..], "/wA="),
            (b"{oops", "e29vcHM="),
            (b"", ""),
        ] {
            let value: serde_json::Value = serde_json::from_str(&written(bytes)).unwrap();
            assert_eq!(value["intent_base64"], text);
            assert_eq!(value.get("intent"), None);
        }
    }

    #[test]
    fn only_json_is_an_intent() {
        assert_eq!(parse("{\"a\": 1}").unwrap().as_bytes(), b"{\"a\": 1}");
        for bad in ["", "rename", "{\"a\": 1", "{} {}", "@/nonexistent"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
